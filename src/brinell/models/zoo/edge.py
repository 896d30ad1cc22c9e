"""Networks of ImageNet models, from timm."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from brinell.errors import MissingExtra

__all__ = ["from_timm"]


def from_timm(config: Mapping[str, Any]) -> nn.Module:
    """The network timm knows by this name; its normalisation stays outside."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtra(
            expected="timm, for the networks of ImageNet models",
            got="an environment without it",
            remedy='Install it with pip install "brinell[zoo]".',
        ) from error
    net: nn.Module = timm.create_model(config["name"], pretrained=False, num_classes=config["classes"])
    return net
