"""The interface of the classifier under attack: a map from inputs to logits, with name, fingerprint and device."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from brinell.core.references import References
from brinell.ops.types import Doubles, Labels, Logits, Points, Scalars


@dataclass(frozen=True)
class Output:
    """The output of a model: logits, and for a model with a detector a score that is positive for rejected inputs.

    `features` holds one flat row per input, or None if the model names no layer as features.
    """

    logits: Logits
    reject: Scalars | None = None
    features: Doubles | None = None


@dataclass(frozen=True)
class ExpectedInputs:
    """The inputs that a model was trained on: their shape, and how a picture gets it (resize, crop, interpolation)."""

    shape: tuple[int, ...]
    resize: int | tuple[int, int] | None = None
    crop: int | None = None
    interpolation: str = "bilinear"


class Classifier:
    """A map from inputs in the unit box to one row of logits each, by default differentiable through autograd.

    Members with a default below may be left out.
    """

    per_sample: bool = False
    """Whether the classifier differs from sample to sample: the engine then calls `forward_of` with sample ids."""

    @property
    def name(self) -> str:
        """A name for reports."""
        return type(self).__name__

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the output."""
        raise NotImplementedError

    @property
    def differentiable(self) -> bool:
        """Whether autograd through `forward` gives the input gradient."""
        return True

    @property
    def device(self) -> torch.device:
        """The device that inputs must be on."""
        return torch.device("cpu")

    @property
    def allow(self) -> frozenset[str]:
        """Names of known defects: an evaluation stores them as failed checks instead of refusing the model."""
        return frozenset()

    @property
    def torch_module(self) -> nn.Module | None:
        """The torch module that computes the logits, for analyses that read its layers; None if there is no module."""
        return None

    @property
    def references(self) -> References | None:
        """Model outputs for natural inputs that the detector accepts, which matching attacks imitate; None: unknown."""
        return None

    @property
    def inputs(self) -> ExpectedInputs | None:
        """The inputs that the model was trained on; None: unknown."""
        return None

    @property
    def detector_rule(self) -> str:
        """The detector's decision rule in words, e.g. its threshold; empty if unknown."""
        return ""

    def forward(self, x: Points) -> Output:
        """Return the output for a batch of points in [0, 1]."""
        raise NotImplementedError

    def forward_of(self, x: Points, id: Labels) -> Output:
        """Return the output for points x, where `id` holds the sample id of each row."""
        return self.forward(x)

    def to(self, device: torch.device) -> "Classifier":
        """Return this classifier on a device."""
        raise NotImplementedError

    def copy(self, dtype: torch.dtype | None = None, check_on: Tensor | None = None) -> "Classifier | None":
        """Return a frozen copy that is faster on an accelerator; None if the classifier cannot be copied.

        `dtype` is the type that stores the weights. The copy may be traced and tested on the inputs `check_on`.
        """
        return None

    def dtypes(self) -> set[str]:
        """Return the names of the dtypes that store the weights."""
        return set()

    def modes(self) -> list[str]:
        """Return the names of the modules that are in train mode."""
        return []


class DelegatingClassifier(Classifier):
    """A classifier that wraps the classifier `base` and has the same name, device and other properties."""

    @property
    def base(self) -> Classifier:
        """The wrapped classifier."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def fingerprint(self) -> str:
        return self.base.fingerprint

    @property
    def differentiable(self) -> bool:
        return self.base.differentiable

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def allow(self) -> frozenset[str]:
        return self.base.allow

    def dtypes(self) -> set[str]:
        return self.base.dtypes()

    def modes(self) -> list[str]:
        return self.base.modes()
