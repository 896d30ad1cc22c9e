"""Losses against formulas written out class by class, their gradients against finite differences."""

import math

import pytest
import torch

from brinell.ops import rng
from brinell.ops.losses import LOSSES as EVERY

B = 40
# Those about classes; values to match are another matter.
LOSSES = {name: loss for name, loss in EVERY.items() if not loss.matches}


def by_hand(name: str, z: list[float], y: int, t: int) -> float:
    others = [v for j, v in enumerate(z) if j != y]
    ranked = sorted(z, reverse=True)
    log_sum = math.log(sum(math.exp(v) for v in z))
    return {
        "ce": lambda: -(z[y] - log_sum),
        "ce-targeted": lambda: z[t] - log_sum,
        "margin": lambda: max(others) - z[y],
        "probability-margin": lambda: (math.exp(max(others)) - math.exp(z[y])) / math.exp(log_sum),
        "dlr": lambda: -(z[y] - max(others)) / (ranked[0] - ranked[2] + 1e-12),
        "dlr-targeted": lambda: -(z[y] - z[t]) / (ranked[0] - (ranked[2] + ranked[3]) / 2 + 1e-12),
        "minimum-margin": lambda: z[t] - z[y],
        "margin-towards": lambda: (max(others) if t < 0 else z[t]) - z[y],
        "mm-softmax": lambda: math.exp(z[t] - log_sum) - math.exp(z[y] - log_sum),
        "mm-sigmoid": lambda: 1 / (1 + math.exp(-z[t])) - 1 / (1 + math.exp(-z[y])),
        "mm-max": lambda: (z[t] - z[y]) / z[y],
        "mm-sum": lambda: (z[t] - z[y]) / (z[y] + z[t]),
        "mm-min-max": lambda: (z[t] - z[y]) / (ranked[0] - ranked[-1] + 1e-12),
    }[name]()


def cases(classes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    key = rng.keys(0, torch.arange(B))
    z = 3 * rng.normal(key, (classes,)).double()
    y = rng.integers(rng.fold(key, 1), classes)
    t = (y + 1 + rng.integers(rng.fold(key, 2), classes - 1)) % classes
    return z, y, t


def minimum_classes(name: str) -> int:
    """What the formula itself needs; below LOSSES[name].classes another loss stands in."""
    return {"dlr": 3, "dlr-targeted": 4}.get(name, 2)


# Divided by logits that may be negative, or by functions of single logits: neither signed nor free of shifts.
RESCALED = ("mm-sigmoid", "mm-max", "mm-sum")
EVERY_LOSS = pytest.mark.parametrize("name", LOSSES)


def test_the_list_is_complete():
    assert {"ce", "ce-targeted", "margin", "dlr", "dlr-targeted", "minimum-margin"} <= set(LOSSES)
    for name, loss in LOSSES.items():
        assert loss.targeted == (name not in ("ce", "margin", "probability-margin", "dlr", "margin-towards"))
        assert loss.classes >= minimum_classes(name)
        assert loss.classes == 2 or LOSSES[loss.instead].classes == 2
        assert loss.instead is None or LOSSES[loss.instead].targeted == loss.targeted


@EVERY_LOSS
@pytest.mark.parametrize("extra", [0, 1, 7])
def test_values(name, extra):
    z, y, t = cases(minimum_classes(name) + extra)
    got = LOSSES[name].function(z, y, t).tolist()
    want = [by_hand(name, z[i].tolist(), int(y[i]), int(t[i])) for i in range(B)]
    assert got == pytest.approx(want, rel=1e-10)
    single = LOSSES[name].function(z.float(), y, t)
    assert single.dtype == torch.float32 and single.tolist() == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_margins_towards_a_target_or_any_class():
    """Rows with and without a target mix; without one it is the margin, value and gradient."""
    z, y, t = cases(6)
    t = torch.where(torch.arange(B) % 2 == 0, -1, t)
    z.requires_grad_()
    towards = LOSSES["margin-towards"].function(z, y, t)
    want = [by_hand("margin-towards", z[i].tolist(), int(y[i]), int(t[i])) for i in range(B)]
    assert towards.tolist() == pytest.approx(want, rel=1e-12)
    margin = LOSSES["margin"].function(z, y, t)
    aimed = LOSSES["minimum-margin"].function(z, y, t.clamp(min=0))
    parts = (torch.autograd.grad(v.sum(), z, retain_graph=True)[0] for v in (towards, margin, aimed))
    got, free, bound = parts
    assert torch.equal(got, torch.where((t < 0)[:, None], free, bound))
    assert not torch.equal(free, bound)


@EVERY_LOSS
def test_gradients(name):
    z, y, t = cases(6)
    assert torch.autograd.gradcheck(lambda v: LOSSES[name].function(v, y, t), z.requires_grad_())


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in RESCALED])
def test_larger_is_worse_for_the_model(name):
    z, y, t = cases(6)
    z.requires_grad_()
    (grad,) = torch.autograd.grad(LOSSES[name].function(z, y, t).sum(), z)
    if name in ("dlr-targeted", "mm-min-max"):
        # Its denominator ranks all classes and can outweigh the numerator; on the whole z_t − z_y grows along it.
        toward = grad.gather(1, t[:, None]) - grad.gather(1, y[:, None])
        assert (toward.mean() > 0).item()
    elif name == "ce-targeted":
        assert (grad.gather(1, t[:, None]) > 0).all()
    else:
        assert (grad.gather(1, y[:, None]) <= 0).all() and (grad.gather(1, y[:, None]) < 0).any()


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in RESCALED])
def test_a_constant_added_to_all_logits_changes_nothing(name):
    z, y, t = cases(6)
    before, after = (LOSSES[name].function(v, y, t) for v in (z, z + 17.0))
    assert torch.allclose(before, after, atol=1e-9)


@pytest.mark.parametrize("name", ["dlr", "dlr-targeted"])
def test_dlr_does_not_see_the_scale(name):
    z, y, t = cases(6)
    before, after = (LOSSES[name].function(v, y, t) for v in (z, 1000 * z))
    assert torch.allclose(before, after, rtol=1e-9)
    assert not torch.allclose(*(LOSSES["margin"].function(v, y, t) for v in (z, 1000 * z)))


def test_the_probability_margin_keeps_its_gradient_where_the_model_is_sure():
    """∂/∂z_k (p_j − p_y) = p_j (δ_kj − p_k) − p_y (δ_ky − p_k), here with 1 − p_y summed before it rounds to zero."""
    z, y, t = cases(6)
    z = (10 * z).scatter(1, y[:, None], 10 * z.amax(1, keepdim=True) + torch.linspace(5, 60, B).double()[:, None])
    p = z.softmax(1)
    wrong = p.scatter(1, y[:, None], 0.0)
    j = wrong.argmax(1)
    p_j, rest = p.gather(1, j[:, None]), wrong.sum(1, keepdim=True)
    true = torch.nn.functional.one_hot(y, 6).double()
    at_j = torch.nn.functional.one_hot(j, 6).double()
    want = p_j * (at_j - p) - (1 - rest) * torch.where(true > 0, rest, -p)
    single = z.float().requires_grad_()
    (grad,) = torch.autograd.grad(LOSSES["probability-margin"].function(single, y, t).sum(), single)
    assert rest.min() < 1e-20 and torch.allclose(grad.double(), want, rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("name", ["margin", "probability-margin", "dlr"])
def test_positive_exactly_where_misclassified(name):
    z, y, t = cases(5)
    assert torch.equal(LOSSES[name].function(z, y, t) > 0, z.argmax(1) != y)


def test_ties_are_no_success():
    z = torch.tensor([[1.0, 1.0, 0.0, -1.0], [2.0, 2.0, 2.0, 2.0]])
    for y in (0, 1):
        assert LOSSES["margin"].function(z, torch.tensor([y, y]), torch.tensor([2, 2])).tolist() == [0, 0]
        assert LOSSES["dlr"].function(z, torch.tensor([y, y]), torch.tensor([2, 2])).tolist() == [0, 0]
        probable = LOSSES["probability-margin"].function(z, torch.tensor([y, y]), torch.tensor([2, 2]))
        assert probable.tolist() == pytest.approx([0, 0], abs=1e-6)


def test_two_classes():
    """Two logits: both margins m agree, cross-entropy is log(1 + e^m), the probability margin tanh(m / 2)."""
    z, y, t = cases(2)
    m = LOSSES["margin"].function(z, y, t)
    assert torch.equal(m, LOSSES["minimum-margin"].function(z, y, t))
    assert torch.allclose(LOSSES["ce"].function(z, y, t), torch.nn.functional.softplus(m))
    assert torch.allclose(LOSSES["probability-margin"].function(z, y, t), torch.tanh(m / 2))
    assert torch.allclose(LOSSES["ce-targeted"].function(z, y, t), -torch.nn.functional.softplus(-m))


@EVERY_LOSS
def test_huge_logits_stay_finite(name):
    z, y, t = cases(6)
    value = LOSSES[name].function((1e4 * z).float(), y, t)
    assert value.isfinite().all()


@EVERY_LOSS
def test_rows_do_not_meet(name):
    z, y, t = cases(6)
    order = torch.arange(B).flip(0)
    whole = LOSSES[name].function(z, y, t)
    assert torch.equal(LOSSES[name].function(z[order], y[order], t[order]), whole[order])
    spoiled = torch.where((torch.arange(B) == 3)[:, None], torch.nan, z)
    rest = torch.arange(B) != 3
    assert torch.equal(LOSSES[name].function(spoiled, y, t)[rest], whole[rest])
