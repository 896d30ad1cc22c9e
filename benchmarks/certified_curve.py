"""The certified curve of a large network at small radii: the PreAct-ResNet-18 for CIFAR-10, half a million neurons.

Usage: python benchmarks/certified_curve.py [--n 20] [--start 0] [--largest 0.1]

BRINELL_SHARED names the folder with the network and the data. The ranges of all values are computed once per sample,
for the largest radius; they hold for smaller radii too, where only the bound on the margins is computed again. APGD
attacks the same samples at every radius. Seconds are CPU seconds of one process on one core. Every finished sample is
one line of results/certified_curve.jsonl; a sample that is there for the same largest radius and as much work is not
computed again.
Writes results/certified_curve.md, with `--n 0` nothing else.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bracket import cifar, percent
from published import par18

import brinell
from brinell.attacks import APGD
from brinell.certification import trace
from brinell.certification.interval import Region
from brinell.certification.large.deviations import WORK, deviation_ranges
from brinell.certification.linear_bounds import margins

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "certified_curve.jsonl"
# In units of 1/255.
RADII = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 8.0)


def stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


@torch.no_grad()
def certified(model: Any, x: torch.Tensor, y: torch.Tensor, largest: float) -> dict[str, Any]:
    """Return the bound on the margin of one sample at every radius up to the largest, and what it cost."""
    before, network = time.process_time(), trace(model, tuple(x.shape[1:]))
    ranges = deviation_ranges(network, Region.of(x, brinell.Linf(largest / 255)))
    logits = model.forward(x).logits
    assert ((logits >= ranges.lower[-1]) & (logits <= ranges.upper[-1])).all()
    bounds = {}
    for radius in (r for r in RADII if r <= largest):
        region = Region.of(x, brinell.Linf(radius / 255))
        bounds[str(radius)] = round(float(margins(network, ranges, region, y).min()), 5)
    undecided = sum(
        int(((ranges.lower[i] < 0) & (ranges.upper[i] > 0)).sum())
        for i in (network.nodes[k].inputs[0] for k in network.activations)
    )
    seconds = round(time.process_time() - before, 1)
    gib = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return {"bounds": bounds, "undecided": undecided, "neurons": network.neurons, "seconds": seconds, "gib": gib}


def attacked(model: Any, x: torch.Tensor, y: torch.Tensor, largest: float) -> list[float]:
    """Return the radii up to the largest at which APGD changes the class."""
    radii = [r for r in RADII if r <= largest]
    points = (APGD(steps=20)(model, x, y, brinell.Linf(r / 255)) for r in radii)
    return [r for r, point in zip(radii, points, strict=True) if int(model.forward(point).logits.argmax(1)) != int(y)]


def run(start: int, n: int, largest: float) -> None:
    """Attack and bound the samples that are not stored yet."""
    model, (x, y) = par18(), cifar()
    known = {(row["index"], row["largest"], row["work"]) for row in stored()}
    for i in (i for i in range(start, start + n) if (i, largest, WORK) not in known):
        logits = model.forward(x[i : i + 1]).logits[0]
        margin = float(logits[y[i]] - logits.scatter(0, y[i], -torch.inf).max())
        line: dict[str, Any] = {"index": i, "largest": largest, "work": WORK, "margin": round(margin, 5)}
        if margin > 0:
            line["broken"] = attacked(model, x[i : i + 1], y[i : i + 1], largest)
            line |= certified(model, x[i : i + 1], y[i : i + 1], largest)
        with LINES.open("a") as file:
            file.write(json.dumps(line) + "\n")


def table(rows: list[dict[str, Any]], largest: float, work: float) -> str:
    """Both ends at every radius, as Markdown."""
    right = [row for row in rows if row["margin"] > 0]
    out = ["| radius | n | certified | attacked, APGD | both |", "|---|---|---|---|---|"]
    for r in (r for r in RADII if r <= largest):
        sure = [row["bounds"][str(r)] > 0 for row in right]
        broken = [r in row["broken"] for row in right]
        both = sum(a and b for a, b in zip(sure, broken, strict=True))
        ends = f"{percent(sum(sure), len(rows))} | {percent(len(right) - sum(broken), len(rows))}"
        out.append(f"| {r:g}/255 | {len(rows)} | {ends} | {both} |")
    if right:
        spent, undecided = (np.mean([row[k] for row in right]) for k in ("seconds", "undecided"))
        out.append(
            f"\nRanges at {largest:g}/255, {work:.1g} multiplications per node: {spent:.0f} CPU seconds per sample, "
            f"{max(row['gib'] for row in right)} GiB at most; {undecided:,.0f} of "
            f"{right[0]['neurons']:,} neurons undecided on average."
        )
    return "\n".join(out)


PAGE = """# The certified curve of the PreAct-ResNet-18 for CIFAR-10

n of the first 20 test images, by `benchmarks/certified_curve.py`; intervals at 95 %. The claim is about the network as
float32 computes it. Raw results: certified_curve.jsonl.

{tables}
"""


def write() -> None:
    """Write the page from the stored lines."""
    rows = stored()
    sizes = sorted({(row["largest"], row["work"]) for row in rows})
    tables = [table([row for row in rows if (row["largest"], row["work"]) == size], *size) for size in sizes]
    (RESULTS / "certified_curve.md").write_text(PAGE.format(tables="\n\n".join(tables)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--largest", type=float, default=0.1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    run(given.start, given.n, given.largest)
    write()
