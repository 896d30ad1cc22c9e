"""Does the binarization test tell a sound evaluation from a broken one, on a given model?

Usage: python benchmarks/active_crippled.py [--model demo] [--n 24]
       python benchmarks/active_crippled.py --model W.pt --data FIRST1000.npz --eps 8/255 --n 64 --device cuda

`autoattack` and PGD-20 as they are, then PGD-20 crippled in five ways: one step, tiny steps, wrong labels, a lost
gradient, and cross-entropy on logits so large that the softmax is saturated. Writes OUT.json and OUT.md; other models
add to the same files.
"""

import argparse
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from mm_cifar import model_and_data
from torch import Tensor, nn

import brinell
from brinell.attacks import PGD
from brinell.core.threat import threat
from brinell.evaluation.coerce import as_classifier

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Towards(PGD):
    """PGD that was given the wrong label: it makes the sample safer."""

    def step(self, s: Any, a: Any, p: Any, ball: Any) -> Any:
        return super().step(s, replace(a, grad=-a.gradient), p, ball)


@dataclass(frozen=True)
class Detached(PGD):
    """PGD whose gradient got lost on the way."""

    def step(self, s: Any, a: Any, p: Any, ball: Any) -> Any:
        return super().step(s, replace(a, grad=torch.zeros_like(a.gradient)), p, ball)


class Loud(nn.Module):
    """Logits so large that cross-entropy is exactly zero and has no gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return 1000 * self.net(x)


CASES: dict[str, tuple[bool, Any]] = {
    "autoattack": (False, "autoattack"),
    "PGD-20": (False, PGD()),
    "PGD, one step": (False, PGD(steps=1)),
    "PGD, tiny steps": (False, PGD(rel_step=0.001)),
    "PGD, wrong labels": (False, Towards()),
    "PGD, gradient lost": (False, Detached()),
    "PGD, saturated softmax": (True, PGD(loss="ce")),
}


def row(name: str, r: Any, seconds: float) -> dict[str, Any]:
    return {
        "case": name, "score": r.score, "low": r.low, "high": r.high, "rasr": r.rasr, "n": r.n, "skipped": r.skipped,
        "random": {k: str(p) for k, p in r.level.random.items()}, "queries": r.level.queries,
        "kappa": r.kappa, "verdict": r.verdict, "warnings": list(r.warnings), "seconds": seconds,
    }  # fmt: skip


def line(r: dict[str, Any]) -> str:
    flags = "; ".join(w.partition(".")[0] for w in r["warnings"])
    share = f"{100 * r['score']:.1f} % [{100 * r['low']:.1f}, {100 * r['high']:.1f}], n = {r['n']}"
    chance = "; ".join(f"{where} {p}" for where, p in r.get("random", {}).items()) or f"{100 * r['rasr']:.1f} %"
    points = f"{r['queries']:,}" if "queries" in r else ""
    return f"| {r['case']} | {share} | {chance} | {points} | {r['kappa']} | {r['verdict']} | {flags} |"


def page(found: dict[str, Any]) -> str:
    lines = [
        "# The binarization test of sound and of crippled evaluations",
        "",
        "Made by `benchmarks/active_crippled.py`.",
    ]
    for title, e in found.items():
        lines += ["", f"## {title}", "", f"{e['threat']}, {e['device']}, torch {e['torch']}.", "",
                  "| evaluation | score | R-ASR | random points | κ | verdict | flagged |",
                  "|---|---|---|---:|---|---|---|",
                  *map(line, e["rows"])]  # fmt: skip
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data")
    parser.add_argument("--norm", default="Linf")
    parser.add_argument("--eps", default="0.1")
    parser.add_argument("--n", type=int, default=24)
    parser.add_argument("--inner", type=int, default=999)
    parser.add_argument("--surface", action="store_true", help="plant on the ball's surface, not in its corners")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=RESULTS / "active_crippled")
    args = parser.parse_args()
    model, data, title = model_and_data(args)
    plain = as_classifier(model, args.device)
    loud = replace(plain, module=Loud(plain.module).eval(), name=f"loud {plain.name}")
    stored = args.out.with_suffix(".json")
    found = json.loads(stored.read_text()) if stored.exists() else {}
    t = threat(args.norm, args.eps)
    device = torch.cuda.get_device_name() if plain.device.type == "cuda" else "CPU"
    mine = {"threat": str(t), "device": device, "torch": torch.__version__.partition("+")[0], "rows": []}
    where = ", planted on the surface" if args.surface else ""
    found[f"{title}, {args.inner} inner points{where}"] = mine
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.cases:
        saturated, attack = CASES[name]
        begun = time.perf_counter()
        r = brinell.test_attack(
            loud if saturated else plain, data, t, attack, inner=args.inner, progress=False,
            corners=False if args.surface else None,
        )  # fmt: skip
        mine["rows"].append(row(name, r, time.perf_counter() - begun))
        print(line(mine["rows"][-1]), f"{mine['rows'][-1]['seconds']:.1f} s", flush=True)
        stored.write_text(json.dumps(found, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(page(found))


if __name__ == "__main__":
    main()
