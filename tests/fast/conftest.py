"""Worlds in which it is known who breaks, plans whose short stage misses, and `fast` with a smaller audit."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
import torch

import brinell
from brinell.attacks import APGD, PGD, Square
from brinell.core.threat import threat
from brinell.evaluate.presets import by_name
from brinell.testing import LinearWorld, duel

N, SHARE = 96, 0.3
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
    """A linear world: half of the samples can break, of which a short plan may find some."""

    def __init__(self) -> None:
        self.world: LinearWorld = duel(n=N)
        kind = torch.arange(N) % 4
        # 0, 1: robust; 2: broken by whoever walks to the boundary; 3: by whoever takes one short step, mostly.
        factor = torch.tensor([0.5, 0.9, 1.1, 12.0])[kind]
        self.threat = threat("Linf", self.world.distance("Linf") * factor)
        self.breakable = set((factor > 1).nonzero()[:, 0].tolist())

    def evaluate(
        self, plan: brinell.Plan, model: object = None, part: slice = slice(None), **more: object
    ) -> brinell.Run:
        data = brinell.Problem(self.world.x[part], self.world.y[part], range(N)[part])
        t = replace(self.threat, eps=self.threat.eps[part])
        return brinell.evaluate(model or self.world.classifier, data, t, plan, **{"progress": False, **more})


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
    return _plan("careless", PGD(steps=1, rel_step=0.15))


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
        short = tuple(s for s in fast.stages if s.share is None)
        return replace(fast, stages=(*short, *audit), sparse_stages=None)

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
