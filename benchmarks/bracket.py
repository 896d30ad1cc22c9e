"""Certified ≤ robust ≤ attacked: both ends for published networks, beside published numbers.

Usage: python benchmarks/bracket.py [--models kw_mnist,wk17a] [--n 100] [--seconds 5] [--start 0]

BRINELL_SHARED names the folder with networks and data. Seconds are CPU seconds of one process. Every finished sample is
one line of results/bracket.jsonl; a sample that is there is not computed again. Writes results/bracket.md.
"""

import argparse
import gzip
import json
import resource
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from published import FOLDER, SHARED, published

import brinell
from brinell.certification import Bounds
from brinell.results.statistics import wilson

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "bracket.jsonl"
FASHION = Path("/usr/share/datasets/fashion-mnist")
PUBLISHED = {
    "wk17a": "exactly 95.62 (10,000)",
    "rsl18a": "69.19 to 85.64 (10,000)",
    "kw_mnist": "certified 94.2, PGD 95.9 (10,000)",
    "kw_fashion": "certified 65.5, PGD 68.4 (10,000)",
    "sdp_mnist_a_adv": "certified 76.0, attacked 76.5 (200)",
    "sdp_a_adv": "certified 48.5, attacked 50.0 (200)",
    "sdp_a_mix": "certified 48.0, attacked 53.0 (200)",
}


def idx(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The test images and labels of an idx folder."""
    raw = [gzip.decompress((folder / f"t10k-{name}-ubyte.gz").read_bytes()) for name in ("images-idx3", "labels-idx1")]
    x = np.frombuffer(raw[0], np.uint8, offset=16).reshape(-1, 1, 28, 28).copy()
    return torch.from_numpy(x).float() / 255, torch.from_numpy(np.frombuffer(raw[1], np.uint8, offset=8).copy()).long()


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name.startswith("sdp_"):
        stored = np.load(FOLDER / ("sdp_mnist_200.npz" if "mnist" in name else "sdp_cifar_200.npz"))
        return torch.from_numpy(stored["x"]).float() / 255, torch.from_numpy(stored["y"])
    return idx(FASHION if "fashion" in name else SHARED / "data" / "mnist")


def stored() -> dict[str, dict[int, dict[str, Any]]]:
    lines: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in LINES.read_text().splitlines() if LINES.exists() else []:
        row = json.loads(line)
        lines[row["model"]][row["index"]] = row
    return lines


def run(name: str, start: int, n: int, seconds: float) -> None:
    """Attack and certify the samples start to start + n of one network that are not stored yet."""
    model, (x, y) = published(name), data(name)
    known = stored()[name]
    index = [i for i in range(start, min(start + n, len(x))) if i not in known]
    if not index:
        return
    x, y = x[index], y[index]
    eps = json.loads((FOLDER / "networks.json").read_text())[name]["eps"]
    threat = brinell.Linf(eps)
    before = time.process_time()
    attacked = brinell.evaluate(model, (x, y), threat, "fast", progress=False, test=False)
    spent = (time.process_time() - before) / len(index)
    correct = model.forward(x).logits.argmax(1) == y
    broken = set(attacked.adversarials().ids.tolist())
    bounds = Bounds(model, seconds=seconds, clock=time.process_time)
    for row, i in enumerate(index):
        line: dict[str, Any] = {"model": name, "index": i, "correct": bool(correct[row]), "attack_seconds": spent}
        if correct[row]:
            c = bounds.certify(x[row : row + 1], y[row : row + 1], threat)[0]
            verified = c.counterexample is not None and _verified(model, x[row], y[row], c.counterexample, threat)
            line |= {
                "broken": row in broken, "certified": c.certified, "method": c.method, "margin": c.margin,
                "stopped": c.stopped, "seconds": c.seconds, "passes": c.passes, "broken_by_bounds": verified,
            }  # fmt: skip
        with LINES.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _verified(model: Any, x: torch.Tensor, y: torch.Tensor, point: torch.Tensor, threat: Any) -> bool:
    """Whether a counterexample of the bounds is adversarial on the model, in float32, inside the ball."""
    ball = threat.ball(torch.zeros(1, dtype=torch.long), x.device)
    inside = ball.project(x[None], point[None])
    return bool(ball.contains(x[None], inside)) and bool(model.forward(inside).logits.argmax(1) != y)


def percent(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{100 * k / n:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def table() -> str:
    head = "| model | n | clean | certified | attacked, fast | attacked, with bounds | open | both | published (n) |"
    out = [head, "|" + "---|" * 9]
    costs = ["", "| model | method | decided | CPU seconds per sample |", "|---|---|---|---|"]
    for name, rows in stored().items():
        lines = list(rows.values())
        right = [r for r in lines if r["correct"]]
        certified = sum(r["certified"] for r in right)
        fast = sum(not r["broken"] for r in right)
        standing = [r for r in right if not (r["broken"] or r["broken_by_bounds"])]
        both = sum(r["certified"] and (r["broken"] or r["broken_by_bounds"]) for r in right)
        n = len(lines)
        ends = [percent(k, n) for k in (len(right), certified, fast, len(standing))]
        open_ = sum(not r["certified"] for r in standing)
        out.append(f"| {name} | {n} | {' | '.join(ends)} | {open_} | {both} | {PUBLISHED.get(name, '–')} |")
        costs.append(f"| {name} | attack, fast | – | {lines[0]['attack_seconds']:.2f} |")
        for method, count in Counter(r["method"] for r in right if r["certified"]).items():
            spent = [r["seconds"] for r in right if r["certified"] and r["method"] == method]
            costs.append(f"| {name} | {method} | {count} | {np.mean(spent):.2f} |")
        spent = [r["seconds"] for r in right if not r["certified"]]
        costs.append(f"| {name} | not certified | {len(spent)} | {np.mean(spent) if spent else 0:.2f} |")
    return "\n".join(out + costs) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(PUBLISHED))
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for model_name in given.models.split(","):
        run(model_name, given.start, given.n, given.seconds)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        (RESULTS / "bracket.md").write_text(f"# Brackets of published networks\n\n{table()}")
        print(f"{model_name}: peak memory {peak:.1f} GiB\n{table()}", flush=True)
