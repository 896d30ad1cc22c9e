"""A model that remembers, one that cannot tell, and thresholds tried one by one."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell.analysis.predictions import Predictions, largest_loss_points, predict
from brinell.analysis.privacy import Privacy, best_threshold, leakage, privacy
from brinell.errors import InputError, ModelError, RunError
from brinell.testing.worlds import linear_world


def said(scores: np.ndarray, first: int = 0) -> Predictions:
    """Answers whose log-odds of the label, one of two classes, are the scores."""
    z = torch.stack([torch.from_numpy(scores), torch.zeros(len(scores), dtype=torch.float64)], 1)
    return Predictions(np.arange(first, first + len(scores)), torch.zeros(len(scores), dtype=torch.long), z)


def test_a_model_that_remembers(worlds: Any) -> None:
    """Certain of its own samples, wrong about all others."""
    model = worlds.look_up(torch.tensor([[9.0, 0.0]] * 60 + [[0.0, 3.0]] * 40))
    found = privacy(model, worlds.places(0, 60), worlds.places(60, 40)).clean
    assert found.honest.value == found.best == found.label.value == 1.0
    assert found.gap.value == 1.0 and found.honest.low < 1.0 and found.honest.n == 100
    assert (found.members.k, found.others.k) == (60, 0)


def test_remembering_in_the_confidence_alone(worlds: Any) -> None:
    """Right about all: the label tells nothing, the confidence everything."""
    model = worlds.look_up(torch.tensor([[9.0, 0.0]] * 50 + [[2.0, 0.0]] * 50))
    found = privacy(model, worlds.places(0, 50), worlds.places(50, 50)).clean
    assert found.honest.value == 1.0 and found.label.value == 0.5


def test_a_model_that_cannot_tell() -> None:
    """Honest accuracies scatter around one half; thresholds chosen on the same samples lie above, always."""
    generator = np.random.default_rng(0)
    found = [leakage(said(generator.normal(size=40)), said(generator.normal(size=40), 100)) for _ in range(60)]
    honest = np.array([f.honest.value for f in found])
    assert abs(honest.mean() - 0.5) < 4 * honest.std() / math.sqrt(60)
    assert min(f.best for f in found) >= 0.5 and np.mean([f.best for f in found]) > 0.56
    assert sum(f.honest.low <= 0.5 <= f.honest.high for f in found) >= 51
    one = leakage(said(generator.normal(size=4000)), said(generator.normal(size=4000), 5000))
    assert one.honest.low <= 0.5 <= one.honest.high and one.best < 0.53


def test_how_much_two_normals_overlap() -> None:
    """Scores one deviation apart: the best threshold in between tells Φ(1/2) of them."""
    generator = np.random.default_rng(1)
    found = leakage(said(generator.normal(1, 1, 4000)), said(generator.normal(0, 1, 4000), 5000))
    truth = 0.5 * (1 + math.erf(0.5 / math.sqrt(2)))
    assert found.honest.low <= truth <= found.honest.high
    assert found.best == pytest.approx(truth, abs=0.02)
    label = 0.5 + (0.5 * (1 + math.erf(1 / math.sqrt(2))) - 0.5) / 2
    assert found.label.low <= label <= found.label.high


@pytest.mark.parametrize("levels", [3, 20, 10**6])
def test_thresholds_tried_one_by_one(levels: int) -> None:
    generator = np.random.default_rng(levels)
    a, b = generator.integers(0, levels, 25) / levels, generator.integers(0, levels, 18) / levels
    tried = [-np.inf, *np.concatenate([a, b]), *(np.concatenate([a, b]) + 1e-9)]
    threshold, value = best_threshold(a, b)
    assert value == pytest.approx(max(((a >= t).mean() + (b < t).mean()) / 2 for t in tried))
    assert value == pytest.approx(((a >= threshold).mean() + (b < threshold).mean()) / 2)


def test_attacked_confidences_in_closed_form() -> None:
    """Two classes, a linear model: the worst point of a Linf ball lowers the margin by eps · ‖w1 − w0‖₁."""
    world, eps = linear_world(classes=2, shape=(10,), n=40, seed=1), 0.05
    data = brinell.Problem(world.x, world.y)
    gap = (world.weight[1] - world.weight[0]).abs().sum()
    after = predict(
        world.classifier, largest_loss_points(world.classifier, data, brinell.Linf(eps), brinell.attacks.PGD(steps=10))
    )
    before = world.classifier.forward(world.x).logits.gather(1, world.y[:, None])[:, 0] * 2
    before = before - world.classifier.forward(world.x).logits.sum(1)
    truth = -torch.log1p(torch.exp(-(before - eps * gap).double()))
    assert after.true_confidence == pytest.approx(truth.numpy(), abs=1e-4)


def test_adversarial_inputs_from_a_threat_and_from_runs(tmp_path: Path) -> None:
    world = linear_world(classes=3, shape=(10,), n=40, seed=2)
    members, others = (
        brinell.Problem(world.x[:20], world.y[:20]),
        brinell.Problem(world.x[20:], world.y[20:], range(20, 40)),
    )
    runs = [
        brinell.evaluate(world.classifier, d, brinell.Linf(0.02), "pgd20", out=tmp_path / str(i), progress=False)
        for i, d in enumerate((members, others))
    ]
    stored = privacy(world.classifier, members, others, runs=(runs[0], runs[1]))
    assert stored.adversarial is not None
    assert [p.k for p in (stored.adversarial.members, stored.adversarial.others)] == [
        run.robust_accuracy.k for run in runs
    ]
    made = privacy(world.classifier, members, others, threat=brinell.Linf(0.02))
    assert made.adversarial is not None and made.clean == stored.clean
    assert made.adversarial.members.k <= stored.clean.members.k
    assert made == privacy(world.classifier, members, others, threat=brinell.Linf(0.02))
    assert len(made.findings().tables[0].columns) == 3
    with pytest.raises(RunError, match="an id that the Run lacks"):
        privacy(world.classifier, members, others, runs=(runs[1], runs[0]))


def test_refusals(worlds: Any) -> None:
    model = worlds.look_up(torch.zeros(8, 2))
    with pytest.raises(InputError, match="at least 2"):
        privacy(model, worlds.places(0, 1), worlds.places(1, 4))
    with pytest.raises(ModelError, match="gradients"):
        privacy(model, worlds.places(0, 4), worlds.places(4, 4), threat=brinell.Linf(0.1))
    with pytest.raises(InputError, match="a radius"):
        privacy("demo", brinell.data.load("demo", 4), brinell.data.load("demo", 4), threat=brinell.Linf())


def test_a_sample_is_attacked_the_same_in_any_company() -> None:
    data = brinell.data.load("demo", 40)
    model = brinell.models.load("fashion-mnist/Linf/Demo")
    attack = brinell.attacks.PGD(steps=2)
    (whole,) = largest_loss_points(model, data, brinell.Linf(0.1), attack)
    (part,) = largest_loss_points(model, data[33:36], brinell.Linf(0.1), attack)
    assert torch.equal(part.x, whole.x[33:36]) and part.ids.tolist() == [33, 34, 35]
    assert not torch.equal(whole.x, data.x)


def test_the_point_of_largest_loss_is_taken_not_the_last() -> None:
    """Steps of twice the radius overshoot: a longer attack goes through all points of a shorter one, and keeps them."""
    data = brinell.data.load("demo", 32)
    model = brinell.models.load("fashion-mnist/Linf/Demo")
    losses = [
        -predict(
            model, largest_loss_points(model, data, brinell.Linf(0.2), brinell.attacks.PGD(steps, rel_step=2.0))
        ).true_confidence
        for steps in (1, 2, 3, 4)
    ]
    # Float32 answers of other batches agree to the last bits only.
    assert all(bool((b >= a - 1e-5).all()) for a, b in pairwise(losses))
    assert bool((losses[-1] > losses[0] + 1e-3).any())


def test_what_confidences_tell_beyond_the_label_has_a_paired_interval() -> None:
    """Scores one deviation apart: the threshold tells Φ(1/2), the label, a threshold at 0, half of 1/2 + Φ(1)."""
    generator = np.random.default_rng(5)
    found = leakage(said(generator.normal(1, 1, 4000)), said(generator.normal(0, 1, 4000), 5000))
    half, one = (0.5 * (1 + math.erf(z / math.sqrt(2))) for z in (0.5, 1))
    assert found.beyond.value == pytest.approx(found.honest.value - found.label.value, abs=1e-12)
    assert found.beyond.low <= half - (0.5 + one) / 2 <= found.beyond.high
    # Paired over the same samples, and so narrower than two intervals side by side.
    width = (found.honest.high - found.honest.low) + (found.label.high - found.label.low)
    assert 0 < found.beyond.high - found.beyond.low < width / 2


def test_every_percentage_of_the_page_has_an_interval_or_says_that_it_has_none() -> None:
    generator = np.random.default_rng(5)
    side = leakage(said(generator.normal(size=40)), said(generator.normal(size=40), 100))
    (table,) = Privacy("net", side).findings().tables
    for name, cell in table.rows[1:]:
        assert "[" in str(cell) or "no interval" in str(cell), name
