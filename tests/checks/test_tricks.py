"""Every trick around a network triggers a check, and sound networks trigger none."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf
from brinell.checks.differences import check_differences
from brinell.checks.gradients import check_batch_shape
from brinell.checks.model import check_equal_margins
from brinell.checks.survivors import Kept, check_again, check_grid, check_reversed_loss, first_ids, on_grid
from brinell.checks.walks import Survivors, check_gradients, check_growing_radii, check_runner_up
from brinell.core.criterion import Misclassified
from brinell.engine.oracle import Oracle
from brinell.finding import Finding
from brinell.models.demo import demo_net

pytestmark = pytest.mark.usefixtures("unchecked")
EPS = 0.1


class Defended(nn.Module):
    """`change` gets the network and the input, and returns logits."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor], net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.change = demo_net() if net is None else net, change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.net, x)


def hard(z: Tensor) -> Tensor:
    return nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)


def instead(value: Tensor, of: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another."""
    return value.detach() + (of - of.detach())


def off_grid(x: Tensor) -> Tensor:
    return ((255 * x - (255 * x).round()).abs() > 0.01).flatten(1).any(1, keepdim=True)


def reversed_confidence(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    top = z.topk(2, 1).values
    return hard(z) / (0.05 + top[:, :1] - top[:, 1:])


def between_levels(net: nn.Module, x: Tensor) -> Tensor:
    """The network answers on the grid; elsewhere it sees an input of four levels."""
    return torch.where(off_grid(x), net(instead((3 * x).round() / 3, x)), net(x))


def gradient_between_levels(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    return torch.where(off_grid(x), instead(z, -z), z)


def sub_classes(net: nn.Module, x: Tensor) -> Tensor:
    """Two sub-classes for every class; the largest probability counts, sharpened."""
    z = net(x)
    wide = torch.cat([z, z.roll(1, 0) * 0 + 0.9 * z], 1)
    return 10 * (30 * wide).softmax(1).view(len(x), 2, -1).amax(1)


def by_mode(net: nn.Module, x: Tensor) -> Tensor:
    return net(x.flip(-1)) if torch.is_grad_enabled() else net(x)


BEFORE: dict[str, tuple[str, Callable[[nn.Module, Tensor], Tensor]]] = {
    "grad mode": ("grad mode", by_mode),
    "reversed gradient": ("finite differences", lambda net, x: instead(net(x), -net(x))),
    "reversed gradient behind hard labels": ("equal margins", lambda net, x: instead(10 * hard(net(x)), -net(x))),
    "hard labels, decoy gradient": ("equal margins", lambda net, x: instead(10 * hard(net(x)), net(x.flip(-1)))),
    "decoy gradient": ("finite differences", lambda net, x: instead(net(x), net(x.flip(-1)))),
    "gradient right on the grid only": ("finite differences", gradient_between_levels),
    "gradient on few pixels": ("finite differences", lambda net, x: net(instead(x, x * (torch.arange(28) % 8 == 0)))),
    "shattered": ("finite differences", lambda net, x: net(x + 1e-3 * (3e4 * x).sin())),
    "input levels": ("finite differences", lambda net, x: net((5 * x).round() / 5 + 0 * x)),
    "coarse logits": ("equal margins", lambda net, x: hard(net(x)) + 1e-6 * net(x)),
    "saturated": ("equal margins", lambda net, x: 20 * (50 * net(x)).softmax(1)),
    "sub-classes": ("equal margins", sub_classes),
    "ranks": ("equal margins", lambda net, x: net(x).argsort(1).argsort(1) + 0 * net(x)),
}
SOUND: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "the network itself": lambda net, x: net(x),
    "large logits": lambda net, x: 1000 * net(x),
    "small logits": lambda net, x: 1e-3 * net(x),
    "log-probabilities": lambda net, x: net(x).log_softmax(1),
    "smooth input": lambda net, x: net(nn.functional.avg_pool2d(x, 3, 1, 1)),
}


def draw(k: int, n: int = 32) -> tuple[Tensor, Tensor]:
    data = brinell.data.load("demo", 160)[n * k : n * (k + 1)]
    return data.x, data.y


def before(change: Callable[[nn.Module, Tensor], Tensor], k: int = 0) -> dict[str, Finding]:
    x, y = draw(k)
    oracle = Oracle(brinell.wrap(Defended(change).eval()), 32)
    found = [*check_differences(oracle, Linf(EPS), x, y), check_equal_margins(x, y, oracle.output(x).logits)]
    return {f.name: f for f in found}


@pytest.mark.parametrize(("name", "change"), BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("k", [0, 3])
def test_a_trick_is_seen_before_the_attack(name: str, change: Callable[[nn.Module, Tensor], Tensor], k: int) -> None:
    finding = before(change, k)[name]
    assert finding.level == "warn" and finding.remedy, finding
    assert finding.value is not None and finding.threshold is not None and finding.value > finding.threshold


@pytest.mark.parametrize("change", SOUND.values(), ids=SOUND)
def test_sound_models_raise_no_alarm(change: Callable[[nn.Module, Tensor], Tensor]) -> None:
    for k in range(3):
        assert {f.level for f in before(change, k).values()} == {"ok"}, before(change, k)


def test_a_linear_model_agrees_with_its_gradient_exactly_and_a_reversed_one_not_at_all() -> None:
    """On a linear model the disagreement |a − p|² / (|a|² + |p|²) is 0; reversed it is 2, without a gradient 1."""
    x, y = draw(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()
    nn.init.trunc_normal_(net[1].weight, generator=torch.Generator().manual_seed(0))

    def value(change: Callable[[nn.Module, Tensor], Tensor]) -> float:
        found = check_differences(Oracle(brinell.wrap(Defended(change, net).eval()), 32), brinell.L2(1.0), x, y)
        assert found[1].value is not None
        return found[1].value

    assert value(lambda net, x: net(x)) < 1e-3
    assert value(lambda net, x: instead(net(x), -net(x))) == pytest.approx(2, abs=1e-3)
    assert value(lambda net, x: instead(net(x), 0 * net(x))) == pytest.approx(1)
    # A gradient that is half as long: |1 − ½|² / (1 + ¼) = 0.2.
    assert value(lambda net, x: instead(net(x), 0.5 * net(x))) == pytest.approx(0.2, abs=1e-3)


def test_equal_inputs_are_counted_once() -> None:
    x, y = draw(0)
    z = demo_net()(x).detach()
    assert check_equal_margins(x[:1].expand_as(x), y[:1].expand_as(y), z[:1].expand_as(z)).level == "ok"


def test_an_answer_that_depends_on_the_number_of_rows_is_seen_on_and_off_the_grid() -> None:
    x, _ = draw(0)

    def level(change: Callable[[nn.Module, Tensor], Tensor]) -> str:
        oracle = Oracle(brinell.wrap(Defended(change).eval()), 32)
        return check_batch_shape(oracle, Linf(EPS), x, oracle.output(x).logits).level

    assert level(lambda net, x: net(x)) == "ok"
    assert level(lambda net, x: net(x) if len(x) < 8 else net(x) + 0.1 * net(x).roll(1, 1)) == "warn"
    alone = lambda net, x: torch.where(off_grid(x), net(x.flip(-1)), net(x)) if len(x) < 8 else net(x)  # noqa: E731
    assert level(alone) == "warn"


# ---------------------------------------------------------------- after the attacks


def survivors(change: Callable[[nn.Module, Tensor], Tensor], eps: float = EPS) -> tuple[Oracle, Survivors]:
    x, y = draw(0)
    oracle = Oracle(brinell.wrap(Defended(change).eval()), 32)
    keep = oracle.output(x).logits.argmax(1) == y
    x, y = x[keep][:16], y[keep][:16]
    return oracle, Survivors(x, y, Linf(eps).ball(torch.arange(len(x)), x.device))


def test_reversed_confidence_is_seen_and_right_confidence_is_not() -> None:
    oracle, s = survivors(reversed_confidence)
    found = check_reversed_loss(oracle, Misclassified(), s, s.x)
    assert found.level == "warn" and found.value is not None and found.value > 0
    oracle, s = survivors(lambda net, x: net(x))
    assert check_reversed_loss(oracle, Misclassified(), s, s.x).level == "ok"


class Valley(nn.Module):
    """The margin is linear, but grows again just before the decision."""

    def forward(self, x: Tensor) -> Tensor:
        m = x.sum(1) - 1.5
        h = torch.where(m < 0, m, torch.where(m < 0.35, 0.7 - m, m))
        return torch.stack([h, torch.zeros_like(h)], 1)


def test_a_margin_that_grows_only_just_before_the_decision_is_seen() -> None:
    """Raised from the inputs, the margin leads away from the decision; from the far side of the valley, to it."""
    x = torch.linspace(0.48, 0.58, 8)[:, None].expand(8, 4).contiguous()
    s = Survivors(x, torch.zeros(8, dtype=torch.long), Linf(0.2).ball(torch.arange(8), x.device))
    oracle = Oracle(brinell.wrap(Valley().eval()), 8)
    _, ends = check_growing_radii(oracle, Misclassified(), s)
    assert check_reversed_loss(oracle, Misclassified(), s, x).level == "ok"
    assert check_reversed_loss(oracle, Misclassified(), s, ends).level == "warn"


def test_a_model_that_differs_between_the_levels_of_8_bits_is_seen() -> None:
    oracle, s = survivors(between_levels, 0.3)
    found = check_grid(oracle, Misclassified(), s)
    assert found.level == "warn" and found.value is not None and found.value > 0.5
    assert check_grid(oracle, Misclassified(), Survivors(s.x * 0.99 + 1e-3, s.y, s.ball)).message.startswith(
        "not checked"
    )


def near_stored(net: nn.Module, x: Tensor) -> Tensor:
    """Near clean images the network sees them with amplified perturbations, further away with the images alone."""
    stored = brinell.data.load("demo", 160).x
    size, at = (x.detach()[:, None] - stored).abs().flatten(2).amax(2).min(1)
    change = x - stored[at]
    return net(stored[at] + change * torch.where(size < 0.04, 5.0, 0.0).view(-1, 1, 1, 1))


def never_wins(net: nn.Module, x: Tensor) -> Tensor:
    """One more class lies just below the largest logit."""
    z = net(x)
    return torch.cat([z, z.amax(1, keepdim=True) - 0.01 - 0.05 * x.flatten(1).mean(1, keepdim=True)], 1)


def for_four_classes(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    return torch.where(z.argmax(1, keepdim=True) < 4, instead(z, -z), z)


def test_weakness_close_to_the_inputs_alone_is_seen() -> None:
    oracle, s = survivors(near_stored)
    assert check_growing_radii(oracle, Misclassified(), s)[0].level == "warn"
    oracle, s = survivors(lambda net, x: net(x), 0.01)
    assert check_growing_radii(oracle, Misclassified(), s)[0].level == "ok"


@pytest.mark.parametrize("eps", [Linf(EPS), brinell.L2(1.0), brinell.L1(5.0)])
def test_gradients_reversed_for_a_few_classes_are_seen_before_and_after(eps: brinell.Threat) -> None:
    x, y = draw(0)
    for change, level in ((for_four_classes, "warn"), (lambda net, x: net(x), "ok")):
        oracle = Oracle(brinell.wrap(Defended(change).eval()), 32)
        ball = eps.ball(torch.arange(16), x.device)
        assert check_differences(oracle, eps, x, y)[1].level == level
        assert check_gradients(oracle, Survivors(x[:16], y[:16], ball)).level == level


def test_a_class_that_never_wins_is_seen() -> None:
    oracle, s = survivors(never_wins)
    (found,) = check_runner_up(oracle, s)
    assert found.level == "warn" and found.value == 0
    oracle, s = survivors(lambda net, x: net(x))
    (found,) = check_runner_up(oracle, s)
    assert found.level == "ok" and found.value is not None and found.value > 0.5
    assert check_runner_up(oracle, Survivors(s.x[:7], s.y[:7], s.ball)) == []


def test_rounding_goes_towards_the_clean_point_and_stays_in_every_ball() -> None:
    x0 = torch.tensor([[0, 10, 128, 255.0]]) / 255
    x = x0 + torch.tensor([[3.7, -3.7, 7.9999, -0.4]]) / 255
    assert (255 * on_grid(x0, x)).round(decimals=3).tolist() == [[3, 7, 136, 255]]
    for threat in (Linf("8/255"), brinell.L2(0.05), brinell.L1(0.1)):
        ball = threat.ball(torch.arange(1), x.device)
        assert bool(ball.contains(x0, on_grid(x0, ball.project(x0, x.clamp(0, 1)))).all())


def test_answers_that_change_are_seen() -> None:
    x, y = draw(0, 8)
    oracle = Oracle(brinell.wrap(demo_net()), 32)
    logits, wrong = oracle.output(x).logits, (oracle.output(x).logits.argmax(1) + 1) % 10
    assert check_again(oracle, Misclassified(), (x, logits), (x, wrong)).level == "ok"
    drifted = check_again(oracle, Misclassified(), (x, 1.01 * logits), (x, wrong))
    assert drifted.level == "warn" and drifted.value == 0
    lost = check_again(oracle, Misclassified(), (x, logits), (x, logits.argmax(1)))
    assert lost.level == "warn" and lost.value == 1
    none = check_again(oracle, Misclassified(), (x, logits), (x[:0], y[:0]))
    assert none.level == "ok"


def test_the_examined_samples_do_not_depend_on_their_order() -> None:
    ids = np.arange(50)
    assert first_ids(3, ids) == first_ids(3, ids[::-1].copy()) != first_ids(4, ids)
    one, other = Kept(3), Kept(3)
    points = np.arange(50, dtype=np.float32)[:, None]
    one.add(ids, points)
    for part in (ids[30:], ids[:10], ids[10:30]):
        other.add(part, points[part])
    assert sorted(one.points) == sorted(other.points) == first_ids(3, ids)
    assert all(torch.equal(one.points[i], torch.tensor([float(i)])) for i in one.points)


def test_an_evaluation_stores_what_the_checks_found() -> None:
    data = brinell.data.load("demo", 24)
    run = brinell.evaluate(
        Defended(reversed_confidence).eval(), data, Linf(EPS), brinell.attacks.PGD(10), progress=False
    )
    levels = {c["name"]: c["level"] for c in run.checks}
    assert levels["reversed loss"] == "warn" and levels["asked again"] == levels["8-bit grid"] == "ok"
    assert "reversed loss" in str(run.verdict)
    sound = brinell.evaluate("demo", data, Linf(EPS), brinell.attacks.PGD(10), progress=False)
    assert all(c["level"] == "ok" for c in sound.checks if c["name"] in levels), sound.checks
