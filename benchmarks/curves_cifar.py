"""Robustness curves beside AutoAttack at every multiple of 1/255, sample by sample; and the distances between classes.

Usage: python benchmarks/curves_cifar.py --model W.pt --data FIRST1000.npz --n 1000 --norm Linf --runs FOLDER
       python benchmarks/curves_cifar.py --model W.pt --data FIRST1000.npz --n 1000 --norm L2 --runs FOLDER
       python benchmarks/curves_cifar.py --model demo --n 100 --norm Linf --most 40 --device cpu --plan minimal-quick
       python benchmarks/curves_cifar.py --scale            (CIFAR-10's test images from $BRINELL_SHARED)

In Linf the radii are 1/255, 2/255, …; in L2 they are eighths of 0.5, so that the eighth is the usual one in both.
Of every sample the smallest radius at which AutoAttack breaks it is looked for beside the curve's own answer, then by
halving; with `--every` AutoAttack sees a copy of the data for every radius. Results go to OUT.json and from that to
OUT.md; with `--runs` what is finished is not repeated.
`--plot FILE` draws the curves of all models in OUT.json (needs matplotlib).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mm_cifar import model_and_data

import brinell
from brinell.curves import Curve

RESULTS = Path(__file__).parent / "results"
# The usual radii stand beside each other: 8/255 in Linf, 0.5 in L2.
# The ids of copies lie so far apart.
COPIES = 1_000_000
UNIT = {"Linf": 1 / 255, "L2": 0.5 / 8, "L1": 12 / 8}


def folder(args: argparse.Namespace, what: str) -> Path | None:
    return None if args.runs is None else Path(args.runs) / f"{Path(args.model).stem}-{args.norm}-{args.n}-{what}"


def measured(args: argparse.Namespace, model: Any, data: brinell.Problem) -> tuple[Curve, dict[str, Any]]:
    out = folder(args, args.plan)
    begun = time.perf_counter()
    curve = brinell.curve(model, data, args.norm, args.plan, out=out, resume=out is not None, device=args.device,
                          precision=args.precision, execution=args.execution)  # fmt: skip
    cost = brinell.Run.open(curve.path).cost if curve.path else None
    about = {"forwards": cost.forwards if cost else 0, "backwards": cost.backwards if cost else 0}
    return curve, {**about, "wall": round(time.perf_counter() - begun, 1)}


def at_radii(args: argparse.Namespace, model: Any, part: brinell.Problem, k: torch.Tensor, what: str) -> Any:
    """One evaluation with a radius of its own, k units, for every sample: who stands, and the forwards it took."""
    threat = {"Linf": brinell.Linf, "L2": brinell.L2, "L1": brinell.L1}[args.norm](k.double() * UNIT[args.norm])
    out = folder(args, f"{args.against}-{args.most}-{what}")
    run = brinell.evaluate(
        model, part, threat, args.against, out=out, resume=out is not None, device=args.device,
        precision=args.against_precision or args.precision, execution=args.execution,
    )  # fmt: skip
    print(f"{what}: {run.robust_accuracy}", flush=True)
    return run.survivors().tolist(), run.cost.forwards


def standing(args: argparse.Namespace, model: Any, data: brinell.Problem) -> tuple[list[set[int]], int]:
    """Ids that the evaluation leaves standing at every radius, and the forwards it took: every sample at every radius.

    One evaluation of as many copies of the data as there are radii, each copy with its own: nothing is started or
    compiled twice, and no radius waits for the last samples of another.
    """
    n, most = len(data), args.most
    radii = torch.arange(1, most + 1).repeat_interleave(n)
    many = brinell.Problem(
        data.x.repeat(most, *[1] * (data.x.ndim - 1)), data.y.repeat(most), data.ids.repeat(most) + radii * COPIES,
        name=data.name,
    )  # fmt: skip
    left, forwards = at_radii(args, model, many, radii, "all")
    return [{i % COPIES for i in left if i // COPIES == k} for k in range(1, most + 1)], forwards


def narrowed(args: argparse.Namespace, model: Any, data: brinell.Problem, curve: Curve) -> tuple[list[set[int]], int]:
    """The same from a small part of the passes: every sample's smallest radius at which it breaks.

    It is looked for where the curve says, at the largest radius below the distance and the next one, then by halving
    what is left. What breaks at a radius breaks at all larger ones, by the same point. That what stands at a radius
    stands at smaller ones is taken for granted, and tried: `--spot` samples are attacked once more at a smaller radius,
    drawn at random.
    """
    rank = {i: k for k, i in enumerate(data.ids.tolist())}
    # Stands at `low`, breaks at `high`: none stands at most, or breaks at all.
    low, high = torch.zeros(len(data), dtype=torch.long), torch.full((len(data),), args.most + 1)
    radii = [k * UNIT[args.norm] for k in range(1, args.most + 1)]
    told = torch.zeros(len(data), dtype=torch.long)
    for r in radii:
        told[[rank[int(i)] for i in curve.ids[~curve.broken(r)]]] += 1
    forwards, turn = 0, 0
    while bool((open_ := high - low > 1).any()):
        at = open_.nonzero()[:, 0]
        k = (low[at] + high[at]) // 2
        if turn < 2:
            k = torch.where(low[at] == told[at], told[at] + 1, told[at]).clamp(low[at] + 1, high[at] - 1)
        left, passes = at_radii(args, model, _part(data, at), k, f"{args.plan}-{args.precision}-{turn}")
        stands = torch.zeros(len(data), dtype=torch.bool)
        stands[[rank[i] for i in left]] = True
        low[at] = torch.where(stands[at], k, low[at])
        high[at] = torch.where(stands[at], high[at], k)
        forwards, turn = forwards + passes, turn + 1
    if args.spot:
        g = torch.Generator().manual_seed(0)
        able = (low > 1).nonzero()[:, 0]
        at = able[torch.randperm(len(able), generator=g)[: args.spot]].sort()[0]
        k = (1 + torch.rand(len(at), generator=g) * (low[at] - 1)).long()
        left, _ = at_radii(args, model, _part(data, at), k, f"{args.plan}-{args.precision}-spot")
        print(f"taken for standing, tried: {len(at)}; broken after all: {len(at) - len(left)}", flush=True)
    return [set(data.ids[low >= k].tolist()) for k in range(1, args.most + 1)], forwards


def _part(data: brinell.Problem, at: torch.Tensor) -> brinell.Problem:
    return brinell.Problem(data.x[at], data.y[at], data.ids[at], name=data.name)


def again(entry: dict[str, Any]) -> tuple[list[set[int]], int]:
    """The same from an earlier call's file: what its curve left standing and what told the two apart."""
    earlier, forwards = Curve.from_json(entry["curve"]), 0
    sets = []
    for row in entry["radii"].values():
        mine = set(earlier.ids[~earlier.broken(row["eps"])].tolist())
        sets.append((mine - set(row["only_run"])) | set(row["only_curve"]))
        forwards = row["forwards"]
    return sets, forwards


def compare(
    args: argparse.Namespace, model: Any, data: brinell.Problem, curve: Curve, earlier: Any, store: Any
) -> None:
    """Radius by radius: what only the evaluation, and only the curve, breaks."""
    if earlier is not None:
        sets, forwards = again(earlier)
    elif args.every:
        sets, forwards = standing(args, model, data)
    else:
        sets, forwards = narrowed(args, model, data, curve)
    for k, ids in enumerate(sets, 1):
        eps = k * UNIT[args.norm]
        mine = set(curve.ids[~curve.broken(eps)].tolist())
        store(k, {"eps": eps, "run": len(ids), "curve": len(mine), "only_run": sorted(mine - ids),
                  "only_curve": sorted(ids - mine), "forwards": forwards})  # fmt: skip
        print(f"{k}: {args.against} {len(ids)}, curve {len(mine)}; only one of them breaks "
              f"{len(mine - ids)} and {len(ids - mine)}", flush=True)  # fmt: skip


def page(everything: dict[str, Any]) -> str:
    lines = [
        "# Robustness curves beside evaluations at fixed radii",
        "",
        "Samples left standing by an evaluation at each radius and by the curve, which is measured once; *only here*",
        "counts samples that one of the two breaks and the other one does not.",
    ]
    for title, e in everything.items():
        wall = f", {e['cost']['wall']:,} s" if e["cost"]["wall"] else ""
        spent = f"{e['cost']['forwards']:,} forwards{wall}; {e['curve']['unresolved']} unresolved"
        beside = next(iter(e["radii"].values()), {"forwards": 0})["forwards"]
        whole = f"`{e['against']}`, {beside:,} forwards for all radii"
        p = e.get("precision")
        told = f" Precision: {p['curve']} and {p['evaluation']}." if p else ""
        lines += ["", f"## {title}", "", f"Curve: plan `{e['plan']}`, {spent}. Evaluation: {whole}.{told}"]
        lines += [*([e["remark"]] if "remark" in e else []), ""]
        lines += ["| radius | evaluation | curve | only evaluation | only curve |", "|---:|---:|---:|---:|---:|"]
        for k, r in e["radii"].items():
            radius = f"{k}/255" if title.endswith("Linf") else f"{r['eps']:.4g}"
            lines.append(f"| {radius} | {r['run']} | {r['curve']} | {len(r['only_run'])} | {len(r['only_curve'])} |")
    return "\n".join(lines) + "\n"


def write(out: Path, everything: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, text in ((out.with_suffix(".json"), json.dumps(everything)), (out.with_suffix(".md"), page(everything))):
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text)
        partial.replace(path)


def scale() -> None:
    """The paper's line for CIFAR-10, with the time each norm takes."""
    from PIL import Image

    shared = Path(os.environ["BRINELL_SHARED"]) / "data" / "cifar10"
    grid = np.asarray(Image.open(shared / "test_batch.webp").convert("RGB"))
    x = grid.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10000, 3, 32, 32)
    y = np.load(shared / "labels.npz")["test"].astype(np.int64)
    data = brinell.Problem(torch.from_numpy(x.copy()).float() / 255, torch.from_numpy(y), name="cifar10")
    for norm in ("Linf", "L2", "L1"):
        wall, cpu = time.perf_counter(), time.process_time()
        found = brinell.distances(data, [norm])[norm]
        spent = f"{time.perf_counter() - wall:.1f} s on the clock, {time.process_time() - cpu:.1f} s of compute"
        print(f"{norm}: smallest {found.smallest:.2f}, largest {found.largest:.2f}; {spent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="demo, fashion, or a file of weights for the CIFAR-10 network")
    parser.add_argument("--data", help=".npz with x (8 bits) and y, for a file of weights")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--norm", default="Linf", choices=sorted(UNIT))
    parser.add_argument("--plan", default="minimal")
    parser.add_argument("--against", default="autoattack")
    parser.add_argument("--most", type=int, default=16, help="the last multiple of 1/255")
    parser.add_argument("--every", action="store_true", help="every sample at every radius, not by narrowing down")
    parser.add_argument("--spot", type=int, default=100, help="samples tried at a radius they are taken to stand")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--against-precision", help="of the evaluation, where not the curve's")
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--keep", action="store_true", help="keep the evaluation in OUT.json, measure the curve anew")
    parser.add_argument("--runs", help="a folder for the Runs, so that an interrupted call goes on")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "curves_cifar", help="name of the result files, no suffix"
    )
    parser.add_argument("--plot", type=Path, help="draw the curves of OUT.json")
    parser.add_argument("--scale", action="store_true", help="distances between the classes of CIFAR-10 instead")
    args = parser.parse_args()
    if args.scale:
        scale()
        return
    stored = args.out.with_suffix(".json")
    everything: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    if args.model is not None:
        model, data, name = model_and_data(args)
        title = f"{name}, first {len(data)} images, {args.norm}"
        earlier = everything.get(title) if args.keep else None
        if args.keep and not (earlier and earlier["radii"]):
            sys.exit(f"--keep: {stored} has no evaluation of {title}")
        curve, cost = measured(args, model, data)
        print(curve, flush=True)
        entry: dict[str, Any] = {
            "plan": args.plan, "against": args.against, "cost": cost,
            "precision": {"curve": args.precision, "evaluation": args.against_precision or args.precision},
            # Where the Run lay means nothing elsewhere.
            "curve": {**curve.to_json(), "path": None}, "radii": {},
        }  # fmt: skip
        everything[title] = entry
        if earlier is not None:
            entry["against"] = earlier["against"]
            entry["precision"]["evaluation"] = earlier.get("precision", {}).get("evaluation", "unknown")
        if earlier is None:
            write(args.out, everything)

        def store(k: int, row: dict[str, Any]) -> None:
            entry["radii"][str(k)] = row
            write(args.out, everything)

        compare(args, model, data, curve, earlier, store)
    if args.plot is not None:
        curves = [Curve.from_json(e["curve"]) for e in everything.values()]
        curves[0].plot(args.plot, curves[1:], marks=[8 * UNIT["Linf"], 8 * UNIT["L2"]])


if __name__ == "__main__":
    main()
