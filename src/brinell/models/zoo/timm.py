"""Networks that timm has."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from brinell.errors import MissingExtra

__all__ = ["build_with_timm"]


def build_with_timm(config: Mapping[str, Any]) -> nn.Module:
    """The network timm knows by this name, with the card's options and strides; its normalisation stays outside."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtra(
            expected="timm, for transformers and for most networks of ImageNet models",
            got="an environment without it",
            remedy='Install it with pip install "brinell[zoo]".',
        ) from error
    options = config.get("options", {})
    net: nn.Module = timm.create_model(config["name"], pretrained=False, num_classes=config["classes"], **options)
    for path, stride in config.get("strides", {}).items():
        setattr(net.get_submodule(path), "stride", (stride, stride))  # noqa: B010
    return net
