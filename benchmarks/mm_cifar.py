"""Minimum-Margin plans beside the attacks of their paper on one model: accuracy and cost as in its Tables 8 and 9.

Usage: python benchmarks/mm_cifar.py --model W.pt --data FIRST1000.npz --n 1000 [--plans mm3 mm9 ...] [--runs FOLDER]
       python benchmarks/mm_cifar.py --model demo --eps 0.1 --device cpu --out benchmarks/results/mm_small

`--model fashion` is the small network of the golden numbers in $BRINELL_SHARED. Every plan's result is written as soon
as it is there, into OUT.json and, from that, OUT.md; calls with other plans, models or radii add to the same files, and
`--merge OTHER.json` takes in what was made elsewhere. With `--runs` a plan that was interrupted goes on where it was.
`mm3@pgd20:6/255` is mm3 with its targets ranked by PGD-20 in that radius (Table 5); `mm3~code` takes Auto-PGD with the
checkpoints of AutoAttack's code, as the Minimum-Margin code does.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import load_fashion, load_preact18

import brinell
from brinell.attacks.catalogue import by_name, reference
from brinell.evaluation.plan import ranked
from brinell.results import Proportion

# Names as in the paper's tables; T-AA is what AutoAttack's code calls standard.
NAMES = {
    "pgd20": "PGD",
    "cw20": "CW",
    "apgd-ce": "A-CE",
    "apgd-dlr": "A-DLR",
    "fab": "FAB",
    "square": "Square",
    "autoattack-paper": "AA",
    "autoattack": "T-AA",
    "mm3": "MM3",
    "mm5": "MM5",
    "mm9": "MM9",
    "mm+": "MM+",
}
RESULTS = Path(__file__).parent / "results"


def model_and_data(args: argparse.Namespace) -> tuple[Any, brinell.Problem, str]:
    """A classifier, its first n images, and what to call them."""
    if args.model == "demo":
        return "demo", brinell.data.load("demo", args.n), "demo model, Fashion-MNIST"
    if args.model == "fashion":
        weights = Path(os.environ["BRINELL_SHARED"]) / "golden" / "fashion_net.npz"
        net = brinell.wrap(load_fashion(str(weights)), name="fashion-net")
        return net, brinell.data.load("demo", args.n), "small network, Fashion-MNIST"
    with np.load(args.data) as stored:
        x, y = torch.from_numpy(stored["x"][: args.n]).float() / 255, torch.from_numpy(stored["y"][: args.n]).long()
    name = Path(args.model).stem
    return (
        brinell.wrap(load_preact18(args.model), name=name),
        brinell.Problem(x, y, name="cifar10"),
        f"{name}, CIFAR-10",
    )


def variant(text: str) -> Any:
    """A plan by name, with another ranking of its targets or the code's version of Auto-PGD."""
    name, _, by = text.partition("@")
    name, _, code = name.partition("~")
    plan = by_name(name)
    if code not in ("", "code"):
        raise SystemExit(f"{text}: after ~ comes code")
    if code:

        def coded(stages: Any) -> Any:
            return tuple(replace(s, attack=replace(s.attack, quirks="autoattack")) for s in stages)

        plan = replace(plan.with_stages(coded), name=f"{name}~code")
    by, _, radius = by.partition(":")
    return ranked(plan, reference(by), radius or None) if by else plan


def evaluate(args: argparse.Namespace, model: Any, data: brinell.Problem, plan: str) -> dict[str, Any]:
    """What the tables need of one plan."""
    threat = {"Linf": brinell.Linf, "L2": brinell.L2, "L1": brinell.L1}[args.norm](args.eps)
    folder = f"{Path(args.model).stem}-{args.norm}-{args.eps}-{len(data)}-{args.seed}-{plan}".replace("/", "_")
    out = None if args.runs is None else Path(args.runs) / folder
    run = brinell.evaluate(
        model, data, threat, variant(plan), seed=args.seed, device=args.device, precision=args.precision,
        execution=args.execution, out=out, resume=out is not None,
    )  # fmt: skip
    return {
        "clean": run.clean_accuracy.k,
        "robust": run.survivors().tolist(),
        "unverified": run.unverified.num_rows,
        "forwards": run.cost.forwards,
        "backwards": run.cost.backwards,
        "seconds": round(run.cost.seconds, 1),
    }


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Experiments by title, plans by name; the later result of a plan stays."""
    for title, e in other.items():
        mine = into.setdefault(title, {**e, "plans": {}})
        mine["plans"].update(e["plans"])
    return into


def accuracies(n: int, done: dict[str, Any]) -> list[str]:
    lowest = min(len(p["robust"]) for p in done.values())
    lines = ["| method | plan | robust accuracy, 95 % interval | diff. |", "|---|---|---|---:|"]
    for plan, p in done.items():
        k = len(p["robust"])
        share = Proportion(k, n)
        told = f"{100 * share.value:.2f} % [{100 * share.low:.1f}, {100 * share.high:.1f}], n = {n}"
        lines.append(f"| {NAMES.get(plan, plan)} | `{plan}` | {told} | {100 * (lowest - k) / n:.2f} |")
    return lines


def costs(done: dict[str, Any]) -> list[str]:
    fastest = min(p["seconds"] for p in done.values())
    lines = ["| method | forwards | backwards | seconds | diff. |", "|---|---:|---:|---:|---:|"]
    for plan, p in done.items():
        name = NAMES.get(plan, plan)
        diff = fastest - p["seconds"]
        lines.append(f"| {name} | {p['forwards']:,} | {p['backwards']:,} | {p['seconds']:,.1f} | {diff:,.1f} |")
    return lines


def against(done: dict[str, Any], reference: str = "autoattack") -> list[str]:
    """Sample by sample: who breaks what the standard chain does not, and the other way round."""
    if reference not in done or len(done) < 2:
        return []
    lines = ["", f"Samples beside `{reference}`:", ""]
    standing = set(done[reference]["robust"])
    for plan, p in done.items():
        if plan != reference:
            mine = set(p["robust"])
            lines.append(f"- `{plan}`: {len(standing - mine)} broken only here, {len(mine - standing)} only there")
    return lines


def page(experiments: dict[str, Any]) -> str:
    lines = [
        "# Minimum-Margin and the attacks it is compared with",
        "",
        "The layout of Tables 8 and 9 of Gao et al. 2022: robust accuracy with the difference to the lowest, and cost",
        "with the difference to the fastest. Every plan runs alone, with early exit; seconds are those of the attacks.",
    ]
    for title, e in experiments.items():
        done = {plan: e["plans"][plan] for plan in (*NAMES, *e["plans"]) if plan in e["plans"]}
        first = next(iter(done.values()))
        clean = f"Clean accuracy {Proportion(first['clean'], e['n'])}; {e['device']}, torch {e['torch']}."
        bad = sum(p["unverified"] for p in done.values())
        lines += ["", f"## {title}", "", clean, *e.get("notes", [])]
        lines += ([f"{bad} adversarials failed verification and do not count."] if bad else []) + [""]
        lines += [*accuracies(e["n"], done), "", *costs(done), *against(done)]
    return "\n".join(lines) + "\n"


def store(out: Path, experiments: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, text in (
        (out.with_suffix(".json"), json.dumps(experiments)),
        (out.with_suffix(".md"), page(experiments)),
    ):
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text)
        partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="demo, fashion, or a file of weights for the CIFAR-10 network")
    parser.add_argument("--data", help=".npz with x (8 bits) and y, for a file of weights")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--eps", default="8/255")
    parser.add_argument("--norm", default="Linf")
    parser.add_argument("--plans", nargs="+", default=list(NAMES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--runs", help="a folder for the Runs, so that an interrupted plan goes on")
    parser.add_argument("--out", type=Path, default=RESULTS / "mm_cifar", help="name of the result files, no suffix")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="JSON files of other calls")
    args = parser.parse_args()
    if args.merge:
        everything = load(args.out.with_suffix(".json"))
        for path in args.merge:
            merge(everything, load(path))
        store(args.out, everything)
    if args.model is None:
        return
    model, data, name = model_and_data(args)
    kind = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    about = {"n": len(data), "device": kind, "torch": torch.__version__, "notes": args.note}
    title = f"{name}, first {len(data)} images, {args.norm} {args.eps}, seed {args.seed}"
    for plan in args.plans:
        result = evaluate(args, model, data, plan)
        # Read again: another call may have written meanwhile.
        everything = merge(load(args.out.with_suffix(".json")), {title: {**about, "plans": {plan: result}}})
        store(args.out, everything)
        share = Proportion(len(result["robust"]), len(data))
        print(f"{plan}: {share}; {result['forwards']:,} forwards, {result['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
