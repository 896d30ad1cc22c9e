"""Resident memory of an evaluation of many samples, as they are done, and of reading a Run with many rows.

Run: python benchmarks/memory.py [--n 100000] [--images], then python benchmarks/memory.py --large FOLDER, which makes a
Run of a million rows in FOLDER, unless it is there, and opens, reports and verifies it in processes of their own. Both
write benchmarks/results/memory.json and memory.md, and the first the plot memory.svg where matplotlib is installed.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import brinell
from brinell.evaluation import run_plan
from brinell.ops import rng

RESULTS = Path(__file__).parent / "results"
SHAPE, CLASSES, EPS = (3, 32, 32), 10, 0.01
EVERY = 0.5
TASKS = ("open", "json", "html", "verify")
PAGE = resource.getpagesize()


class Synthetic(Dataset):  # type: ignore[type-arg]
    """Images made when they are asked for, a function of their index; labels are those a linear model gives them."""

    def __init__(self, net: nn.Module, n: int) -> None:
        self.net, self.n = net, n

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, Tensor]]:
        x = rng.uniform(rng.keys(1, torch.tensor(index)), SHAPE)
        with torch.no_grad():
            return list(zip(x, self.net(x).argmax(1), strict=True))

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([i])[0]


def linear() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, CLASSES))
    noise = rng.normal(rng.keys(2, torch.arange(CLASSES)), SHAPE).flatten(1)
    with torch.no_grad():
        net[1].weight.copy_(noise / 55)
        net[1].bias.zero_()
    return net.eval().requires_grad_(False)


def resident() -> float:
    """MiB of memory in use by this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


class BestSoFar(threading.Thread):
    """Notes time, samples done and resident memory every half second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.begun, self.points, self.over = 0, time.perf_counter(), [], threading.Event()

    def run(self) -> None:
        while not self.over.wait(EVERY):
            self.note()

    def note(self) -> None:
        self.points.append((round(time.perf_counter() - self.begun, 2), self.done, round(resident(), 1)))


def measure(n: int, images: bool) -> dict[str, Any]:
    net = linear()
    recorder = BestSoFar()
    clean_rows = run_plan.clean_rows

    def counting(c: Any, at: Any, *rest: Any) -> Any:
        recorder.done += len(at)
        return clean_rows(c, at, *rest)

    run_plan.clean_rows = counting
    with tempfile.TemporaryDirectory() as folder:
        recorder.start()
        begun, spent = time.perf_counter(), time.process_time()
        run = brinell.evaluate(
            net, Synthetic(net, n), brinell.Linf(EPS), "fgsm", out=f"{folder}/run", progress=False, images=images
        )
        seconds, spent = time.perf_counter() - begun, time.process_time() - spent
        recorder.over.set()
        recorder.join()
        recorder.note()
        before = resident()
        accuracy, verdict = run.robust_accuracy, run.verdict.level
        narrow = resident() - before
        rows = run.rows()
        return {
            "n": n,
            "images": images,
            "seconds": seconds,
            "processor": spent,
            "points": recorder.points,
            "robust": [accuracy.k, accuracy.n],
            "verdict": verdict,
            "rows": rows.num_rows,
            "reading": {"numbers": run.numbers().nbytes / 2**20, "all": rows.nbytes / 2**20, "grown": narrow},
            "disk": sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) / 2**20,
        }


class Small(Dataset):  # type: ignore[type-arg]
    """Samples of 16 numbers; the label says which of the first two is larger."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitems__(self, index: list[int]) -> list[tuple[Tensor, Tensor]]:
        x = rng.uniform(rng.keys(0, torch.tensor(index)), (16,))
        return list(zip(x, (x[:, 0] > x[:, 1]).long(), strict=True))

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([i])[0]


def larger() -> nn.Module:
    """Return the model that gives these labels."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.zero_()
        net[1].weight[1, 0] = net[1].weight[0, 1] = 1
    return net.eval().requires_grad_(False)


def read_large(folder: Path, task: str, n: int) -> dict[str, Any]:
    """Open a Run and print, report or verify it in this process; return the memory before and the largest memory."""
    from brinell.report import text

    before, spent = resident(), time.process_time()
    run = brinell.Run.open(folder)
    if task == "verify":
        assert brinell.verify(run, larger(), Small(n)).ok
    else:
        print(len(str(run) if task == "open" else text([run], task)), file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"task": task, "before": before, "peak": peak, "processor": time.process_time() - spent}


def large(folder: Path, n: int = 500_000) -> list[dict[str, Any]]:
    """Make a Run with two rows for each of n samples, and read it in processes of their own."""
    if not (folder / "manifest.json").exists():
        brinell.evaluate(larger(), Small(n), brinell.Linf(0.05), "fgsm", out=folder, progress=False)
    done = []
    for task in TASKS:
        command = [sys.executable, __file__, "--large", str(folder), "--task", task, "--n", str(n)]
        done.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(done[-1], flush=True)
    return done


def around(points: list[Any], done: float) -> float:
    """The largest memory while up to so many samples were done and at least half as many."""
    return max((p[2] for p in points if done / 2 <= p[1] <= done), default=float("nan"))


def page(r: dict[str, Any]) -> str:
    n, points = r["n"], r["points"]
    at = [n // 8, n // 4, n // 2, n]
    peaks = [around(points, k) for k in at]
    kept = "stored" if r["images"] else "verified and not stored (`--no-images`)"
    lines = [
        "# Memory of a long evaluation",
        "",
        f"`python benchmarks/memory.py`: {n:,} images of 3 × 32 × 32 made on the way (they would fill "
        f"{n * 12288 / 2**20:,.0f} MiB), a linear model, the plan `fgsm`, one thread, "
        f"adversarials {kept}. It took {r['seconds']:.0f} s on the clock "
        f"({r['processor']:.0f} s of processor time); {r['rows']:,} rows, {r['disk']:.0f} MiB on disk.",
        "",
        "| samples done | largest resident memory, MiB |",
        "|---|---|",
        *(f"| {k // 2:,} to {k:,} | {p:,.0f} |" for k, p in zip(at, peaks, strict=True)),
        "",
        f"From the first eighth to the last half the peak changes by {peaks[-1] - peaks[0]:+.0f} MiB.",
        "",
        f"Reading the result: accuracies, cost and verdict hold {r['reading']['numbers']:.1f} MiB of columns, "
        f"{2**20 * r['reading']['numbers'] / r['rows']:.0f} bytes a row; all columns {r['reading']['all']:.1f} MiB.",
        "",
        "![resident memory against samples done](memory.svg)",
        "",
    ]
    if "large" in r:
        lines += [
            "## A Run of a million rows",
            "",
            "`python benchmarks/memory.py --large FOLDER`: 500,000 samples of 16 numbers, clean pass and `fgsm`, with "
            "adversarials. Each task in a process of its own, which imports torch first.",
            "",
            "| task | memory before, MiB | largest memory, MiB | bytes a row | processor, s |",
            "|---|---|---|---|---|",
            *(
                f"| {t['task']} | {t['before']:,.0f} | {t['peak']:,.0f} | "
                f"{(t['peak'] - t['before']) * 2**20 / 1e6:,.0f} | {t['processor']:.0f} |"
                for t in r["large"]
            ),
            "",
        ]
    return "\n".join(lines)


def plot(r: dict[str, Any], file: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no matplotlib, no plot")
        return
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([p[1] for p in r["points"]], [p[2] for p in r["points"]], linewidth=1.2)
    axes.set(xlabel="samples done", ylabel="resident memory, MiB", ylim=(0, None), xlim=(0, r["n"]))
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
    axes.set_title(f"{r['n']:,} samples", fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(alpha=0.3)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--large", type=Path)
    parser.add_argument("--task", choices=TASKS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task is not None:
        print(json.dumps(read_large(args.large, args.task, args.n)))
        return
    stored = json.loads((RESULTS / "memory.json").read_text())
    if args.large is not None:
        result = {**stored, "large": large(args.large)}
    else:
        result = {**measure(args.n, args.images), **({"large": stored["large"]} if "large" in stored else {})}
        plot(result, RESULTS / "memory.svg")
    (RESULTS / "memory.json").write_text(json.dumps(result) + "\n")
    (RESULTS / "memory.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
