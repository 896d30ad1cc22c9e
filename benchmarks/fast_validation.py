"""The `fast` plan beside `autoattack`, sample by sample, on networks its rule was not fixed on.

Usage: python benchmarks/fast_validation.py WORLD --fashion FOLDER --cifar W.pt --cifar-data X.npz --out DIR
Writes DIR/WORLD.json. With --plans fast only the first half is run (for trying things out).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from fast_trajectories import World, fashion, prototypes, train
from networks import load_preact18
from torch import Tensor, nn

import brinell
from brinell import L1, L2, Linf
from brinell.core.threat import Threat, threat

# Passes of the reference AutoAttack on every sample that survives it: 7,857 forwards and 1,910 backwards.
REFERENCE = 9767


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


def world(name: str, args: argparse.Namespace) -> World:
    d = args.device
    if name == "cifar_linf":
        with np.load(args.cifar_data) as stored:
            x, y = torch.from_numpy(stored["x"][: args.n]).float() / 255, torch.from_numpy(stored["y"][: args.n])
        return World(name, load_preact18(args.cifar).to(d), x, y, Linf("8/255"))
    if name == "many100_linf":  # standard training, a hundred classes
        x, y = prototypes(100, 30000, 177, d)
        net = train(pooled(100, 20), x, y, None, 4, 178)
        x, y = prototypes(100, args.n, 177, d)
        return World(name, net, x, y, calibrate(net, x, y, "Linf", 0.0, 0.3))
    folder = Path(args.fashion)
    x, y = (v[3000 : 3000 + args.n] for v in fashion(folder, "t10k", d))  # those before served the design
    if name == "demo_linf":
        from brinell.models.demo import demo_net

        return World(name, demo_net(), x, y, Linf(0.1))
    xt, yt = fashion(folder, "train", d)
    if name == "gelu_l2":  # standard training, no kinks
        net = train(gelu(10), xt, yt, None, 4, 101)
        return World(name, net, x, y, calibrate(net, x, y, "L2", 0.0, 2.0))
    if name == "pooled_l2":  # adversarial training, a second norm
        return World(name, train(pooled(10, 28), xt, yt, L2(1.0), 4, 102), x, y, L2(1.0))
    if name == "tiny_linf":  # one hidden layer of 24
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))
        net = train(net, xt, yt, Linf(0.05), 4, 103)
        return World(name, net, x, y, Linf(0.05))
    if name == "pooled_l1":
        return World(name, train(pooled(10, 28), xt, yt, L1(6), 4, 104), x, y, L1(6))
    raise SystemExit(f"no world {name}")


def table(folder: Path) -> str:
    """One line per world, from the JSON files."""
    lines = [
        "| network | threat | n | `fast` | `autoattack` | broken by autoattack only | by fast only "
        "| passes per survivor | of 9,767 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted(folder.glob("*.json")):
        d = json.loads(file.read_text())
        if "autoattack" not in d:
            continue
        fast, full = d["fast"], d["autoattack"]
        shown = [f"{100 * r['robust']:.1f} % [{100 * r['low']:.1f}, {100 * r['high']:.1f}]" for r in (fast, full)]
        lines.append(
            f"| {d['world']} | {d['threat']} | {d['n']} | {shown[0]} | {shown[1]} | {len(d['only_full_breaks'])} "
            f"| {len(d['only_fast_breaks'])} | {fast['per_survivor']:.0f} | {100 * fast['share_of_reference']:.2f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("world", help="or `table`: print what is in OUT as a table")
    for name in ("fashion", "cifar", "cifar-data"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plans", default="fast,autoattack")
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.world == "table":
        print(table(Path(args.out)))
        return
    w = world(args.world, args)
    w.net.eval().requires_grad_(False)
    out: dict[str, object] = {"world": w.name, "threat": repr(w.threat), "n": len(w.x)}
    survivors: dict[str, set[int]] = {}
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for plan in args.plans.split(","):
        begun = time.perf_counter()
        options = {"seed": args.seed, "device": args.device, "progress": False}
        if plan == "fast":
            options["audit"] = 0
        run = brinell.evaluate(w.net, (w.x, w.y), w.threat, plan, **options)
        c, r = run.cost, run.robust_accuracy
        survivors[plan] = set(run.survivors().tolist())
        passes = c.forwards + c.backwards
        out[plan] = {
            "clean": run.clean_accuracy.value, "robust": r.value, "low": r.low, "high": r.high, "survivors": r.k,
            "forwards": c.forwards, "backwards": c.backwards, "per_survivor": passes / max(r.k, 1),
            "share_of_reference": passes / (REFERENCE * max(r.k, 1)), "seconds": time.perf_counter() - begun,
            "stages": [[name, p.k] for name, p in run.accuracy_after()], "ids": sorted(survivors[plan]),
        }  # fmt: skip
        if len(survivors) == 2:
            fast, full = survivors["fast"], survivors["autoattack"]
            out["only_full_breaks"], out["only_fast_breaks"] = sorted(fast - full), sorted(full - fast)
        (Path(args.out) / f"{w.name}.json").write_text(json.dumps(out, indent=1))
        print(w.name, w.threat, plan, {k: v for k, v in out[plan].items() if k != "ids"}, flush=True)  # type: ignore[attr-defined]
    print(w.name, "only full breaks", out.get("only_full_breaks"), "only fast breaks", out.get("only_fast_breaks"))


if __name__ == "__main__":
    main()
