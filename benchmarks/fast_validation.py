"""The plan `fast` beside `autoattack`, sample by sample, on the networks of validation_networks.py.

Usage: python benchmarks/fast_validation.py measure [NAME…] --references RUNS --out DIR
       python benchmarks/fast_validation.py fast NAME… --references RUNS
       python benchmarks/fast_validation.py table --out DIR

`measure` writes DIR/NAME.json. The Run of `autoattack` is read from RUNS/NAME (`validation_networks.py reference` makes
it); with --n fewer samples are compared. Where there is none, --nearest K attacks the K survivors of `fast` that came
nearest to the decision boundary with `autoattack`: a small part of its cost on those that are missed first. `fast` only
runs `fast`, into RUNS/NAME.fast-N-SEED, which `measure` reads.
`table` prints the tables of benchmarks/results/fast.md.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import brinell
from brinell.attacks.catalogue import by_name
from brinell.core.plan import Stage, Stages
from brinell.core.threat import Threat, threat
from brinell.cost.budget import backwards_per_query
from brinell.results.layers import left_of_margins

# A layer should speak up if Pursuit alone misses more than one sample and more than this share.
TOLERATED = 0.002


def gelu(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, 2, 2), nn.GELU(), nn.Conv2d(12, 24, 5, 2, 2), nn.GELU(), nn.Flatten(),
        nn.Linear(24 * 49, 64), nn.GELU(), nn.Linear(64, classes),
    )  # fmt: skip


def pooled(classes: int, size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * (size // 4) ** 2, 96), nn.ReLU(), nn.Linear(96, classes),
    )  # fmt: skip


def calibrate(net: nn.Module, x: Tensor, y: Tensor, norm: str, low: float, high: float, aim: float = 0.55) -> Threat:
    """The radius at which a quick attack leaves about the share `aim`."""
    for _ in range(7):
        middle = (low + high) / 2
        run = brinell.evaluate(net, (x[:200], y[:200]), threat(norm, middle), "apgd-ce", progress=False)
        low, high = (middle, high) if run.robust_accuracy.value > aim else (low, middle)
    return threat(norm, float(f"{low:.3g}"))


def by_reference(name: str, references: Path, fast: brinell.Run, stages: Stages) -> tuple[set[int] | None, int]:
    """What `autoattack` left of the samples of `fast`, and its passes; None for the former if there is no reference.

    Without the rows of a reference the passes are those of a survivor, times the number of survivors: the least that
    `autoattack` spends, since broken samples take some too.
    """
    from validation_networks import RECORDED, recorded_flags

    ids, each = set(fast.rows()["sample_id"].to_pylist()), sum(f + b for f, b in map(most_passes, stages))
    if name in RECORDED:
        left = {i for i, robust in enumerate(recorded_flags(name)) if robust} & ids
        return left, each * len(left)
    if not (references / name).exists() or not (full := brinell.Run.open(references / name)).finished:
        return None, each * len(fast.survivors())
    # The samples of a reference are the first ones of the same data under the same ids.
    rows = [r for r in full.rows().to_pylist() if r["sample_id"] in ids]
    fell = {r["sample_id"] for r in rows if r["broken"] and r["verified"]}
    return ids - fell, sum(r["forwards"] + r["backwards"] for r in rows)


def most_passes(stage: Stage) -> tuple[int, int]:
    """Forward and backward passes of a stage on a sample that it does not break."""
    queries, backwards = stage.attack.queries * len(stage.attempts()), backwards_per_query(stage, 10)
    return queries, round(queries * backwards)


def evaluate_fast(w: Any, references: Path, seed: int = 0) -> brinell.Run:
    """The Run of `fast` on a network, kept beside the references; an interrupted one goes on."""
    out = references / f"{w.name}.fast-{len(w.y)}-{seed}"
    if out.exists() and (run := brinell.Run.open(out)).finished:
        return run
    options: dict[str, Any] = {"seed": seed, "device": "cpu", "progress": False, "out": out, "resume": out.exists()}
    return brinell.evaluate(w.net, (w.x, w.y), w.threat, "fast", **options)


def attack_nearest(w: Any, fast: brinell.Run, count: int, folder: Path) -> list[int]:
    """The survivors of `fast` among the `count` nearest to the boundary that `autoattack` breaks."""
    ids = fast.survivors()
    chosen = torch.from_numpy(ids[left_of_margins(fast, ids).argsort(kind="stable")[:count]])
    options: dict[str, Any] = {"out": folder, "resume": folder.exists(), "progress": False, "test": False}
    problem = brinell.Problem(w.x[chosen], w.y[chosen], ids=chosen)
    run = brinell.evaluate(w.net, problem, w.threat, "autoattack", device="cpu", **options)
    return sorted(set(chosen.tolist()) - set(run.survivors().tolist()))


def measure(name: str, references: Path, n: int, seed: int = 0, nearest: int = 0) -> dict[str, Any]:
    """`fast` on n samples of the network, and what `autoattack` did on the same ones."""
    from validation_networks import load  # it imports this file

    w = load(name, n)
    fast = evaluate_fast(w, references, seed)
    layers = fast.layers
    assert layers is not None
    ids, mine = set(range(len(w.y))), set(fast.survivors().tolist())
    left, theirs = by_reference(name, references, fast, by_name("autoattack").stages_for(w.threat))
    compared = left is not None
    left = mine if left is None else left
    pursuit = ids - {
        r["sample_id"] for r in fast.rows().to_pylist() if r["broken"] and r["attack"] in ("clean", "pursuit")
    }
    near: dict[str, Any] = {}
    if not compared and nearest:
        broken = attack_nearest(w, fast, nearest, references / f"{name}.nearest-{nearest}-{len(w.y)}")
        near = {"nearest": min(nearest, len(mine)), "broken_nearest": broken}
    passes = {"fast": fast.cost.forwards + fast.cost.backwards, "autoattack": theirs}
    return {
        "network": name, "threat": repr(w.threat), "n": len(w.y), "seed": seed, "compared": compared,
        "clean": fast.clean_accuracy.k, "fast": len(mine), "autoattack": len(left) if compared else None,
        "pursuit": len(pursuit),
        "only_autoattack": sorted(mine - left), "only_fast": sorted(left - mine),
        "missed_by_pursuit": sorted(pursuit - left), **near, "verdict": fast.verdict.level,
        "reasons": list(fast.verdict.reasons),
        "notes": fast.notes, "passes": passes, "share": passes["fast"] / passes["autoattack"],
        "seconds": fast.cost.seconds,
        "stages": [[s.attack, s.attacked, s.broken] for s in fast.stages()],
        "rings": [[r.low, r.high, r.survivors, r.attacked, r.broken] for r in layers.rings],
        "random": None if fast.audit is None else [fast.audit.audited, fast.audit.found],
        "spoke": {
            "search": sum(s.broken for s in layers.search) > max(1, 0.001 * len(w.y)),
            "near": sum(r.broken for r in layers.rings) > 1, "random": fast.audit is not None and fast.audit.objects,
        },
    }  # fmt: skip


def table(folder: Path) -> str:
    """One line per network, then how often each layer was wrong."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    lines = [
        "| network | threat | n | Pursuit alone | `fast` | `autoattack` | broken by autoattack only | by fast only "
        "| nearest survivors broken by autoattack | verdict | passes, % of autoattack's |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for d in found:
        compared = d["autoattack"] is not None
        shown = ["–" if d[k] is None else f"{100 * d[k] / d['n']:.1f} %" for k in ("pursuit", "fast", "autoattack")]
        near = f"{len(d['broken_nearest'])} of {d['nearest']}" if "nearest" in d else "–"
        different = [str(len(d[k])) if compared else "–" for k in ("only_autoattack", "only_fast")]
        lines.append(
            f"| {d['network']} | {d['threat']} | {d['n']} | {' | '.join([*shown, *different, near])} | {d['verdict']} "
            f"| {100 * d['share']:.1f} |"
        )
    shares = [100 * d["share"] for d in found]
    lines += ["", f"{len(found)} networks; passes in the median {median(shares):.1f} % of those of `autoattack`.", ""]
    lines += [
        "| layer | silent although Pursuit missed more than is tolerable | spoke although Pursuit missed nothing |"
    ]
    lines += ["|---|---|---|"]
    bad = [d for d in found if len(d["missed_by_pursuit"]) > max(1, TOLERATED * d["n"])]
    good = [d for d in found if not d["missed_by_pursuit"]]
    for layer in ("search", "near", "random"):
        silent, false = [d for d in bad if not d["spoke"][layer]], [d for d in good if d["spoke"][layer]]
        lines.append(f"| {layer} | {len(silent)} of {len(bad)} | {len(false)} of {len(good)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("measure", "fast", "table"))
    parser.add_argument("names", nargs="*", help="default: every network with a reference")
    parser.add_argument("--references", type=Path, default=Path("references"))
    parser.add_argument("--out", type=Path, default=Path("layers"))
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--nearest", type=int, default=0)
    args = parser.parse_args()
    if args.task == "table":
        print(table(args.out))
        return
    if args.task == "fast":
        from validation_networks import load

        for name in args.names:
            run = evaluate_fast(load(name, args.n), args.references)
            print(name, run.robust_accuracy, run.cost.forwards + run.cost.backwards, run.verdict, flush=True)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or sorted(f.name for f in args.references.iterdir() if f.is_dir()):
        found = measure(name, args.references, args.n, nearest=args.nearest)
        (args.out / f"{name}.json").write_text(json.dumps(found, indent=1))
        print({k: v for k, v in found.items() if k != "reasons"}, flush=True)


if __name__ == "__main__":
    main()
