"""Crafting for training: the plain loop bit for bit, exact costs, and the selection of targets in closed form."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from brinell import PlanError, attacks, wrap
from brinell.core.attack import Batch
from brinell.core.model import Classifier
from brinell.core.threat import Ball
from brinell.engine.attack_batch import attack_batch, frozen_eval
from brinell.engine.oracle import Oracle
from brinell.ops import rng
from brinell.ops.losses import likeliest_wrong
from brinell.ops.norms import NORMS
from brinell.testing import linear_world
from brinell.train.methods import METHODS, Method, as_method
from brinell.train.objective import adversarial_points, kl_divergence, training_loss

EPS = 0.1


def noise(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(n)), shape)


def ball(n: int, norm: str = "Linf", eps: float = EPS) -> Ball:
    return Ball(NORMS[norm], torch.full((n,), eps))


def rows(x: Tensor, y: Tensor, key: Tensor, target: int = -1) -> Batch:
    return Batch(x, y, key, torch.full_like(y, target))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)).eval()


def test_pgd_is_the_plain_loop_bit_for_bit(points: Any) -> None:
    x0, y, key = points
    model, space = net(), ball(8)
    x = space.project(x0, x0 + EPS * (2 * rng.uniform(key, (12,)) - 1))
    for _ in range(7):
        x.requires_grad_(True)
        z = model(x)
        (g,) = torch.autograd.grad((z.logsumexp(1) - z.gather(1, y[:, None])[:, 0]).sum(), x)
        x = space.project(x0, x.detach() + 0.25 * EPS * g.sign())
    adversarial = attack_batch(wrap(model), attacks.PGD(steps=7), rows(x0, y, key), space)
    assert torch.equal(adversarial, x)
    assert not adversarial.requires_grad


@pytest.mark.parametrize("rel_step", [0.25, 0.226])
def test_cw_training_climbs_the_margin(rel_step: float, points: Any) -> None:
    """Ten steps along the sign of ∇(max z_i − z_y, i ≠ y) of the Minimum-Margin paper's eq. 5, written out here."""
    x0, y, key = points
    model, space = net(), ball(8)
    x = space.project(x0, x0 + EPS * (2 * rng.uniform(key, (12,)) - 1))
    for _ in range(10):
        x.requires_grad_(True)
        z = model(x)
        others = z - 1e9 * F.one_hot(y, z.shape[1])
        (g,) = torch.autograd.grad((others.max(1).values - z.gather(1, y[:, None])[:, 0]).sum(), x)
        x = space.project(x0, x.detach() + rel_step * EPS * g.sign())
    method = replace(METHODS["cw"], attack=replace(METHODS["cw"].attack, rel_step=rel_step))  # type: ignore[type-var]
    assert torch.equal(adversarial_points(method, wrap(model), x0, y, key, space), x)


@pytest.mark.parametrize(
    ("name", "rel_step", "share"), [("mm3-f10", 0.1, 0.75), ("mm3-f10", 0.226, 1.0), ("mm3-f20", 0.1, 1.0)]
)
def test_ten_steps_of_a_tenth_use_three_quarters_of_the_radius(name: str, rel_step: float, share: float) -> None:
    """With linear logits a coordinate always steps to the same side. From a uniform start u in [−1, 1] ten steps of
    eps/10 end at min(1, u + 1), in the mean 3/4; steps of 2 eps or more in all end at 1."""
    torch.manual_seed(0)
    model, n, size = nn.Linear(4000, 4), 4, 4000
    x0, y, key = torch.full((n, size), 0.5), torch.arange(n), rng.keys(0, torch.arange(n))
    attack = replace(METHODS[name].attack, rel_step=rel_step)  # type: ignore[type-var]
    x = adversarial_points(replace(METHODS[name], attack=attack, targets=1), wrap(model), x0, y, key, ball(n))
    target = likeliest_wrong(model(x0), y, 1)[:, 0]
    towards = (model.weight[target] - model.weight[y]).sign()
    assert ((x - x0) / EPS * towards).mean().item() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("attack", [attacks.PGD(6), attacks.APGD(6), attacks.FGSM(), attacks.PGD(6, momentum=0.9)])
@pytest.mark.parametrize("norm", list(NORMS))
def test_the_last_iterate_of_the_protocol(attack: Any, norm: str, points: Any) -> None:
    """The same states as a loop that asks at every point; the last answer is the one that is spared."""
    x0, y, _ = points
    model, space, p = net(), ball(8, norm, 0.2), rows(*points)
    oracle, state = Oracle(wrap(model), 8), attack.init(p, space)
    for _ in range(attack.queries - 1):
        state = attack.step(state, oracle.query(state.x, y, p.target, attack.loss, attack.requires), p, space)
    adversarial = attack_batch(wrap(model), attack, p, space)
    assert torch.equal(adversarial, state.x)
    assert bool(space.contains(x0, adversarial).all())


@pytest.mark.parametrize("attack", [attacks.PGD(5), attacks.APGD(5), attacks.FGSM(), attacks.Square(steps=5)])
@pytest.mark.parametrize("keep", ["last", "best"])
def test_cost_of_an_attack(attack: Any, keep: str, counting: Any) -> None:
    model = counting()
    n, module = 8, model.module.eval()
    x = noise(n, (3, 2, 2))
    attack_batch(model, attack, rows(x, torch.arange(n) % 5, rng.keys(0, torch.arange(n))), ball(n), keep=keep)
    asked = attack.queries - 1
    assert module.forwards == n * (asked + (keep == "best"))
    assert module.backwards == (0 if isinstance(attack, attacks.Square) else n * asked)


def test_best_is_the_largest_loss_seen(points: Any) -> None:
    """A step far too long bounces; the best iterate is at least as good as the start and as the last one."""
    y = points[1]
    model, p, space = wrap(net()), rows(*points), ball(8)
    seen: list[Tensor] = []

    class Watching(Classifier):
        device, differentiable, allow, name, fingerprint = model.device, True, frozenset(), "", ""

        def forward(self, x: Tensor) -> Any:
            out = model.forward(x)
            seen.append(F.cross_entropy(out.logits.detach(), y, reduction="none"))
            return out

        def to(self, device: Any) -> Any:
            return self

        def dtypes(self) -> Any:
            return set()

        def modes(self) -> Any:
            return []

    best = attack_batch(Watching(), attacks.PGD(6, rel_step=2.0), p, space, keep="best")
    value = F.cross_entropy(model.forward(best).logits, y, reduction="none")
    assert len(seen) == 7
    torch.testing.assert_close(value, torch.stack(seen).amax(0))
    assert bool((torch.stack(seen)[-1] < torch.stack(seen).amax(0)).any())


@pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
@pytest.mark.parametrize("classes", [5, 2])
def test_cost_of_a_method_is_what_it_says(method: Method, classes: int, counting: Any) -> None:
    model, n = counting(classes), 8
    module = model.module.train()
    x, y = noise(n, (12,)), torch.arange(n) % classes
    with frozen_eval(module):
        adversarial = adversarial_points(method, model, x, y, rng.keys(0, torch.arange(n)), ball(n))
    assert not any(module.in_train_mode)
    assert not any(module.wants_weights)
    assert module.training and module.net.weight.requires_grad
    assert module.net.weight.grad is None
    training_loss(method, model, x, adversarial, y, 0.0).backward()
    assert (module.forwards, module.backwards) == tuple(n * v for v in method.cost(classes))
    assert module.net.weight.grad is not None


def test_every_part_returns_to_its_own_mode() -> None:
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    module[0].eval()
    module[1].bias.requires_grad_(False)
    with frozen_eval(module):
        assert not any(m.training for m in module.modules())
        assert not any(w.requires_grad for w in module.parameters())
    assert [m.training for m in module.modules()] == [True, False, True]
    assert [w.requires_grad for w in module.parameters()] == [True, True, True, False]


@pytest.mark.parametrize("name", ["mm3", "mm3-f20"])
def test_minimum_margin_takes_the_target_with_the_largest_margin(name: str) -> None:
    """Linear logits: towards target t the margin ends at (z_t − z_y) + eps · ‖w_t − w_y‖₁, where the box is wide."""
    world = linear_world(classes=6, n=16)
    eps, n = 0.15, 16
    gap, slope = world.gaps()
    reachable = -gap + eps * slope.abs().sum(2)
    model = world.classifier
    logits = model.forward(world.x).logits
    wrong = likeliest_wrong(logits, world.y, 3)
    ranked = torch.where(torch.nn.functional.one_hot(world.y, 6).bool(), -torch.inf, logits).argsort(1, descending=True)
    assert torch.equal(wrong, ranked[:, :3])
    truth = reachable.gather(1, wrong)
    assert len(truth.argmax(1).unique()) > 1  # it is not always the likeliest class
    x = adversarial_points(METHODS[name], model, world.x, world.y, rng.keys(0, torch.arange(n)), ball(n, eps=eps))
    z = model.forward(x).logits.double()
    best = wrong.gather(1, truth.argmax(1, keepdim=True))[:, 0]
    margins = z.gather(1, best[:, None])[:, 0] - z.gather(1, world.y[:, None])[:, 0]
    torch.testing.assert_close(margins, truth.amax(1), rtol=1e-4, atol=1e-4)
    chosen = best[:, None] == torch.arange(6)
    w = (slope * chosen[:, :, None]).sum(1)
    torch.testing.assert_close(x.double(), world.x + eps * w.sign(), rtol=0, atol=1e-6)


def test_targets_share_one_start(points: Any, counting: Any) -> None:
    """All copies of an image begin at the same point: three times the same target is one attack."""
    x0, y, key = points
    seen: list[Tensor] = []
    module = counting().module
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    adversarial_points(METHODS["mm3-f10"], wrap(module.eval()), x0, y, key, ball(8))
    first = seen[1].view(3, 8, 12)  # after the ranking pass
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])
    assert not torch.equal(first[0], x0)


def test_trades_by_hand(points: Any) -> None:
    x, y, _ = points
    model = net()
    with torch.no_grad():
        model[3].weight.mul_(20)  # far from uniform, so that the two directions of the divergence differ
    moved = 1 - x
    p, q = model(x).double().softmax(1), model(moved).double().softmax(1)
    kl = (p * (p / q).log()).sum(1).mean()
    ce = -p.gather(1, y[:, None]).log().mean()
    value = training_loss(METHODS["trades"], wrap(model), x, moved, y, 0.0)
    assert value.item() == pytest.approx((ce + 6 * kl).item(), rel=1e-5)
    assert kl_divergence(model(x), model(moved)).mean().item() == pytest.approx(kl.item(), rel=1e-3)


def test_trades_attack_maximises_the_divergence(points: Any) -> None:
    """By hand: a Gaussian start of deviation 0.001, ten steps of 0.007/0.031 eps on KL(clean ‖ ·)."""
    x0, y, key = points
    model, space = net(), ball(8)
    clean = model(x0).detach().log_softmax(1)
    x = space.project(x0, x0 + 0.001 * rng.normal(rng.fold(key, 1), (12,)))
    assert 0 < (x - x0).abs().max() < 0.01
    for _ in range(10):
        x.requires_grad_(True)
        kl = (clean.exp() * (clean - model(x).log_softmax(1))).sum()
        (g,) = torch.autograd.grad(kl, x)
        x = space.project(x0, x.detach() + 0.007 / 0.031 * EPS * g.sign())
    torch.testing.assert_close(
        adversarial_points(METHODS["trades"], wrap(model), x0, y, key, space), x, rtol=0, atol=1e-6
    )


def test_label_smoothing_by_hand(points: Any) -> None:
    x, y, _ = points
    model = net()
    logs = model(x).log_softmax(1)
    by_hand = -(0.9 * logs.gather(1, y[:, None])[:, 0] + 0.1 * logs.mean(1)).mean()
    value = training_loss(METHODS["pgd"], wrap(model), x, x, y, 0.1)
    assert value.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_an_attack_of_ones_own() -> None:
    assert as_method(attacks.PGD(3)) == Method("pgd-ce", attacks.PGD(3))
    assert as_method(attacks.APGD(5, "dlr-targeted")).targets == 3
    assert as_method(attacks.Square(steps=9)).keep == "best"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda: as_method("pdg"), "'pgd'"),
        (lambda: as_method(7), "a training method"),
        (lambda: as_method(attacks.FAB()), "minimises the distance"),
        (lambda: Method("a", attacks.PGD(loss="minimum-margin")), "targets of at least 1"),
        (lambda: Method("a", attacks.PGD(), beta=-1.0), "at least 0"),
        (lambda: Method("a", attacks.PGD(), keep="first"), "keep among"),
    ],
    ids=["name", "number", "fab", "no targets", "beta", "keep"],
)
def test_impossible_methods(wrong: Any, hint: str) -> None:
    with pytest.raises(PlanError, match=hint):
        wrong()
