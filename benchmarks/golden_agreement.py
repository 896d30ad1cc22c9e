"""Every golden number that a CPU can repeat in minutes, beside ours: single runs of APGD and FAB, whole AutoAttack.

Usage: python benchmarks/golden_agreement.py FOLDER [--rows N] [--samples N] [--out FILE]

FOLDER holds single_runs.json and .npz, fashion_net.npz and autoattack.json. Rows and samples are independent, so that
the first N can be looked at alone; `--rows 0 --samples 0` takes all of them.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import load_fashion

import brinell
from brinell.attacks import APGD, FAB
from brinell.core.threat import threat
from brinell.results import wilson

HERE = Path(__file__).parent
# Best losses and distances agree when they differ by less than this share of themselves.
SAME_LOSS, SAME_DISTANCE = 1e-3, 1e-2
STANDARD = ("Linf_standard_seed0", "L2_standard_seed0", "L1_standard_seed0", "L1_eps5_standard_seed0")
ELSEWHERE = """
## Golden numbers compared elsewhere

| numbers | where |
|---|---|
| AutoAttack on a CIFAR-10 network, 1,000 samples (needs a GPU) | [autoattack_cifar.md](autoattack_cifar.md) |
| AutoAttack, 500 samples, three seeds, and its version *plus* | [autoattack_fashion.md](autoattack_fashion.md) |
| L1-APGD with and without the reference's rounding, four seeds | [l1_quirks.md](l1_quirks.md) |
| trajectories of margins that the plan `fast` was made from | [fast.md](fast.md) |
| layouts and logits of the networks of the zoo | [zoo.md](zoo.md) |
"""


def share(agree: np.ndarray) -> str:
    """How many of how many, with the interval of the share."""
    low, high = wilson(int(agree.sum()), len(agree))
    return f"{int(agree.sum())} of {len(agree)} [{100 * low:.1f}, {100 * high:.1f}]"


def single(net: Any, run: dict[str, Any], golden: Any, n: int) -> str:
    """One row of the table: a single run from the recorded start, with the reference's quirks."""
    fab, rank = run["attack"].startswith("fab"), run.get("rank")
    attack: Any = (
        FAB(run["steps"], targeted=rank is not None, quirks="autoattack")
        if fab
        else APGD(run["steps"], run.get("loss", "dlr-targeted"), quirks="autoattack")
    )
    part = attack if rank is None else brinell.Targets(attack, ranks=[rank])
    x, y, start = (torch.from_numpy(golden[name][:n]) for name in ("x", "y", run["start"]))
    around = threat(run["norm"], run.get("eps", "inf"))
    rows = brinell.attack(net, (x, y.long()), around, part, start=start, early_exit=False)
    if fab:
        theirs = golden[f"{run['key']}_distance"][:n]
        ours = np.where(rows["broken"].to_numpy(), rows["distance"].to_numpy(), np.inf)
        found = np.isfinite(theirs)
        off = np.full(len(theirs), np.inf)
        off[found] = np.abs(ours[found] - theirs[found]) / theirs[found]
        agree = (off <= SAME_DISTANCE) | (~found & ~np.isfinite(ours))
        flags = np.isfinite(ours) == found
    else:
        theirs = golden[f"{run['key']}_best_loss"][:n]
        off = np.abs(rows["best_loss"].to_numpy() - theirs) / np.maximum(np.abs(theirs), 1e-6)
        agree, flags = off <= SAME_LOSS, rows["broken"].to_numpy() == ~golden[f"{run['key']}_robust"][:n]
    what = run.get("loss", "" if fab else "dlr-targeted")
    name = " ".join(str(v) for v in (run["attack"].split()[0].split("-")[0], what, rank and f"rank {rank}") if v)
    return f"| {run['norm']} | {name} | {run['steps']} | {share(agree)} | {np.median(off):.0e} | {share(flags)} |"


def whole(net: Any, recorded: dict[str, Any], n: int) -> str:
    """One row of the table: the standard version in our own random numbers, sample by sample."""
    around = threat(recorded["norm"], recorded["eps"])
    data = brinell.data.load("demo", n)
    run = brinell.evaluate(net, data, around, "autoattack", progress=False, device="cpu")
    theirs, ours = np.asarray(recorded["flags"][:n], dtype=bool), np.isin(np.arange(n), run.survivors())
    only_here, only_there = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
    return (
        f"| {recorded['norm']} {recorded['eps']:g} | {run.clean_accuracy.k} | {share(ours)} | {share(theirs)} "
        f"| {only_here}, {only_there} | {share(ours == theirs)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="of single runs; 0 for all 214")
    parser.add_argument("--samples", type=int, default=100, help="of whole evaluations; 0 for all 500")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "golden_agreement.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    net = load_fashion(str(args.folder / "fashion_net.npz"))
    runs = json.loads((args.folder / "single_runs.json").read_text())
    recorded = json.loads((args.folder / "autoattack.json").read_text())
    with np.load(args.folder / "single_runs.npz") as file:
        golden = dict(file)
    begun = time.perf_counter()
    n = args.rows or len(golden["x"])
    lines = [
        "# Golden numbers of the reference implementation, beside ours",
        "",
        "Small Fashion-MNIST network, float32 on one CPU core, "
        f"torch {torch.__version__.split('+')[0]}. Made by `python benchmarks/golden_agreement.py FOLDER`. "
        "Brackets: 95 % interval of the share, in %.",
        "",
        '## Single runs from recorded starts, `quirks="autoattack"`',
        "",
        f"First {n} rows. Values are best losses (APGD), which agree within 10⁻³ of themselves, or distances (FAB), "
        "within 10⁻². Outcomes are whether a row was broken (FAB: at any distance).",
        "",
        "| norm | attack | steps | values agree | median difference | outcomes agree |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        lines.append(single(net, run, golden, n))
        print(f"{time.perf_counter() - begun:4.0f} s", lines[-1], flush=True)
    n = args.samples or 500
    lines += [
        "",
        "## Standard AutoAttack, sample by sample",
        "",
        f"First {n} test images, seed 0 on both sides, each side's own random numbers. Robust samples; the two numbers "
        "are samples broken here only and there only.",
        "",
        "| threat | right without attack | ours | reference | only here, only there | outcomes agree |",
        "|---|---|---|---|---|---|",
    ]
    for key in STANDARD:
        lines.append(whole(net, recorded[key], n))
        print(f"{time.perf_counter() - begun:4.0f} s", lines[-1], flush=True)
    args.out.write_text("\n".join(lines) + "\n" + ELSEWHERE)


if __name__ == "__main__":
    main()
