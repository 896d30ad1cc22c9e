"""Few classes and one logit: the plan adapts, and the Run says how."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import L1, L2, Linf, attacks, evaluate, verify

PLAN = [attacks.APGD(steps=5, loss="dlr"), attacks.APGD(steps=5, loss="dlr-targeted")]


def notes(run: Any) -> str:
    return "\n".join(run.manifest["notes"])


def test_one_logit(linear: Any, points: Any) -> None:
    net = linear(6, 1)
    x, y = points(net, 24, 6)
    run = evaluate(net, (x, y), Linf(0.3), PLAN, progress=False)
    assert "one logit" in notes(run)
    assert "apgd-dlr" in notes(run)
    assert float(run.clean_accuracy) == 1
    assert run.manifest["identity"]["model"]["classes"] == 2
    # The closed-form answer: a row falls where eps times the dual norm of the weights exceeds the logit.
    fall = (net(x)[:, 0].abs() < 0.3 * net[1].weight.abs().sum()) & _free(net, x, 0.3)
    assert run.robust_accuracy.n - run.robust_accuracy.k == int(fall.sum())
    assert verify(run, net, (x, y)).ok


def _free(net: nn.Module, x: Tensor, eps: float) -> Tensor:
    """Whether the worst corner of the ball inside the box changes the sign of the logit."""
    direction = net[1].weight.sign() * -net(x).sign()
    worst = (x + eps * direction).clamp(0, 1)
    return net(worst)[:, 0].sign() != net(x)[:, 0].sign()


def test_one_logit_without_a_dimension(linear: Any) -> None:
    inner = linear(6, 1)

    class Squeezed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return inner(x)[:, 0]

    x = torch.rand(8, 6)
    run = evaluate(Squeezed().eval(), (x, (inner(x)[:, 0] > 0).long()), L2(0.5), "pgd20", progress=False)
    assert float(run.clean_accuracy) == 1
    assert "one logit" in notes(run)


@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes(classes: int, linear: Any, points: Any) -> None:
    net = linear(6, classes)
    data = points(net, 16, 6)
    run = evaluate(net, data, Linf(0.2), PLAN, progress=False)
    text = notes(run)
    assert f"the model has {classes}" in text
    assert "apgd-dlr: the dlr loss needs" in text or classes >= 3
    assert "apgd-dlr-targeted: the dlr-targeted loss needs 4 classes" in text
    assert f"{classes - 1} instead of 9 targets" in text
    assert "one logit" not in text
    assert run.finished
    assert verify(run, net, data).ok


def test_two_logits_are_not_one(linear: Any, points: Any) -> None:
    net = linear(6, 2)
    run = evaluate(net, points(net, 8, 6), Linf(0.2), "pgd20", progress=False)
    assert "one logit" not in notes(run)


def test_many_classes_need_no_note(linear: Any, points: Any) -> None:
    net = linear(6, 12)
    run = evaluate(net, points(net, 8, 6), L2(0.2), PLAN, progress=False)
    assert run.manifest["notes"] == []


def test_the_plan_keeps_its_names(linear: Any, points: Any) -> None:
    net = linear(6, 2)
    run = evaluate(net, points(net, 8, 6), L1(0.2), PLAN, progress=False)
    assert run.attacks == ["apgd-dlr", "apgd-dlr-targeted"]
