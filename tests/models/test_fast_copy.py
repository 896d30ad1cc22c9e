"""Fused convolutions compute the same function as the network, and are used only if they do."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brinell.engine.cuda.oracle import AcceleratedOracle, as_good
from brinell.models import bpda
from brinell.models.fast_copy.fused_relu import ConvolutionRelu, fuse_relus, same_function
from brinell.models.fast_copy.inference_copy import inference_copy
from brinell.models.wrap import wrap


def settled(net: nn.Module) -> nn.Module:
    """In double precision, frozen, with statistics and weights that are not the usual ones."""
    torch.manual_seed(0)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for v, low, high in ((part.running_mean, -0.5, 0.5), (part.running_var, 0.3, 3.0)):
                if v is not None:
                    v.uniform_(low, high)
            if part.affine:
                nn.init.uniform_(part.weight, -1.5, 1.5)
                nn.init.uniform_(part.bias, -0.5, 0.5)
    return net.double().eval().requires_grad_(False)


class Residual(nn.Module):
    """A block before its activation, as networks for small images have: one of its two rectifiers can be taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, 1, 1, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return out


class Shared(nn.Module):
    """One convolution in two places, with another normalisation in each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.conv(self.one(self.conv(x)).relu())).relu_()


class Twice(nn.Module):
    """The convolution's own answer is read elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        return h + torch.relu(self.bn(h))


def conv(**options: object) -> nn.Conv2d:
    return nn.Conv2d(8, 16, 3, **options)  # type: ignore[arg-type]


NETWORKS = {
    "residual": (Residual, 1),
    "two blocks": (lambda: nn.Sequential(Residual(), Residual()), 2),
    "shared": (Shared, 2),
    "bias alone": (lambda: nn.Sequential(conv(padding=1), nn.ReLU()), 1),
    "stride": (lambda: nn.Sequential(conv(stride=2, dilation=2), nn.BatchNorm2d(16), nn.ReLU(inplace=True)), 1),
    "groups": (lambda: nn.Sequential(conv(groups=4, bias=False), nn.BatchNorm2d(16), nn.ReLU()), 1),
    "two readers": (Twice, 0),
    "few channels": (lambda: nn.Sequential(nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 3), nn.ReLU()), 0),
    "another activation": (lambda: nn.Sequential(conv(), nn.ReLU6()), 0),
    "reflected": (lambda: nn.Sequential(conv(padding=1, padding_mode="reflect"), nn.ReLU()), 0),
    "padding by name": (lambda: nn.Sequential(conv(padding="same"), nn.ReLU()), 0),
    "no statistics": (lambda: nn.Sequential(conv(), nn.BatchNorm2d(16, track_running_stats=False), nn.ReLU()), 0),
}


@pytest.mark.parametrize("name", [k for k, (_, count) in NETWORKS.items() if not count])
def test_where_it_cannot_be_done_it_is_not(name: str) -> None:
    with pytest.raises(ValueError, match="no convolution"):
        fuse_relus(settled(NETWORKS[name][0]()))


@pytest.mark.parametrize("name", [k for k, (_, count) in NETWORKS.items() if count])
def test_it_is_the_same_function(name: str) -> None:
    make, count = NETWORKS[name]
    net = settled(make())
    made = fuse_relus(net)
    assert sum(isinstance(m, ConvolutionRelu) for m in made.modules()) == count
    assert same_function(made, net, torch.rand(2, 8, 9, 9, dtype=torch.float64))
    x = torch.rand(3, 8, 9, 9, dtype=torch.float64, requires_grad=True)
    expected, got = net(x), made(x)
    assert (expected - got).abs().max() < 1e-12
    weights = torch.rand_like(expected)
    (a,), (b,) = (torch.autograd.grad((z * weights).sum(), x) for z in (expected, got))
    assert (a - b).abs().max() < 1e-12 and a.abs().max() > 0.01


LISTENERS = {
    "forward": lambda part: part.register_forward_hook(lambda m, i, o: o * 2),
    "before": lambda part: part.register_forward_pre_hook(lambda m, i: (i[0] * 2,)),
    "backward": lambda part: part.register_full_backward_hook(lambda m, i, o: (i[0] * 2,)),
    "before backward": lambda part: part.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,)),
    "another forward": lambda part: setattr(part, "forward", lambda x: x * 2),
}


@pytest.mark.parametrize("place", ["0", "1", "2"])
@pytest.mark.parametrize("way", LISTENERS)
def test_layers_that_are_listened_to_stay(way: str, place: str) -> None:
    net = settled(nn.Sequential(conv(), nn.BatchNorm2d(16), nn.ReLU()))
    LISTENERS[way](net.get_submodule(place))
    with pytest.raises(ValueError, match=r"has hooks|no convolution"):
        fuse_relus(net)


@pytest.mark.parametrize("way", [k for k in LISTENERS if k != "another forward"])
def test_a_network_that_is_listened_to_stays(way: str) -> None:
    net = settled(nn.Sequential(conv(), nn.BatchNorm2d(16), nn.ReLU()))
    LISTENERS[way](net)
    with pytest.raises(ValueError, match="has hooks"):
        fuse_relus(net)


def test_training_mode_stays() -> None:
    net = nn.Sequential(conv(), nn.BatchNorm2d(16), nn.ReLU())
    with pytest.raises(ValueError, match="no convolution"):
        fuse_relus(net.train())


class Overwritten(nn.Module):
    """What the convolution has read is written to before its rectifier comes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - 0.5
        h = self.bn(self.conv(x))
        return x.relu_() + torch.relu(h)


class Namesake(nn.Module):
    """Its modules are called as ours might be."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self._fused_1, self.fused_1 = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(self._fused_1(self.fused_1(x))))


@pytest.mark.parametrize("make", [Overwritten, Namesake])
def test_odd_networks_are_read_right(make: type[nn.Module]) -> None:
    net = settled(make())
    x = torch.rand(2, 8, 7, 7, dtype=torch.float64)
    assert (fuse_relus(net)(x) - net(x)).abs().max() < 1e-12


class Through(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return grad


class StraightThrough(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded: torch.Tensor = Through.apply(x)
        return rounded


class Noisy(nn.Module):
    """Its noise has a fixed shape: whoever reads it as a graph draws it once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn(8, 5, 5)


class Half(nn.Module):
    """Some of the way back is closed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            aside = x * 0.5
        return x + aside


@pytest.mark.parametrize("first", [StraightThrough(), Noisy(), Half()])
def test_ways_back_and_chances_are_not_lost(first: nn.Module) -> None:
    """A network read as a graph has the values of the one it was read from and may have other gradients."""
    net = settled(nn.Sequential(first, Residual(), nn.Flatten(), nn.Linear(200, 4))).float()
    with pytest.raises(ValueError, match="does not compute the same function"):
        inference_copy(net, None, torch.rand(2, 8, 5, 5))


@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
def test_the_oracle_takes_it_only_where_it_is_the_same(precision: str) -> None:
    def asked(first: nn.Module, which: str, compiled: bool = True) -> nn.Module:
        net = settled(nn.Sequential(first, Residual(), nn.Flatten(), nn.Linear(200, 4))).float()
        oracle = AcceleratedOracle(wrap(net), 8, precision=which, compiled=compiled)
        guide = oracle._fast_copy(torch.rand(8, 8, 5, 5))
        module: nn.Module = guide.module  # type: ignore[attr-defined]
        return module

    assert isinstance(asked(nn.Identity(), precision), torch.fx.GraphModule)
    rounding = bpda(lambda x: (x * 8).round() / 8)
    for first in (StraightThrough(), Noisy(), Half(), rounding):
        assert type(asked(first, precision)) is nn.Sequential
    assert type(asked(nn.Identity(), precision, compiled=False)) is nn.Sequential
    assert type(asked(nn.Identity(), "float32")) is nn.Sequential


def test_same_function_tells_functions_apart() -> None:
    net, x = settled(Residual()), torch.rand(2, 8, 5, 5, dtype=torch.float64)
    assert same_function(net, net, x)
    assert not same_function(nn.Sequential(net, nn.Softplus(20.0)), net, x), "other values"
    still = nn.Sequential(nn.Flatten(), nn.Linear(200, 3)).double()
    nn.init.zeros_(still[1].weight)
    assert same_function(still, still, x), "no gradient, twice"


def test_inference_copy_in_lower_precision() -> None:
    net = settled(nn.Sequential(Residual(), nn.Flatten(), nn.Linear(8 * 25, 4))).float()
    x = torch.rand(6, 8, 5, 5)
    made = inference_copy(net, torch.bfloat16, x)
    (part,) = (m for m in made.modules() if isinstance(m, ConvolutionRelu))
    assert part.weight.dtype == part.bias.dtype == torch.bfloat16
    assert part.weight.is_contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        got, plain = made(x), inference_copy(net, torch.bfloat16)(x)
    assert as_good(got.float(), plain.float(), net(x), 2.0**-7)
    assert next(net.parameters()).dtype == torch.float32, "the network itself is untouched"


def test_what_depends_on_values_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) if x.sum() > 0 else -x.flatten(1)

    with pytest.raises(Exception, match=r"(?i)control flow|trace"):
        inference_copy(Branching(), None, torch.rand(2, 8))


def test_a_layer_named_for_its_features_is_kept() -> None:
    net = nn.Sequential(conv(), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, 4)).eval()
    x = torch.rand(2, 8, 5, 5)
    assert isinstance(wrap(net).copy(check_on=x).module, torch.fx.GraphModule)
    assert type(wrap(net, features="0").copy(check_on=x).module) is nn.Sequential


def test_a_wrong_copy_is_told_from_another_rounding() -> None:
    truth = torch.tensor([[0.0, 4.0], [2.0, 0.0]])
    assert as_good(truth + 0.02, truth + 0.01, truth, 0.0)
    assert as_good(truth + 0.007, truth, truth, 2.0**-7), "by less than the slack of the smaller spread"
    assert not as_good(truth + 0.1, truth + 0.01, truth, 2.0**-7)
    assert not as_good(truth * torch.nan, truth, truth, 2.0**-7)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_forwards_and_backwards() -> None:
    net = settled(Residual()).float()
    made = torch.compile(fuse_relus(net), dynamic=False)
    x = torch.rand(2, 8, 6, 6, requires_grad=True)
    (a,), (b,) = (torch.autograd.grad(f(x).square().sum(), x) for f in (net, made))
    assert (a - b).abs().max() < 1e-4 * a.abs().max()
    with torch.no_grad():
        assert (made(x) - net(x)).abs().max() < 1e-5
