"""How fast an evaluation is: images per second beside a bare loop of the same model calls, stage by stage.

Usage: python benchmarks/speed.py --model W.pt --data FIRST1000.npz [--flags FLAGS.npy] [--out FOLDER] [--only PART ...]

Parts: `throughput` (the model alone, by precision, execution, rows per call and calls side by side), `autoattack` and
`fast` on that model, `overhead` (APGD on a WideResNet-28-10 and on the demonstration model beside their bare loops).
Every part writes its table as soon as it is there, into OUT/speed.json and, from that, OUT/speed.md. Works on a CPU
(`--device cpu`, few samples) to see that it works. Seconds are those of the clock; start-up (recording, compiling) is
shown apart. Evaluations are made several times in one process, of which the last counts: the first one also loads
libraries, which nothing tells apart; the seconds of every whole call are listed.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import WideResNet, load_preact18
from torch import Tensor

import brinell
from brinell.attacks.catalogue import by_name
from brinell.core.attack import Requires
from brinell.engine import oracle as oracles
from brinell.engine.accelerate import accelerated
from brinell.engine.cuda.graphs import no_garbage_collection
from brinell.engine.oracle import Oracle
from brinell.engine.precision import exact
from brinell.evaluation.plan import audited
from brinell.models.demo import demo_net

WAYS = (("float32", "graph"), ("tf32", "graph"), ("bfloat16", "graph"), ("bfloat16", "compile"))
CALLS = 8
# What the network of the CIFAR-10 evaluations was measured to reach on an H200 by itself, images per second.
CEILINGS = {
    "tf32": {"forward": 140e3, "forward and backward": 48e3},
    "bfloat16": {"forward": 343e3, "forward and backward": 167e3},
}


class Bare:
    """Model calls and nothing else: `CALLS` of them on one block of rows, recorded where the device can."""

    def __init__(self, oracle: Oracle, x: Tensor, y: Tensor, requires: Requires) -> None:
        self.oracle, self.x, self.y, self.requires = oracle, x.clone(), y.clone(), requires
        self.none, self.graph = torch.full_like(y, -1), None
        self.stream = torch.cuda.Stream() if x.is_cuda else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._calls()
                self.graph = torch.cuda.CUDAGraph()
                with no_garbage_collection(), torch.cuda.graph(self.graph, stream=self.stream):
                    self._calls()

    def _calls(self) -> None:
        for _ in range(CALLS):
            self.oracle.query(self.x, self.y, self.none, "margin", self.requires)

    def __call__(self) -> None:
        if self.stream is None:
            return self._calls()
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def rate(make: Callable[[], Bare], block: int, lanes: int, device: torch.device, seconds: float) -> float:
    """Images per second of so many calls side by side; the best of three."""
    bare = [make() for _ in range(lanes)]

    def spin(turns: int) -> float:
        wait(device)
        begun = time.perf_counter()
        for _ in range(turns):
            for b in bare:
                b()
        wait(device)
        return time.perf_counter() - begun

    turns = max(1, round(seconds / spin(1)))
    return turns * lanes * CALLS * block / min(spin(turns) for _ in range(3))


def asked(clf: Any, block: int, precision: str, execution: str) -> Oracle:
    """The oracle an evaluation would have."""
    return accelerated(Oracle(clf, block, precision=precision), clf.device, fuse=execution == "compile")


def ways(device: torch.device) -> Iterator[tuple[str, str]]:
    """Precisions and executions to look at."""
    yield from WAYS if device.type == "cuda" else (("float32", "eager"),)


def throughput(
    clf: Any, x: Tensor, y: Tensor, chosen: list[tuple[str, str]], blocks: list[int], lanes: list[int], seconds: float
) -> list[dict]:
    """Rates of the model alone."""
    rows = []
    for precision, execution in chosen:
        for block in blocks:
            repeats = -(-block // len(x))
            a, b = (v.repeat(repeats, *[1] * (v.ndim - 1))[:block].to(clf.device) for v in (x, y))
            query = asked(clf, block, precision, execution)
            for n in lanes:
                forward, both = (
                    rate(partial(Bare, query, a, b, need), block, n, clf.device, seconds)
                    for need in (Requires.LOGITS, Requires.GRAD)
                )
                rows.append(
                    {"precision": precision, "execution": execution, "block": block, "lanes": n,
                     "forward": forward, "forward and backward": both}
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def stages(run: brinell.Run, rates: dict[str, float] | None, ceiling: dict[str, float] | None = None) -> list[dict]:
    """What every stage did, how long it took, and which share that is of the bare loop's speed and of the ceiling."""
    rows = run.rows()
    names = np.asarray(rows["attack"].to_pylist())
    out = []
    for name, stage in zip(run.attacks, run.stages(), strict=True):
        here = names == name
        f, b = (int(np.asarray(rows[c])[here].sum()) for c in ("forwards", "backwards"))
        seconds = float(np.asarray(rows["seconds"])[here].sum())
        one = {"stage": name, "attacked": stage.attacked, "broken": stage.broken, "forwards": f, "backwards": b,
               "seconds": seconds}  # fmt: skip
        for what, r in (("bare loop", rates), ("ceiling", ceiling)):
            if r and seconds:
                one[f"share of the {what}"] = (b / r["forward and backward"] + (f - b) / r["forward"]) / seconds
        out.append(one)
    return out


def timed(clf: Any, data: Any, threat: Any, plan: Any, flags: Any, rates: Any, times: int = 1, **options: Any) -> dict:
    """One evaluation with its times; of several, the last, which finds libraries loaded and everything compiled."""
    how = brinell.Execution(
        precision=options["precision"], mode=options["execution"], slots=options.get("slots"),
        blocks=oracles.default_blocks(clf.device),
    )  # fmt: skip
    walls, told = [], brinell.estimate(clf, data, threat, plan, execution=how)
    for _ in range(times):
        begun = time.perf_counter()
        run = brinell.evaluate(clf, data, threat, plan, progress=False, execution=how)
        whole = time.perf_counter() - begun
        walls.append({"call": whole, "wall": run.manifest["wall_seconds"], "start-up": run.manifest["startup_seconds"]})
    wall, start = run.manifest["wall_seconds"], run.manifest["startup_seconds"]
    ceiling = CEILINGS.get(options["precision"]) if clf.name == "preact18" else None
    result = {
        **{k: v for k, v in options.items() if k != "device"},
        "clean": str(run.clean_accuracy), "robust": str(run.robust_accuracy), "call": whole, "wall": wall,
        "start-up": start, "after start-up": wall - start, "forwards": run.cost.forwards,
        "backwards": run.cost.backwards, "every time": walls,
        "foretold": {"seconds": told.seconds, "forwards": told.forwards, "backwards": told.backwards},
        "notes": run.manifest["notes"], "stages": stages(run, rates, ceiling),
    }  # fmt: skip
    if flags is not None:
        robust = np.zeros(len(flags), dtype=bool)
        robust[run.survivors()] = True
        result["broken here only"] = np.flatnonzero(flags & ~robust).tolist()
        result["broken there only"] = np.flatnonzero(~flags & robust).tolist()
    print(json.dumps(result), flush=True)
    return result


def best(rates: list[dict], precision: str, execution: str, block: int | None) -> dict | None:
    """The rates an evaluation is measured against: those of its own rows per call, else the best of all."""
    mine = [
        r for r in rates if (r["precision"], r["execution"], block or r["block"]) == (precision, execution, r["block"])
    ]
    return max(mine, key=lambda r: r["forward and backward"], default=None)


def markdown(found: dict[str, Any]) -> str:
    """The tables."""
    lines = ["# Speed", "", "Written by `benchmarks/speed.py`.", f"{found['machine']}.", ""]
    for name, rows in found.items():
        if not name.startswith("throughput"):
            continue
        lines += [f"## {name}: images per second of the model alone, in thousands", "",
                  "| precision | execution | rows per call | side by side | forward | forward and backward |",
                  "|---|---|---:|---:|---:|---:|"]  # fmt: skip
        for r in rows:
            lines.append(
                f"| {r['precision']} | {r['execution']} | {r['block']} | {r['lanes']} | {r['forward'] / 1e3:.1f} "
                f"| {r['forward and backward'] / 1e3:.1f} |"
            )
        lines.append("")
    for name in ("autoattack", "fast", "overhead"):
        for r in found.get(name, []):
            what = " ".join(str(r[k]) for k in ("model", "precision", "execution", "slots") if r.get(k) is not None)
            calls = ", ".join(f"{w['call']:.2f}" for w in r["every time"])
            lines += [
                f"## {name}, {what}", "",
                f"Robust accuracy {r['robust']}; {r['after start-up']:.2f} s after {r['start-up']:.2f} s of start-up; "
                f"{r['forwards']:,} forwards, {r['backwards']:,} backwards. Whole calls: {calls} s. Foretold: "
                f"{r['foretold']['seconds']:.2f} s, {r['foretold']['forwards']:,} forwards.", "",
                "| stage | attacked | broken | forwards | backwards | seconds | of the bare loop | of the ceiling |",
                "|---|---:|---:|---:|---:|---:|---:|---:|",
            ]  # fmt: skip
            for s in r["stages"]:
                bare, ceiling = (
                    "" if v is None else f"{100 * v:.0f} %"
                    for v in (s.get(f"share of the {what}") for what in ("bare loop", "ceiling"))
                )  # fmt: skip
                lines.append(
                    f"| {s['stage']} | {s['attacked']} | {s['broken']} | {s['forwards']:,} | {s['backwards']:,} "
                    f"| {s['seconds']:.2f} | {bare} | {ceiling} |"
                )
            if "broken here only" in r:
                lines += ["", f"Differs from the recorded reference in {len(r['broken here only'])} samples broken "
                              f"here only and {len(r['broken there only'])} there only."]  # fmt: skip
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data")
    parser.add_argument("--flags")
    parser.add_argument("--eps", default=None)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    parser.add_argument("--only", nargs="+", default=["throughput", "fast", "autoattack", "overhead"])
    parser.add_argument("--ways", nargs="+", help="e.g. tf32:graph bfloat16:compile")
    parser.add_argument("--blocks", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--block", type=int, help="rows per model call in the evaluations")
    parser.add_argument("--few", type=int, help="the same for `fast`, which soon has few rows left")
    parser.add_argument("--times", type=int, default=2, help="evaluations of `autoattack` in a row")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--slots", type=int)
    parser.add_argument("--seconds", type=float, default=0.3)
    args = parser.parse_args()
    device, out = torch.device(args.device), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "speed.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    found["machine"] = f"{gpu}, torch {torch.__version__}"
    chosen = [tuple(w.split(":")) for w in args.ways] if args.ways else list(ways(device))
    if args.block:
        oracles.BLOCK[device.type] = args.block
    if args.few:
        oracles.KINDS["branches"][device.type] = args.few
    block, few = oracles.default_block(device), oracles.default_blocks(device).of("branches")

    def keep(name: str, value: Any) -> None:
        found[name] = value
        file.write_text(json.dumps(found, indent=1) + "\n")
        (out / "speed.md").write_text(markdown(found))

    if args.model == "demo":
        clf, data, eps = brinell.wrap(demo_net(), name="demo"), brinell.data.load("demo", args.n), "0.1"
    else:
        with np.load(args.data) as stored:
            x, y = torch.from_numpy(stored["x"][: args.n]).float() / 255, torch.from_numpy(stored["y"][: args.n])
        clf, data, eps = brinell.wrap(load_preact18(args.model), name="preact18"), brinell.Problem(x, y.long()), "8/255"
    clf, threat = clf.to(device), brinell.Linf(args.eps or eps)
    flags = np.load(args.flags).astype(bool)[: args.n] if args.flags else None
    options = {"slots": args.slots} if args.slots else {}
    with exact(device):
        if "throughput" in args.only:
            keep("throughput", throughput(clf, data.x, data.y, chosen, args.blocks, args.lanes, args.seconds))
    rates = found.get("throughput", [])
    for part, plan in (("fast", audited(by_name("fast"), 0)), ("autoattack", "autoattack")):
        for precision, execution in chosen if part in args.only else ():
            mine = best(rates, precision, execution, few if part == "fast" else None)
            result = timed(clf, data, threat, plan, flags, mine, 3 if part == "fast" else args.times,
                           precision=precision, execution=execution, **options)  # fmt: skip
            others = [r for r in found.get(part, []) if (r["precision"], r["execution"]) != (precision, execution)]
            keep(part, [*others, result])
    if "overhead" in args.only:
        keep("overhead", list(overhead(args, chosen, device, block)))


def overhead(args: argparse.Namespace, chosen: list, device: torch.device, block: int) -> Iterator[dict]:
    """APGD on a large and a small network, every sample to the end of its budget, beside the bare loop."""
    demo = brinell.data.load("demo", min(args.n, 4 * block))
    small = brinell.wrap(demo_net(), name="demo")
    noise = torch.rand(min(args.n, 2 * block), 3, 32, 32, generator=torch.Generator().manual_seed(0))
    wide = brinell.wrap(WideResNet().eval().requires_grad_(False), name="wide28-10")
    for clf, x in ((wide, noise), (small, demo.x)):
        clf = clf.to(device)
        with torch.no_grad():
            y = torch.cat([clf.forward(part.to(device)).logits.argmax(1).cpu() for part in x.split(block)])
        for precision, execution in chosen:
            with exact(device):
                a, b = x[:block].to(device), y[:block].to(device)
                query = asked(clf, len(a), precision, execution)
                rates = {
                    name: rate(partial(Bare, query, a, b, need), len(a), 1, device, args.seconds)
                    for name, need in (("forward", Requires.LOGITS), ("forward and backward", Requires.GRAD))
                }
            # A radius in which nothing breaks: every sample pays the whole budget.
            result = timed(clf, brinell.Problem(x, y), brinell.Linf(1e-6), brinell.attacks.APGD(50), None, rates, 2,
                           precision=precision, execution=execution)  # fmt: skip
            yield {"model": clf.name, **result}


if __name__ == "__main__":
    main()
