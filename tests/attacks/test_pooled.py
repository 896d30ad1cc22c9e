"""Starts from a pool: which are drawn, where they lie, and a model that only they break."""

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import InputError, Linf, Problem, Restarts, Stage
from brinell.attacks import ACG, APGD, FGSM, PGD, PooledStarts
from brinell.core.attack import Batch
from brinell.core.start_pool import StartPool
from brinell.core.threat import Ball, threat
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.testing import check_attack

SIZE, N = 16, 12
POOL = StartPool(torch.tensor([0, 0, 1]), torch.linspace(-1, 1, 3 * SIZE).view(3, SIZE))


def batch(y: Tensor) -> Batch:
    return Batch(torch.full((len(y), SIZE), 0.5), y, rng.keys(2, torch.arange(len(y))), torch.full_like(y, -1))


def test_starts_are_those_of_the_same_class_in_units_of_eps():
    p, eps = batch(torch.arange(N) % 3), torch.linspace(0.1, 0.4, N)
    d = (PooledStarts(PGD(1), POOL).init(p, Ball(NORMS["Linf"], eps)).x - p.x) / eps[:, None]
    which = [(row - POOL.d).abs().amax(1).lt(1e-4).nonzero().flatten().tolist() for row in d]
    assert all(len(w) == 1 for w in which)
    drawn = [{w[0] for w, label in zip(which, p.y.tolist(), strict=True) if label == c} for c in range(3)]
    # Nothing in the pool has class 2: all of it serves.
    assert drawn[0] == {0, 1} and drawn[1] == {2} and drawn[2] <= {0, 1, 2} and len(drawn[2]) > 1


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_starts_lie_in_ball_box_and_mask(norm):
    p = batch(torch.zeros(N).long())
    p = Batch(rng.uniform(p.key, (SIZE,)), p.y, p.key, p.target)
    mask = torch.arange(SIZE) % 2 == 0
    ball = Ball(NORMS[norm], torch.full((N,), 0.3), mask)
    x = PooledStarts(PGD(1), POOL).init(p, ball).x
    assert ball.contains(p.x, x).all() and ball.allows(p.x, x).all() and not torch.equal(x, p.x)
    check_attack(PooledStarts(APGD(3, "margin"), POOL), [NORMS[norm]], shape=(SIZE,), samples=4, steps=3)


def test_without_a_pool_the_attack_starts_as_usual():
    p, ball = batch(torch.arange(N) % 3), Ball(NORMS["L2"], torch.full((N,), 0.5))
    assert torch.equal(PooledStarts(APGD(3)).init(p, ball).x, APGD(3).init(p, ball).x)


class Keyhole(nn.Module):
    """Two classes; a constant, except within 0.03 of one perturbation of the centre, where the class changes."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        inside = ((x - 0.5 - self.key).abs().amax(1) < 0.03).float()
        return torch.stack([3 - 6 * inside, 0 * inside], 1) + 0 * x.sum(1, keepdim=True)


@pytest.mark.usefixtures("unchecked")
def test_a_perturbation_that_broke_one_sample_breaks_the_others():
    """Gradients are zero everywhere. The pilot gets the answer; random starts never meet it."""
    key = 0.2 * torch.where(torch.arange(SIZE) % 3 == 0, 1.0, -1.0)
    net = Keyhole(key).eval()
    x, y = 0.5 + 0.02 * rng.uniform(rng.keys(1, torch.arange(N)), (SIZE,)), torch.zeros(N).long()
    pool = StartPool(y[:1], (key / 0.2)[None])
    random, pooled = (
        brinell.attack(net, (x, y), Linf(0.2), Restarts(a, 5))["broken"].to_pylist()
        for a in (ACG(3), PooledStarts(ACG(3), pool))
    )
    assert not any(random) and all(pooled)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.1), ("L2", 1.5)])
def test_a_pool_from_a_pilot(norm, eps, tmp_path):
    data = brinell.data.load("demo", 40)
    shifted = Problem(data.x[8:], data.y[8:], data.ids[8:])
    run = brinell.evaluate("demo", shifted, threat(norm, eps), [APGD(10, "margin")], out=tmp_path, progress=False)
    broken = run.adversarials()
    assert len(broken.ids) >= 4
    pool = StartPool.from_run(run, data, threat(norm, eps), limit=len(broken.ids) - 1)
    assert len(pool.y) == len(broken.ids) - 1 and torch.equal(pool.y, data.y[broken.ids[:-1]])
    back = data.x[broken.ids[:-1]] + eps * pool.d
    assert torch.allclose(back, torch.from_numpy(broken.x[:-1]), atol=1e-6)
    size = NORMS[norm].size(pool.d)
    assert (size <= 1 + 1e-5).all() and (size > 0.5).all()
    with pytest.raises(InputError, match="without its sample"):
        StartPool.from_run(run, Problem(data.x[:9], data.y[:9]), threat(norm, eps))


def test_the_pool_is_part_of_the_stage():
    other = StartPool(POOL.y, POOL.d + 0.001)
    same = StartPool(POOL.y.clone(), POOL.d.clone())
    hashes = [Stage(PooledStarts(PGD(), pool)).to_json()["hash"] for pool in (POOL, other, same, None)]
    assert hashes[0] == hashes[2] and len(set(hashes)) == 3
    assert (
        same == POOL != other and hash(same) == hash(POOL) and PooledStarts(FGSM(), same) == PooledStarts(FGSM(), POOL)
    )
    assert Stage(PooledStarts(PGD(), POOL)).to_json()["attack"]["pool"] == {"n": 3, "sha256": POOL.digest}


def test_an_empty_pool_is_refused():
    with pytest.raises(InputError, match="at least one perturbation"):
        StartPool(torch.zeros(0).long(), torch.zeros(0, SIZE))
