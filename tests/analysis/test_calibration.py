"""Labels drawn from the very probabilities claimed, errors counted by hand, temperatures that are known."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import brinell
from brinell.analysis.calibration import (
    COLDEST,
    Reliability,
    calibration,
    error_interval,
    expected_calibration_error,
    nll_temperature,
    reliability,
)
from brinell.analysis.predictions import Predictions
from brinell.errors import InputError, RunError
from brinell.results import Run
from brinell.testing.worlds import linear_world

N, CLASSES = 3000, 5


@pytest.fixture(scope="module")
def honest(worlds: Any) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn with their probabilities."""
    z = 2 * worlds.normal(1, N, CLASSES)
    return z, worlds.drawn_labels(z, 2)


def measured(z: Tensor, y: Tensor) -> Reliability:
    return reliability(Predictions(np.arange(len(y)), y, z))


def spread_of_temperature(z: Tensor) -> float:
    """The standard deviation of the best 1/T around 1: one over the root of the summed variances of the logits."""
    p, z = z.double().softmax(1), z.double()
    variance = (p * z**2).sum(1) - (p * z).sum(1) ** 2
    return 1 / math.sqrt(float(variance.sum()))


def test_an_honest_model_is_calibrated(honest: tuple[Tensor, Tensor]) -> None:
    found = measured(*honest)
    assert found.ece.value <= found.chance < 0.05
    assert found.tendency == "calibrated"
    assert abs(1 / found.nll_temperature - 1) < 3 * spread_of_temperature(honest[0])
    assert abs(found.confidence - found.accuracy.value) < 3 * math.sqrt(0.25 / N)


def test_a_known_factor_comes_back(honest: tuple[Tensor, Tensor]) -> None:
    z, y = honest
    base = nll_temperature(z, y)
    for factor in (0.2, 3.0):
        assert nll_temperature(factor * z.double(), y) == pytest.approx(factor * base, rel=1e-9)
    found = measured(3 * z, y)
    assert found.tendency == "overconfident" and found.ece.low > found.chance
    assert found.temperature == pytest.approx(3.0, rel=0.15)
    # At the right temperature the confidences are the honest ones, and so is what chance does to them.
    chance = measured(z, y).chance
    assert found.scaled <= chance and found.held_out.value <= 1.5 * chance
    assert measured(0.3 * z, y).tendency == "underconfident"


def test_the_temperature_minimises_the_cross_entropy(honest: tuple[Tensor, Tensor]) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    z, y = 2.5 * honest[0].double(), honest[1]

    def loss(log_t: float) -> float:
        return float(torch.nn.functional.cross_entropy(z / math.exp(log_t), y))

    best = optimize.minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
    assert nll_temperature(z, y) == pytest.approx(math.exp(best.x), rel=1e-5)


def test_without_a_mistake_no_temperature_is_cold_enough() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert nll_temperature(z, z.argmax(1)) == pytest.approx(COLDEST)
    assert nll_temperature(z, z.argmin(1)) == pytest.approx(1000)


@pytest.mark.parametrize("bins", [1, 15, 4])
def test_the_error_is_the_sum_over_half_open_bins(bins: int) -> None:
    generator = np.random.default_rng(bins)
    # Also confidences on the edges, which belong to the bin below.
    confidence = np.concatenate([generator.uniform(0.2, 1, 200), np.arange(1, bins + 1) / bins, [1.0, 0.5]])
    right = generator.uniform(size=len(confidence)) < confidence
    edges, total = np.linspace(0, 1, bins + 1), 0.0
    for low, high in pairwise(edges):
        mine = [i for i, c in enumerate(confidence) if low < c <= high]
        if mine:
            total += len(mine) / len(right) * abs(confidence[mine].mean() - right[mine].mean())
    assert expected_calibration_error(confidence, right, bins) == pytest.approx(total, abs=1e-12)


def test_one_confidence_by_hand() -> None:
    """Nine in ten claimed, half right: 0.4, which one temperature mends wholly."""
    z = torch.tensor([[math.log(9.0), 0.0]]).repeat(100, 1)
    y = torch.arange(100) % 2
    found = measured(z, y)
    assert found.ece.value == pytest.approx(0.4) and found.tendency == "overconfident"
    assert found.accuracy.value == 0.5 and found.confidence == pytest.approx(0.9)
    full = [b for b in found.bins if b.right.n]
    assert len(full) == 1 and full[0].low < 0.9 <= full[0].high and full[0].right.k == 50
    assert found.scaled < 0.001 and found.temperature == pytest.approx(1000)


@pytest.mark.parametrize("factor", [0.1, 0.7, 4.0])
def test_no_temperature_of_the_grid_is_better(worlds: Any, factor: float) -> None:
    """All of them, one by one; the search itself looks at few."""
    z = 2 * worlds.normal(5, 150, 3).double()
    y = worlds.drawn_labels(z, 6)
    z = factor * z
    found = measured(z, y)
    right = (z.argmax(1) == y).numpy()
    grid = np.concatenate([np.arange(1, 1001) / 1000, 1000 / np.arange(1, 1000)])
    errors = [expected_calibration_error((z / t).softmax(1).amax(1).numpy(), right) for t in grid]
    assert found.scaled == pytest.approx(min(errors), abs=1e-12)
    assert np.isclose(grid, found.temperature, rtol=1e-12).any()


def test_what_chance_does_to_an_honest_model() -> None:
    """With one confidence the error is |k / n − p| with k binomial: its quantile is known."""
    stats = pytest.importorskip("scipy.stats")
    p, n = 0.7, 200
    z = torch.tensor([[math.log(p / (1 - p)), 0.0]]).repeat(n, 1)
    chance = measured(z, torch.zeros(n, dtype=torch.long)).chance
    k = np.arange(n + 1)
    below = stats.binom.pmf(k, n, p)[np.abs(k / n - p) <= chance + 1e-9].sum()
    strictly = stats.binom.pmf(k, n, p)[np.abs(k / n - p) < chance - 1e-9].sum()
    assert strictly - 0.02 <= 0.95 <= below + 0.02


@pytest.mark.slow
def test_intervals_hold_the_error_of_the_population(worlds: Any) -> None:
    """Of 40 samples of a model of known error, at least 34 of the 95 % intervals hold it."""
    held, factor = 0, 1.6
    z = 2 * worlds.normal(7, 40 * 400, CLASSES)
    p = (factor * z.double()).softmax(1).amax(1).numpy()
    right = z.double().softmax(1).gather(1, z.argmax(1, keepdim=True))[:, 0].numpy()
    truth = expected_calibration_error(p, right)
    for i in range(40):
        part = slice(400 * i, 400 * (i + 1))
        y = worlds.drawn_labels(z[part], 100 + i)
        found = error_interval(p[part], (z[part].argmax(1) == y).numpy())
        held += found.low <= truth <= found.high
    assert held >= 34


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, brinell.Problem]:
    made = linear_world(classes=3, shape=(1, 4, 4), n=40, seed=3)
    data = brinell.Problem(made.x, made.y)
    folder = tmp_path_factory.mktemp("runs") / "run"
    return brinell.evaluate(made.classifier, data, brinell.Linf(0.02), "pgd20", out=folder, progress=False), data


def test_adversarial_inputs_are_those_of_the_run(world: tuple[Run, brinell.Problem]) -> None:
    run, data = world
    model = linear_world(classes=3, shape=(1, 4, 4), n=40, seed=3).classifier
    found = calibration(model, data, run)
    assert found.adversarial is not None
    assert 0 < found.adversarial.accuracy.k < 40
    assert (found.clean.accuracy.k, found.adversarial.accuracy.k) == (40, run.robust_accuracy.k)
    assert [t.columns for t in found.findings().tables] == [("", "clean", "adversarial")]
    assert len(found.findings().figures) == 2


def test_runs_of_something_else_are_refused(world: tuple[Run, brinell.Problem]) -> None:
    run, data = world
    with pytest.raises(RunError, match="another model"):
        calibration("demo", data, run)
    model = linear_world(classes=3, shape=(1, 4, 4), n=40, seed=3).classifier
    with pytest.raises(RunError, match="another input"):
        calibration(model, brinell.Problem(data.x.flip(0), data.y), run)
    with pytest.raises(RunError, match="an id that the Run lacks"):
        calibration(model, brinell.Problem(data.x, data.y, range(100, 140)), run)


def test_order_and_parts_do_not_matter(worlds: Any, honest: tuple[Tensor, Tensor]) -> None:
    z, y = honest[0][:300], honest[1][:300]
    model = worlds.look_up(z)
    whole = calibration(model, worlds.places(0, 300, y))
    turned = brinell.Problem(worlds.places(0, 300).x.flip(0), y.flip(0), range(299, -1, -1))
    again = calibration(model, turned)
    assert again.clean.ece.value == pytest.approx(whole.clean.ece.value)
    assert again.clean.held_out.value == pytest.approx(whole.clean.held_out.value)
    assert again.clean.temperature == whole.clean.temperature


def test_refusals() -> None:
    with pytest.raises(InputError, match="at least 1 bin"):
        calibration("demo", "demo", bins=0)
    with pytest.raises(InputError, match="at least 2 samples"):
        calibration("demo", brinell.data.load("demo", 1))


def test_findings_survive_the_disk(worlds: Any, honest: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    from brinell.results.analyses import saved

    found = calibration(worlds.look_up(honest[0][:50]), worlds.places(0, 50, honest[1][:50])).findings()
    found.save(tmp_path)
    assert saved(tmp_path) == [found]
