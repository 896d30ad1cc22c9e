"""AutoAttack in three norms and several seeds on a small network, beside the reference implementation's outcomes.

Usage: python benchmarks/autoattack_fashion.py --weights fashion_net.npz --golden autoattack.json --out FOLDER
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from networks import load_fashion

import brinell

# (golden key, norm, eps, plan, seed)
JOBS = [
    (f"{norm}_standard_seed0", norm, eps, "autoattack", seed)
    for norm, eps in (("Linf", 0.1), ("L2", 1.5), ("L1", 12.0))
    for seed in range(3)
]
JOBS += [("L1_eps5_standard_seed0", "L1", 5.0, "autoattack", seed) for seed in range(3)]
JOBS += [("Linf_plus_seed0", "Linf", 0.1, "autoattack-plus", seed) for seed in range(3)]


def evaluate(job: tuple, weights: str, device: str) -> tuple[list[bool], list, dict, float]:
    """One evaluation in its own process: robust flags, stages, cost, seconds."""
    _, norm, eps, plan, seed = job
    torch.set_num_threads(1)
    threat = {"Linf": brinell.Linf, "L2": brinell.L2, "L1": brinell.L1}[norm](eps)
    clf = brinell.wrap(load_fashion(weights), name="fashion-net")
    begun = time.perf_counter()
    run = brinell.evaluate(clf, brinell.data.load("demo", 500), threat, plan, seed=seed, device=device, progress=False)
    robust = np.zeros(500, dtype=bool)
    robust[run.survivors()] = True
    stages = [(name, p.value) for name, p in run.accuracy_after()]
    cost = {"forwards": run.cost.forwards, "backwards": run.cost.backwards}
    return robust.tolist(), stages, cost, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("weights", "golden", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    golden = json.loads(Path(args.golden).read_text())
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "# AutoAttack on the small Fashion-MNIST network (500 test images), beside the reference implementation",
        "",
        f"torch {torch.__version__}, {args.device}. Stages: robust accuracy in % after each, Brinell / reference.",
        "",
        "| threat | plan | seed | Brinell | reference | difference | differ | stages | forwards | backwards |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    outcomes: dict[tuple, list[np.ndarray]] = {}
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(evaluate, job, args.weights, args.device) for job in JOBS]
        for job, future in zip(JOBS, futures, strict=True):
            flags, stages, cost, seconds = future.result()
            reference = golden[job[0]]
            theirs = np.asarray(reference["flags"], dtype=bool)
            ours = np.asarray(flags)
            table = reference.get("stages_percent", {})
            text = ", ".join(f"{n} {100 * v:.1f} / {table.get(n, float('nan')):.1f}" for n, v in stages)
            lines.append(
                f"| {job[1]} {job[2]:g} | {job[3]} | {job[4]} "
                f"| {100 * ours.mean():.1f} % | {100 * theirs.mean():.1f} % "
                f"| {100 * (ours.mean() - theirs.mean()):+.1f} | {int((ours != theirs).sum())} of 500 "
                f"| {text} | {cost['forwards']:,} | {cost['backwards']:,} |"
            )
            print(lines[-1], f"{seconds:.0f} s", flush=True)
            outcomes.setdefault(job[1:4], []).append(ours)
            (out / "autoattack_fashion.md").write_text("\n".join(lines) + "\n")
    lines += ["", "Samples that differ between two of our own seeds (what chance alone does):", ""]
    for (norm, eps, plan), flags in outcomes.items():
        counts = [int((a != b).sum()) for a, b in combinations(flags, 2)]
        lines.append(f"- {norm} {eps:g}, {plan}: {', '.join(map(str, counts))} of 500")
    (out / "autoattack_fashion.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
