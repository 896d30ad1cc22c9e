"""The restrictions of a leaderboard: a model that violates one is caught, one that does not is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from brinell import Linf, Problem, wrap
from brinell.checks.leaderboard import DETERMINISTIC, GRADIENTS, NO_LOOP, check_deterministic, check_restrictions
from brinell.core.model import Classifier
from brinell.engine.oracle import Oracle

SHAPE, CLASSES = (1, 4, 4), 4
THREAT = Linf(0.1)


class Net(nn.Module):
    """A linear network with something before it."""

    def __init__(self, before: Callable[[Tensor], Tensor] = lambda x: x, scale: float = 1.0) -> None:
        super().__init__()
        self.before, self.scale, self.linear = before, scale, nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(CLASSES, 16, generator=torch.Generator().manual_seed(0)))
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Any:
        return self.scale * self.linear(self.before(x).flatten(1))


@pytest.fixture(scope="module")
def problem() -> Problem:
    x = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(1))
    return Problem(x, Net()(x).argmax(1))


def levels(model: nn.Module | Classifier, problem: Problem) -> dict[str, str]:
    classifier = wrap(model.eval()) if isinstance(model, nn.Module) else model
    return {c.name: c.level for c in check_restrictions(classifier, problem, THREAT)}


def messages(model: nn.Module, problem: Problem) -> str:
    return " ".join(c.message for c in check_restrictions(wrap(model.eval()), problem, THREAT))


FINE = {GRADIENTS: "ok", DETERMINISTIC: "ok", NO_LOOP: "ok"}


def test_an_ordinary_model_passes(problem: Problem) -> None:
    assert levels(Net(), problem) == FINE


def test_saturated_cross_entropy_alone_is_no_violation(problem: Problem) -> None:
    assert levels(Net(scale=1e6), problem) == FINE


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (lambda x: (4 * x).round() / 4, "100 % of the points"),
        (lambda x: x.detach(), "no gradient with respect to its input"),
        (lambda x: x + 0 * (x - x).sqrt(), "100 % of the points"),
    ],
    ids=["quantised", "detached", "not a number"],
)
def test_no_gradients(before: Any, said: str, problem: Problem) -> None:
    assert levels(Net(before), problem) == {**FINE, GRADIENTS: "fail"}
    assert said in messages(Net(before), problem)


def test_gradients_that_most_points_have_suffice(problem: Problem) -> None:
    """Zero in a corner of the inputs only."""

    def corner(x: Tensor) -> Tensor:
        return torch.where((x[:, :, :1, :1] > 0.7), x.detach(), x)

    assert levels(Net(corner), problem)[GRADIENTS] == "ok"
    assert levels(Net(lambda x: torch.where(x[:, :, :1, :1] > 0.2, x.detach(), x)), problem)[GRADIENTS] == "fail"


def test_a_black_box_has_no_gradients(problem: Problem) -> None:
    assert levels(wrap(Net().eval(), differentiable=False), problem)[GRADIENTS] == "fail"


def test_noise(problem: Problem) -> None:
    noisy = Net(lambda x: x + 0.01 * torch.randn_like(x))
    assert levels(noisy, problem)[DETERMINISTIC] == "fail"
    assert "differ" in messages(noisy, problem)


class Remembers(Net):
    """Answers that depend on what was asked before."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        before = x if self.last is None or self.last.shape != x.shape else self.last
        self.last = x.detach().clone()
        return super().forward(x) + 0.1 * super().forward(before).detach()


def test_a_memory(problem: Problem) -> None:
    """Passes over the same input in a row agree; one after another input does not."""
    oracle, x = Oracle(wrap(Remembers().eval()), 32), problem.x[:32]
    oracle.output(x)
    assert torch.equal(oracle.output(x).logits, oracle.output(x).logits)
    assert check_deterministic(oracle, x).level == "fail"


def test_noise_that_is_a_function_of_the_input_cannot_be_seen(problem: Problem) -> None:
    assert levels(Net(lambda x: x + 0.01 * torch.sin(1e4 * x)), problem)[DETERMINISTIC] == "ok"


def test_answers_that_become_no_numbers(problem: Problem) -> None:
    calls = [0]

    def sometimes(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * float("nan") if calls[0] % 5 == 0 else x

    assert levels(Net(sometimes), problem)[DETERMINISTIC] == "fail"


def purified(steps: int, gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Moves the input to where a score is larger, before it is classified."""

    def run(x: Tensor) -> Tensor:
        z = x.detach().clone()
        for _ in range(steps):
            with torch.enable_grad():
                z = z.requires_grad_()
                z = (z + 0.01 * gradient((z**2).sum(), z)).detach()
        return x + (z - x).detach()

    return run


def by_autograd(score: Tensor, z: Tensor) -> Tensor:
    return torch.autograd.grad(score, z)[0]


def by_backward(score: Tensor, z: Tensor) -> Tensor:
    score.backward()
    return z.grad  # type: ignore[return-value]


def by_the_engine(score: Tensor, z: Tensor) -> Tensor:
    """Around torch's own Python functions."""
    engine: Any = Variable._execution_engine
    return engine.run_backward((score,), (torch.ones_like(score),), False, False, (z,), allow_unreachable=True)[0]


@pytest.mark.parametrize("gradient", [by_autograd, by_backward, by_the_engine])
def test_an_optimisation_loop(gradient: Any, problem: Problem) -> None:
    assert levels(Net(purified(2, gradient)), problem) == {**FINE, NO_LOOP: "fail"}


class Repeats(Net):
    """Asks its layer again and again, as searches without gradients do, and recurrent networks too."""

    def forward(self, x: Tensor) -> Any:
        z = super().forward(x)
        for _ in range(15):
            z = z + 0.01 * super().forward(x + 0.01 * z.sum(1).view(-1, 1, 1, 1).tanh())
        return z


def test_a_loop_without_gradients_is_told_of(problem: Problem) -> None:
    assert levels(Repeats(), problem) == {**FINE, NO_LOOP: "info"}
    assert "calls the layer linear 16 times" in messages(Repeats(), problem)
    net = Repeats().eval()
    check_restrictions(wrap(net), problem, THREAT)
    assert not any(m._forward_pre_hooks for m in net.modules())
