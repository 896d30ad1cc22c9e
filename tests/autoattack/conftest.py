"""Plans with small budgets, small networks and data, and rows without what may differ between equal evaluations."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.attacks.catalogue import by_name
from brinell.models.demo import demo_net

INCIDENTAL = ("seconds", "adv_shard", "adv_row")


def small(attack: Any, steps: int, queries: int, targets: int) -> Any:
    """Return the attack with a budget for tests, including the attacks inside it."""
    inside = {part: small(getattr(attack, part), steps, queries, targets) for part in attack.parts}
    attack = replace(attack, **inside)
    few = {"steps": steps, "grow": 2, "halve": 2, "search": 2, "rounds": 2, "again": 2, "targets": targets}
    if isinstance(attack, brinell.attacks.Square | brinell.attacks.RandomSearch | brinell.attacks.HopSkipJump):
        few["steps"] = queries
    names = {f.name for f in fields(attack)}
    return replace(attack, **{name: value for name, value in few.items() if name in names})


def small_stage(s: brinell.Stage, steps: int, queries: int, restarts: int, targets: int, eot: int) -> brinell.Stage:
    """The same stage with a budget for tests."""
    attack = small(s.attack, steps, queries, targets)
    return replace(
        s, attack=attack, ranks=s.ranks[:targets], restarts=min(s.restarts, restarts), eot=min(s.eot, eot), label=s.name
    )


@pytest.fixture(scope="session")
def cut() -> Callable[..., brinell.Plan]:
    """A plan (or the plan of that name) with few steps, queries, restarts, targets and draws."""

    def make(
        plan: str | brinell.Plan, steps: int = 4, queries: int = 12, restarts: int = 2, targets: int = 2, eot: int = 2
    ) -> brinell.Plan:
        whole = by_name(plan) if isinstance(plan, str) else plan

        def shorter(stages: tuple[brinell.Stage, ...]) -> tuple[brinell.Stage, ...]:
            return tuple(small_stage(s, steps, queries, restarts, targets, eot) for s in stages)

        return whole.with_stages(shorter)

    return make


@pytest.fixture(scope="session")
def outcome() -> Callable[[brinell.Run], pa.Table]:
    """A Run's rows without how fast they were computed and where their adversarials lie."""

    def strip(run: brinell.Run) -> pa.Table:
        return run.rows().drop_columns(list(INCIDENTAL)).combine_chunks()

    return strip


@pytest.fixture(scope="session")
def quiet() -> Callable[..., brinell.Run]:
    """`evaluate` without progress."""

    def call(*args: object, **kwargs: object) -> brinell.Run:
        return brinell.evaluate(*args, **kwargs, progress=False)

    return call


@pytest.fixture(scope="session")
def level() -> Callable[[brinell.Run, str], str]:
    """The worst level of the checks of a Run whose names start like that."""

    def look(run: brinell.Run, name: str) -> str:
        found = [c["level"] for c in run.checks if c["name"].startswith(name)]
        assert found, f"no check {name} among {[c['name'] for c in run.checks]}"
        return max(found, key=["ok", "info", "warn", "fail"].index)

    return look


@pytest.fixture(scope="session")
def demo() -> brinell.Problem:
    return brinell.data.load("demo")[:60]


@pytest.fixture
def net() -> nn.Module:
    return demo_net()


@pytest.fixture(scope="session")
def tiny() -> Callable[..., nn.Module]:
    """A random convolutional network for images of 8 by 8, centred so that every class occurs."""

    def make(classes: int = 10, channels: int = 1) -> nn.Module:
        net = nn.Sequential(nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, classes))
        generator = torch.Generator().manual_seed(classes)
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / p[0].numel() ** 0.5)
            net[3].bias -= net(torch.rand(256, channels, 8, 8, generator=generator)).mean(0)
        return net.eval().requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def images() -> Callable[..., tuple[Tensor, Tensor]]:
    """Images of 8 by 8 and the labels a network gives them, the last one wrong on purpose."""

    def make(net: nn.Module, n: int, channels: int = 1) -> tuple[Tensor, Tensor]:
        x = torch.rand(n, channels, 8, 8, generator=torch.Generator().manual_seed(n))
        logits = net(x)
        y = logits.argmax(1)
        y[-1] = (y[-1] + 1) % logits.shape[1]
        return x, y

    return make
