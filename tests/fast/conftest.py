"""Worlds in which it is known who breaks, plans whose short stage misses, and `fast` with a smaller audit."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import brinell
from brinell.attacks import APGD, PGD, Square
from brinell.attacks.catalogue import by_name
from brinell.testing import LinearWorld, duel

N, SHARE = 120, 0.3
INCIDENTAL = ["seconds", "adv_shard", "adv_row"]
# Who escalates and who is asked at once differ in these: how large the audit was meant to be.
MEANT = ["attack_hash", "flags"]


@pytest.fixture(scope="session", autouse=True)
def _runs_without_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is evaluated without a folder goes where pytest cleans up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))
        yield


class Truth:
    """A linear world in which it is known who can be broken: about half of the samples, none of them by a hair."""

    def __init__(self) -> None:
        whole = duel(classes=2, n=N)
        distance = whole.distance("Linf")
        self.eps = float(distance.median())
        clear = (distance / self.eps - 1).abs() > 0.05
        self.world = LinearWorld(whole.weight, whole.bias, whole.x[clear], whole.y[clear])
        self.breakable = set((distance[clear] < self.eps).nonzero()[:, 0].tolist())
        self.everyone = set(range(len(self.world.y)))

    def evaluate(self, plan: brinell.Plan, model: Any = None, part: slice = slice(None), **more: Any) -> brinell.Run:
        """The Run of a part of the samples, under their own ids; it does not escalate unless asked to."""
        ids = list(range(len(self.world.y)))[part]
        data = brinell.Problem(self.world.x[part], self.world.y[part], ids)
        return brinell.evaluate(
            model or self.world.classifier,
            data,
            brinell.Linf(self.eps),
            plan,
            **{"progress": False, "escalate": False, **more},
        )


@pytest.fixture(scope="session")
def truth() -> Truth:
    return Truth()


def _plan(name: str, short: brinell.attacks.PGD) -> brinell.Plan:
    """A short stage, and two at full strength on a share of its survivors."""
    full = (PGD(steps=20, rel_step=0.25), APGD(steps=12, loss="margin"))
    stages = (brinell.Stage(short, label="short"), *(brinell.Stage(a, share=SHARE) for a in full))
    return brinell.Plan(name, stages, strength="audited")


@pytest.fixture(scope="session")
def careless() -> brinell.Plan:
    """The short stage takes one small step."""
    return _plan("careless", PGD(steps=1, rel_step=0.5))


@pytest.fixture(scope="session")
def careful() -> brinell.Plan:
    """The short stage misses nothing in a linear world."""
    return _plan("careful", PGD(steps=20, rel_step=0.25))


@pytest.fixture(scope="session")
def small() -> Callable[[float], brinell.Plan]:
    """`fast` with an audit by 20 steps of Auto-PGD and 100 queries of Square on so large a share."""

    def make(share: float) -> brinell.Plan:
        fast = by_name("fast")
        audit = (brinell.Stage(APGD(steps=20), share=share), brinell.Stage(Square(steps=100), share=share))
        return replace(fast, stages=(fast.stages_for(brinell.Linf(0.1))[0], *audit))

    return make


@pytest.fixture(scope="session")
def outcome() -> Callable[..., pa.Table]:
    """A Run's rows without how fast they were computed and where their adversarials lie; `but` drops more."""

    def strip(run: brinell.Run, but: list[str] | None = None) -> pa.Table:
        return run.rows().drop_columns([*INCIDENTAL, *(but or [])]).combine_chunks()

    return strip


@pytest.fixture(scope="session")
def meant() -> list[str]:
    """The columns that tell how large the audit was meant to be."""
    return MEANT
