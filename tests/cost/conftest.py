"""A clock that counts, a world in which it is known who breaks, and Runs that go where pytest cleans up."""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import brinell
from brinell.core.execution import Execution
from brinell.cost.budget import Estimate
from brinell.cost.estimate import remaining_work
from brinell.cost.extrapolate import predict
from brinell.engine import precision
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.testing import LinearWorld, duel


@pytest.fixture(scope="session", autouse=True)
def _runs_without_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))
        yield


class Counting:
    """A clock that advances by so much whenever it is read: every probe has the same number of looks."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture(scope="session")
def foretold() -> Callable[..., Estimate]:
    """The estimate of an evaluation by a clock that counts `step` seconds per reading."""

    def tell(
        model: Any, data: Any, threat: brinell.Threat, plan: Any, step: float = 0.005, folder: Any = None, **more: Any
    ) -> Estimate:
        audit, escalate = more.pop("audit", None), more.pop("escalate", False)
        clf = coerce.as_classifier(model)
        with precision.exact(clf.device):
            prepared = prepare(
                clf,
                coerce.as_problem(data),
                threat,
                coerce.as_plan(plan, audit=audit, escalate=escalate),
                Execution(),
                **more,
            )
            return predict(remaining_work(prepared, folder, escalate), 2.0, Counting(step))

    return tell


@pytest.fixture(scope="session")
def world() -> LinearWorld:
    return duel(n=300)


@pytest.fixture(scope="session")
def eps(world: LinearWorld) -> float:
    """A radius at which about half of the samples can be broken."""
    return float(torch.as_tensor(world.distance("Linf")).median())
