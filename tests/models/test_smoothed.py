"""Randomised smoothing against closed forms: under Gaussian noise a linear model has exact class probabilities."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import nn

import brinell
from brinell.errors import InputError, ModelError, ThreatError
from brinell.models import Smoothing, smoothed
from brinell.models.smoothed import ABSTAIN
from brinell.results.statistics import lower_bound

SIGMA = 0.5


def half_space(normal: list[float], offset: float) -> nn.Module:
    """Return a model that predicts class 1 where normal · x > offset, else class 0."""
    linear = nn.Linear(len(normal), 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.0] * len(normal), normal]))
        linear.bias.copy_(torch.tensor([0.0, -offset]))
    return nn.Sequential(nn.Flatten(), linear).eval()


def at_distance(distance: float) -> torch.Tensor:
    """Return a point at this signed distance from the boundary of `MODEL`, on the side of class 1."""
    return torch.tensor([[[[0.5, 0.5]]]]) + distance * torch.tensor([0.6, 0.8]).view(1, 1, 1, 2)


MODEL = smoothed(half_space([3.0, 4.0], 3.5), SIGMA)


@pytest.mark.parametrize("distance", [0.2, 0.6])
def test_the_radius_of_a_half_space_approaches_its_distance(distance: float) -> None:
    """The vote of a half-space changes exactly at the boundary: the certified radius is the distance at best."""
    n = 20_000
    (found,) = MODEL.certify(at_distance(distance), n=n, seed=3)
    assert found.predicted == 1
    assert found.radius <= distance  # holds with probability 0.999, and for this seed
    p = NormalDist().cdf(distance / SIGMA)
    deviation = math.sqrt(p * (1 - p) / n)
    assert found.radius > SIGMA * NormalDist().inv_cdf(p - 8 * deviation)


def test_nothing_is_certified_at_the_boundary() -> None:
    points = at_distance(0.0).repeat(8, 1, 1, 1) + torch.linspace(-1e-4, 1e-4, 8).view(-1, 1, 1, 1)
    assert [v.predicted for v in MODEL.certify(points, n=500)] == [ABSTAIN] * 8
    assert MODEL.predict(points, 200).tolist() == [ABSTAIN] * 8
    assert MODEL.predict(torch.cat([at_distance(1.0), at_distance(-1.0)]), 200).tolist() == [1, 0]


def test_the_abstention_rate_is_that_of_the_binomial_test() -> None:
    """At p = Phi(d / sigma) a vote of n draws is decided with the probability that the exact test rejects."""
    n, alpha, points, distance = 60, 0.05, 400, 0.12
    p = NormalDist().cdf(distance / SIGMA)
    share = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    decided = sum(q for k, q in enumerate(share) if _two_sided(min(k, n - k), n) <= alpha)
    along = torch.linspace(-1, 1, points).view(-1, 1, 1, 1) * torch.tensor([0.8, -0.6]).view(1, 1, 1, 2)
    found = MODEL.predict(at_distance(distance) + along, n, alpha=alpha)
    rate = float((found != ABSTAIN).double().mean())
    assert abs(rate - decided) < 4 * math.sqrt(decided * (1 - decided) / points)


def _two_sided(k: int, n: int) -> float:
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n)


@pytest.mark.parametrize(("p", "n"), [(0.6, 30), (0.9, 50), (0.55, 200)])
def test_the_lower_bound_covers_the_probability(p: float, n: int) -> None:
    """Exact coverage: the probability that the bound is at most p, summed over all outcomes, is at least 95 %."""
    share = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
    covered = sum(q for k, q in enumerate(share) if lower_bound(k, n) <= p)
    assert 0.95 <= covered < 0.99


def test_a_sample_alone_gives_what_it_gives_in_any_batch() -> None:
    points = torch.cat([at_distance(d) for d in (0.1, 0.3, 0.5)])
    together = MODEL.certify(points, n=300, seed=1)
    assert MODEL.certify(points.flip(0), n=300, seed=1)[::-1] == together
    assert [MODEL.certify(point[None], n=300, seed=1)[0] for point in points] == together
    assert MODEL.certify(points, n=300, seed=2) != together


def test_certificates_state_radius_margin_and_draws() -> None:
    points = torch.cat([at_distance(0.8), at_distance(0.8), at_distance(0.02), at_distance(0.8)])
    threat = brinell.L2(torch.tensor([0.25, 2.0, 0.25, 0.25]))
    near, far, unsure, wrong = Smoothing(MODEL, n=2000).certify(points, torch.tensor([1, 1, 1, 0]), threat)
    assert near.certified and near.margin == pytest.approx((near.radius - 0.25) / SIGMA, 1e-5) and near.passes == 2100
    assert not far.certified and far.margin < 0 and far.stopped == f"a radius of {far.radius:.4g}"
    assert not unsure.certified and unsure.stopped == "no class has half of the votes"
    assert not wrong.certified and wrong.margin == -math.inf and wrong.stopped == "the vote is for another class"


def test_a_certificate_covers_the_tolerance_on_the_radius() -> None:
    """An adversarial example within eps · (1 + 10⁻⁶) counts as inside the ball."""
    (votes,) = MODEL.certify(at_distance(0.8), n=2000)
    within = votes.radius * torch.tensor([1 - 5e-7, 1 - 2e-6], dtype=torch.float64)
    points, labels = at_distance(0.8).repeat(2, 1, 1, 1), torch.tensor([1, 1])
    assert [c.certified for c in Smoothing(MODEL, n=2000).certify(points, labels, brinell.L2(within))] == [False, True]


def test_a_draw_without_an_answer_votes_for_no_class() -> None:
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full((len(x), 3), torch.nan)

    nothing, x = smoothed(Nothing().eval(), SIGMA), at_distance(0.1)
    assert nothing.certify(x, n=200)[0].predicted == int(nothing.predict(x)[0]) == ABSTAIN


def test_what_smoothing_cannot_do_is_refused() -> None:
    with pytest.raises(ThreatError, match="a threat in L2"):
        Smoothing(MODEL).certify(at_distance(0.1), torch.tensor([1]), brinell.Linf(0.1))
    with pytest.raises(InputError, match="sigma above 0"):
        smoothed(MODEL.base, 0.0)
    with pytest.raises(ModelError, match="a model without noise of its own"):
        smoothed(MODEL, 0.25)
    with pytest.raises(ModelError, match="a base classifier in evaluation mode"):
        smoothed(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(2, 2)), SIGMA).predict(at_distance(0.1))
    with pytest.raises(InputError, match="at least 1 draw"):
        MODEL.certify(at_distance(0.1), n=0)


def test_the_fingerprint_names_net_and_sigma() -> None:
    other = smoothed(half_space([3.0, 4.0], 3.5), SIGMA)
    assert other.fingerprint == MODEL.fingerprint != MODEL.base.fingerprint
    assert smoothed(MODEL.base, 0.25).fingerprint != MODEL.fingerprint


def test_the_model_is_randomised_and_attacked_by_the_mean_of_passes() -> None:
    points, labels = torch.cat([at_distance(0.9), at_distance(0.05)]), torch.tensor([1, 1])
    noisy = MODEL.forward(points.repeat(200, 1, 1, 1)).logits.argmax(1).view(200, 2).double().mean(0)
    assert noisy[0] > 0.9 > noisy[1] > 0.4
    plan = brinell.Plan("noise", (brinell.Eot(brinell.attacks.PGD(steps=4), 8),), draws=25)
    run = brinell.evaluate(MODEL, (points.clamp(0, 1), labels), brinell.L2(0.4), plan, test=False, progress=False)
    assert run.robust_accuracy.n == 2
