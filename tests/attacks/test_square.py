"""Square and its substitute RandomSearch: schedule, patterns, windows, feasibility, invariances, strength."""

import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from brinell.attacks.black_box.random_search import MOVES, RandomSearch, RandomSearchState, shares, stage
from brinell.attacks.black_box.square import PROPOSALS, Square
from brinell.attacks.black_box.square_patterns import Sides, bump, draw, pattern, pattern_table, stamp, tiling
from brinell.core.attack import Attempt, Batch, Requires, Response
from brinell.core.criterion import Misclassified
from brinell.core.threat import L2, Ball, Linf, Threat, threat
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.errors import PlanError
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.losses import margin
from brinell.ops.rowwise import concat, take

SHAPES = [(1, 1, 1), (1, 2, 2), (1, 3, 7), (3, 12, 12), (2, 14, 19), (1, 28, 28), (3, 32, 17)]
RADII = {"Linf": 0.1, "L2": 0.7, "L1": 2.0}
THREATS = [threat(norm, eps) for norm, eps in RADII.items()]
ATTACKS = [Square(steps=40), RandomSearch(steps=40)]
ODD = Sides(least=3, odd=True)
# Where the stages begin, and the sides in a 32 × 32 image.
STARTS = (0, 11, 51, 201, 501, 1001, 2001, 4001)
SIDES_LINF, SIDES_ODD = (29, 20, 14, 10, 7, 5, 4, 3), (29, 21, 15, 11, 7, 5, 5, 3)

every_norm = pytest.mark.parametrize("t", THREATS, ids=list(RADII))
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)


def problem(n: int, shape: tuple[int, ...], seed: int = 0) -> Batch:
    """Random rows, a third of their coordinates on the border of the box."""
    x = (1.5 * rng.uniform(rng.keys(seed, torch.arange(n)), shape) - 0.25).clamp(0, 1)
    return Batch(x, torch.arange(n) % 3, rng.keys(seed + 1, torch.arange(n)), torch.full((n,), -1))


def ball_of(t: Threat, n: int) -> Ball:
    return t.ball(torch.arange(n), torch.device("cpu"))


def linear(p: Batch, x: Tensor, classes: int = 3) -> Response:
    """A fixed linear model, summed row by row so that no row's answer depends on the batch."""
    n = x[0].numel()
    weight = rng.normal(torch.arange(classes), (n,))
    logits = torch.stack([(x.flatten(1) * w).sum(1) for w in weight], 1)
    return Response(logits, margin(logits, p.y))


def follow(attack, p: Batch, ball: Ball, steps: int) -> list[RandomSearchState]:
    """The states of a run by hand."""
    out = [attack.init(p, ball)]
    for _ in range(steps):
        out.append(attack.step(out[-1], linear(p, out[-1].x), p, ball))
    return out


def test_contract():
    for attack in (Square(), RandomSearch()):
        assert attack.queries == 5001
        assert attack.requires is Requires.LOGITS
        assert not attack.minimum_norm
        assert (attack.steps, attack.p0, attack.loss) == (5000, 0.8, "margin")
    assert (Square().name, RandomSearch().name) == ("square", "random-search")


def test_schedule_and_sides_in_32x32_are_autoattacks():
    starts = [i for i in range(5000) if i == 0 or stage(i) != stage(i - 1)]
    assert tuple(starts) == STARTS
    share = shares(5000, 0.8)
    assert len(share) == len(STARTS)
    assert tuple(Sides().side(p, 32, 32) for p in share) == SIDES_LINF
    assert tuple(ODD.side(p, 32, 32) for p in share) == SIDES_ODD
    assert shares(11, 0.8) == (0.8,)
    assert shares(12, 0.8) == (0.8, 0.4)
    assert [stage(i) for i in (4000, 6000, 6001, 8000, 8001)] == [6, 7, 8, 8, 9]


def test_sides_fit_any_image():
    for h, w in ((1, 1), (2, 2), (3, 7), (4, 50), (12, 12)):
        for sides in (Sides(), ODD):
            assert all(1 <= sides.side(p, h, w) <= min(h, w) for p in shares(9000, 1.0))


@pytest.mark.parametrize(("p", "decay"), [(2, 2), (1, 4)])
@pytest.mark.parametrize("s", [1, 2, 3, 5, 12, 15, 29])
def test_patterns(s: int, p: int, decay: int):
    block = pattern(s, decay, p)
    assert block.shape == (s, s)
    assert block.norm(p).item() == pytest.approx(1)
    assert (block[: s // 2] > 0).all() and (block[s // 2 :] < 0).all()
    # Both halves carry the same weight.
    if s > 1:
        assert block[: s // 2].norm(p).item() == pytest.approx(block[s // 2 :].norm(p).item())


@pytest.mark.parametrize("decay", [2, 4])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 3), (2, 5), (7, 15), (8, 15), (14, 29)])
def test_bump_is_the_sum_over_chebyshev_rings(a: int, b: int, decay: int):
    reach = max(a // 2, b // 2) + 1
    want = torch.zeros(a, b, dtype=torch.float64)
    for i in range(a):
        for j in range(b):
            away = max(abs(i - a // 2), abs(j - b // 2))
            want[i, j] = sum((r + 1) ** -decay for r in range(away, reach))
    torch.testing.assert_close(bump(a, b, decay, 2), want / want.norm())


def test_stamp_puts_each_rows_own_pattern_where_told():
    sides, h, w = (5, 3), 6, 9
    table = pattern_table(sides, 2, 2, torch.device("cpu"))
    k, turned = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 1])
    top, left = torch.tensor([1, 3, 0, 0]), torch.tensor([4, 6, 0, 2])
    got = stamp(table, k, turned, top, left, h, w).view(4, h, w)
    for row in range(4):
        s, want = sides[k[row]], torch.zeros(h, w)
        block = pattern(s, 2, 2).float()
        want[top[row] : top[row] + s, left[row] : left[row] + s] = block.T if turned[row] else block
        assert torch.equal(got[row], want)


@pytest.mark.parametrize(("h", "w"), [(28, 28), (32, 32), (4, 4), (12, 12), (14, 18), (19, 24), (1, 9)])
def test_tiles_cover_the_image_but_for_a_centred_margin(h: int, w: int):
    count, tile, both = tiling(h, w, 2, 2, torch.device("cpu"))
    side = max(min(h, w) // 5, 1)
    covered = (both != 0).view(2, h, w)
    assert count == (h // side) * (w // side) == len(tile[covered[0].view(-1)].unique())
    assert (covered.sum((1, 2)) == count * side**2).all()
    top, left = (h % side) // 2, (w % side) // 2
    assert covered[0, top : top + h // side * side, left : left + w // side * side].all()
    # Each tile is one pattern.
    assert both.square().sum().item() == pytest.approx(2 * count, rel=1e-5)


def changed_windows(attack: Square, t: Threat, shape: tuple[int, int, int], at: int, n: int) -> Tensor:
    """Which pixels the proposal after `at` answers changes when the best point is the clean one: (n, h, w)."""
    p = replace(problem(n, shape), x=torch.full((n, *shape), 0.5))
    s = RandomSearchState(torch.full((n,), at), p.x, p.x, torch.zeros(n))
    after = attack.step(s, Response(torch.zeros(n, 2), torch.full((n,), -1.0)), p, ball_of(t, n))
    assert torch.equal(after.x_best, p.x)
    return (after.x != p.x).any(1)


@every_norm
@pytest.mark.parametrize(("at", "h", "w"), [(300, 12, 12), (60, 9, 14)])
def test_every_window_offset_occurs_equally_often(t: Threat, at: int, h: int, w: int):
    n = 6000
    changed = changed_windows(Square(), t, (1, h, w), at, n)
    sides = PROPOSALS[type(t.norm)].sides
    s = sides.side(shares(at + 1, 0.8)[-1], h, w)
    assert (changed.sum((1, 2)) == s * s).all()
    top, left = changed.any(2).float().argmax(1), changed.any(1).float().argmax(1)
    seen = torch.zeros(h - s + 1, w - s + 1).index_put((top, left), torch.ones(n), accumulate=True)
    assert seen.shape == (h - s + 1, w - s + 1) and (seen > 0).all()
    cells = seen.numel()
    chi2 = ((seen - n / cells) ** 2 / (n / cells)).sum().item()
    assert abs(chi2 - (cells - 1)) < 4 * (2 * (cells - 1)) ** 0.5


def test_draws_are_uniform_and_independent():
    bound = torch.tensor([3, 4, 2]).expand(12_000, 3)
    got = draw(rng.keys(3, torch.arange(12_000)), bound)
    cells = (got[:, 0] * 4 + got[:, 1]) * 2 + got[:, 2]
    count = torch.bincount(cells, minlength=24).float()
    assert ((count - 500) ** 2 / 500).sum().item() < 23 + 4 * 46**0.5


def mixed_by_hand(d: np.ndarray, eta: np.ndarray, a, b, eps: float, p: int) -> np.ndarray:
    """The two-window move of one image as the published method states it, with slices: d (c, h, w)."""

    def size(v: np.ndarray) -> float:
        return float((np.abs(v) ** p).sum() ** (1 / p))

    d, c, total, tiny = d.copy(), len(d), size(d), 1e-12
    union = np.zeros(d.shape[1:], bool)
    union[a] = union[b] = True
    new = []
    for k in range(c):
        q = eta[k] + d[k][a] / (tiny + size(d[k][a]))
        held = size(d[k][union])
        if p == 2:
            amount = np.sqrt(max(eps**2 - total**2, 0) / c + held**2)
        else:
            amount = (max(eps - total, 0) / c + held) * c
        new.append(q / (tiny + size(q)) * amount)
    for k in range(c):
        d[k][b] = 0
    for k in range(c):
        d[k][a] = new[k]
    return d


@pytest.mark.parametrize("t", THREATS[1:], ids=["L2", "L1"])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 12, 9)])
def test_the_two_window_move_is_the_published_one(t: Threat, shape: tuple[int, int, int]):
    n, (c, h, w) = 12, shape
    attack, p, ball = Square(), problem(n, shape), ball_of(t, n)
    x = ball.inside(p.x, p.key)
    at = torch.tensor([0, 11, 51, 201, 501, 3000]).repeat(2)
    s = attack.step(
        RandomSearchState(at, x, x, torch.zeros(n)), Response(torch.zeros(n, 2), torch.full((n,), -1.0)), p, ball
    )
    proposal = PROPOSALS[type(t.norm)]
    side = torch.tensor([ODD.side(0.8 / 2 ** stage(int(i)), h, w) for i in at])
    room = torch.stack([h - side + 1, w - side + 1], 1)
    lots = draw(rng.fold(p.key, at + 1), torch.cat([room, room, torch.full((n, 1 + c), 2)], 1))
    want = []
    for row in range(n):
        top, left, top_b, left_b, turned, *coins = lots[row].tolist()
        k = int(side[row])
        a = (slice(top, top + k), slice(left, left + k))
        b = (slice(top_b, top_b + k), slice(left_b, left_b + k))
        block = pattern(k, proposal.decay, proposal.p).numpy()
        eta = np.stack([(2 * coin - 1) * (block.T if turned else block) for coin in coins])
        d = (x[row] - p.x[row]).double().numpy()
        want.append(mixed_by_hand(d, eta, a, b, float(ball.eps[row]), proposal.p))
    d = torch.tensor(np.stack(want)).float()
    if proposal.p == 2:
        near = (p.x + d * (ball.eps / d.flatten(1).norm(dim=1)).view(-1, 1, 1, 1)).clamp(0, 1)
    else:
        near = ball.project(p.x, p.x + d)
    torch.testing.assert_close(s.x, near, atol=3e-6, rtol=1e-5)


def test_linf_windows_go_to_a_face_with_one_sign_per_channel():
    n, shape = 50, (3, 10, 10)
    p, ball = replace(problem(n, shape), x=torch.full((n, *shape), 0.5)), ball_of(Linf(0.1), n)
    s = Square().init(p, ball)
    stripes = s.x - p.x
    assert torch.equal(stripes, stripes[:, :, :1].expand_as(stripes))
    torch.testing.assert_close(stripes.abs(), torch.full_like(stripes, 0.1))
    start = RandomSearchState(torch.full((n,), 100), p.x, p.x, torch.zeros(n))
    d = Square().step(start, Response(torch.zeros(n, 2), torch.full((n,), -1.0)), p, ball).x - p.x
    up, down = d.amax((2, 3)), -d.amin((2, 3))
    assert ((up > 0) ^ (down > 0)).all()
    torch.testing.assert_close(torch.maximum(up, down), torch.full_like(up, 0.1))
    assert len((up > 0).long().unique(dim=0)) == 8


@every_norm
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_attack
def test_candidates_stay_in_ball_and_box(attack, shape: tuple[int, ...], t: Threat):
    p, ball = problem(9, shape), ball_of(t, 9)
    for s in follow(attack, p, ball, 40):
        assert ball.contains(p.x, s.x).all()


@every_norm
@pytest.mark.parametrize("h", [4, 5, 7, 12, 14, 18, 19, 24])
def test_square_takes_every_image_size(t: Threat, h: int):
    p, ball = problem(3, (1, h, h)), ball_of(t, 3)
    for s in follow(Square(steps=12), p, ball, 3):
        assert ball.contains(p.x, s.x).all()


@every_norm
@every_attack
def test_the_mask_is_respected(attack, t: Threat):
    shape = (2, 8, 8)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[:, 2:5, 3:] = True
    p, ball = problem(9, shape), replace(ball_of(t, 9), mask=mask)
    states = follow(attack, p, ball, 40)
    assert all(ball.contains(p.x, s.x).all() for s in states)
    assert (states[-1].x_best != p.x)[:, mask].any(1).all()


@every_norm
@every_attack
def test_the_best_loss_never_decreases_and_belongs_to_the_best_point(attack, t: Threat):
    p, ball = problem(20, (1, 8, 8)), ball_of(t, 20)
    states = follow(attack, p, ball, 40)
    for last, s in pairwise(states[1:]):
        assert (s.f_best >= last.f_best).all()
        assert torch.equal(s.f_best, linear(p, s.x_best).loss)
    assert (states[-1].f_best > states[1].f_best).sum() >= 15


def test_a_tie_and_a_nan_are_not_accepted():
    p, ball = problem(2, (1, 6, 6)), ball_of(Linf(0.1), 2)
    s = Square().init(p, ball)
    s = Square().step(s, Response(torch.zeros(2, 3), torch.tensor([1.0, 1.0])), p, ball)
    after = Square().step(s, Response(torch.zeros(2, 3), torch.tensor([1.0, torch.nan])), p, ball)
    assert torch.equal(after.x_best, s.x_best) and torch.equal(after.f_best, s.f_best)


@every_norm
@every_attack
def test_a_row_does_not_see_its_neighbours_nor_their_iteration(attack, t: Threat):
    n, shape = 11, (2, 9, 7)
    p, ball = problem(n, shape), ball_of(t, n)
    states = follow(attack, p, ball, 30)
    order = torch.tensor([5, 0, 10, 3])
    some = follow(attack, take(p, order), replace(ball, eps=ball.eps[order]), 30)
    for s, part in zip(states, some, strict=True):
        assert torch.equal(s.x[order], part.x)
    alone = follow(attack, take(p, order[:1]), replace(ball, eps=ball.eps[:1]), 30)
    assert torch.equal(alone[-1].x[0], states[-1].x[5])
    # Row i starts i steps late: rows of different stages share every call.
    late = take(states[0], torch.arange(n))
    for k in range(30 + n):
        stepped = attack.step(late, linear(p, late.x), p, ball)
        moves = (torch.arange(n) <= k) & (torch.arange(n) + 30 > k)
        late = RandomSearchState(*(torch.where(moves.view(-1, *[1] * (v.ndim - 1)), v, u)
                       for v, u in zip(vars(stepped).values(), vars(late).values(), strict=True)))  # fmt: skip
    assert torch.equal(late.x, states[-1].x) and torch.equal(late.f_best, states[-1].f_best)


def run_engine(attack, net: nn.Module, x: Tensor, y: Tensor, t: Threat, slots: int, early_exit: bool = True):
    """Broken flags, best losses and adversarials, in the order of x."""
    ball = ball_of(t, len(x))
    engine = Engine(
        Oracle(wrap(net), 32),
        attack,
        Misclassified(),
        ball,
        (Attempt(),),
        slots,
        early_exit,
    )
    work = Samples.of(x, y, rng.keys(0, torch.arange(len(x))), ball.eps, torch.full((len(x), 1), -1))
    done = list(engine.run(work))
    at = torch.cat([at for at, _ in done]).argsort()
    record = take(concat([r for _, r in done]), at)
    return record.broken, record.loss, record.x


@every_norm
@every_attack
def test_the_number_of_slots_changes_nothing(attack, t: Threat):
    attack, p = replace(attack, steps=12), problem(28, (1, 8, 8))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    with torch.no_grad():
        net[1].weight.copy_(rng.normal(torch.arange(3), (64,)) * 0.3)
        net[1].bias.zero_()
        y = net(p.x).argmax(1)
    first, *others = [run_engine(attack, net, p.x, y, t, slots) for slots in (256, 7, 1)]
    assert 0 < first[0].sum() < 28
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("t", "steps"), list(zip(THREATS, (300, 1000, 1500), strict=True)), ids=list(RADII))
@every_attack
def test_breaks_a_linear_classifier_at_one_and_a_half_times_its_distance(attack, t: Threat, steps: int):
    n, shape = 8, (1, 6, 6)
    attack = replace(attack, steps=steps)
    p = replace(problem(n, shape), x=torch.full((n, *shape), 0.5), y=torch.zeros(n, dtype=torch.long))
    # Smooth weights, as those of image classifiers: a wave of its own for every row.
    phase = torch.arange(n).view(-1, 1, 1) * 0.7
    grid = torch.arange(6).float()
    w = torch.cos(grid.view(1, -1, 1) * 0.9 + phase) + torch.sin(grid.view(1, 1, -1) * 0.5 - phase)
    distance = torch.full((n,), 0.05 * t.norm.size(torch.ones(1, 36)).item() ** 0.5)
    bias = -distance * t.norm.dual_size(w.flatten(1))
    ball = replace(ball_of(t, n), eps=1.5 * distance)
    s, best = attack.init(p, ball), torch.full((n,), -torch.inf)
    for _ in range(attack.queries):
        loss = ((s.x - 0.5) * w[:, None]).flatten(1).sum(1) + bias
        best = torch.maximum(best, loss)
        s = attack.step(s, Response(torch.zeros(n, 2), loss), p, ball)
    assert (best > 0).all()


def test_an_explicit_start_is_used():
    p = problem(4, (1, 6, 6))
    p, ball = replace(p, start=p.x + 0.01), ball_of(L2(0.5), 4)
    for attack in ATTACKS:
        torch.testing.assert_close(attack.init(p, ball).x, p.start.clamp(0, 1))


def test_square_refuses_what_is_not_an_image():
    p, ball = problem(4, (20,)), ball_of(L2(0.5), 4)
    with pytest.raises(PlanError, match="RandomSearch"):
        Square().init(p, ball)
    for s in follow(RandomSearch(steps=20), p, ball, 20):
        assert ball.contains(p.x, s.x).all()


def test_random_search_changes_exactly_the_scheduled_share():
    n, size = 30, 50
    p = replace(problem(n, (size,)), x=torch.full((n, size), 0.5))
    at = torch.tensor([0, 11, 51, 201, 501, 4001]).repeat(5)
    s = RandomSearchState(at, p.x, p.x, torch.zeros(n))
    answer = Response(torch.zeros(n, 2), torch.full((n,), -1.0))
    want = torch.tensor([40, 20, 10, 5, 2, 1]).repeat(5)
    for t in THREATS:
        after = RandomSearch().step(s, answer, p, ball_of(t, n))
        assert torch.equal((after.x != p.x).sum(1), want)


@pytest.mark.parametrize("kind", [Square, RandomSearch])
def test_impossible_numbers_are_refused(kind):
    for wrong in ({"steps": 0}, {"p0": 0.0}, {"p0": 1.5}, {"loss": "magic"}):
        with pytest.raises(PlanError):
            kind(**wrong)
    assert set(PROPOSALS) == set(MOVES)


SHARED = Path(os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "golden"


def golden_network() -> nn.Module:
    stored = np.load(SHARED / "fashion_net.npz")
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    layers = {"c1": "0", "c2": "2", "f1": "5", "f2": "7"}
    net.load_state_dict({f"{layers[k[:2]]}{k[2:]}": torch.tensor(stored[k]) for k in stored})
    return net.eval()


@pytest.mark.golden
@pytest.mark.skipif(not (SHARED / "fashion_net.npz").exists(), reason=f"no golden network in {SHARED}")
@pytest.mark.parametrize(
    ("norm", "eps", "part", "leads"),
    [
        ("Linf", 0.1, 0.8, True),
        pytest.param("L2", 1.5, 0.3, True, marks=pytest.mark.slow),
        ("L1", 12, 0.15, False),
    ],
)
def test_golden_network(norm: str, eps: float, part: float, leads: bool):
    """300 steps break a fair part of what 100 steps of the reference's APGD break, and hardly anything it does not."""
    stored, n = np.load(SHARED / "single_runs.npz"), 64
    x, y = torch.tensor(stored["x"][:n]).view(n, 1, 28, 28), torch.tensor(stored["y"][:n]).long()
    apgd = torch.tensor(stored[f"apgd_{norm}_ce_100_robust"][:n]) == 0
    net, t = golden_network(), threat(norm, eps)
    broken, _, adv = run_engine(Square(steps=300), net, x, y, t, 64)
    assert part * apgd.sum() <= broken.sum()
    assert (broken & ~apgd).sum() <= 2
    assert ball_of(t, n).contains(x, adv).all()
    # Of 128 rows, seeds 0-3, Square and random search break 18 and 12 in Linf (seed 0), 25 24 27 22 and 24 23 25 23 in
    # L2, 23 25 24 21 and 26 30 33 23 in L1: there the substitute is ahead at 300 steps (at 1000: 49 and 46, seed 0).
    if leads:
        other, _, _ = run_engine(RandomSearch(steps=300), net, x, y, t, 64)
        assert broken.sum() >= other.sum()
