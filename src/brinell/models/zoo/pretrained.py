"""Models of timm by name, with the normalisation and the input size they were trained with."""

from math import floor
from typing import Any

from brinell.core.model import ExpectedInputs
from brinell.errors import ModelError, first_line, import_extra
from brinell.models.wrap import TorchClassifier, wrap

TIMM_PREFIX = "timm:"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
CROP = 0.875


def load_timm(name: str, pretrained: bool = True) -> TorchClassifier:
    """Return a model of timm as a classifier of images in [0, 1], with timm's own normalisation inside.

    `name` is what `timm.create_model` takes, e.g. "resnet50" or "hf-hub:user/model". Pictures in folders are resized
    and cropped as timm does it for this model, unless you choose another preprocessing.
    """
    timm = import_extra("timm", "zoo", "the package timm, for its models by name")
    try:
        net = timm.create_model(name, pretrained=pretrained)
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelError(
            expected="the name of a model that timm can load",
            got=f"{name!r} ({first_line(error)})",
            remedy="List the names with timm.list_models(pretrained=True).",
        ) from error
    config = _config(net)
    inputs = _expected(config)
    label = f"{TIMM_PREFIX}{name}"
    return wrap(net.eval(), config.get("mean"), config.get("std"), name=label, inputs=inputs)


def _config(net: Any) -> dict[str, Any]:
    config = getattr(net, "pretrained_cfg", None) or getattr(net, "default_cfg", None) or {}
    return dict(config) if isinstance(config, dict) else vars(config)


def _expected(config: dict[str, Any]) -> ExpectedInputs | None:
    """Return what a configuration of timm says of the inputs: their shape, and how pictures get it."""
    if not config.get("input_size"):
        return None
    channels, height, width = config["input_size"]
    kind = config.get("interpolation")
    kind = kind if kind in INTERPOLATIONS else "bilinear"
    if height != width:
        return ExpectedInputs((channels, height, width), (height, width), None, kind)
    longer = floor(height / (config.get("crop_pct") or CROP))
    size: int | tuple[int, int] = (longer, longer) if config.get("crop_mode") == "squash" else longer
    return ExpectedInputs((channels, height, width), size, height, kind)
