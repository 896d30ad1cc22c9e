"""A classifier that is another one for every sample: each row is answered by its own sample's model, in any slot."""

from dataclasses import dataclass

import pytest
import torch

from brinell.attacks import APGD, FAB, PGD
from brinell.core.attack import Attempt, Batch, Requires
from brinell.core.criterion import Misclassified
from brinell.core.model import Classifier, Output
from brinell.core.threat import L2
from brinell.engine.attack_batch import attack_batch
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Samples
from brinell.ops import rng
from brinell.ops.rowwise import concat, flat, take
from brinell.testing import linear_world

N = 23
IDS = torch.arange(N) * 7 + 3
WEIGHT = rng.normal(rng.keys(5, IDS), (6,))


@dataclass(frozen=True)
class Halfspaces(Classifier):
    """Sample i has its own half-space, w_i·(x − 1/2) > b_i; asked without ids it does not answer."""

    weight: torch.Tensor
    bias: torch.Tensor
    name = "halfspaces"
    per_sample = True
    fingerprint = "halfspaces"
    differentiable = True
    device = torch.device("cpu")
    allow = frozenset()

    def forward(self, x):
        raise AssertionError("asked without ids")

    def forward_of(self, x, id):
        at = (id - 3) // 7
        z = (flat(x - 0.5) * self.weight[at]).sum(1) - self.bias[at]
        return Output(torch.stack([-z, z], 1))

    def to(self, device):
        return self

    def dtypes(self):
        return set()

    def modes(self):
        return []


@pytest.fixture
def model():
    # The samples are all the centre of the box: sample i lies b_i / ‖w_i‖ from its boundary, from 0.05 to 0.49.
    distance = torch.linspace(0.05, 0.49, N)
    return Halfspaces(WEIGHT, distance * WEIGHT.norm(dim=1)), distance


def run(model, attack, order, eps, slots, block):
    ids = IDS[order]
    ball = L2(eps).ball(torch.arange(N), torch.device("cpu"))
    x, y = torch.full((N, 6), 0.5), torch.zeros(N, dtype=torch.long)
    engine = Engine(Oracle(model, block), attack, Misclassified(), ball, (Attempt(), Attempt(0, 1)), slots)
    work = Samples.of(x, y, rng.keys(0, ids), ball.eps, torch.full((N, 2), -1), id=ids)
    parts = list(engine.run(work))
    return take(concat([r for _, r in parts]), torch.cat([at for at, _ in parts]).argsort())


@pytest.mark.parametrize("attack", [PGD(steps=10, loss="margin"), APGD(steps=15, loss="margin"), FAB(steps=10)])
@pytest.mark.parametrize(("slots", "block"), [(1, 1), (5, 4), (64, 32)])
def test_every_row_is_answered_by_its_own_model(model, attack, slots, block):
    classifier, distance = model
    order = rng.uniform(rng.keys(slots, torch.zeros(1, dtype=torch.long)), (N,))[0].argsort()
    r = run(classifier, attack, order, 0.26, slots, block)
    assert torch.equal(r.broken, distance[order] < 0.26)
    whole = run(classifier, attack, torch.arange(N), 0.26, 64, block)
    assert torch.equal(r.x, whole.x[order]) and torch.equal(r.forwards, whole.forwards[order])


def test_outputs_gradients_and_padding_follow_the_ids(model):
    classifier, _ = model
    order = torch.arange(N).flip(0)
    x, y, none = torch.full((N, 6), 0.5), torch.zeros(N, dtype=torch.long), torch.full((N,), -1)
    a = Oracle(classifier, 8).query(x, y, none, "margin", Requires.GRAD, 2, IDS[order])
    assert torch.allclose(a.gradient, 2 * WEIGHT[order])
    z = Oracle(classifier, 8).output(x, IDS[order]).logits
    assert torch.allclose(z[:, 0], classifier.bias[order]) and torch.equal(z[:, 0], -z[:, 1])
    rows = Batch(x, y, rng.keys(0, IDS), none, id=IDS)
    straight = PGD(steps=8, loss="margin", random_start=False)
    best = attack_batch(classifier, straight, rows, L2(0.2).ball(torch.arange(N), x.device), keep="best")
    direction = torch.cosine_similarity(best - x, WEIGHT, dim=1)
    assert bool((direction > 0.9999).all())


def test_ordinary_classifiers_do_not_see_ids():
    world = linear_world(classes=3, n=8)
    ids = torch.arange(8)
    assert not world.classifier.per_sample
    with_ids, without = world.classifier.forward_of(world.x, ids), world.classifier.forward(world.x)
    assert torch.equal(with_ids.logits, without.logits)
    oracle = Oracle(world.classifier, 3)
    assert torch.equal(oracle.output(world.x, ids).logits, oracle.output(world.x).logits)
