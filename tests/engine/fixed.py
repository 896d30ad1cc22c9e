"""Micro-batches of fixed memory without a device, a world to run them in, and attacks of every kind."""

from dataclasses import dataclass
from typing import Any

import torch

from brinell.attacks import ACG, APGD, FAB, PGD, Pursuit, Square
from brinell.core.attack import Attack, AttackState, Attempt, Requires
from brinell.core.criterion import Misclassified
from brinell.core.threat import L1, L2, Linf
from brinell.engine.accelerate import scheduler_for
from brinell.engine.cuda.graphs import DeviceMicroBatch
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.rowwise import clone, concat, overwrite, overwrite_rows, take, where

ONE_LEG = (Attempt(),)


@dataclass(eq=False)
class Fixed(DeviceMicroBatch):
    """What `CapturedMicroBatch` does, without a device: fixed memory, and flags as of the last advance."""

    depth: int = 2
    reusable: bool = True

    def __post_init__(self, entry):
        super().__post_init__(entry)
        self.slots = clone(self.slots)
        self.flags, self.entered = [], []

    def advance(self, times=1):
        assert self.pending < self.depth
        for _ in range(times):
            overwrite(self.slots, self.step(self.slots))
        self.flags.append(self.slots.live.tolist())
        self.entered.append(set())
        self.pending = len(self.flags)

    def running(self):
        new, flags = self.entered.pop(0), self.flags.pop(0)
        self.pending = len(self.flags)
        return [alive or i in new for i, alive in enumerate(flags)]

    def write(self, places, new):
        overwrite_rows(self.slots, torch.tensor(places), new)
        self._reset_ages(places)
        for since in self.entered:
            since.update(places)

    def shrink(self, block):
        pass


class Counting(Fixed):
    """Says how many iterations all micro-batches have made, each about a whole block."""

    made = 0

    def advance(self, times=1):
        Counting.made += times
        super().advance(times)


def images(n=21):
    torch_rng = torch.Generator().manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(36, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6)
    ).eval()
    with torch.no_grad():
        for v in net.parameters():
            v.copy_(torch.randn(v.shape, generator=torch_rng) * 0.5)
    x = torch.rand(n, 1, 6, 6, generator=torch_rng)
    with torch.no_grad():
        y = net(x).argmax(1)
    return wrap(net), x, y


def run(
    classifier,
    x,
    y,
    t,
    attack,
    graph_cache=None,
    *,
    attempts=ONE_LEG,
    slots=16,
    block=8,
    order=None,
    oracle=None,
    early_exit=True,
):
    at = torch.arange(len(x)) if order is None else order
    ball = t.ball(at, torch.device("cpu"))
    targets = torch.stack(
        [(y + 1 + k) % 6 if attempts[0].rank else torch.full_like(y, -1) for k in range(len(attempts))], 1
    )
    engine = Engine(
        oracle or Oracle(classifier, 8), attack, Misclassified(), ball, attempts, slots,
        early_exit, scheduler=scheduler_for(oracle or Oracle(classifier, 8), graph_cache),
    )  # fmt: skip
    work = Samples.of(x[at], y[at], rng.keys(0, at), ball.eps, targets[at])
    parts = list(engine.run(work))
    positions = torch.cat([p for p, _ in parts])
    assert sorted(positions.tolist()) == list(range(len(x))), "every sample exactly once"
    return take(concat([r for _, r in parts]), at[positions].argsort())


@dataclass(frozen=True)
class Rolling(Attack[Any]):
    """Momentum by way of the point before: a state that hands one of its fields on as another."""

    steps: int = 11
    loss = "margin"
    requires = Requires.GRAD
    name = "rolling"
    minimum_norm = False

    @dataclass(frozen=True)
    class State(AttackState):
        t: torch.Tensor
        x: torch.Tensor
        before: torch.Tensor

    @property
    def queries(self):
        return self.steps + 1

    def init(self, p, ball):
        return self.State(torch.zeros_like(p.y), p.x, p.x)

    def step(self, s, a, p, ball):
        moved = s.x + 0.02 * a.gradient.sign() + 0.75 * (s.x - s.before)
        # The first response moves nothing.
        return self.State(s.t + 1, where(s.t > 0, ball.project(p.x, moved), s.x), s.x)


CASES = {
    "rolling": (Rolling(), Linf(0.05), (Attempt(), Attempt(0, 1))),
    "apgd": (APGD(steps=9), Linf(0.05), (Attempt(0, 0), Attempt(0, 1))),
    "acg": (ACG(steps=9), L2(0.3), (Attempt(0, 0), Attempt(0, 1))),
    "targets": (APGD(steps=5, loss="minimum-margin"), L2(0.3), tuple(Attempt(r, 0) for r in (2, 3, 4))),
    "pgd": (PGD(steps=9), L2(0.3), (Attempt(),)),
    "fab": (FAB(steps=6, targeted=True), L2(0.2), tuple(Attempt(r, 0) for r in (2, 3))),
    "fab all": (FAB(steps=4), Linf(0.02), (Attempt(0, 0), Attempt(0, 1))),
    "square": (Square(steps=20), Linf(0.05), (Attempt(),)),
    "pursuit": (Pursuit(steps=8, targets=4, again=2), Linf(0.04), (Attempt(),)),
    "pursuit L1": (Pursuit(steps=4, targets=3, again=1), L1(1.0), (Attempt(),)),
}
