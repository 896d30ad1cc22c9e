"""Linear maps, whose constants are known in closed form: never exceeded, and reached."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.analysis.layers import OUTPUT, default_layers
from brinell.analysis.smoothness import smoothness
from brinell.core.threat import threat
from brinell.errors import InputError, ModelError, PlanError
from brinell.testing.worlds import LinearWorld, linear_world

WORLD = linear_world(classes=4, shape=(1, 3, 4), n=12, seed=5)


def signs(k: int) -> Tensor:
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=k)), dtype=torch.float64)


def constant(weight: Tensor, norm: str, output_norm: str) -> float:
    """max ‖W d‖ / ‖d‖, from ‖v‖₁ = max over signs s of s·v, and the norm's dual."""
    w = weight.double()
    rows = {"L1": signs(len(w)) @ w, "Linf": w}
    if output_norm == "L2":
        assert norm in ("L1", "L2")
        return float(w.norm(dim=0).max() if norm == "L1" else torch.linalg.matrix_norm(w, 2))
    dual = {"Linf": lambda v: v.abs().sum(1), "L2": lambda v: v.norm(dim=1), "L1": lambda v: v.abs().amax(1)}
    return float(dual[norm](rows[output_norm]).max())


@pytest.mark.parametrize(
    ("norm", "output_norm"),
    [("Linf", "L1"), ("Linf", "Linf"), ("L2", "L1"), ("L2", "L2"), ("L2", "Linf"), ("L1", "L1"), ("L1", "L2")],
)
def test_linear_maps(norm: str, output_norm: str) -> None:
    found = smoothness(
        WORLD.classifier, (WORLD.x, WORLD.y), threat(norm, 0.05), layers=(), output_norm=output_norm, steps=30,
        restarts=4,
    )  # fmt: skip
    truth = constant(WORLD.weight, norm, output_norm)
    assert max(found.output.values) <= truth * (1 + 1e-5)
    assert found.output.largest >= 0.99 * truth
    assert found.output.mean.value == pytest.approx(sum(found.output.values) / 12)


def test_a_single_direction_is_found_around_every_sample() -> None:
    """Of rank one the map has no other maxima: W = u wᵀ, ‖u‖₁ ‖w‖₁ for the paper's norms."""
    w, u = WORLD.weight[0], torch.tensor([1.0, -2.0, 0.5])
    world = LinearWorld(u[:, None] * w, torch.zeros(3), WORLD.x, torch.zeros(12, dtype=torch.long))
    found = smoothness(world.classifier, (world.x, world.y), brinell.Linf(0.05), layers=())
    truth = float(u.abs().sum() * w.abs().sum())
    assert min(found.output.values) >= 0.99 * truth and found.output.largest <= truth * (1 + 1e-5)
    assert found.output.mean.low <= found.output.mean.value <= found.output.mean.high


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 4)
        for k, weight in enumerate(self.parameters()):
            weight.data = torch.linspace(-1, 1, weight.numel()).view_as(weight).roll(5 * k, -1)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Any:
        return self.third(self.second(self.first(x.flatten(1))))


def test_inner_layers_have_their_own_constants() -> None:
    net = Net()
    model = brinell.wrap(net)
    found = smoothness(model, (WORLD.x, WORLD.y), brinell.Linf(0.05), restarts=4)
    first, output = found.layers
    assert (first.name, output.name) == ("first", OUTPUT)
    one = constant(net.first.weight, "Linf", "L1")
    assert 0.99 * one <= first.largest <= one * (1 + 1e-5)
    # After the first map come ReLU, which shrinks differences, and a map from L1 to L1.
    assert 0 < output.largest <= one * constant(net.third.weight, "L1", "L1")
    named = smoothness(model, (WORLD.x, WORLD.y), brinell.Linf(0.05), layers=["second"], restarts=4)
    assert 0 < named.layers[0].largest <= one * (1 + 1e-5)
    assert not any(m._forward_hooks for m in net.modules())


def test_parts_of_the_demonstration_model() -> None:
    demo = brinell.models.load("fashion-mnist/Linf/Demo")
    assert default_layers(demo, torch.zeros(2, 1, 28, 28)) == ("layers.0", "layers.2", "layers.5")


def test_directions_do_not_know_the_scale() -> None:
    data = (WORLD.x, WORLD.y)
    wide = LinearWorld(10 * WORLD.weight, 10 * WORLD.bias, WORLD.x, WORLD.y)
    one, ten = (smoothness(w.classifier, data, layers=(), angular=True, steps=10).output for w in (WORLD, wide))
    assert ten.values == pytest.approx(one.values, rel=1e-3)
    plain = [smoothness(w.classifier, data, layers=(), steps=10).output.mean.value for w in (WORLD, wide)]
    assert plain[1] == pytest.approx(10 * plain[0], rel=1e-3)


def test_directions_turn_at_most_as_fast_as_one_over_the_length() -> None:
    """On a circle around the origin the angular constant in L2 is ‖W‖ / ‖f‖: here f = x − 1/2, in two dimensions."""
    x = 0.5 + 0.3 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.8, 0.6]])
    net = nn.Linear(2, 2)
    net.weight.data, net.bias.data = torch.eye(2), torch.full((2,), -0.5)
    found = smoothness(
        brinell.wrap(net.eval()), (x, torch.zeros(3, dtype=torch.long)), brinell.L2(0.01), layers=(),
        output_norm="L2", angular=True,
    )  # fmt: skip
    # The nearest point to the origin is at 0.29, where a short step turns by its length over 0.29.
    assert found.output.largest <= 1 / 0.29 * (1 + 1e-4)
    assert min(found.output.values) >= 0.97 / 0.29


def test_a_sample_is_searched_the_same_in_any_company() -> None:
    """More samples than go into one block; those of the second block alone."""
    data = brinell.Problem(WORLD.x.repeat(4, 1, 1, 1), WORLD.y.repeat(4))
    whole = smoothness(WORLD.classifier, data, layers=(), steps=3).output.values
    part = smoothness(WORLD.classifier, data[35:38], layers=(), steps=3).output.values
    assert len(whole) == 48 and part == whole[35:38]
    assert smoothness(WORLD.classifier, data, layers=(), steps=3, seed=1).output.values != whole


def test_more_searches_find_no_less() -> None:
    data = brinell.Problem(WORLD.x, WORLD.y)
    one, three = (smoothness(WORLD.classifier, data, layers=(), steps=5, restarts=r).output.values for r in (1, 3))
    assert all(a <= b for a, b in zip(one, three, strict=True)) and one != three


def test_a_flat_model_has_constant_zero() -> None:
    flat = LinearWorld(torch.zeros(3, 12), torch.arange(3.0), WORLD.x, WORLD.y)
    assert smoothness(flat.classifier, (WORLD.x, WORLD.y), layers=(), steps=3).output.largest == 0.0


def test_refusals(worlds: Any) -> None:
    data = (WORLD.x, WORLD.y)
    with pytest.raises(PlanError, match="an output norm"):
        smoothness(WORLD.classifier, data, output_norm="L7")
    with pytest.raises(PlanError, match="a layer"):
        smoothness(brinell.wrap(Net()), data, layers=["frist"])
    with pytest.raises(InputError, match="a radius"):
        smoothness(WORLD.classifier, data, brinell.L2())
    with pytest.raises(InputError, match="at least 1 step"):
        smoothness(WORLD.classifier, data, steps=0)
    with pytest.raises(ModelError, match="gradients"):
        smoothness(worlds.look_up(torch.zeros(4, 2)), worlds.places(0, 4))
