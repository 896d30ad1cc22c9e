"""AutoAttack on a CIFAR-10 network, stage by stage, beside the recorded outcome of the reference implementation.

Usage: python benchmarks/autoattack_cifar.py --weights W.pt --data FIRST1000.npz --flags FLAGS.npy --out FOLDER
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from networks import load_preact18

import brinell

# The reference implementation (standard version, seed 0, batch 500) on the same model and images.
REFERENCE = {"clean": 77.8, "apgd-ce": 52.5, "apgd-t": 48.0, "fab-t": 48.0, "square": 48.0}


def table(run: brinell.Run, flags: np.ndarray, seconds: float) -> str:
    """The stage table beside the reference's, cost per stage, and the samples that differ."""
    rows = run.rows()
    lines = [
        "| after | Brinell | reference | attacked | broken | forwards | backwards | passes per attacked sample |",
        "|---|---|---|---|---|---|---|---|",
        f"| clean | {100 * run.clean_accuracy.value:.2f} % | {REFERENCE['clean']:.2f} % | | | | | |",
    ]
    names = np.asarray(rows["attack"].to_pylist())
    for stage, (name, p) in zip(run.stages(), run.accuracy_after(), strict=True):
        here = names == name
        f, b = (int(np.asarray(rows[c])[here].sum()) for c in ("forwards", "backwards"))
        reference = REFERENCE.get(name, float("nan"))
        lines.append(
            f"| {name} | {100 * p.value:.2f} % | {reference:.2f} % | {stage.attacked} | {stage.broken} | {f:,} | {b:,} "
            f"| {(f + b) / max(stage.attacked, 1):.0f} |"
        )
    robust = np.zeros(len(flags), dtype=bool)
    robust[run.survivors()] = True
    only_ours, only_theirs = np.flatnonzero(flags & ~robust), np.flatnonzero(~flags & robust)
    lines += [
        "",
        f"Robust accuracy {run.robust_accuracy}. Verdict: {run.verdict}",
        "",
        f"Samples that differ from the reference: {len(only_ours) + len(only_theirs)} "
        f"(broken here only: {only_ours.tolist()}; broken there only: {only_theirs.tolist()}).",
        "",
        f"{run.cost.forwards:,} forwards, {run.cost.backwards:,} backwards, {seconds:.1f} s.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("weights", "data", "flags", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    with np.load(args.data) as stored:
        x, y = torch.from_numpy(stored["x"]).float() / 255, torch.from_numpy(stored["y"])
    flags = np.load(args.flags).astype(bool)
    net = load_preact18(args.weights)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    text = ["# AutoAttack on the CIFAR-10 network (PreAct-ResNet-18, first 1,000 test images, Linf 8/255)", ""]
    text += [f"{name}, torch {torch.__version__}, float32 throughout (no TF32), early exit on."]
    for seed in args.seeds:
        begun = time.perf_counter()
        clf = brinell.wrap(net, name="cifar10-preact18")
        problem = brinell.Problem(x, y, name="cifar10-first1000")
        run = brinell.evaluate(clf, problem, brinell.Linf("8/255"), "autoattack", device=args.device, seed=seed)
        report = table(run, flags, time.perf_counter() - begun)
        print(report, flush=True)
        text += ["", f"## Seed {seed}", "", report]
        (out / "autoattack_cifar.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
