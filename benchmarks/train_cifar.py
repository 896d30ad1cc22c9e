"""Adversarial training on CIFAR-10, method beside method, as in Table 3 of the Minimum-Margin paper.

Usage: python benchmarks/train_cifar.py --data TRAIN --test TEST.npz --out FOLDER [--methods pgd mm3-f10] [--epochs 30]

TRAIN is a .npz with x (bytes) and y, or the folder cifar-10-batches-py. Every training and every evaluation is kept in
FOLDER and goes on there if the script is called again; the table is written after each.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mm_cifar import NAMES

import brinell
from brinell.results import Proportion
from brinell.train import Network, Recipe, fit

EPS = brinell.Linf("8/255")
PLANS = ["pgd20", "cw20", "apgd-ce", "apgd-dlr", "fab", "square", "autoattack", "mm3", "mm9", "mm+", "fast"]
# Statistics of the training images.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


def train(method: str, args: argparse.Namespace) -> tuple[Any, float]:
    begun = time.perf_counter()
    recipe = Recipe(
        epochs=args.epochs, batch=args.batch, lr=args.lr, nesterov=True, weight_decay=5e-4, schedule="one-cycle",
        average=args.average, crop=4, flip=True, precision=args.precision, compile=args.compile,
    )  # fmt: skip
    made = fit(
        Network(args.network, 10, 3, MEAN, STD), args.data, EPS, method, recipe, out=Path(args.out) / method,
        resume=True, validation=args.validation, plan="cw20", device=args.device, checkpoint_every=1e9,
    )  # fmt: skip
    return made.classifier, time.perf_counter() - begun


def table(found: dict[str, Any]) -> str:
    """Rows are tests, columns trainings, each with the difference to the best of its row."""
    methods = list(found)
    title = ["# Adversarial training, method beside method", "", "Written by `benchmarks/train_cifar.py`.", ""]
    lines = ["| test | " + " | ".join(f"{m} | diff." for m in methods) + " |", "|---|" + "---:|" * (2 * len(methods))]
    clean = [Proportion(found[m]["clean"], found[m]["n"]) for m in methods]
    lines.append("| clean | " + " | ".join(f"{p} | " for p in clean) + " |")
    for plan in PLANS:
        shares = [Proportion(v[plan]["robust"], v["n"]) if plan in v else None for v in found.values()]
        if not any(shares):
            continue
        best = max(p.value for p in shares if p is not None)
        cells = ["| " if p is None else f"{p} | {100 * (p.value - best):.2f}" for p in shares]
        lines.append(f"| {NAMES.get(plan, plan)} | " + " | ".join(cells) + " |")
    times = ", ".join(f"{m} {found[m]['seconds']:.0f} s for {found[m]['epochs']} epochs" for m in methods)
    return "\n".join([*title, *lines, "", f"Training, with validation: {times}."])


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("data", "test", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--methods", nargs="+", default=["pgd", "mm3-f10"])
    parser.add_argument("--plans", nargs="+", default=PLANS)
    parser.add_argument("--network", default="preact-resnet18")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--average", type=float, default=0.995)
    parser.add_argument("--validation", type=int, default=512)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--test-precision", default="float32")
    parser.add_argument("--test-execution", default="auto")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with np.load(args.test) as stored:
        x, y = torch.from_numpy(stored["x"][: args.n]).float() / 255, torch.from_numpy(stored["y"][: args.n])
    file = Path(args.out) / "table.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for method in args.methods:
        model, seconds = train(method, args)
        mine = found.setdefault(method, {"seconds": seconds, "epochs": args.epochs, "n": len(x)})
        for plan in args.plans:
            options = {"audit": 0} if plan == "fast" else {}
            run = brinell.evaluate(
                model, (x, y), EPS, plan, out=Path(args.out) / f"{method}-{plan}", resume=True, device=args.device,
                precision=args.test_precision, execution=args.test_execution, **options,
            )  # fmt: skip
            mine["clean"] = run.clean_accuracy.k
            mine[plan] = {"robust": run.robust_accuracy.k, "forwards": run.cost.forwards, "seconds": run.cost.seconds}
            file.write_text(json.dumps(found))
            file.with_suffix(".md").write_text(table(found) + "\n")
            print(method, plan, run.robust_accuracy, f"{run.cost.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
