"""PGD, with and without momentum, against the loops of the papers written out; restarts and targets as rows."""

import numpy as np
import pytest
import torch

import brinell
from brinell.attacks import APGD, PGD, MomentumPGD
from brinell.core.attack import Batch, Response
from brinell.core.threat import L2, Linf, threat
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import duel, linear_world

EVERY_NORM = pytest.mark.parametrize("norm", NORMS)
B, N = 6, 15


def gradient(x: torch.Tensor) -> torch.Tensor:
    """Of some smooth function."""
    a = rng.normal(rng.keys(5, torch.arange(1)), (N,))
    return torch.cos(3 * x + a) * a + 0.1 * x


def trajectory(
    attack: APGD | PGD | MomentumPGD, norm: str, eps: float, start: torch.Tensor | None = None
) -> list[torch.Tensor]:
    key = rng.keys(0, torch.arange(B))
    p = Batch(0.2 + 0.6 * rng.uniform(key, (N,)), torch.zeros(B).long(), key, torch.full((B,), -1), start)
    ball = threat(norm, eps).ball(torch.arange(B), torch.device("cpu"))
    s = attack.init(p, ball)
    points = [p.x, s.x]
    for _ in range(attack.steps):
        s = attack.step(s, Response(torch.zeros(B, 2), torch.zeros(B), gradient(s.x)), p, ball)
        points.append(s.x)
    return points


def project(norm: str, d: torch.Tensor, eps: float) -> torch.Tensor:
    """For balls far from the box's faces; L1 by the textbook algorithm, row by row."""
    if norm == "Linf":
        return d.clamp(-eps, eps)
    if norm == "L2":
        return d * (eps / d.norm(dim=1, keepdim=True)).clamp(max=1)
    out = []
    for v in d:
        u = v.abs().sort(descending=True).values
        k = int((u - (u.cumsum(0) - eps) / torch.arange(1, N + 1) > 0).sum())
        cut = max(float((u[:k].sum() - eps) / k), 0.0)
        out.append(v.sign() * (v.abs() - cut).clamp(min=0))
    return torch.stack(out)


def unit(norm: str, g: torch.Tensor) -> torch.Tensor:
    """L1 here with a share of 0.2 of 15 coordinates: three of them."""
    top = g.abs() >= g.abs().topk(3).values[:, -1:]
    return {"Linf": g.sign(), "L2": g / g.norm(dim=1, keepdim=True), "L1": g.sign() * top / 3}[norm]


@EVERY_NORM
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_loop_of_the_paper(norm, momentum):
    """Dong et al. 2018, eqs. 6 and 7: g ← μ g + ∇/‖∇‖₁ and a step along g; without momentum, along ∇."""
    eps, steps = 0.1, 8
    points = trajectory(PGD(steps, 0.3, momentum=momentum, random_start=False, density=0.2), norm, eps)
    x0, x, g = points[0], points[0], torch.zeros(B, N)
    assert torch.equal(points[1], x0)
    for i in range(steps):
        new = gradient(x)
        g = momentum * g + new / new.abs().sum(1, keepdim=True) if momentum else new
        x = x0 + project(norm, x + 0.3 * eps * unit(norm, g) - x0, eps)
        assert torch.allclose(points[i + 2], x, atol=2e-6), f"step {i + 1}"
    assert not torch.allclose(x, x0, atol=0.01)


@EVERY_NORM
@pytest.mark.parametrize("alpha", [0.75, 0.3, 1.0])
def test_momentum_of_auto_pgd(norm, alpha):
    """Croce & Hein 2020, eq. 2: the first step is a plain one, then x ← P(x + α (z − x) + (1 − α)(x − x_before))."""
    eps, steps = 0.1, 8
    points = trajectory(MomentumPGD(steps, 0.3, alpha=alpha, random_start=False, density=0.2), norm, eps)
    x0, path = points[0], [points[0]]
    for k in range(steps):
        x = path[-1]
        z = x0 + project(norm, x + 0.3 * eps * unit(norm, gradient(x)) - x0, eps)
        mixed = z if k == 0 else x + alpha * (z - x) + (1 - alpha) * (x - path[-2])
        path.append(x0 + project(norm, mixed - x0, eps))
        assert torch.allclose(points[k + 2], path[-1], atol=2e-6), f"step {k + 1}"
    plain = trajectory(PGD(steps, 0.3, random_start=False, density=0.2), norm, eps)
    same = [torch.allclose(a, b, atol=2e-6) for a, b in zip(points, plain, strict=True)]
    assert same[:3] == [True] * 3
    # The sparse steps of L1 are all alike here, so that the momentum has the direction of the step.
    assert norm == "L1" or all(same) == (alpha == 1.0)


def test_momentum_is_that_of_auto_pgd_before_its_first_checkpoint():
    """With steps of 2 eps the two attacks are one until Auto-PGD may halve its step: 22 % of the steps."""
    own = trajectory(APGD(20), "L2", 0.1)
    fixed = trajectory(MomentumPGD(20, 2.0), "L2", 0.1, start=own[1])
    assert all(torch.equal(a, b) for a, b in zip(own[:7], fixed[:7], strict=True))
    assert not torch.equal(own[3], own[4])


@EVERY_NORM
def test_random_starts_differ_by_key_and_fill_the_ball(norm):
    x0, start = trajectory(PGD(1), norm, 0.1)[:2]
    size = NORMS[norm].size(start - x0)
    assert (size <= 0.1 * (1 + 1e-6)).all() and (size > 0.05).all() and len(size.unique()) == B


def test_names():
    assert PGD(loss="margin").name == "pgd-margin" and PGD(momentum=1.0).name == "mi-pgd-ce"
    assert MomentumPGD(loss="dlr").name == "momentum-pgd-dlr" and MomentumPGD(5).queries == 6
    with pytest.raises(brinell.PlanError, match="alpha between 0 and 1"):
        MomentumPGD(alpha=1.5)
    for wrong in ({"steps": 0}, {"rel_step": 0.0}, {"steps": -3}):
        with pytest.raises(brinell.PlanError, match="above 0"):
            PGD(**wrong)


# ------------------------------------------------------------------------------------------------ restarts and targets


def test_restarts_are_further_rows_with_their_own_noise():
    world = linear_world(classes=3, n=20)
    hopeless = L2(world.distance("L2") / 2)
    rows = brinell.attack(world.classifier, (world.x, world.y), hopeless, brinell.Restarts(PGD(3), 4))
    assert rows.num_rows == 20 and rows["forwards"].to_pylist() == [16] * 20 == rows["backwards"].to_pylist()
    assert rows["restart"].to_pylist() == [None] * 20, "no restart broke it"
    # A sample that a later restart breaks paid for the earlier ones, and says which one it was.
    tight = L2(world.distance("L2") * 1.5)
    rows = brinell.attack(
        world.classifier, (world.x, world.y), tight, brinell.Restarts(PGD(2, 0.3, "margin"), 6)
    ).to_pylist()
    late = [r for r in rows if r["broken"] and r["restart"] > 0]
    assert late, "the test tests nothing"
    for r in late:
        assert 3 * r["restart"] < r["forwards"] <= 3 * (r["restart"] + 1) and r["first_broken_at"] == r["forwards"] - 1


def test_the_first_restart_is_the_single_run():
    world = linear_world(classes=3, n=20)
    t = L2(world.distance("L2") * 1.5)
    one, many = (
        brinell.attack(world.classifier, (world.x, world.y), t, brinell.Restarts(PGD(2, 0.3, "margin"), n)).to_pylist()
        for n in (1, 3)
    )
    for a, b in zip(one, many, strict=True):
        if a["broken"]:
            assert {**a, "seconds": 0, "attack_hash": ""} == {**b, "seconds": 0, "attack_hash": ""}


def test_targets_are_ranked_on_the_clean_input():
    world = linear_world(classes=5, n=20)
    order = (world.x @ world.weight.T + world.bias).argsort(1, descending=True)
    for rank in (2, 3, 5):
        # Three times the distance of that class: it is reached, and the row says which class was aimed at.
        far = world.distances("L2").gather(1, order[:, rank - 1 : rank])[:, 0] * 3
        stage = brinell.Targets(APGD(10, "minimum-margin"), ranks=[rank])
        rows = brinell.attack(world.classifier, (world.x, world.y), L2(far), stage, early_exit=False)
        assert rows["target"].to_pylist() == order[:, rank - 1].tolist()
        assert rows["forwards"].to_pylist() == [11] * 20


def test_the_true_class_is_never_a_target():
    """Where the model is wrong, its leading class is the first target."""
    world = linear_world(classes=4, n=20)
    order = (world.x @ world.weight.T + world.bias).argsort(1, descending=True)
    wrong = order[:, 2]
    stage = brinell.Targets(PGD(1, loss="minimum-margin"), ranks=[2])
    rows = brinell.attack(world.classifier, (world.x, wrong), L2(0.01), stage)
    assert rows["broken"].to_pylist() == [True] * 20 and rows["target"].to_pylist() == order[:, 0].tolist()


def test_targets_times_restarts_cost_their_product():
    world = linear_world(classes=4, n=8)
    stage = brinell.Restarts(brinell.Targets(PGD(3, loss="minimum-margin"), k=3), 2)
    rows = brinell.attack(world.classifier, (world.x, world.y), L2(world.distance("L2") / 2), stage)
    assert rows["forwards"].to_pylist() == [3 * 2 * 4] * 8 and rows["broken"].to_pylist() == [False] * 8


# --------------------------------------------------------------------------------------------------------- few classes


class OneLogit(torch.nn.Module):
    """z₁ − z₀ of a world of two classes."""

    def __init__(self, world, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.w, self.b, self.shape = world.weight.diff(dim=0), world.bias.diff(), shape

    def forward(self, x):
        return (x.flatten(1) @ self.w.T + self.b).reshape(len(x), *self.shape)


def between(world, norm: str) -> tuple[float, float]:
    """A radius that no sample's distance is near to, and the share of samples that are robust at it."""
    d = world.distance(norm).sort().values
    middle = d[len(d) // 4 : -len(d) // 4]
    i = int((middle[1:] / middle[:-1]).argmax())
    assert middle[i + 1] / middle[i] > 1.02, "no gap wide enough"
    eps = float((middle[i] * middle[i + 1]).sqrt())
    return eps, float((d > eps).double().mean())


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize("shape", [(1,), ()], ids=["column", "flat"])
def test_one_logit(norm, shape):
    world = duel(classes=2, n=30)
    eps, truth = between(world, norm)
    model = OneLogit(world, shape).eval()
    run = brinell.evaluate(model, (world.x, world.y), threat(norm, eps), "apgd", progress=False)
    assert run.robust_accuracy.value == pytest.approx(truth)
    assert 0.1 < truth < 0.9
    assert any("minimum-margin is used" in note for note in run.manifest["notes"])


@pytest.mark.parametrize("classes", [2, 3, 4, 5])
def test_few_classes(classes):
    world = linear_world(classes, n=24)
    eps, truth = between(world, "L2")
    plan = brinell.plan([APGD(40, "dlr"), brinell.Targets(APGD(40, "dlr-targeted"))])
    run = brinell.evaluate(world.classifier, (world.x, world.y), L2(eps), plan, progress=False)
    notes = " ".join(run.manifest["notes"])
    assert run.attacks == ["apgd-dlr", "apgd-dlr-targeted"], "the names stay"
    assert ("margin is used" in notes) == (classes < 4)
    assert f"{classes - 1} instead of 9 targets" in notes
    assert run.robust_accuracy.value == pytest.approx(truth)
    stages = {s["name"]: s for s in run.manifest["identity"]["plan"]["stages"]}
    assert stages["apgd-dlr-targeted"]["ranks"] == list(range(2, classes + 1))
    assert stages["apgd-dlr"]["attack"]["loss"] == ("dlr" if classes >= 4 else "margin")


def test_impossible_ranks_are_refused():
    world = linear_world(classes=3, n=4)
    with pytest.raises(brinell.PlanError, match="between 2 and 3"):
        brinell.attack(
            world.classifier, (world.x, world.y), Linf(0.01), brinell.Targets(APGD(3, "ce-targeted"), ranks=[4])
        )


def test_two_equal_attacks_need_names():
    with pytest.raises(brinell.PlanError, match="each with its own name"):
        brinell.plan([PGD(3), PGD(4)])


def test_broken_samples_are_not_attacked_again():
    world = linear_world(classes=3, n=24)
    eps = float(world.distance("L2").median())
    plan = brinell.plan([PGD(20, loss="margin"), APGD(20, "margin")])
    run = brinell.evaluate(world.classifier, (world.x, world.y), L2(eps), plan, progress=False)
    first, second = run.stages()
    assert first.attacked == 24 and 0 < first.broken < 24 and second.attacked == 24 - first.broken
    both = brinell.evaluate(world.classifier, (world.x, world.y), L2(eps), plan, progress=False, individual=True)
    assert [s.attacked for s in both.stages()] == [24, 24]
    assert np.array_equal(run.survivors(), both.survivors())
