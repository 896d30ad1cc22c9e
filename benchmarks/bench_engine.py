"""What the engine saves (refill and early exit) and what it costs (overhead over a bare loop of the same model calls).

Run: python benchmarks/bench_engine.py [--quick]. Prints a report and writes it to benchmarks/results/engine.md.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import brinell
from brinell.core.threat import Threat
from brinell.engine.oracle import BLOCK
from brinell.models.demo import demo_net
from brinell.ops.losses import LOSSES

ROWS = BLOCK["cpu"]
STEPS = 100
THREATS = {"Linf": brinell.Linf(0.1), "L2": brinell.L2(1.0), "L1": brinell.L1(12)}
RESULT = Path(__file__).parent / "results" / "engine.md"


@dataclass(frozen=True)
class Cost:
    """Passes of the attack over all samples."""

    forwards: int
    backwards: int
    broken: int
    samples: int


def cost(problem: brinell.Problem, *, early_exit: bool) -> Cost:
    rows = brinell.attack("demo", problem, THREATS["Linf"], brinell.attacks.APGD(STEPS), early_exit=early_exit)
    total = {name: sum(rows[name].to_pylist()) for name in ("forwards", "backwards", "broken")}
    return Cost(total["forwards"], total["backwards"], total["broken"], rows.num_rows)


def bare(net: nn.Module, x: Tensor, y: Tensor, steps: int, loss: str = "ce") -> None:
    """The model calls of an attack of so many steps and nothing else: forward, loss, gradient of the input."""
    function = LOSSES[loss].function
    for _ in range(steps + 1):
        for start in range(0, len(x), ROWS):
            point = x[start : start + ROWS].detach().requires_grad_()
            value = function(net(point), y[start : start + ROWS], y[start : start + ROWS])
            torch.autograd.grad(value.sum(), point)


def seconds(work: Callable[[], object]) -> float:
    """Processor time of this process: other processes on the machine do not count."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


@dataclass(frozen=True)
class Timed(brinell.attacks.APGD):
    """APGD that adds up the time of its own arithmetic."""

    spent: ClassVar[list[float]] = []

    def init(self, p: Any, ball: Any) -> Any:
        begun = time.process_time()
        state = super().init(p, ball)
        self.spent.append(time.process_time() - begun)
        return state

    def step(self, s: Any, a: Any, p: Any, ball: Any) -> Any:
        begun = time.process_time()
        state = super().step(s, a, p, ball)
        self.spent.append(time.process_time() - begun)
        return state


Ratios = list[tuple[float, float, float]]


def overhead(net: nn.Module, x: Tensor, y: Tensor, threat: Threat, steps: int, repetitions: int) -> Ratios:
    """Extra time over that of the bare loop, measured in turns.

    Of the engine alone, with the attack's own arithmetic, and with the checks before the attack as well. An attack of
    one step stands for the checks.
    """
    problem = brinell.Problem(x, y)

    def engine(steps: int) -> object:
        return brinell.attack(net, problem, threat, Timed(steps), early_exit=False)

    engine(steps)
    bare(net, x, y, 2)
    ratios = []
    for i in range(repetitions):
        checks = seconds(lambda: engine(1)) - seconds(lambda: bare(net, x, y, 1))
        Timed.spent.clear()
        if i % 2:
            plain, ours = seconds(lambda: bare(net, x, y, steps)), seconds(lambda: engine(steps))
        else:
            ours, plain = seconds(lambda: engine(steps)), seconds(lambda: bare(net, x, y, steps))
        times = ours - checks - sum(Timed.spent), ours - checks, ours
        ratios.append(tuple(time / plain - 1 for time in times))
    return ratios  # type: ignore[return-value]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.na, self.nb = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.nb(self.b(self.na(self.a(x)).relu()))).relu()


def residual_net(width: int = 32) -> nn.Module:
    """A small residual network for 3x32x32 inputs, at its random initial weights: only its cost matters here."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU(), Block(width), Block(width)]
    return (
        nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).eval().requires_grad_(False)
    )


def line(model: str, norm: str, ratios: Ratios) -> str:
    cells = []
    for extra in zip(*ratios, strict=True):
        low, middle, high = (100 * f(extra) for f in (min, statistics.median, max))
        cells.append(f"{middle:+.0f} % ({low:+.0f} to {high:+.0f})")
    return f"| {model} | {norm} | {' | '.join(cells)} |"


def report(quick: bool) -> str:
    torch.set_num_threads(1)
    whole = brinell.data.load("demo")
    problem, repetitions, steps = (whole[:100], 2, 10) if quick else (whole, 5, STEPS)
    fixed, early = cost(problem, early_exit=False), cost(problem, early_exit=True)
    assert early.broken == fixed.broken, "early exit changed an outcome"
    demo, x, y = demo_net(), whole.x[: 4 * ROWS], whole.y[: 4 * ROWS]
    big = torch.rand(2 * ROWS, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    net = residual_net()
    labels = net(big).argmax(1)
    lines = [line("demo", name, overhead(demo, x, y, t, steps, repetitions)) for name, t in THREATS.items()]
    few = steps // 2
    lines += [line("residual", name, overhead(net, big, labels, t, few, repetitions)) for name, t in THREATS.items()]
    return TEXT.format(
        n=fixed.samples,
        broken=fixed.broken,
        ff=fixed.forwards / fixed.samples,
        fb=fixed.backwards / fixed.samples,
        ef=early.forwards / early.samples,
        eb=early.backwards / early.samples,
        ratio=fixed.forwards / early.forwards,
        rows=ROWS,
        steps=STEPS,
        taken=steps,
        few=few,
        repetitions=repetitions,
        table="\n".join(lines),
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        quick=" Quick run: fewer samples, steps and repetitions." if quick else "",
    )


TEXT = """# Engine

Written by `make bench` (`benchmarks/bench_engine.py`).{quick}
Python {python}, torch {torch}, {machine}, one thread.

## Passes per sample

APGD-{steps} on cross-entropy, the demo model, {n} samples (misclassified ones too), Linf eps = 0.1, {broken} broken
either way. With early exit a broken sample leaves and the next takes its slot.

| | forwards per sample | backwards per sample |
|---|---:|---:|
| fixed budget (`early_exit=False`) | {ff:.1f} | {fb:.1f} |
| refill and early exit | {ef:.1f} | {eb:.1f} |
| ratio | {ratio:.2f} | |

## Overhead

Processor time of `brinell.attack` (APGD, fixed budget) over that of a bare loop that makes the same forward and
backward calls in blocks of {rows} rows and does nothing else; measured in turns. The demo model ({taken} steps) is
small, so this is close to the worst case; the residual network ({few} steps, 3x32x32 inputs) costs some five times as
much per sample, and has inputs four times as large. Median and range of {repetitions} repetitions. The aim is 20 %. In
L2 and L1 most of its arithmetic is the exact projection on ball and box. The checks before the attack cost some
50 calls of the model, whatever the number of samples and steps.

| model | norm | engine | with the attack's own arithmetic | with the checks before the attack |
|---|---|---:|---:|---:|
{table}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test: seconds instead of minutes; writes nothing")
    quick = parser.parse_args().quick
    text = report(quick)
    print(text)
    if not quick:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
