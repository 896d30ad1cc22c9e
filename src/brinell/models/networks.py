"""Untrained networks by name, which `brinell train --model NAME` builds."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from brinell.errors import InputError, one_of
from brinell.models.arch.inputs import Inputs
from brinell.models.arch.resnet import PreActResNet, ResNet
from brinell.models.arch.wide import WideResNet
from brinell.models.demo import DemoNet

Numbers = Sequence[float] | None


def _inputs(channels: int, mean: Numbers, std: Numbers) -> Inputs:
    """Return a module that normalises inputs; its buffers mu and sigma are stored with the weights."""
    if mean is None and std is None:
        return Inputs()
    return Inputs(tuple(mean or (0.0,) * channels), tuple(std or (1.0,) * channels), stored=True)


class _StoredInputs(nn.Module):
    """A mixin that omits the normalisation from the module's repr, since its buffers are in the fingerprint already."""

    def extra_repr(self) -> str:
        return ""


class ResNet18(_StoredInputs, ResNet):
    """ResNet-18 for images in [0, 1] of any size; `mean` and `std` (one number per channel) are applied inside.

    Reference: He et al. 2016, Deep residual learning, in its variant for 32×32 images.

    >>> import torch
    >>> ResNet18(classes=7)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 7])
    """

    def __init__(self, classes: int = 10, channels: int = 3, mean: Numbers = None, std: Numbers = None) -> None:
        super().__init__(_inputs(channels, mean, std), classes, channels=channels)


class PreActResNet18(_StoredInputs, PreActResNet):
    """PreAct-ResNet-18: ResNet-18 with batch normalisation before every convolution.

    Reference: He et al. 2016, Identity mappings in deep residual networks; the usual network of Rice et al. 2020.

    >>> import torch
    >>> PreActResNet18(classes=7, channels=1)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 7])
    """

    def __init__(self, classes: int = 10, channels: int = 3, mean: Numbers = None, std: Numbers = None) -> None:
        super().__init__(_inputs(channels, mean, std), classes, channels=channels)


class WideResNet34x10(_StoredInputs, WideResNet):
    """WideResNet-34-10: 34 layers, ten times as wide as a narrow ResNet, 46 million weights.

    Reference: Zagoruyko & Komodakis 2016, Wide residual networks; the large network of Madry et al. 2018 and Gao et al.
    2022.
    """

    def __init__(self, classes: int = 10, channels: int = 3, mean: Numbers = None, std: Numbers = None) -> None:
        super().__init__(_inputs(channels, mean, std), classes, channels=channels)


def _demo(n: "Network") -> nn.Module:
    if (n.classes, n.channels, n.mean, n.std) != (10, 1, None, None):
        raise InputError(
            expected="10 classes, one channel and no normalisation for the demonstration network",
            got=f"{n.classes} classes, {n.channels} channels, mean {n.mean}, std {n.std}",
            remedy="Use resnet18 for other data.",
        )
    return DemoNet()


NETWORKS: dict[str, Callable[["Network"], nn.Module]] = {
    "demo": _demo,
    "preact-resnet18": lambda n: PreActResNet18(n.classes, n.channels, n.mean, n.std),
    "resnet18": lambda n: ResNet18(n.classes, n.channels, n.mean, n.std),
    "wide-resnet-34-10": lambda n: WideResNet34x10(n.classes, n.channels, n.mean, n.std),
}
"""Builders by name; each makes a module from a `Network`."""


@dataclass(frozen=True)
class Network:
    """The configuration of a network: its name, numbers of classes and channels, and normalisation of inputs.

    >>> type(Network("resnet18", classes=100).build()).__name__
    'ResNet18'
    """

    name: str
    classes: int = 10
    channels: int = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        one_of("a network", self.name, NETWORKS)
        if self.classes < 2 or self.channels < 1:
            raise InputError(
                expected="at least 2 classes and 1 channel",
                got=f"{self.classes} classes and {self.channels} channels",
                remedy="Check the labels and the shape of the images (n, channels, height, width).",
            )
        for what, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and (len(values) != self.channels or (what == "std" and min(values) <= 0)):
                raise InputError(
                    expected=f"a {what} with one number per channel ({self.channels}){', above 0' * (what == 'std')}",
                    got=str(list(values)),
                    remedy="Give the statistics of images in [0, 1], e.g. 0.49,0.48,0.45.",
                )

    def build(self) -> nn.Module:
        """Build the module with PyTorch's default initial weights."""
        return NETWORKS[self.name](self)

    def to_json(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Network":
        """Make the configuration from the dictionary that `to_json` returned.

        >>> Network.from_json(Network("demo", channels=1).to_json()).name
        'demo'
        """
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        return cls(**values)
