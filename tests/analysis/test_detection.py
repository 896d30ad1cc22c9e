"""Areas against counted pairs and other implementations; noise that is what it says."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import brinell
from brinell import Problem
from brinell.analysis.detection import SYNTHETIC, auroc, auroc_interval, detection, synthetic
from brinell.analysis.predictions import read_chunks
from brinell.errors import InputError


def pairs(positive: np.ndarray, negative: np.ndarray) -> float:
    wins = [(a > b) + (a == b) / 2 for a, b in itertools.product(positive.tolist(), negative.tolist())]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_areas_are_counted_pairs(levels: int) -> None:
    """Few levels make many ties."""
    generator = np.random.default_rng(levels)
    a, b = generator.integers(0, levels, 37) / levels, generator.integers(0, levels, 23) / levels
    assert auroc(a, b) == pytest.approx(pairs(a, b), abs=1e-12)
    assert auroc(b, a) == pytest.approx(1 - auroc(a, b), abs=1e-12)


def test_areas_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 30, 200).astype(float), generator.integers(3, 25, 150).astype(float)
    assert auroc(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / (200 * 150), abs=1e-12)


def test_areas_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.default_rng(1)
    a, b = generator.integers(0, 30, 200).astype(float), generator.integers(3, 25, 150).astype(float)
    truth = metrics.roc_auc_score(np.repeat([1, 0], [200, 150]), np.concatenate([a, b]))
    assert auroc(a, b) == pytest.approx(truth, abs=1e-12)


def test_intervals_solve_their_equation_and_hold_the_truth() -> None:
    """Normal scores one deviation apart: the area is Φ(1/√2). Nine in ten of a hundred intervals hold it."""
    truth, held = 0.5 * (1 + math.erf(0.5)), 0
    generator = np.random.default_rng(0)
    for _ in range(100):
        area = auroc(generator.normal(1, 1, 30), generator.normal(0, 1, 40))
        low, high = auroc_interval(area, 30, 40)
        assert low < area < high
        held += low <= truth <= high
    assert held >= 90
    assert auroc_interval(0.0, 30, 40)[0] == 0.0
    low, high = auroc_interval(0.3, 30, 40)
    assert auroc_interval(0.7, 40, 30) == pytest.approx((1 - high, 1 - low))


def test_sure_at_home_and_unsure_abroad(worlds: Any) -> None:
    sure, unsure = torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    model = worlds.look_up(torch.cat([sure.repeat(40, 1), unsure.repeat(30, 1)]))
    home = worlds.places(0, 40)
    found = detection(model, home, {"apart": worlds.places(40, 30), "same": worlds.places(0, 30)})
    apart, same = found.sets
    assert apart.auroc.value == 1.0 and apart.passing.k == 0 and apart.auroc.low < 1.0
    assert same.auroc.value == 0.5 and same.passing.value == 1.0
    assert apart.confidence == pytest.approx(1 / (1 + math.exp(-1)))
    assert "same" in found.findings().summary


def test_ranks_where_probabilities_round_to_one(worlds: Any) -> None:
    model = worlds.look_up(torch.tensor([[60.0, 0.0]] * 5 + [[50.0, 0.0]] * 5))
    found = detection(model, worlds.places(0, 5), {"less": worlds.places(5, 5)})
    assert found.sets[0].auroc.value == 1.0


def test_what_passes_where_nineteen_in_twenty_do(worlds: Any) -> None:
    z = torch.stack([torch.linspace(1, 9, 60), torch.zeros(60)], 1)
    found = detection(worlds.look_up(z), worlds.places(0, 40), {"more": worlds.places(20, 40)})
    # Of the logits at home, 0 … 39, two may be rejected: the threshold is sample 2, and all others are above.
    assert found.sets[0].passing.k == 40
    found = detection(worlds.look_up(z), worlds.places(20, 40), {"less": worlds.places(0, 40)})
    # The threshold is sample 22: of 0 … 39 those from 22 on pass.
    assert found.sets[0].passing.k == 18


def test_noise_is_keyed_and_in_the_box() -> None:
    home = brinell.Problem(torch.zeros(30, 3, 16, 16), torch.zeros(30, dtype=torch.long))
    first, again, other = synthetic(home), synthetic(home), synthetic(home, seed=1)
    assert tuple(first) == SYNTHETIC
    for name, made in first.items():
        assert made.x.shape == home.x.shape and torch.equal(made.x, again[name].x)
        assert not torch.equal(made.x, other[name].x)
        assert float(made.x.min()) >= 0 and float(made.x.max()) <= 1
    assert float(first["uniform noise"].x.var()) == pytest.approx(1 / 12, rel=0.03)
    # A normal of deviation 1/4 around 1/2, its tails beyond two deviations cut off: known in closed form.
    phi, tail = math.exp(-2) / math.sqrt(2 * math.pi), 0.5 * math.erfc(math.sqrt(2))
    clipped = (1 - 2 * tail - 4 * phi + 8 * tail) / 16
    assert float(first["gaussian noise"].x.var()) == pytest.approx(clipped, rel=0.03)


def test_blobs_are_smooth_and_use_the_whole_box() -> None:
    home = brinell.Problem(torch.zeros(30, 1, 24, 24), torch.zeros(30, dtype=torch.long))
    made = synthetic(home)

    def roughness(x: torch.Tensor) -> float:
        return float(x.diff(dim=3).square().mean() / x.var())

    assert roughness(made["uniform noise"].x) == pytest.approx(2.0, rel=0.1)
    assert roughness(made["blobs"].x) < 0.3
    flat = made["blobs"].x.flatten(1)
    assert bool((flat.amin(1) == 0).all() and (flat.amax(1) == 1).all())
    line = synthetic(brinell.Problem(torch.zeros(8, 40), torch.zeros(8, dtype=torch.long)))["blobs"].x
    assert line.shape == (8, 40) and float(line.diff(dim=1).abs().mean()) < 0.15


def test_labels_of_foreign_data_are_not_looked_at(worlds: Any) -> None:
    model = worlds.look_up(torch.zeros(4, 2))
    foreign = worlds.places(0, 4, torch.full((4,), 77))
    assert detection(model, foreign, {"same": foreign}).sets[0].auroc.value == 0.5


def test_refusals() -> None:
    with pytest.raises(InputError, match="at least one foreign"):
        detection("demo", brinell.data.load("demo", 4), {})


class Black(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(1, 8, 8), 0


def test_noise_for_a_stream_is_a_stream_of_the_same_noise() -> None:
    held = synthetic((torch.zeros(9, 1, 8, 8), torch.zeros(9, dtype=torch.long)), seed=4)
    made = synthetic(Problem(Black(9)), seed=4)
    for name, noise in made.items():
        assert noise.streamed and len(noise) == 9
        (chunk,) = noise.chunks(9)
        assert torch.equal(chunk.x, held[name].x)
    # Nothing is made before it is read: a thousand billion of these would not fit anywhere.
    assert len(synthetic(Problem(Black(10**12)))["blobs"]) == 10**12


@pytest.mark.parametrize(("shape", "most"), [((1, 8, 8), 4096), ((3, 32, 32), 4096), ((3, 224, 224), 512)])
def test_large_inputs_are_read_by_the_hundred(shape: tuple[int, ...], most: int) -> None:
    class Sized:
        def shape(self) -> tuple[int, ...]:
            return shape

        def chunks(self, size: int) -> Any:
            return iter([size])

    problem: Any = Sized()
    assert next(read_chunks(problem)) == most
