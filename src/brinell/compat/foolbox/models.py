"""`PyTorchModel`: a model with the bounds of its inputs and their normalisation."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brinell.compat.functions import as_classifier, refuse_unless
from brinell.compat.missing import refuse_name

__all__ = ["PyTorchModel"]

NORMALISES = ("mean", "std", "axis", "flip_axis")


class _InBounds(nn.Module):
    """A module for inputs in [0, 1] around a model for inputs in other bounds, with its preprocessing."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Any, low: float, high: float, preprocessing: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.low, self.high, self.flip = model, low, high, preprocessing.get("flip_axis")
        for name in ("mean", "std"):
            value = torch.as_tensor(preprocessing.get(name, float(name == "std")), dtype=torch.float32, device="cpu")
            self.register_buffer(name, value.reshape(-1, *[1] * (-1 - preprocessing.get("axis", -1))))

    def forward(self, x: Tensor) -> Tensor:
        z = self.low + (self.high - self.low) * x
        z = z if self.flip is None else z.flip(self.flip)
        out: Tensor = self.model((z - self.mean) / self.std)
        return out


def plain(values: Any) -> Any:
    """Return the tensor inside a tensor of eagerpy; a torch tensor is returned unchanged."""
    return getattr(values, "raw", values)


def like(values: Any) -> Callable[[Any], Any]:
    """Return what makes results as the caller's inputs are: tensors of eagerpy, or torch tensors."""
    return type(values) if hasattr(values, "raw") else lambda result: result


class PyTorchModel:
    """A torch model with the bounds of its inputs and their normalisation; called, it returns logits."""

    def __init__(
        self,
        model: Any,
        bounds: tuple[float, float],
        device: Any = None,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> None:
        given = dict(preprocessing or {})
        unknown = [name for name in given if name not in NORMALISES]
        refuse_unless(
            not unknown, f"preprocessing with {', '.join(NORMALISES)}", ", ".join(unknown), "Put it into the model."
        )
        vectors = any(getattr(given.get(k), "__len__", None) for k in ("mean", "std"))
        refuse_unless(
            not vectors or given.get("axis", 0) < 0,
            "a negative axis for one number per channel",
            f"axis={given.get('axis')}",
            "Write dict(mean=[…], std=[…], axis=-3).",
        )
        refuse_unless(bounds[0] < bounds[1], "bounds from low to high", str(bounds), "Write bounds=(0, 1).")
        self.bounds = (float(bounds[0]), float(bounds[1]))
        self.classifier = as_classifier(_InBounds(model, *self.bounds, given).eval(), device)

    @property
    def width(self) -> float:
        """The difference between the largest and the smallest value of an input."""
        return self.bounds[1] - self.bounds[0]

    def inwards(self, x: Tensor) -> Tensor:
        """Return inputs moved from the bounds to [0, 1]."""
        return x if self.bounds == (0.0, 1.0) else (x - self.bounds[0]) / self.width

    def outwards(self, u: Tensor) -> Tensor:
        """Return inputs moved from [0, 1] to the bounds."""
        return u if self.bounds == (0.0, 1.0) else self.bounds[0] + self.width * u

    def __call__(self, x: Any) -> Any:
        return like(x)(self.classifier.forward(self.inwards(plain(x))).logits)


# What Foolbox has in its place and this module has not, by what to use.
INSTEAD = {
    "JAXModel": "brinell.models.from_jax",
    "NumPyModel": "brinell.models.from_function",
    "TensorFlowModel": "brinell.models.from_tensorflow",
    "ExpectationOverTransformationWrapper": "brinell.Eot(attack, 20)",
    "TransformBoundsWrapper": "PyTorchModel(model, bounds=…)",
}


def __getattr__(name: str) -> Any:
    """Raise that Foolbox's name is missing here; the remedy names what to use."""
    refuse_name(__name__, name, __all__, INSTEAD)
