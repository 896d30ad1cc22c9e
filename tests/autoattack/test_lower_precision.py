"""Every attack in lower precision breaks what it breaks in float32, up to one sample in a hundred, where ties matter.

TF32 is a number format of GPUs. On a processor the operands of products and convolutions are rounded to its ten bits.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import brinell
from brinell.attacks import ACG, APGD, CW, DDN, FAB, FGSM, FMN, PGD, DeepFool, Square
from brinell.core.plan import Restarts, Stage, Targets
from brinell.engine import oracle

THREATS = {"Linf": brinell.Linf(0.1), "L2": brinell.L2(1.5), "L1": brinell.L1(12)}
STAGES = {
    "fgsm": Stage(FGSM()),
    "pgd": Stage(PGD(loss="margin")),
    "apgd-dlr": Stage(APGD(steps=30, loss="dlr")),
    "mm": Targets(APGD(steps=20, loss="minimum-margin"), 3),
    "fab": Stage(FAB(steps=20)),
    "fab-t": Targets(FAB(steps=15, targeted=True), 3),
    "square": Restarts(Square(steps=100), 1),
}
MORE = {
    "pgd-ce": Stage(PGD(loss="ce")),
    "apgd-ce": Stage(APGD(steps=30)),
    "apgd-t": Targets(APGD(steps=20, loss="dlr-targeted"), 3),
    "apgd-probability-margin": Stage(APGD(steps=30, loss="probability-margin")),
    "malt": Targets(APGD(steps=20, loss="minimum-margin"), 1, ranked_by="malt"),
    "deepfool": Stage(DeepFool()),
    "fmn": Stage(FMN(steps=30)),
}
NOT_L1 = {"acg": Stage(ACG(steps=30))}
ONLY_L2 = {"ddn": Stage(DDN(steps=30)), "cw": Stage(CW(steps=30))}
# Each attack in one norm; test_every_attack_in_every_precision makes them in every norm.
BFLOAT16 = [
    ("fgsm", "L2"), ("pgd", "Linf"), ("apgd-dlr", "L1"), ("mm", "L2"), ("fab", "L1"), ("fab-t", "Linf"),
    ("square", "L2"),
]  # fmt: skip
TF32 = [("fab-t", "L1"), ("apgd-dlr", "L2"), ("apgd-dlr", "Linf")]
SLOW = pytest.mark.slow


class Rounded(torch.autograd.Function):
    """Round to the ten bits of TF32, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Rounded.forward(ctx, grads[0])


class Tf32(TorchFunctionMode):
    """Round the operands of linear layers and convolutions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.functional.linear, nn.functional.conv2d, torch.conv2d):
            args = (Rounded.apply(args[0]), Rounded.apply(args[1]), *args[2:])
        return func(*args, **(kwargs or {}))


@pytest.fixture
def with_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = oracle.lower

    def lower(precision: str, device: torch.device) -> AbstractContextManager[Any]:
        return Tf32() if precision == "tf32" else plain(precision, device)

    monkeypatch.setattr(oracle, "lower", lower)


@pytest.fixture(scope="module")
def l2_net() -> nn.Module:
    """A small network for Fashion-MNIST, adversarially trained in L2 with radius 1.5."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(784, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    stored = load_file(Path(__file__).with_name("l2_net.safetensors"))
    net.load_state_dict({name: weight.float() for name, weight in stored.items()})
    return net.eval()


@pytest.fixture(scope="module")
def golden_net(shared: Path) -> nn.Module:
    """The network of the golden numbers, on whose logits bfloat16 ties often."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(1568, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    with np.load(shared / "golden/fashion_net.npz") as file, torch.no_grad():
        for name, layer in zip(("c1", "c2", "f1", "f2"), (net[0], net[2], net[5], net[7]), strict=True):
            layer.weight.copy_(torch.from_numpy(file[f"{name}.weight"]))
            layer.bias.copy_(torch.from_numpy(file[f"{name}.bias"]))
    return net.eval()


def robust(net: object, threat: brinell.Threat, stage: Stage, precision: str) -> int:
    """Return how many of 100 samples stand."""
    data = brinell.data.load("demo")[:100]
    run = brinell.evaluate(net, data, threat, brinell.plan([stage]), precision=precision, progress=False)
    return run.robust_accuracy.k


@pytest.mark.parametrize(("name", "norm"), BFLOAT16)
def test_bfloat16_breaks_what_float32_breaks(golden_net: nn.Module, name: str, norm: str) -> None:
    exact, lower = (robust(golden_net, THREATS[norm], STAGES[name], p) for p in ("float32", "bfloat16"))
    assert abs(exact - lower) <= 1


@pytest.mark.parametrize("name", ["acg", "malt"])
def test_conjugate_directions_and_linear_distances(golden_net: nn.Module, name: str) -> None:
    stage = {**MORE, **NOT_L1}[name]
    exact, lower = (robust(golden_net, THREATS["Linf"], stage, p) for p in ("float32", "bfloat16"))
    assert abs(exact - lower) <= 1


@pytest.mark.parametrize(
    ("name", "threat"),
    [
        ("fab", brinell.L1(8)),
        ("fab-t", brinell.L2(1.0)),
        pytest.param("fab", brinell.L2(1.0), marks=SLOW),
        pytest.param("fab-t", brinell.L1(8), marks=SLOW),
    ],
    ids=str,
)
def test_fab_on_the_demonstration_network(name: str, threat: brinell.Threat) -> None:
    exact, lower = (robust("demo", threat, STAGES[name], p) for p in ("float32", "bfloat16"))
    # FAB queries in float32.
    assert exact == lower


def test_the_network_trained_in_l2_is_robust_in_l2(l2_net: nn.Module) -> None:
    run = brinell.evaluate(l2_net, brinell.data.load("demo")[:200], brinell.L2(1.5), "pgd20", progress=False)
    assert run.clean_accuracy.value > 0.7 and run.robust_accuracy.value > 0.35


@pytest.mark.parametrize(("name", "norm"), TF32)
def test_tf32_breaks_what_float32_breaks(l2_net: nn.Module, with_tf32: None, name: str, norm: str) -> None:
    exact, lower = (robust(l2_net, THREATS[norm], STAGES[name], p) for p in ("float32", "tf32"))
    assert abs(exact - lower) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("norm", THREATS)
@pytest.mark.parametrize("name", [*STAGES, *MORE, *NOT_L1, *ONLY_L2])
@pytest.mark.parametrize("network", ["golden", "demo", "l2"])
def test_every_attack_in_every_precision(
    golden_net: nn.Module, l2_net: nn.Module, with_tf32: None, network: str, name: str, norm: str, precision: str
) -> None:
    if (name in ONLY_L2 and norm != "L2") or (name in NOT_L1 and norm == "L1"):
        pytest.skip(f"{name} does not work in {norm}")
    net = {"golden": golden_net, "demo": "demo", "l2": l2_net}[network]
    stage = {**STAGES, **MORE, **NOT_L1, **ONLY_L2}[name]
    exact, lower = (robust(net, THREATS[norm], stage, p) for p in ("float32", precision))
    assert abs(exact - lower) <= 1
