"""Attacks that look for the smallest distance, where the smallest distance is known."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, nnls
from torch import nn

import brinell
from brinell.attacks import (  # fmt: skip
    ALMA,
    APGD,
    CW,
    DDN,
    EAD,
    FAB,
    FMN,
    PDGD,
    PDPGD,
    PGD,
    Bisect,
    DeepFool,
    Descend,
    Pursuit,
    Refine,
    SigmaZero,
    Square,
    SuperDeepFool,
    WarmDescend,
)
from brinell.attacks.catalogue import by_name
from brinell.attacks.search.bisect import paper_pgd
from brinell.core.threat import threat
from brinell.models.demo import demo_net
from brinell.ops.norms import L0, L1, L2, LINF
from brinell.testing import LinearWorld, duel, linear_world, relu_world

pytestmark = pytest.mark.usefixtures("unchecked")
N = 16
ENOUGH = 1.01

# Rates suit a world whose distances are around 0.1; the published ones are made for images.
QUICK = {
    "fmn": FMN(150),
    "ddn": DDN(300),
    "deepfool": Refine(DeepFool()),
    "superdeepfool": Refine(SuperDeepFool()),
    "fab-refined": Refine(FAB(20)),
}
LONG = {
    "pdgd": Refine(PDGD(2000, rate=1.0)),
    "pdpgd": Refine(PDPGD(2000, rate=1.0)),
    "cw": CW(300, rate=3e-3),
    "ead": Refine(EAD(500, rate=3e-4, beta=3e-3)),
    "fmn": FMN(1000),
    "ddn": DDN(),
    "alma": ALMA(),
    "bisect": Bisect(APGD(60, "margin")),
    "fab": FAB(),
}


def cases(attacks, skip=()):
    pairs = [(a, norm) for a in attacks.values() for norm in a.norms if (a, norm) not in skip]
    return pytest.mark.parametrize(("attack", "norm"), pairs, ids=lambda v: v.name)


def found(world, norm: str, attack, **options) -> torch.Tensor:
    """Verified distances; inf where there is none."""
    rows = brinell.attack(world.classifier, (world.x, world.y), threat(norm, math.inf), attack, **options)
    pairs = zip(rows["distance"].to_pylist(), rows["verified"].to_pylist(), strict=True)
    return torch.tensor([d if ok else math.inf for d, ok in pairs], dtype=torch.float64)


def boxed_world(n: int = N) -> LinearWorld:
    """Half of the coordinates lie on the face they would have to cross: the rest must do it."""
    world = duel(classes=2, n=n)
    w = world.weight[1] - world.weight[0]
    on = (torch.arange(24) % 2 == 0) | (w.abs() == w.abs().max())
    x = torch.where(on, (w > 0).float(), world.x)
    bias = torch.tensor([0.0, -float((x @ w).max()) - 0.3])
    return LinearWorld(torch.stack([0 * w, w]), bias, x, torch.zeros(n).long())


def close(world, norm, attack) -> None:
    truth = world.boxed_distances(norm).amin(1)
    assert truth.isfinite().all()
    ratio = found(world, norm.name, attack) / truth
    assert (ratio >= 1 - 1e-5).all(), "below the closed form: something is wrong"
    assert (ratio <= ENOUGH).double().mean() >= 0.99, sorted(ratio.tolist())[-5:]


@cases(QUICK)
def test_one_rival(attack, norm):
    close(duel(classes=2, n=N), norm, attack)


@cases(QUICK)
def test_with_a_box_that_binds(attack, norm):
    close(boxed_world(), norm, attack)


def test_sigma_zero_changes_the_fewest_coordinates():
    close(duel(classes=2, n=N), L0, SigmaZero(200))


def test_superdeepfool_is_nearer_than_deepfool():
    """Where the boundary is curved, the projection makes the perturbation orthogonal to it."""
    world = relu_world(inputs=8, hidden=12, classes=3, n=24, seed=2)
    plain, better = (found(world, "L2", Refine(a)) for a in (DeepFool(), SuperDeepFool()))
    assert better.isfinite().all() and float(better.mean()) < 0.99 * float(plain.mean())


@pytest.mark.slow
@cases(LONG)
def test_one_rival_with_patience(attack, norm):
    close(duel(classes=2, n=N), norm, attack)
    close(boxed_world(), norm, attack)


@pytest.mark.parametrize("norm", [LINF, L2], ids=lambda n: n.name)
def test_any_attack_of_a_fixed_radius(norm):
    close(duel(classes=2, n=8), norm, Bisect(APGD(25, "margin")))


@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda n: n.name)
def test_down_from_a_known_distance(norm):
    close(duel(classes=2, n=8), norm, WarmDescend(Pursuit(), before=FMN(20)))


@pytest.mark.parametrize("down", [Descend, WarmDescend])
def test_going_down_gains_what_the_minimiser_left(down):
    world = relu_world(inputs=8, hidden=8, classes=3, n=12)
    before, after = (found(world, "Linf", a) for a in (FMN(8), down(Pursuit(), before=FMN(8))))
    broken = before.isfinite() & (before > 0)
    assert broken.any() and (after[broken] <= before[broken]).all()
    assert float((after / before)[broken].min()) < 0.95, "a short minimiser leaves something to gain"


@pytest.mark.slow
@pytest.mark.parametrize("norm", [L2, L1], ids=lambda n: n.name)
def test_alma(norm):
    close(duel(classes=2, n=8), norm, ALMA(500))


@pytest.mark.parametrize("norm", [LINF], ids=lambda n: n.name)
def test_the_papers_search_over_the_radius_of_pgd(norm):
    close(duel(classes=2, n=8), norm, paper_pgd())


def search_by_hand(world, rounds: int = 40) -> torch.Tensor:
    """Foolbox 2.4's search as its documentation describes it, sample by sample."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        return (x[None] @ world.first.T + world.offset).relu() @ world.second.T + world.bias

    best = torch.full((len(world.x),), torch.inf)
    for i, (x, y) in enumerate(zip(world.x, world.y, strict=True)):
        low, high, eps = 0.0, None, 0.3
        for turn in range(40):
            point = x.clone()
            hit = False
            for _ in range(rounds):
                leaf = point.clone().requires_grad_()
                loss = torch.nn.functional.cross_entropy(logits(leaf), y[None])
                (g,) = torch.autograd.grad(loss, leaf)
                point = torch.clamp(x + (point + eps / 30 * g.sign() - x).clamp(-eps, eps), 0, 1)
                if int(logits(point).argmax()) != int(y):
                    best[i], hit = torch.minimum(best[i], (point - x).abs().max()), True
                    break
            high = eps if hit else high
            low = low if hit or high is None else eps
            if high is None and turn >= 19:
                break
            eps = eps * 1.5 if high is None else (low + high) / 2
    return best


def test_the_plan_of_the_paper_is_foolboxs_search():
    world = relu_world(inputs=6, hidden=8, classes=3, n=6)
    ours = brinell.curve(world.classifier, (world.x, world.y), "Linf", "paper-curves", progress=False).distances
    theirs = search_by_hand(world).numpy()
    # If the first radius fails, Foolbox bisects from 0 and Brinell from the first radius.
    first = theirs <= 0.3
    assert first.sum() >= 5
    np.testing.assert_allclose(ours[first], theirs[first], rtol=1e-3)


def test_the_plan_of_the_paper_in_every_norm():
    stages = {n: by_name("paper-curves").stages_for(getattr(brinell, n)()) for n in ("Linf", "L2", "L1")}
    assert {n: [s.name for s in p] for n, p in stages.items()} == {"Linf": ["pgd-search"], "L2": ["cw"], "L1": ["ead"]}
    cw, ead = stages["L2"][0].attack, stages["L1"][0].attack
    assert (cw.steps, cw.rounds, cw.rate, cw.first) == (1000, 10, 5e-3, 1e-2)
    assert (ead.steps, ead.rounds, ead.rate, ead.beta) == (1000, 10, 1e-2, 1e-2)


@pytest.mark.parametrize("attack", [DeepFool(), Refine(FAB(20))], ids=lambda a: a.name)
@pytest.mark.parametrize("norm", [LINF, L2, L1], ids=lambda n: n.name)
def test_many_rivals_seen_at_once(attack, norm):
    world = linear_world(6, n=N)
    got, truth = found(world, norm.name, attack), world.distance(norm)
    # DeepFool steps 1e-4 beyond the boundary and lengthens the sum by its overshoot.
    assert (got >= truth * (1 - 1e-5)).all() and (got <= 1.0201 * (truth + 1e-4)).all()


@pytest.mark.parametrize("norm", FMN().norms, ids=lambda n: n.name)
def test_many_rivals_one_at_a_time(norm):
    """Untargeted losses may follow the wrong rival; aiming at each in turn cannot miss the nearest."""
    close(linear_world(5, n=N), norm, brinell.Targets(FMN(100, loss="minimum-margin"), k=4))


def test_deepfool_overshoots_by_what_it_says():
    world = duel(classes=2, n=N)
    assert torch.allclose(found(world, "L2", DeepFool(overshoot=0.1)), 1.1 * (world.distance("L2") + 1e-4))


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_deepfool_stays_near_where_the_box_hides_the_linear_boundary(norm):
    """The steep coordinates have no room; a single step inside the box would move the others to a corner."""
    x, y = brinell.data.load("demo", 24)
    runs = [brinell.attack(demo_net(), (x, y), threat(norm, math.inf), a) for a in (DeepFool(), FMN(50))]
    ours, best = (torch.tensor(r["distance"].to_pylist(), dtype=torch.float64) for r in runs)
    assert ours.isfinite().all() and float(ours.mean()) < 1.6 * float(best.mean())


# ---------------------------------------------------------------------------------------------------------- ReLU worlds


def nearest_in_region(a, b, box, norm) -> float:
    """The smallest ‖d‖ with a·d ≤ b and the box's sides, exactly; inf where there is no such d."""
    n = a.shape[1]
    a = np.vstack([a, np.eye(n), -np.eye(n)])
    b = np.concatenate([b, box[1], -box[0]])
    if norm == "L2":
        # Lawson & Hanson's least-distance programming: nearest point of a polytope by non-negative least squares.
        matrix, criterion = np.vstack([-a.T, -b[None]]), np.append(np.zeros(n), 1.0)
        u, rest = nnls(matrix, criterion, maxiter=1000)
        r = matrix @ u - criterion
        return math.inf if rest < 1e-9 else float(np.linalg.norm(-r[:n] / r[n]))
    size = n if norm == "L1" else 1
    tie = np.eye(n) if norm == "L1" else np.ones((n, 1))
    cost = np.concatenate([np.zeros(n), np.ones(size)])
    lhs = np.vstack(
        [np.hstack([a, np.zeros((len(a), size))]), np.hstack([np.eye(n), -tie]), np.hstack([-np.eye(n), -tie])]
    )
    bounds = [(None, None)] * n + [(0, None)] * size
    solved = linprog(cost, A_ub=lhs, b_ub=np.concatenate([b, np.zeros(2 * n)]), bounds=bounds)
    return float(solved.fun) if solved.status == 0 else math.inf


def exact_distances(world, norm: str) -> np.ndarray:
    """By going through all patterns of active units; in each the network is linear on a polytope."""
    w1, b1, w2, b2 = (v.double().numpy() for v in (world.first, world.offset, world.second, world.bias))
    x, y = world.x.double().numpy(), world.y.numpy()
    best = np.full(len(x), np.inf)
    for pattern in product((0, 1), repeat=len(b1)):
        on = np.asarray(pattern, dtype=float)
        slope, shift = (w2 * on) @ w1, w2 @ (on * b1) + b2
        sign = 1 - 2 * on  # on: w·x + b ≥ 0, so −(w·d) ≤ w·x + b
        for i in range(len(x)):
            region, edge = sign[:, None] * w1, -sign * (w1 @ x[i] + b1)
            for j in range(len(b2)):
                if j != y[i]:
                    row = slope[y[i]] - slope[j]
                    a, b = np.vstack([region, row]), np.append(edge, -(row @ x[i] + shift[y[i]] - shift[j]))
                    best[i] = min(best[i], nearest_in_region(a, b, (-x[i], 1 - x[i]), norm))
    return best


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_relu_networks_within_five_per_cent_of_the_optimum(norm):
    world = relu_world(inputs=4, hidden=4, classes=2, n=5)
    truth = torch.from_numpy(exact_distances(world, norm))
    assert truth.isfinite().all() and (truth > 0).all()
    plan = [FMN(200), Refine(FAB(50)), Bisect(APGD(30, "margin")), Refine(DeepFool())]
    each = torch.stack([found(world, norm, attack) for attack in plan])
    assert (each >= truth * (1 - 1e-5)).all(), "below the optimum: something is wrong"
    assert float((each.amin(0) / truth).mean()) <= 1.05


# ------------------------------------------------------------------------------------------------------------- contract


class Dull(nn.Module):
    """Never changes its mind."""

    def forward(self, x):
        return torch.stack([2 + 0 * x.flatten(1).sum(1), 0 * x.flatten(1).sum(1)], 1)


@pytest.mark.parametrize(
    "attack", [FMN(5), DDN(5), ALMA(5), PDGD(5), CW(5, 2), Bisect(PGD(2), grow=2, halve=2), Descend(before=FMN(3))]
)
def test_what_cannot_be_broken_is_not(attack):
    rows = brinell.attack(Dull().eval(), (torch.rand(3, 4), torch.zeros(3).long()), brinell.L2(), attack)
    assert rows["broken"].to_pylist() == [False] * 3 and rows["distance"].to_pylist() == [None] * 3


def test_slots_order_and_company_change_nothing():
    world = linear_world(4, n=12)
    x, y, ids = world.x, world.y, torch.arange(12)
    for attack in (
        FMN(30),
        DDN(30),
        CW(20, 3),
        Bisect(APGD(5), grow=3, halve=3),
        Refine(DeepFool()),
        WarmDescend(before=FMN(9)),
    ):
        whole = brinell.attack(world.classifier, brinell.Problem(x, y, ids), brinell.L2(), attack)
        flipped = brinell.Problem(x.flip(0), y.flip(0), ids.flip(0))
        other = brinell.attack(world.classifier, flipped, brinell.L2(), attack, slots=3)
        assert whole["distance"].to_pylist() == other["distance"].to_pylist()[::-1]
        part = brinell.attack(world.classifier, brinell.Problem(x[4:7], y[4:7], ids[4:7]), brinell.L2(), attack)
        assert part["distance"].to_pylist() == whole["distance"].to_pylist()[4:7]


def test_a_fixed_radius_stops_at_the_first_success():
    world = duel(classes=2, n=N)
    eps = world.distance("L2") * 1.5
    rows = brinell.attack(world.classifier, (world.x, world.y), brinell.L2(eps), FMN(100))
    assert all(rows["broken"].to_pylist()) and max(rows["forwards"].to_pylist()) < 20


def test_bisect_runs_black_box_attacks():
    world = duel(classes=2, shape=(1, 5, 5), n=3)
    ratio = found(world, "Linf", Bisect(Square(60), first=0.05, grow=4, halve=4)) / world.distance("Linf")
    assert (ratio >= 1).all() and float(ratio.median()) < 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Bisect(FMN()), "fixed radius"),
        (lambda: Bisect(APGD(larger_eps=True)), "fixed radius"),
        (lambda: Bisect(PGD(), factor=1.0), "factor > 1"),
        (lambda: Refine(PGD()), "minimum-norm attack"),
        (lambda: Descend(FMN()), "fixed radius"),
        (lambda: Descend(PGD(loss="ce")), "the same loss"),
        (
            lambda: Descend(APGD(loss="minimum-margin"), before=FAB(targeted=True)),
            "the same gradients at every query",
        ),
        (lambda: Descend(least=0.5), "least ≤ cut"),
        (lambda: FMN(loss="ce"), "a margin loss"),
        (lambda: DDN(gamma=1.5), "gamma below 1"),
        (lambda: CW(rounds=0), "rounds above 0"),
    ],
)
def test_impossible_numbers_are_refused(wrong, why):
    with pytest.raises(brinell.PlanError, match=why):
        wrong()


def test_what_does_not_fit_the_threat_is_refused():
    world = duel(classes=2, n=2)
    data = (world.x, world.y)
    with pytest.raises(brinell.PlanError, match="attacks that work in Linf"):
        brinell.attack(world.classifier, data, brinell.Linf(0.1), DDN(5))
    with pytest.raises(brinell.PlanError, match="attacks that work in L0"):
        brinell.attack(world.classifier, data, brinell.L0(3), APGD(5))
    with pytest.raises(brinell.PlanError, match="a threat with a radius, or minimum-norm attacks"):
        brinell.attack(world.classifier, data, brinell.L2(), APGD(5))


def test_a_threat_without_a_radius_survives_its_manifest():
    from brinell.core.threat import from_json

    stored = brinell.L2().to_json()
    assert stored["eps"] is None and from_json(stored).unlimited and not from_json(brinell.L2(1).to_json()).unlimited
    assert str(threat("L0", "inf")) == "L0(eps=inf)"
