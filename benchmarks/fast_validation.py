"""The `fast` plan beside `autoattack`, sample by sample, on networks its rule was not fixed on.

Usage: python benchmarks/fast_validation.py WORLD --fashion FOLDER --golden FOLDER --cifar W.pt --cifar-data X.npz --out DIR
Writes DIR/WORLD.json. With --plans fast only the first half is run (for trying things out).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from fast_trajectories import World, cnn, fashion, prototypes, train
from networks import load_fashion, load_preact18
from torch import Tensor, nn

import brinell
from brinell import L1, L2, Linf
from brinell.core.threat import Threat, threat
from brinell.evaluate.plan import audited
from brinell.evaluate.presets import by_name

N = 1000
# Passes of the reference AutoAttack on every sample that survives it: 7,857 forwards and 1,910 backwards.
REFERENCE = 9767


def lenet(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 84), nn.Tanh(), nn.Linear(84, classes),
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
            x, y = torch.from_numpy(stored["x"][:N]).float() / 255, torch.from_numpy(stored["y"][:N])
        return World(name, load_preact18(args.cifar).to(d), x, y, Linf("8/255"))
    if name.startswith("many100"):
        x, y = prototypes(100, 30000, 77, d)
        net = train(cnn(100, 20, 12), x, y, Linf(0.05) if "robust" in name else None, 4, 78)
        x, y = prototypes(100, N, 77, d)
        return World(name, net, x, y, calibrate(net, x, y, "Linf", 0.0, 0.3))
    folder = Path(args.fashion)
    x, y = (v[:N] for v in fashion(folder, "t10k", d))
    if name == "demo_linf":
        from brinell.models.demo import demo_net

        return World(name, demo_net(), x, y, Linf(0.1))
    if name.startswith("golden"):
        net = load_fashion(f"{args.golden}/fashion_net.npz").to(d)
        return World(name, net, x, y, {"golden_l2": L2(1.5), "golden_l1": L1(5), "golden_linf": Linf(0.1)}[name])
    if name.startswith("lenet"):
        xt, yt = fashion(folder, "train", d)
        net = train(lenet(10), xt, yt, None, 4, 91)
        norm = {"lenet_linf": "Linf", "lenet_l2": "L2", "lenet_l1": "L1"}[name]
        return World(name, net, x, y, calibrate(net, x, y, norm, 0.0, {"Linf": 0.1, "L2": 2.0, "L1": 30.0}[norm]))
    if name == "two_classes":
        keep = (y == 4) | (y == 6)
        xt, yt = fashion(folder, "train", d)
        kt = (yt == 4) | (yt == 6)
        net = train(cnn(2, 28, 8), xt[kt], (yt[kt] == 6).long(), Linf(0.03), 6, 92)
        x, y = (v[keep.nonzero()[:, 0]] for v in (x, (y == 6).long()))
        return World(name, net, x, y, calibrate(net, x, y, "Linf", 0.0, 0.2))
    raise SystemExit(f"no world {name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("world")
    for name in ("fashion", "golden", "cifar", "cifar-data"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plans", default="fast,autoattack")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    w = world(args.world, args)
    w.net.eval().requires_grad_(False)
    out: dict[str, object] = {"world": w.name, "threat": repr(w.threat), "n": len(w.x)}
    survivors: dict[str, set[int]] = {}
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for plan in args.plans.split(","):
        chosen = audited(by_name("fast"), 0) if plan == "fast" else by_name(plan)
        begun = time.perf_counter()
        run = brinell.evaluate(w.net, (w.x, w.y), w.threat, chosen, seed=args.seed, progress=False, device=args.device)
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
