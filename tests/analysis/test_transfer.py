"""Linear models, whose answers to each other's adversarials can be computed by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

import brinell
from brinell.analysis.transfer import Transferability, transfer
from brinell.errors import InputError, RunError
from brinell.results import Run
from brinell.testing.worlds import LinearWorld, linear_world

A = linear_world(classes=3, shape=(10,), n=40, seed=2)
# A neighbour of A, and a stranger that shares nothing with it.
B = LinearWorld(A.weight + 0.3 * torch.roll(A.weight, 1, 1), A.bias, A.x, A.y)
C = LinearWorld(torch.roll(A.weight, 1, 0), torch.roll(A.bias, 1), A.x, A.y)
DATA = brinell.Problem(A.x, A.y)


def run_of(world: LinearWorld, folder: Path) -> Run:
    return brinell.evaluate(world.classifier, DATA, brinell.Linf(0.03), "pgd20", out=folder, progress=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: run_of(world, folder / name) for name, world in (("a", A), ("b", B))}


@pytest.fixture(scope="module")
def found(runs: dict[str, Run]) -> Transferability:
    return transfer(
        {name: run.path for name, run in runs.items()}, {"a": A.classifier, "b": B.classifier, "c": C.classifier}, DATA
    )


def predicted(world: LinearWorld, x: torch.Tensor) -> torch.Tensor:
    return (x.double() @ world.weight.double().T + world.bias.double()).argmax(1)


def test_the_diagonal_is_whole(found: Transferability, runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        cell = found[name, name]
        assert cell.rate.value == 1.0 and cell.rate.n == len(run.adversarials().ids) > 0
        assert cell.accuracy.k == run.robust_accuracy.k


@pytest.mark.parametrize("source", ["a", "b"])
@pytest.mark.parametrize(("target", "world"), [("a", A), ("b", B), ("c", C)])
def test_every_cell_by_hand(
    found: Transferability, runs: dict[str, Run], source: str, target: str, world: LinearWorld
) -> None:
    adversarials = runs[source].adversarials()
    x = A.x.clone()
    x[adversarials.ids] = torch.from_numpy(adversarials.x)
    own = {"a": A, "b": B}[source]
    both = (predicted(own, A.x) == A.y) & (predicted(world, A.x) == A.y)
    shown = both & torch.from_numpy(np.isin(np.arange(40), adversarials.ids))
    right = predicted(world, x) == A.y
    cell = found[source, target]
    assert (cell.rate.k, cell.rate.n) == (int((shown & ~right).sum()), int(shown.sum()))
    assert (cell.accuracy.k, cell.accuracy.n) == (int(right.sum()), 40)


def test_cells_differ(found: Transferability) -> None:
    """The worlds are such that the matrix is not all alike, else the tests above would prove little."""
    assert 0 < found["a", "b"].rate.value < 1 or 0 < found["b", "a"].rate.value < 1
    assert found["a", "c"].rate.n < found["a", "a"].rate.n


def test_the_same_model_under_another_name(runs: dict[str, Run]) -> None:
    same = transfer({"a": runs["a"]}, {"twin": A.classifier}, DATA)
    assert same["a", "twin"].rate.value == 1.0


def test_findings(found: Transferability) -> None:
    page = found.findings()
    assert page.tables[0].columns == ("source", "a", "b", "c") and len(page.tables) == 2
    assert page.figures[-1].kind == "matrix" and [s.name for s in page.figures[-1].series] == ["a", "b"]
    with pytest.raises(InputError, match="a source among"):
        found["c", "a"]


def test_refusals(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="another model"):
        transfer({"a": runs["a"]}, {"a": B.classifier}, DATA)
    with pytest.raises(InputError, match="at least one Run"):
        transfer({}, {"a": A.classifier}, DATA)
    with pytest.raises(RunError, match="another input"):
        transfer(runs, {"a": A.classifier}, brinell.Problem(A.x.flip(0), A.y))
    bare = brinell.evaluate(
        A.classifier, DATA, brinell.Linf(0.03), "fgsm", out=tmp_path / "bare", images=False, progress=False
    )
    with pytest.raises(RunError, match="keeps its adversarials"):
        transfer({"a": bare}, {"a": A.classifier}, DATA)


class Alternating(torch.nn.Module):
    """A randomised model: one pass is A, the next its opposite. A pass makes two calls, the first is a check."""

    def __init__(self, world: LinearWorld) -> None:
        super().__init__()
        self.weight, self.bias, self.calls = world.weight, world.bias, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        z = x @ self.weight.T + self.bias
        return z if self.calls % 4 == 0 else -z


def test_several_passes_give_mean_and_deviation(runs: dict[str, Run]) -> None:
    """Two of four passes see A itself on A's adversarials, the two others its opposite."""
    problem = brinell.Problem(A.x[:32], A.y[:32])
    part = brinell.evaluate(A.classifier, problem, brinell.Linf(0.03), "pgd20", progress=False)
    model = brinell.wrap(Alternating(A).eval(), name="alternating")
    cell = transfer({"a": part}, {"b": model}, problem, passes=4)["a", "b"]
    x = A.x[:32].clone()
    adversarials = part.adversarials()
    x[adversarials.ids] = torch.from_numpy(adversarials.x)
    z = x.double() @ A.weight.double().T + A.bias.double()
    one, other = (float((v.argmax(1) == A.y[:32]).double().mean()) for v in (z, -z))
    assert cell.repeats is not None and (cell.repeats.passes, cell.repeats.n) == (4, 32) and one != other
    assert cell.repeats.mean == pytest.approx((one + other) / 2)
    assert cell.repeats.deviation == pytest.approx(np.std([one, other, one, other], ddof=1))
    assert cell.accuracy.value in (one, other)
    with pytest.raises(InputError, match="at least 1 pass"):
        transfer({"a": part}, {"b": model}, problem, passes=0)
