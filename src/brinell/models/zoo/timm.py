"""Build networks with the package timm."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from brinell.errors import MissingExtra

__all__ = ["build_with_timm"]


def build_with_timm(config: Mapping[str, Any]) -> nn.Module:
    """Build the timm network of a card with its options and strides; the classifier applies the normalisation."""
    try:
        import timm
    except ImportError as error:
        raise MissingExtra(
            expected="the package timm, for transformers and most ImageNet models",
            got="an installation without it",
            remedy='Install it with pip install "brinell[zoo]".',
        ) from error
    options = config.get("options", {})
    net: nn.Module = timm.create_model(config["name"], pretrained=False, num_classes=config["classes"], **options)
    for path, stride in config.get("strides", {}).items():
        setattr(net.get_submodule(path), "stride", (stride, stride))  # noqa: B010
    return net
