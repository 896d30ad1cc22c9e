"""The binarization test with all samples' classifiers attacked together, against one sample after another.

Usage: python benchmarks/active_test.py [--model demo] [--n 64] [--inner 999] [--repetitions 3]
       python benchmarks/active_test.py --model W.pt --data FIRST1000.npz --eps 8/255 --n 512 --device cuda

Both ways attack the same two-class classifiers, fitted once, with PGD-20, in the same process and in turns. One by one
is what the reference code of the paper does: a batch of a single image per step. It is timed twice: as the bare loop of
20 steps without bookkeeping or early exit, and on the engine with a block of one, which stops at the first success. The
median of the repetitions counts. Writes OUT.json and OUT.md; other models, devices or radii add to the same files.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mm_cifar import model_and_data
from torch import Tensor

from brinell.attacks import PGD
from brinell.core.attack import Attempt, Batch
from brinell.core.criterion import Misclassified
from brinell.core.dataset import Chunk
from brinell.core.threat import threat
from brinell.engine import precision
from brinell.engine.attack_batch import attack_batch
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.slots import Samples
from brinell.evaluation.coerce import as_classifier
from brinell.ops import rng
from brinell.ops.rowwise import take
from brinell.reliability.binarization.binary_models import BinaryClassifier, BinaryTasks, Design, build_tasks
from brinell.reliability.binarization.features import find_features
from brinell.reliability.binarization.readouts import READOUTS

RESULTS = Path(__file__).parent / "results"
ATTACK = PGD(steps=20)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(device: torch.device, run: Callable[[], Any]) -> tuple[float, Any]:
    wait(device)
    begun = time.perf_counter()
    out = run()
    wait(device)
    return time.perf_counter() - begun, out


class Ways:
    """The ways to attack the classifiers of all samples; each returns which samples broke."""

    def __init__(self, tasks: BinaryTasks, binary: BinaryClassifier, x: Tensor, t: Any, alone: int) -> None:
        self.alone = min(alone, len(x))
        self.binary, self.ball = binary, t.ball(tasks.at, x.device)
        zero = torch.zeros_like(tasks.ids)
        key = rng.fold(rng.keys(0, tasks.ids), rng.digest(ATTACK.name))
        self.work = Samples.of(x, zero, key, self.ball.eps, zero[:, None] - 1, id=tasks.ids)

    def engine(self, work: Samples, slots: int, block: int) -> Tensor:
        """The engine of the library, early exit."""
        engine = Engine(
            Oracle(self.binary, block),
            ATTACK,
            Misclassified(),
            self.ball,
            (Attempt(),),
            slots,
        )
        broken = torch.zeros(len(work), dtype=torch.bool, device=work.device)
        for at, record in engine.run(work):
            broken[at] = record.broken
        return broken

    def together(self) -> Tensor:
        """As `brinell.test_attack` does it."""
        block = default_block(self.work.x.device)
        return self.engine(self.work, 2 * block, block)

    def one_by_one(self) -> Tensor:
        """The same engine, a batch of one, one sample after another; stops at a sample's first success."""
        index = torch.arange(self.alone, device=self.work.x.device)
        return torch.cat([self.engine(take(self.work, i), 1, 1) for i in index.split(1)])

    def bare(self) -> Tensor:
        """Twenty steps on a batch of one and a look at the last point, nothing else, one sample after another."""
        w, broken = self.work, []
        for i in torch.arange(self.alone, device=w.x.device).split(1):
            rows = Batch(w.x[i], w.y[i], w.key[i], w.targets[i, 0], id=w.id[i])
            last = attack_batch(self.binary, ATTACK, rows, replace(self.ball, eps=w.eps[i]))
            with torch.no_grad():
                broken.append(self.binary.forward_of(last, w.id[i]).logits.argmax(1) == 1)
        return torch.cat(broken)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    model, data, title = model_and_data(args)
    classifier = as_classifier(model, args.device)
    device, t = classifier.device, threat(args.norm, args.eps)
    design = Design(args.inner, 1, t.norm.corners)
    with precision.exact(device):
        chunk = Chunk(data.ids, data.x, data.y)
        seen = find_features(classifier, data.x[:8].to(device))
        oracle = Oracle(seen, default_block(device))
        fit, tasks = seconds(device, lambda: build_tasks(oracle, seen, READOUTS["linear"], design, chunk, t, 0))
        assert tasks is not None, "no sample could be separated"
        ways = Ways(tasks, tasks.classifier(args.kappa), data.x[tasks.at].to(device), t, args.alone or len(data))
        runs = {"together": ways.together, "one by one": ways.one_by_one, "bare": ways.bare}
        ways.together()  # once unmeasured
        times: dict[str, list[float]] = {name: [] for name in runs}
        scores = {}
        for k in range(args.repetitions):
            for name in list(runs) if k % 2 else list(runs)[::-1]:
                spent, broken = seconds(device, runs[name])
                times[name].append(spent * len(tasks) / len(broken))
                scores[name] = [int(broken.sum()), len(broken)]
    return {
        "title": title, "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "threads": torch.get_num_threads(), "threat": str(t), "n": len(data), "accepted": len(tasks),
        "inner": args.inner, "kappa": args.kappa, "fit": fit, "times": times, "scores": scores,
        "torch": torch.__version__.partition("+")[0], "python": platform.python_version(),
    }  # fmt: skip


def line(r: dict[str, Any]) -> str:
    middle = {name: statistics.median(v) for name, v in r["times"].items()}
    ratios = {
        name: [a / b for a, b in zip(r["times"][name], r["times"]["together"], strict=True)]
        for name in ("one by one", "bare")
    }
    cells = [f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" for v in ratios.values()]
    return (
        f"| {r['title']} | {r['threat']} | {r['device']}, {r['threads']} threads | {r['accepted']} of {r['n']} | "
        f"{r['fit']:.1f} s | {middle['together']:.2f} s | {middle['one by one']:.2f} s | {middle['bare']:.2f} s | "
        f"{cells[0]} | {cells[1]} |"
    )


def told(r: dict[str, Any], way: str) -> str:
    """Broken samples, and of how many: one by one may be timed on the first few, and is scaled up to all."""
    score = r["scores"][way]
    broken, of = score if isinstance(score, list) else (score, r["accepted"])
    return f"{broken} of {of}"


def report(results: list[dict[str, Any]]) -> str:
    head = [
        "# The binarization test, samples together and one by one",
        "",
        "Made by `benchmarks/active_test.py`. PGD-20 on the two-class classifiers of all samples: together on the "
        "engine, or one sample after another with a batch of one, either on the same engine (early exit as well) or "
        "as a bare loop of 20 steps (no early exit). All in the same process, in turns; medians, ratios with range.",
        "",
        "| model | threat | device | samples separated | fitting | together | one by one | bare loop | ratio, engine | "
        "ratio, bare loop |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    scores = [
        f"{r['title']}: {told(r, 'together')} broken together, {told(r, 'one by one')} one by one, "
        f"{told(r, 'bare')} by the bare loop (last point only); {r['inner'] + 1} inner points, "
        f"κ = {r['kappa']}, torch {r['torch']}, Python {r['python']}."
        for r in results
    ]
    return "\n".join([*head, *map(line, results), "", *scores, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data")
    parser.add_argument("--norm", default="Linf")
    parser.add_argument("--eps", default="0.1")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--inner", type=int, default=999)
    parser.add_argument("--kappa", type=float, default=0.999)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--alone", type=int, help="samples to time one by one; their time is scaled up (default: all)")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=RESULTS / "active_test")
    args = parser.parse_args()
    if args.model == "demo":
        torch.set_num_threads(1)
    made = measure(args)
    stored = args.out.with_suffix(".json")
    results = json.loads(stored.read_text()) if stored.exists() else []
    same = ("title", "device", "threat")
    results = [r for r in results if any(r[k] != made[k] for k in same)] + [made]
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(results, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(report(results))
    print(line(made))


if __name__ == "__main__":
    main()
