"""Networks by name, untrained: what `brinell train --model NAME` builds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from brinell.errors import InputError, one_of
from brinell.models.demo import DemoNet
from brinell.models.resnet import PreActResNet18, ResNet18


def _demo(n: "Network") -> nn.Module:
    if (n.classes, n.channels, n.mean, n.std) != (10, 1, None, None):
        raise InputError(
            expected="10 classes, one channel and no normalisation for the demonstration network",
            got=f"{n.classes} classes, {n.channels} channels",
            remedy="Use resnet18 for other data.",
        )
    return DemoNet()


NETWORKS: dict[str, Callable[["Network"], nn.Module]] = {
    "demo": _demo,
    "preact-resnet18": lambda n: PreActResNet18(n.classes, n.channels, n.mean, n.std),
    "resnet18": lambda n: ResNet18(n.classes, n.channels, n.mean, n.std),
}
"""By name; each makes a module from the numbers of a `Network`."""


@dataclass(frozen=True)
class Network:
    """A network as data: its name, classes, channels and the normalisation applied inside.

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
                got=f"{self.classes} and {self.channels}",
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
        """The module, with torch's own initial weights."""
        return NETWORKS[self.name](self)

    def to_json(self) -> dict[str, Any]:
        """For the config of a training."""
        return {
            "name": self.name,
            "classes": self.classes,
            "channels": self.channels,
            "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std),
        }


def network(stored: dict[str, Any]) -> Network:
    """The network of a config.

    >>> network(Network("demo", channels=1).to_json()).name
    'demo'
    """
    column = {k: None if stored[k] is None else tuple(stored[k]) for k in ("mean", "std")}
    return Network(stored["name"], stored["classes"], stored["channels"], column["mean"], column["std"])
