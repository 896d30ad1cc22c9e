"""Networks of published checkpoints, one family a file: the same parameters under the same names, made from data."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from brinell.errors import one_of
from brinell.models.arch.alexnet import AlexNet
from brinell.models.arch.card import BinaryResNet, PrunedResNet
from brinell.models.arch.deepmind import DeepmindPreActResNet, DeepmindWideResNet
from brinell.models.arch.ensemble import ensemble
from brinell.models.arch.inputs import Inputs, inputs_from
from brinell.models.arch.resnest import ResNeSt
from brinell.models.arch.resnet import PreActResNet, ResNet
from brinell.models.arch.resnext import ResNeXt
from brinell.models.arch.sodef import Sodef
from brinell.models.arch.wide import CosineWideResNet, StagedWideResNet, WideResNet
from brinell.models.demo import DemoNet

__all__ = ["FAMILIES", "network"]


def _demo(inputs: Inputs) -> nn.Module:
    return DemoNet()


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "alexnet": AlexNet,
    "binary-resnet": BinaryResNet,
    "cosine-wide-resnet": CosineWideResNet,
    "deepmind-preact-resnet": DeepmindPreActResNet,
    "deepmind-wide-resnet": DeepmindWideResNet,
    "demo": _demo,
    "ensemble": ensemble,
    "preact-resnet": PreActResNet,
    "pruned-resnet": PrunedResNet,
    "resnest": ResNeSt,
    "resnet": ResNet,
    "resnext": ResNeXt,
    "sodef": Sodef,
    "staged-wide-resnet": StagedWideResNet,
    "wide-resnet": WideResNet,
}
"""By name; each makes a module from its normalisation and its numbers."""


def network(config: Mapping[str, Any]) -> nn.Module:
    """The network a card describes, with torch's own initial weights.

    >>> type(network({"family": "wide-resnet", "depth": 10, "width": 1, "classes": 7})).__name__
    'WideResNet'
    """
    numbers = dict(config)
    make = FAMILIES[one_of("a family", numbers.pop("family"), FAMILIES)]
    inputs = inputs_from(numbers.pop("inputs", None))
    if "member" in numbers:
        numbers["member"] = partial(network, numbers["member"])
    return make(inputs, **numbers)
