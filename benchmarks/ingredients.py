"""Which attack, loss or ranking breaks the samples that `autoattack` breaks and `fast` does not.

Usage: python benchmarks/ingredients.py NAME … --references RUNS

The networks are those of validation_networks.py, RUNS the folder of its references. Only the missed samples are
attacked, each with every ingredient.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from validation_networks import N, load

import brinell
from brinell import Problem, Restarts, Run, Stage, Targets
from brinell.attacks import ACG, APGD, FAB, Square
from brinell.core.plan import stage

INGREDIENTS: dict[str, Stage] = {
    "APGD(50) on ce": stage(APGD(50, "ce")),
    "APGD(50) on the probability margin": stage(APGD(50, "probability-margin")),
    "APGD(50), 3 targets": Targets(APGD(50, "minimum-margin"), 3),
    "APGD(50), 3 targets by MALT": Targets(APGD(50, "minimum-margin"), 3, ranked_by="malt"),
    "APGD(50), 9 targets": Targets(APGD(50, "minimum-margin"), 9),
    "ACG(50) on the margin": stage(ACG(50)),
    "ACG(50) on the margin, 4 starts": Restarts(ACG(50), 4),
    "ACG(50), 3 targets": Targets(ACG(50, "minimum-margin"), 3),
    "FAB(25), 3 targets": Targets(FAB(25, targeted=True), 3),
    "Square, 500 queries": stage(Square(500)),
}


def riskiness(run: Run) -> list[int]:
    """The survivors by the share of their clean margin that is left, smallest first."""
    left = {r["sample_id"]: r["adv_margin"] / r["clean_margin"] for r in run.rows().to_pylist() if r["adv_margin"]}
    return sorted(run.survivors().tolist(), key=left.__getitem__)


def compare(name: str, references: Path) -> None:
    w = load(name, N)
    run = brinell.evaluate(w.net, (w.x, w.y), w.threat, "fast", audit=0, device="cpu", progress=False)
    full = Run.open(references / name)
    order, standing = riskiness(run), set(full.survivors().tolist())
    missed = np.array(sorted(set(order) - standing), dtype=np.int64)
    print(f"{name}, {w.threat}: fast {run.robust_accuracy}, autoattack {full.robust_accuracy}")
    print(f"  {len(missed)} missed, {len(standing - set(order))} found by fast only", flush=True)
    if not len(missed):
        return
    print(f"  their places by risk: {sorted(order.index(i) for i in missed.tolist())} of {len(order)}", flush=True)
    problem = Problem(w.x[missed], w.y[missed], ids=torch.from_numpy(missed))
    for label, part in INGREDIENTS.items():
        if w.threat.norm in part.attack.norms:
            rows = brinell.attack(w.net, problem, w.threat, part)
            found = [i for i, broken in zip(rows["sample_id"], rows["broken"], strict=True) if broken.as_py()]
            print(f"  {label}: {len(found)} of {len(missed)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--references", type=Path, default=Path("references"))
    args = parser.parse_args()
    for name in args.names:
        compare(name, args.references)


if __name__ == "__main__":
    main()
