"""How long the corruptions of a whole test set take: 10,000 images of 32 × 32, every corruption at every severity.

Run: python benchmarks/corruptions.py [--n 10000] [--size 32] [--batch 10000] [--device cuda]. Writes
benchmarks/results/corruptions.json and corruptions.md. Images are made where they are corrupted, so that the time is
that of the corruptions alone; the products of matrices are counted as well, from one batch.
"""

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from brinell.data.corruptions import COMMON, CORRUPTIONS, SEVERITIES, corrupt
from brinell.data.corruptions.weather import clouds
from brinell.ops import rng

RESULTS = Path(__file__).parent / "results"
COUNTED = 50


def images(ids: Tensor, size: int) -> Tensor:
    """Clouds in three colours, 8 bits."""
    power = 1 << (size - 1).bit_length()
    key = rng.keys(1, ids)
    x = torch.stack([clouds(rng.fold(key, c), power, 1.7)[:, :size, :size] for c in range(3)], 1)
    return (x * 255).round() / 255


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def seconds(name: str, severity: int, n: int, size: int, batch: int, device: torch.device) -> float:
    total = 0.0
    for i in range(0, n, batch):
        ids = torch.arange(i, min(i + batch, n), device=device)
        x = images(ids, size)
        begun = clock(device)
        corrupt(x, name, severity, ids)
        total += clock(device) - begun
    return total


def flops(name: str, severity: int, size: int, device: torch.device) -> float:
    """Multiplications and additions of matrix products, per image."""
    ids = torch.arange(COUNTED, device=device)
    x = images(ids, size)
    with FlopCounterMode(display=False) as counter:
        corrupt(x, name, severity, ids)
    return counter.get_total_flops() / COUNTED


def measure(n: int, size: int, batch: int, device: torch.device) -> dict[str, Any]:
    rows = []
    for name in CORRUPTIONS:
        seconds(name, 1, min(batch, n), size, batch, device)  # tables, plans and kernels are made the first time
        taken = [seconds(name, s, n, size, batch, device) for s in SEVERITIES]
        counted = [flops(name, s, size, device) for s in SEVERITIES]
        rows.append({"name": name, "common": name in COMMON, "seconds": taken, "flops": counted})
        print(f"{name:20} {sum(taken):8.2f} s  {max(counted) / 1e6:8.2f} MFLOP", flush=True)
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "n": n, "size": size, "batch": batch, "device": place, "torch": torch.__version__,
        "python": platform.python_version(), "gib": memory, "rows": rows,
    }  # fmt: skip


def page(found: dict[str, Any]) -> str:
    common = sum(sum(r["seconds"]) for r in found["rows"] if r["common"])
    everything = sum(sum(r["seconds"]) for r in found["rows"])
    memory = "" if found["gib"] is None else f" At most {found['gib']:.1f} GiB of the device's memory were in use."
    lines = [
        "# Corruptions of a test set",
        "",
        f"{found['n']:,} images of {found['size']} × {found['size']} in batches of {found['batch']:,} on "
        f"{found['device']}, torch {found['torch']}: the 15 common corruptions at 5 severities took {common:.2f} s, "
        f"all 19 {everything:.2f} s.{memory}",
        "",
        "| corruption | seconds at severity 1 | 2 | 3 | 4 | 5 | matrix products, MFLOP per image (largest) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        times = " | ".join(f"{t:.3f}" for t in row["seconds"])
        lines.append(f"| {row['name']} | {times} | {max(row['flops']) / 1e6:.2f} |")
    return "\n".join([*lines, "", "Made by `python benchmarks/corruptions.py`.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    device = torch.device(given.device)
    batch = given.batch or (10_000 if device.type == "cuda" else 500)
    found = measure(given.n, given.size, min(batch, given.n), device)
    given.out.mkdir(exist_ok=True)
    (given.out / "corruptions.json").write_text(json.dumps(found, indent=1) + "\n")
    (given.out / "corruptions.md").write_text(page(found))


if __name__ == "__main__":
    main()
