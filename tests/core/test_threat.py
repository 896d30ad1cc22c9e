"""Threats: what is accepted, what is refused and how, and that every sample gets its own radius."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brinell
from brinell.core.threat import L1, L2, Ball, Linf, Threat, from_json, parse_eps, threat
from brinell.errors import InputError, ThreatError
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import linear_world

EVERY_NORM = pytest.mark.parametrize("norm", NORMS)
CPU = torch.device("cpu")


def ball(t: Threat, n: int) -> Ball:
    return t.ball(torch.arange(n), CPU)


# ------------------------------------------------------------------------------------------------------------- parsing


@given(st.integers(1, 255), st.integers(1, 1000))
def test_fractions_are_exact(a, b):
    assert parse_eps(f"{a}/{b}") == a / b
    assert parse_eps(f" {a}/{b} ") == a / b


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("1e-3", 1e-3), (2, 2.0), (np.float64(0.25), 0.25)])
def test_numbers(text, value):
    assert parse_eps(text) == value


@pytest.mark.parametrize("eps", ["eight", "8/", "8/0", "", "8/255/2", "1,5"])
def test_what_is_no_number_is_refused(eps):
    with pytest.raises(ThreatError, match='number or a fraction such as "8/255"') as caught:
        parse_eps(eps)
    assert repr(eps) in str(caught.value)


@EVERY_NORM
@pytest.mark.parametrize("eps", [0, -0.1, "-8/255", float("nan"), float("-inf"), "nan"])
def test_radii_that_make_no_sense(norm, eps):
    with pytest.raises(ThreatError):
        threat(norm, eps)


@EVERY_NORM
@pytest.mark.parametrize("bad", [[0.1, 0.0], [0.1, -1.0], [float("nan")], [float("inf"), 0.1], []])
def test_one_bad_radius_among_many(norm, bad):
    with pytest.raises(ThreatError):
        threat(norm, torch.tensor(bad))


@EVERY_NORM
@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_radii_per_sample_are_a_vector(norm, shape):
    with pytest.raises(ThreatError, match="one per sample"):
        threat(norm, torch.full(shape, 0.1))


def test_units_of_255_are_refused_with_the_remedy():
    with pytest.raises(ThreatError, match="write '8/255'"):
        Linf(8)
    with pytest.raises(ThreatError, match="at most 1"):
        Linf(torch.tensor([0.1, 8.0]))
    for t in (L2(128), L1(12 * 255), Linf(1.0)):
        with pytest.raises(ThreatError, match="divide an eps in 0-255 units by 255"):
            t.check((3, 32, 32) if t.norm.name == "L2" else (1, 28, 28), None)


@pytest.mark.parametrize(("t", "shape"), [(L2(27.9), (1, 28, 28)), (L1(783), (1, 28, 28)), (Linf(0.999), (1,))])
def test_large_radii_below_the_diameter_pass(t, shape):
    t.check(shape, None)


def test_norms_and_radii_may_be_written_in_many_ways():
    assert {threat(norm, "8/255") for norm in ("linf", "LINF", "inf", "l_inf", float("inf"))} == {Linf(8 / 255)}
    assert [threat(norm, 0.5) for norm in (2, "2", "l2", 1, "l1")] == [L2(0.5)] * 3 + [L1(0.5)] * 2


def test_unknown_norms_list_the_known_ones():
    with pytest.raises(ThreatError, match="Linf, L2, L1") as caught:
        threat("L7", 0.1)
    assert isinstance(caught.value, InputError) and isinstance(caught.value, ValueError)


def test_wrong_lengths_and_masks():
    with pytest.raises(ThreatError, match=r"one per sample \(5\), got 3"):
        L2(torch.full((3,), 0.1)).check((4,), 5)
    with pytest.raises(ThreatError, match=r"shape \(1, 4, 4\), got shape \(4, 4\)"):
        L2(0.1, mask=torch.ones(4, 4)).check((1, 4, 4), 5)
    L2(torch.full((5,), 0.1), mask=torch.ones(1, 4, 4)).check((1, 4, 4), 5)


@pytest.mark.parametrize("which", ["eps", "mask"])
def test_evaluations_check_them(which):
    world = linear_world(n=4)
    t = L2(torch.full((3,), 0.1)) if which == "eps" else L2(0.1, mask=torch.ones(7))
    with pytest.raises(ThreatError):
        brinell.attack(world.classifier, (world.x, world.y), t, brinell.attacks.FGSM())


def test_texts():
    assert repr(Linf("8/255")) == "Linf(eps=8/255)" and repr(L1(12)) == "L1(eps=12)"
    assert repr(L2(torch.tensor([0.5, 0.125]))) == "L2(eps=0.125…0.5)"
    stored = L2(torch.tensor([0.5, 0.125])).to_json()
    assert stored["eps"] == [0.5, 0.125] and stored["norm"] == "L2"
    assert torch.equal(from_json(stored).eps, torch.tensor([0.5, 0.125], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(2,), (1, 3, 5), (3, 8, 8)])
def test_a_mask_survives_the_manifest(shape):
    mask = rng.uniform(rng.keys(0, torch.zeros(1, dtype=torch.long)), shape)[0] < 0.5
    stored = json.loads(json.dumps(Linf("8/255", mask=mask).to_json()))
    assert torch.equal(from_json(stored).mask, mask)


# ------------------------------------------------------------------------------------------------------------- balls


def test_rows_of_the_problem_get_their_own_radius():
    t = L2(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert t.ball(torch.tensor([3, 0]), CPU).eps.tolist() == pytest.approx([0.4, 0.1])
    assert L2(0.5).ball(torch.tensor([3, 0]), CPU).eps.tolist() == [0.5, 0.5]


def test_a_subset_of_the_samples_keeps_their_radii():
    index = torch.tensor([2, 0])
    many = Linf(torch.tensor([0.1, 0.2, 0.3]))
    assert many.subset(index).eps.tolist() == pytest.approx([0.3, 0.1])
    assert many.subset(slice(2)).eps.tolist() == pytest.approx([0.1, 0.2])
    assert L2(0.5).subset(index) == L2(0.5)
    ball = many.ball(torch.arange(3), torch.device("cpu"))
    assert torch.equal(ball.subset(index).eps, ball.eps[index])


def test_a_perturbation_is_applied_within_box_and_mask():
    x0, delta = torch.tensor([[0.5, 0.9, 0.2]]), torch.tensor([[0.25, 0.25, -0.5]])
    assert Linf(0.1).apply(x0, delta).tolist() == [[0.75, 1.0, 0.0]]
    mask = torch.tensor([False, True, True])
    assert torch.equal(Linf(0.1, mask).apply(x0, delta), torch.tensor([[0.5, 1.0, 0.0]]))


@EVERY_NORM
def test_contains_is_ball_and_box_and_mask(norm):
    mask = torch.tensor([True, True, False, True])
    x0 = torch.tensor([[0.1, 0.5, 0.5, 0.95]])
    b = ball(threat(norm, 0.2, mask), 1)

    def inside(*d: float) -> bool:
        return bool(b.contains(x0, x0 + torch.tensor([d])))

    assert inside(0, 0, 0, 0) and inside(0, 0.19, 0, 0) and inside(0.05, -0.05, 0, 0.05)
    assert not inside(0, 0.21, 0, 0), "outside the ball"
    assert not inside(-0.11, 0, 0, 0) and not inside(0, 0, 0, 0.06), "outside the box"
    assert not inside(0, 0, 1e-6, 0), "touches the mask"
    assert not inside(float("nan"), 0, 0, 0) and not inside(0, float("inf"), 0, 0)
    assert inside(0.08, 0.08, 0, 0.04) == {"Linf": True, "L2": True, "L1": True}[norm]
    assert inside(0.15, 0.15, 0, 0) == {"Linf": True, "L2": False, "L1": False}[norm]


@EVERY_NORM
def test_the_tolerance_is_one_part_in_a_million(norm):
    x0 = torch.zeros(1, 1)
    b = ball(threat(norm, 0.5), 1)
    assert b.contains(x0, torch.tensor([[0.5 * (1 + 0.8e-6)]])).all()
    assert not b.contains(x0, torch.tensor([[0.5 * (1 + 1.3e-6)]])).any()


@EVERY_NORM
@pytest.mark.parametrize("masked", [False, True])
def test_starts_and_projections_are_contained(norm, masked):
    key = rng.keys(0, torch.arange(40))
    x0 = (1.4 * rng.uniform(key, (1, 5, 5)) - 0.2).clamp(0, 1)
    mask = rng.uniform(rng.keys(0, torch.tensor([99])), (1, 5, 5))[0] < 0.6 if masked else None
    b = ball(threat(norm, torch.linspace(0.01, 0.9, 40), mask), 40)
    far = x0 + rng.normal(rng.fold(key, 1), (1, 5, 5))
    for x in (b.start(x0, key), b.inside(x0, key), b.project(x0, far), b.retract(x0, far)):
        assert b.contains(x0, x).all()
        assert not torch.equal(x, x0)
    step = b.steepest(far)
    assert mask is None or (step[:, ~mask] == 0).all()
    assert torch.allclose(b.norm.size(step), torch.ones(40), atol=1e-5)
    lo, hi = b.bounds(x0)
    assert ((lo <= x0) & (x0 <= hi)).all() and (lo[:, ...] < hi).any()


@EVERY_NORM
@pytest.mark.parametrize("masked", [False, True])
def test_reach_is_the_most_a_linear_function_gains(norm, masked):
    """The steepest step of size eps gains that much; no random point of the ball gains more."""
    key = rng.keys(0, torch.arange(40))
    g = rng.normal(key, (1, 5, 5))
    mask = rng.uniform(rng.keys(0, torch.tensor([99])), (1, 5, 5))[0] < 0.6 if masked else None
    b = ball(threat(norm, torch.linspace(0.01, 0.9, 40), mask), 40)
    allowed = g if mask is None else g * mask
    best = b.eps[:, None] * b.steepest(g).flatten(1)
    assert torch.allclose((best * g.flatten(1)).sum(1), b.reach(g), rtol=1e-4)
    for i in range(20):
        d = b.norm.inside(rng.fold(key, i), (1, 5, 5), b.eps)
        assert ((d * allowed).flatten(1).sum(1) <= b.reach(g) * (1 + 1e-5)).all()
    assert torch.equal(b.reach(4 * g), 4 * b.reach(g))
    by_hand = {"Linf": allowed.abs().sum((1, 2, 3)), "L1": allowed.abs().amax((1, 2, 3))}
    assert torch.allclose(b.reach(g), b.eps * by_hand.get(norm, allowed.square().sum((1, 2, 3)).sqrt()), rtol=1e-5)


# ------------------------------------------------------------------------------------------------- through the engine


@EVERY_NORM
def test_per_sample_radii_decide_who_breaks(norm):
    """Every second sample gets half the distance to its boundary, the others twice that distance."""
    world = linear_world(classes=2, n=20)
    small = torch.arange(20) % 2 == 0
    eps = world.distance(norm) * torch.where(small, 0.5, 2.0)
    rows = brinell.attack(
        world.classifier, (world.x, world.y), threat(norm, eps), brinell.attacks.PGD(steps=40, loss="margin")
    )
    assert rows["broken"].to_pylist() == (~small).tolist()
    distance = np.array(rows["distance"].to_pylist(), dtype=float)[~small.numpy()]
    assert (distance <= eps[~small].numpy() * (1 + 1e-6)).all()
    assert (distance >= world.distance(norm)[~small].numpy() * (1 - 1e-5)).all()


def test_a_mask_decides_who_breaks():
    """Only the steepest coordinate may move: then the distance in every norm is the one in L1."""
    world = linear_world(classes=2, n=12)
    mask = torch.arange(24) == world.weight.diff(dim=0).abs().argmax()
    for norm in NORMS:
        for share, broken in ((0.98, False), (1.02, True)):
            t = threat(norm, world.distance("L1") * share, mask)
            rows = brinell.attack(world.classifier, (world.x, world.y), t, brinell.attacks.FGSM("margin"))
            assert rows["broken"].to_pylist() == [broken] * 12
