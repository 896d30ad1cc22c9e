"""Certified ≤ robust ≤ attacked: both ends for published networks, beside published numbers.

Usage: python benchmarks/bracket.py [--models kw_mnist,wk17a] [--n 100] [--seconds 5] [--start 0] [--again]

BRINELL_SHARED names the folder with networks and data. Seconds are CPU seconds of one process. Every finished sample is
one line of results/bracket.jsonl, with its limit in seconds and the version of the code; the last line of a sample
counts. A sample that is there is not computed again, but `--again` computes samples that another version, or a lower
limit, left open. Writes results/bracket.md, with `--n 0` nothing else.
"""

import argparse
import gzip
import json
import resource
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from published import FOLDER, SHARED, published

import brinell
from brinell.certification import Bounds
from brinell.results.statistics import wilson

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "bracket.jsonl"
METHODS = ("interval", "crown", "optimised", "branch-and-bound")
# Samples attacked, and certified, at a time.
ATTACKED, CERTIFIED = 200, 8
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


def cifar() -> tuple[torch.Tensor, torch.Tensor]:
    """The CIFAR-10 test images and labels, from a lossless grid of 100 × 100 tiles."""
    grid = np.asarray(Image.open(SHARED / "data" / "cifar10" / "test_batch.webp").convert("RGB"))
    tiles = grid.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    labels = np.load(SHARED / "data" / "cifar10" / "labels.npz")["test"]
    return torch.from_numpy(tiles.copy()).float() / 255, torch.from_numpy(labels).long()


def test_set(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole test set that a network belongs to."""
    kind = json.loads((FOLDER / "networks.json").read_text())[name]["data"]
    return cifar() if kind == "cifar" else idx(FASHION if kind == "fashion" else SHARED / "data" / "mnist")


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples whose numbers were published: all, or the 200 of a stored file."""
    if not name.startswith("sdp_"):
        return test_set(name)
    stored = np.load(FOLDER / ("sdp_mnist_200.npz" if "mnist" in name else "sdp_cifar_200.npz"))
    return torch.from_numpy(stored["x"]).float() / 255, torch.from_numpy(stored["y"])


def stored() -> dict[str, dict[int, dict[str, Any]]]:
    lines: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for line in LINES.read_text().splitlines() if LINES.exists() else []:
        row = json.loads(line)
        lines[row["model"]][row["index"]] = row
    return lines


def version() -> str:
    """The commit of the code."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


VERSION = version()


def is_open(row: dict[str, Any]) -> bool:
    return row["correct"] and not (row["certified"] or row["broken"] or row["broken_by_bounds"])


def improvable(row: dict[str, Any], seconds: float) -> bool:
    """Whether a sample is open and was stopped by another version or a lower limit."""
    return is_open(row) and (row.get("version") != VERSION or row["limit"] < seconds)


def run(name: str, start: int, n: int, seconds: float, again: bool) -> None:
    """Attack and certify the samples start to start + n of one network that are not stored yet."""
    model, (x, y) = published(name), data(name)
    known = stored()[name]
    index = [
        i for i in range(start, min(start + n, len(x))) if i not in known or (again and improvable(known[i], seconds))
    ]
    threat = brinell.Linf(json.loads((FOLDER / "networks.json").read_text())[name]["eps"])
    for part in torch.tensor(index, dtype=torch.long).split(ATTACKED):
        if len(part):
            _attacked_and_certified(name, model, x[part], y[part], part, threat, seconds)


def _attacked_and_certified(
    name: str, model: Any, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor, threat: Any, seconds: float
) -> None:
    before = time.process_time()
    attacked = brinell.evaluate(model, (x, y), threat, "fast", progress=False, test=False)
    spent = round((time.process_time() - before) / len(x), 4)
    correct = model.forward(x).logits.argmax(1) == y
    broken = torch.isin(torch.arange(len(x)), torch.from_numpy(attacked.adversarials().ids)) & correct
    # Broken samples are tried too, by interval and CROWN: a certificate for one would show a defect.
    bounds = {b: Bounds(model, METHODS[: 2 if b else 4], seconds, time.process_time) for b in (False, True)}
    for rows in torch.arange(len(x)).split(CERTIFIED):
        lines: dict[int, dict[str, Any]] = {
            row: {
                "model": name,
                "index": int(index[row]),
                "correct": bool(correct[row]),
                "attack_seconds": spent,
                "version": VERSION,
            }
            for row in rows.tolist()
        }
        for b, certifier in bounds.items():
            some = rows[correct[rows] & (broken[rows] == b)]
            for row, c in zip(some.tolist(), certifier.certify(x[some], y[some], threat), strict=True):
                verified = c.counterexample is not None and _verified(model, x[row], y[row], c.counterexample, threat)
                lines[row] |= {
                    "broken": b, "certified": c.certified, "method": c.method, "margin": round(c.margin, 5),
                    "stopped": c.stopped, "seconds": round(c.seconds, 4), "passes": c.passes,
                    "broken_by_bounds": verified, "limit": seconds,
                }  # fmt: skip
        _write(list(lines.values()))


def _write(lines: list[dict[str, Any]]) -> None:
    gib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    with LINES.open("a") as file:
        file.writelines(json.dumps(line | {"gib": gib}) + "\n" for line in lines)


def _verified(model: Any, x: torch.Tensor, y: torch.Tensor, point: torch.Tensor, threat: Any) -> bool:
    """Whether a counterexample of the bounds is adversarial on the model, in float32, inside the ball."""
    ball = threat.ball(torch.zeros(1, dtype=torch.long), x.device)
    inside = ball.project(x[None], point[None])
    return bool(ball.contains(x[None], inside)) and bool(model.forward(inside).logits.argmax(1) != y)


def percent(k: int, n: int) -> str:
    low, high = wilson(k, n)
    return f"{100 * k / n:.1f} ({100 * low:.1f}–{100 * high:.1f})"


def first_samples() -> dict[str, list[dict[str, Any]]]:
    """The stored lines of every network, up to the first sample that is missing."""
    found = {}
    for name, rows in stored().items():
        n = next(i for i in range(len(rows) + 1) if i not in rows)
        found[name] = [rows[i] for i in range(n)]
    return {name: lines for name, lines in found.items() if lines}


def table() -> str:
    """Both ends of every network, as Markdown."""
    head = "| model | n | clean | certified | attacked, fast | attacked, with bounds | open | both | published (n) |"
    out = [head, "|" + "---|" * 9]
    for name, lines in first_samples().items():
        right = [r for r in lines if r["correct"]]
        certified = sum(r["certified"] for r in right)
        fast = sum(not r["broken"] for r in right)
        standing = [r for r in right if not (r["broken"] or r["broken_by_bounds"])]
        both = sum(r["certified"] and (r["broken"] or r["broken_by_bounds"]) for r in right)
        ends = [percent(k, len(lines)) for k in (len(right), certified, fast, len(standing))]
        open_ = sum(is_open(r) for r in lines)
        out.append(f"| {name} | {len(lines):,} | {' | '.join(ends)} | {open_} | {both} | {PUBLISHED.get(name, '–')} |")
    return "\n".join(out)


def costs() -> str:
    """What each method decided, and its CPU seconds, as Markdown."""
    out = ["| model | method | samples | CPU seconds per sample | peak memory, GiB |", "|---|---|---|---|---|"]
    for name, lines in first_samples().items():
        right, peak = [r for r in lines if r["correct"]], max(r["gib"] for r in lines)
        spent = {"attack, fast": [r["attack_seconds"] for r in lines]}
        for method in METHODS:
            label = f"certified by {method}"
            spent[label] = [r["seconds"] for r in right if r["certified"] and r["method"] == method]
        spent["counterexample found by bounds"] = [r["seconds"] for r in right if r["broken_by_bounds"]]
        left = [r for r in right if not (r["certified"] or r["broken_by_bounds"])]
        spent["not certified, broken by the attack (no search)"] = [r["seconds"] for r in left if r["broken"]]
        spent["open"] = [r["seconds"] for r in left if not r["broken"]]
        out += [f"| {name} | {k} | {len(v)} | {np.mean(v):.2f} | {peak:.1f} |" for k, v in spent.items() if v]
    return "\n".join(out)


def versions() -> str:
    """The limits in seconds and the versions of the stored lines, as Markdown."""
    out = ["| model | seconds | version | samples |", "|---|---|---|---|"]
    for name, lines in first_samples().items():
        found = Counter((r["limit"], r.get("version", "–")) for r in lines if r["correct"])
        out += [f"| {name} | {limit:g} | {version} | {n:,} |" for (limit, version), n in sorted(found.items())]
    return "\n".join(out)


def hard() -> str:
    """The samples that others proved unsafe, as Markdown."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in (RESULTS / "activation_search.jsonl").read_text().splitlines():
        row = json.loads(line)
        found[row["model"]].append(row)
    out = ["| model | samples | broken | standing | CPU seconds per sample |", "|---|---|---|---|---|"]
    for name, rows in found.items():
        last = {r["index"]: r for r in rows}
        left = [str(i) for i, r in last.items() if not r["broken"]]
        spent = np.mean([r["seconds"] for r in rows])
        out.append(f"| {name} | {len(last)} | {len(last) - len(left)} | {', '.join(left) or '–'} | {spent:.1f} |")
    return "\n".join(out)


PAGE = """# Brackets of published networks

The first n samples, n in the table; intervals at 95 %. Seconds are CPU seconds of one core of a shared machine, without
a GPU. `both` counts samples that are certified and broken. Samples that the attack broke are given to interval and
CROWN too, because a certificate for one of them would show a defect. Every method has {limit}
per sample. Raw results: bracket.jsonl.

{table}

{costs}

Seconds that every method had, and the version of the code (an early one is not recorded); `--again` replaces lines.

{versions}

# The PreAct-ResNet-18 for CIFAR-10

The first 5 test images (5 classified correctly), interval and CROWN with 2 seconds per sample on one core: 0 certified
at 8/255, 3.5 CPU seconds per sample, 1.9 GiB, no error. Small radii: certified_curve.md, by
`benchmarks/certified_curve.py`.

# Samples proved unsafe by others

The search of the plan `exact` alone, on the samples of ../shared/models/published/hard_indices.json; every point is
checked on the model in float32. The list is a hard subset, not a rate. Raw results: activation_search.jsonl. With
the branch and bound of the version before, which visits other subproblems, the same 15 batches broke 38 of the 49, at
4 to 7 CPU seconds per sample.

{hard}
"""


def write() -> None:
    """Write the page from the stored lines."""
    limits = {row["limit"] for rows in first_samples().values() for row in rows if row["correct"]}
    limit = " or ".join(f"{v:g}" for v in sorted(limits)) + " seconds"
    (RESULTS / "bracket.md").write_text(
        PAGE.format(limit=limit, table=table(), costs=costs(), versions=versions(), hard=hard())
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(PUBLISHED))
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for model_name in given.models.split(","):
        run(model_name, given.start, given.n, given.seconds, given.again)
    write()
