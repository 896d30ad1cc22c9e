"""Networks of published checkpoints: the same parameters under the same names, built from a card's configuration.

One file per family: `resnet` (ResNet, PreAct-ResNet; also the base of the networks that `brinell train` trains),
`wide` (WideResNet and variants), `deepmind` (the networks of Gowal et al.), `resnext`, `resnest`, `card` (pruned
networks), `sodef`, `alexnet`, `small_cnn`, `ensemble`. `inputs` has their normalisation and base class, `parts` has
shared layers. The names of classes, parameters and submodules enter fingerprints and must not change.
"""

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
from brinell.models.arch.small_cnn import SmallCNN
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
    "small-cnn": SmallCNN,
    "sodef": Sodef,
    "staged-wide-resnet": StagedWideResNet,
    "wide-resnet": WideResNet,
}
"""Builders by name; each makes a module from its normalisation and hyperparameters."""


def network(config: Mapping[str, Any]) -> nn.Module:
    """Build the network that a card describes, with random initial weights.

    >>> type(network({"family": "wide-resnet", "depth": 10, "width": 1, "classes": 7})).__name__
    'WideResNet'
    """
    numbers = dict(config)
    make = FAMILIES[one_of("a family", numbers.pop("family"), FAMILIES)]
    inputs = inputs_from(numbers.pop("inputs", None))
    if "member" in numbers:
        numbers["member"] = partial(network, numbers["member"])
    return make(inputs, **numbers)
