"""APGD's schedule and look-back, as the paper states them and as AutoAttack's code has them, in plain Python."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import brinell
from brinell.attacks import APGD
from brinell.attacks.gradient.apgd import checkpoints, checkpoints_autoattack
from brinell.attacks.gradient.apgd_l1 import SparseAPGD, phase_lengths
from brinell.core.attack import Batch, Response
from brinell.core.threat import threat
from brinell.ops import rng
from brinell.ops.norms import L1

# ----------------------------------------------------------------------------------------------------------- schedules

# From running the reference (shared/spec/autoattack.md, 1.5), and from the paper's formula.
CODE = {
    10: [*range(2, 11)],
    20: [4, 7, 9, *range(10, 21)],
    25: [5, 9, 12, *range(14, 26)],
    40: [8, 15, 21, 26, 30, 33, 35, 37, 39],
    50: [11, 21, 30, 38, 45],
    100: [22, 41, 57, 70, 80, 87, 93, 99],
    200: [44, 82, 114, 140, 160, 174, 186, 198],
}
PAPER = {
    10: [3, 5, 6, 7, 8, 9, 10],
    20: [5, 9, 12, 14, 16, 18, 19, 20],
    25: [6, 11, 15, 18, 20, 22, 24, 25],
    40: [9, 17, 23, 28, 32, 35, 38, 40],
    50: [11, 21, 29, 35, 40, 44, 47, 50],
    100: [22, 41, 57, 70, 80, 87, 93, 99],
    200: [44, 82, 114, 140, 160, 174, 186, 198],
}


@pytest.mark.parametrize("steps", CODE)
def test_checkpoints(steps):
    assert list(checkpoints_autoattack(steps)) == CODE[steps]
    assert list(checkpoints(steps)) == PAPER[steps]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 33, 1000])
def test_checkpoints_of_odd_budgets(steps):
    for marks in (checkpoints(steps), checkpoints_autoattack(steps)):
        assert list(marks) == sorted(set(marks)) and marks[0] >= 1 and marks[-1] <= steps


@pytest.mark.parametrize(
    ("steps", "lengths"), [(100, (30, 30, 40)), (10, (3, 3, 4)), (50, (15, 15, 20)), (1, (0, 0, 1))]
)
def test_phases_of_the_larger_radii(steps, lengths):
    assert phase_lengths(steps) == lengths and sum(phase_lengths(steps)) == steps
    assert APGD(steps, larger_eps=True).queries == sum(n + 1 for n in lengths)


@pytest.mark.parametrize("steps", [2, 4, 7, 11, 14, 20, 100])
def test_phases_of_the_larger_radii_in_the_code(steps):
    part = math.ceil(3 * steps / 10)
    assert phase_lengths(steps, quirks=True) == (part, part, steps - 2 * part)
    assert phase_lengths(steps)[2] >= phase_lengths(steps)[0]


# ----------------------------------------------------------------------------------------------------------- look-back


def step_sizes(losses: list[float], steps: int, quirks: bool) -> list[float]:
    """The step size (as a multiple of eps) after each iteration, from the losses at the start and at every iterate."""
    marks = CODE[steps] if quirks else PAPER[steps]
    start, history = losses[0], losses[1:]
    best, last_best, size, halved, out, before = start, start, 2.0, quirks, [], 0
    for i, loss in enumerate(history, start=1):
        best = max(best, loss)
        if i in marks:
            k = i - before
            window = history[before:i]
            first = (0.0 if quirks else start) if before == 0 else history[before - 1]
            ups = sum(b > a for a, b in zip([first, *window], window, strict=False))
            few = ups <= 0.75 * k if quirks else ups < 0.75 * k
            stuck = not halved and last_best >= best
            halved = few or stuck
            size = size / 2 if halved else size
            last_best, before = best, i
        out.append(size)
    return out


def observed(losses: torch.Tensor, steps: int, quirks: str | None) -> torch.Tensor:
    """The same from the attack itself: columns of `losses` are rows of the batch."""
    b = losses.shape[1]
    p = Batch(torch.full((b, 4), 0.5), torch.zeros(b).long(), rng.keys(0, torch.arange(b)), torch.full((b,), -1))
    ball = threat("Linf", 0.1).ball(torch.arange(b), torch.device("cpu"))
    attack = APGD(steps, quirks=quirks)
    s = attack.init(p, ball)
    out = []
    for loss in losses:
        s = attack.step(s, Response(torch.zeros(b, 2), loss, torch.ones(b, 4)), p, ball)
        out.append(s.step / 0.1)
    return torch.stack(out[1:])


KINDS = {
    "noise": lambda n, b: rng.normal(rng.keys(1, torch.arange(n)), (b,)),
    # Rises with a probability that differs by row, so that the share of increases passes through 0.75.
    "drift": lambda n, b: (
        torch.where(rng.uniform(rng.keys(2, torch.arange(n)), (b,)) < torch.linspace(0.5, 1, b), 1.0, -2.0)
    ).cumsum(0),
    "plateau": lambda n, b: torch.minimum(torch.arange(n)[:, None] * 1.0, torch.arange(b)[None] * n / b) - n / 3,
}


@pytest.mark.parametrize("steps", [10, 20, 40, 100])
@pytest.mark.parametrize("quirks", [None, "autoattack"])
@pytest.mark.parametrize("kind", KINDS)
def test_step_sizes_follow_the_rules(steps, quirks, kind):
    losses = KINDS[kind](steps + 1, 50)
    want = torch.tensor([step_sizes(c.tolist(), steps, quirks is not None) for c in losses.T]).T
    assert torch.allclose(observed(losses, steps, quirks), want, rtol=1e-5)
    assert len(want[-1].unique()) > 1, "all rows end alike: the test tests little"


def last_size(losses: list[float], steps: int, quirks: str | None, after: int) -> float:
    return float(observed(torch.tensor(losses)[:, None], steps, quirks)[after - 1])


def test_exactly_three_quarters():
    """Period 16 of N = 100: twelve increases are 0.75 of it. The paper goes on, the code halves."""
    rising = [float(i) for i in range(42)]
    window = [41 + (1.0 if i < 12 else 0.0) * (i + 1) + (0.0 if i < 12 else 12.0) for i in range(16)]
    losses = rising + window + [window[-1]] * 43
    assert sum(b > a for a, b in zip([41.0, *window], window, strict=False)) == 12
    assert last_size(losses, 100, None, 57) == pytest.approx(2.0)
    assert last_size(losses, 100, "autoattack", 57) == pytest.approx(1.0)


@pytest.mark.parametrize(("offset", "quirky"), [(0.0, 2.0), (-100.0, 1.0)])
def test_the_first_loss_is_compared_with_zero_only_in_the_code(offset, quirky):
    """22 steps, 17 rises, the first from the start: with negative losses the code does not count that one."""
    window = [float(i + 1) for i in range(17)] + [17.0] * 5
    losses = [offset + v for v in [0.0, *window, *[17.0] * 78]]
    assert last_size(losses, 100, None, 22) == pytest.approx(2.0), "17 ≥ 16.5: the paper does not see the offset"
    assert last_size(losses, 100, "autoattack", 22) == pytest.approx(quirky)


def test_a_plateau_halves_once_every_other_checkpoint():
    """The best loss is the start's: every checkpoint has too few increases, so every one halves."""
    losses = [10.0] + [0.0] * 100
    assert observed(torch.tensor(losses)[:, None], 100, None)[-1].item() == pytest.approx(2 / 2**8)
    # Oscillating upwards enough not to count as few, but never above the best: halved only where not halved before.
    climbing = [1000.0] + [float(i) for i in range(100)]
    assert observed(torch.tensor(climbing)[:, None], 100, None)[-1].item() == pytest.approx(2 / 2**4)


def test_an_unchanged_best_loss_halves_at_the_first_checkpoint_in_the_paper_only():
    """Losses fall below the start's, then rise in 21 steps of 22: step size and best loss are those of w_0 = 0."""
    losses = [0.0, -50.0] + [float(i) for i in range(-49, -28)] + [-29.0] * 78
    assert sum(b > a for a, b in pairwise(losses[:23])) == 21
    assert last_size(losses, 100, None, 21) == pytest.approx(2.0) == last_size(losses, 100, "autoattack", 22)
    assert last_size(losses, 100, None, 22) == pytest.approx(1.0)
    # One loss above the start is an improvement: nothing is halved.
    assert last_size([*losses[:22], 0.5, *losses[23:]], 100, None, 22) == pytest.approx(2.0)


@pytest.mark.parametrize("quirks", [None, "autoattack"])
def test_after_a_restart_the_next_loss_is_compared_with_that_of_the_discarded_iterate(quirks):
    """Line 14 of Algorithm 1 would compare it with the best loss, 10: 14 rises of 19 are too few, 15 are enough."""
    window = [0.1 * i for i in range(15)] + [1.4] * 4
    losses = [10.0] + [-1.0 - i for i in range(22)] + window + [1.4] * 59
    assert last_size(losses, 100, quirks, 22) == pytest.approx(1.0) == last_size(losses, 100, quirks, 41)
    # One rise less, and the step is halved.
    fewer = [*losses[:24], 0.0, *losses[25:]]
    assert last_size(fewer, 100, quirks, 41) == pytest.approx(0.5)


def test_halving_goes_back_to_the_best_point_and_its_gradient():
    b, steps = 1, 10
    p = Batch(torch.full((b, 4), 0.5), torch.zeros(b).long(), rng.keys(0, torch.arange(b)), torch.full((b,), -1))
    ball = threat("Linf", 0.1).ball(torch.arange(b), torch.device("cpu"))
    attack = APGD(steps)
    s = attack.init(p, ball)
    seen, gradients = [], []
    for i, loss in enumerate([0.0, 5.0, 1.0, 0.5]):
        seen.append(s.x)
        gradients.append(rng.normal(rng.keys(9, torch.tensor([i])), (4,)))
        s = attack.step(s, Response(torch.zeros(b, 2), torch.tensor([loss]), gradients[-1]), p, ball)
    # Three losses after the start, one increase: the first checkpoint (3) halves.
    assert s.step.item() == pytest.approx(0.1)
    assert torch.equal(s.x_best, seen[1]) and torch.equal(s.g_best, gradients[1]) and s.f_best.item() == 5.0
    assert torch.equal(s.x_prev, seen[1]), "the next step starts there"
    z = ball.project(p.x, seen[1] + 0.1 * gradients[1].sign())
    # Momentum takes the point before the one it went back from.
    want = ball.project(p.x, seen[1] + 0.75 * (z - seen[1]) + 0.25 * (seen[1] - seen[2]))
    assert torch.allclose(s.x, want, atol=1e-6)


def test_the_first_step_has_no_momentum():
    p = Batch(torch.full((2, 4), 0.5), torch.zeros(2).long(), rng.keys(0, torch.arange(2)), torch.full((2,), -1))
    ball = threat("L2", 0.1).ball(torch.arange(2), torch.device("cpu"))
    g = rng.normal(rng.keys(9, torch.arange(2)), (4,))
    s0 = APGD(10).init(p, ball)
    s1 = APGD(10).step(s0, Response(torch.zeros(2, 2), torch.zeros(2), g), p, ball)
    s2 = APGD(10).step(s1, Response(torch.zeros(2, 2), torch.ones(2), g), p, ball)
    unit = 0.2 * g / g.norm(dim=1, keepdim=True)
    assert torch.allclose(s1.x, ball.project(p.x, s0.x + unit), atol=1e-6)
    z = ball.project(p.x, s1.x + unit)
    want = ball.project(p.x, s1.x + 0.75 * (z - s1.x) + 0.25 * (s1.x - s0.x))
    assert torch.allclose(s2.x, want, atol=1e-6)


# ------------------------------------------------------------------------------------------------------------------ L1


@pytest.mark.parametrize("quirks", [None, "autoattack"])
def test_sparse_steps_follow_croce_and_hein_2021(quirks):
    """One run in plain Python beside the attack: density, step size, support, restarts from the best point."""
    n, steps, eps = 60, 50, 3.0
    key = rng.keys(0, torch.arange(1))
    x0 = 0.2 + 0.6 * rng.uniform(key, (n,))
    p = Batch(x0.repeat(2, 1), torch.zeros(2).long(), key.repeat(2), torch.full((2,), -1))
    ball = threat("L1", eps).ball(torch.arange(2), torch.device("cpu"))
    a = rng.normal(rng.keys(3, torch.arange(1)), (n,))

    def value(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (a * torch.sin(2 * x)).sum(1), 2 * a * torch.cos(2 * x)

    def count(x: torch.Tensor) -> float:
        return float(((x - p.x)[0].abs() > (0.0 if quirks else 2.0**-20)).sum())

    def moved(support: float) -> int:
        """The paper: 1/1.5 of the changed coordinates. The code: so many, rounded up by way of a share of n."""
        if quirks:
            return n - min(max(math.floor((1 - support / 1.5 / n) * n), 0), n - 1)
        return max(math.floor(support / 1.5), 1)

    def land(x: torch.Tensor) -> torch.Tensor:
        exact = ball.project(p.x, x)
        return (p.x + (x - p.x) + ((exact - p.x) - (x - p.x))).clamp(0, 1) if quirks else exact

    attack = APGD(steps, quirks=quirks)
    s = attack.init(p, ball)
    x = s.x.clone()
    best_x, best_g, best_f, size, k, support = x, None, -math.inf, eps, 12, float(n)
    restarts = blocked = 0
    for i in range(steps):
        assert torch.allclose(s.x, x, atol=2e-6), f"iterate {i}"
        # Go on from the attack's own point, lest rounding adds up.
        x = s.x
        f, g = value(x)
        s = attack.step(s, Response(torch.zeros(2, 2), f, g), p, ball)
        if float(f[0]) > best_f:
            best_x, best_g, best_f = x, g, float(f[0])
        if i > 0 and i % 2 == 0:  # every 4 % of 50 steps
            now = count(best_x)
            if now / support < 0.95:
                size, x, g = eps, best_x, best_g
                restarts += 1
            else:
                size = max(size / 1.5, eps / 10)
            k, support = moved(now), now
        stuck = ((x >= 1) & (g > 0)) | ((x <= 0) & (g < 0))
        blocked += int(stuck.any())
        g = g if quirks else torch.where(stuck, 0.0, g)
        kept = torch.where(g.abs() >= g.abs().topk(k).values[:, -1:], g.sign(), 0.0)
        x = land(x + size * kept / kept.abs().sum(1, keepdim=True))
    assert restarts >= 2 and blocked >= 2, "the test tests little"
    assert float(ball.norm.size(x - p.x)[0]) == pytest.approx(eps, rel=1e-4)


def landed(step: float, k: int, n: int, quirks: str | None) -> list[float]:
    """Where one step of that size on k of n coordinates leads from the corner 0 of the box."""
    p = Batch(torch.zeros(2, n), torch.zeros(2).long(), rng.keys(0, torch.arange(2)), torch.full((2,), -1))
    ball = threat("L1", 3.0).ball(torch.arange(2), torch.device("cpu"))
    attack = APGD(100, quirks=quirks)
    s = replace(attack.init(p, ball), x=p.x, step=torch.full((2,), step), density=torch.full((2,), (k - 0.5) / n))
    grad = torch.arange(1.0, n + 1).repeat(2, 1)
    return attack.step(s, Response(torch.zeros(2, 2), torch.zeros(2), grad), p, ball).x[0].tolist()


def test_a_step_is_shared_by_one_division_in_the_code():
    """0.7 over 17 and 0.7 times (1 over 17) differ in the last place."""
    f = np.float32
    divided, multiplied = f(0.7) / f(17), f(0.7) * (f(1) / f(17))
    assert divided != multiplied
    assert landed(0.7, 17, 40, "autoattack") == [0.0] * 23 + [float(divided)] * 17
    assert landed(0.7, 17, 40, None) == [0.0] * 23 + [float(multiplied)] * 17


def test_equal_gradients_at_the_threshold_all_move():
    """Two of six: the second largest is 2, and both of that size are kept. Zeros that are kept are not counted."""
    step = L1.steepest(torch.tensor([[1.0, -2.0, 2.0, 0.5, 3.0, 0.0]]), torch.tensor([1.5 / 6]))
    assert step[0].tolist() == pytest.approx([0, -1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert L1.steepest(torch.tensor([[0.0, -1.0, 0.0]]), torch.tensor([1.0]))[0].tolist() == [0, -1, 0]


@pytest.mark.parametrize(("support", "n"), [(321, 784), (450, 784), (54, 60)])
def test_how_many_move_is_found_by_two_divisions_in_the_code(support, n):
    """Where 1/1.5 of the changed coordinates is whole, the last place of the share decides about one more."""
    f = np.float32
    rank = int((f(1) - f(support) / f(n) / f(1.5)) * f(n))
    assert rank != int((f(1) - f(support) / f(1.5 * n)) * f(n)), "here the order does not matter"
    share = SparseAPGD(100, False, quirks=True)._thinner(torch.tensor([float(support)]), torch.zeros(1, n))
    step = L1.steepest(torch.arange(1.0, n + 1)[None], share)
    assert int((step != 0).sum()) == n - rank


def test_the_first_point_of_the_larger_radii_has_the_code_s_specks():
    """x + noise, less what the projection takes from the noise: where all of it goes, rounding stays behind."""
    n, eps = 400, 2.0
    key = rng.keys(5, torch.arange(2))
    x0 = rng.uniform(rng.keys(6, torch.arange(2)), (n,))
    p = Batch(x0, torch.zeros(2).long(), key, torch.full((2,), -1))
    ball = threat("L1", eps).ball(torch.arange(2), torch.device("cpu"))
    exact, quirky = (APGD(100, quirks=q, larger_eps=True).init(p, ball) for q in (None, "autoattack"))
    noisy = x0 + L1.start(key, (n,), ball.eps)
    specks = (exact.x == x0) & ((noisy - (noisy - x0)) != x0)
    assert specks.any(1).all()
    assert torch.equal((quirky.x != x0) & (exact.x == x0), specks)
    assert torch.equal(quirky.support, exact.support + specks.sum(1))


def test_larger_radii_come_first_and_only_the_last_counts():
    p = Batch(torch.full((3, 40), 0.5), torch.zeros(3).long(), rng.keys(0, torch.arange(3)), torch.full((3,), -1))
    ball = threat("L1", 1.0).ball(torch.arange(3), torch.device("cpu"))
    attack = APGD(20, larger_eps=True)
    g = rng.normal(rng.keys(1, torch.arange(3)), (40,))
    s, sizes = attack.init(p, ball), []
    for _ in range(attack.queries):
        sizes.append(float(ball.norm.size(s.x - p.x).max()))
        s = attack.step(s, Response(torch.zeros(3, 2), (g * s.x).sum(1), g), p, ball)
    assert max(sizes[:7]) == pytest.approx(3, rel=1e-4) and max(sizes[7:14]) == pytest.approx(2, rel=1e-4)
    assert max(sizes[14:]) == pytest.approx(1, rel=1e-4)


def test_larger_radii_are_refused_elsewhere():
    with pytest.raises(brinell.PlanError, match="the only norm for larger_eps"):
        brinell.attack("demo", brinell.data.load("demo", 2), brinell.Linf(0.1), APGD(5, larger_eps=True))


def test_refusals():
    with pytest.raises(brinell.PlanError, match="'autoattack'"):
        APGD(quirks="auto-attack")
    with pytest.raises(brinell.PlanError, match="steps above 0"):
        APGD(0)
    with pytest.raises(brinell.PlanError, match="Did you mean 'dlr-targeted'"):
        APGD(loss="dlr-target")
