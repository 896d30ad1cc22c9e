"""Detectors: a score for every input and the threshold above which the input is rejected."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.core.references import References
from brinell.errors import ModelError

# Names of arguments that a detector may have. A single argument with another name receives the input.
READS = ("x", "logits", "features")


class _Function(nn.Module):
    """A module that calls a plain function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        """Return a text that identifies the function; it enters the model's fingerprint."""
        return _hash(self.function)


def _hash(value: Any, depth: int = 3) -> str:
    """Return a hash of a value: of a function's code, constants and closure, or of a tensor's numbers."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
    code = getattr(value, "__code__", None)
    if code is None or depth == 0:
        plain = isinstance(value, int | float | str | bool | tuple) or value is None
        return repr(value) if plain else type(value).__qualname__
    captured = [c.cell_contents for c in value.__closure__ or ()] + list(value.__defaults__ or ())
    constants = [c.co_code.hex() if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
    parts = [code.co_code.hex(), *constants, *code.co_names, *(_hash(v, depth - 1) for v in captured)]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _reads(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(names) == 1 and names[0] not in READS:
        return ("x",)
    if not names or not set(names) <= set(READS):
        raise ModelError(
            expected=f"a detector whose arguments are among {', '.join(READS)}",
            got=f"({', '.join(names)})",
            remedy="Write e.g. forward(self, x) or forward(self, x, logits).",
        )
    return tuple(names)


@dataclass(frozen=True, eq=False)
class Detector:
    """A module that scores inputs, and the `threshold` above which a score rejects its input.

    `scale` converts scores to the units of logits. The threshold was calibrated on `samples` clean inputs, of which at
    most the share `rate` may be rejected (None: not calibrated). `references` are model outputs for natural inputs that
    the detector accepts, which matching attacks imitate.
    """

    module: nn.Module
    threshold: float = 0.0
    scale: float = 1.0
    rate: float | None = None
    samples: int = 0
    references: References | None = None
    reads: tuple[str, ...] = field(default=("x",))

    def score(self, x: Tensor, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the module's score, one number per row."""
        given = {"x": x, "logits": logits, "features": features}
        if "features" in self.reads and features is None:
            raise ModelError(
                expected="a model that provides features, which the detector reads",
                got="no features",
                remedy="Name the layer: brinell.wrap(net, detector=…, features='layers.5').",
            )
        raw = self.module(*(given[name] for name in self.reads))
        if not isinstance(raw, Tensor) or raw.numel() != len(x) or len(raw) != len(x):
            got = f"shape {tuple(raw.shape)}" if isinstance(raw, Tensor) else type(raw).__name__
            raise ModelError(
                expected=f"one score per input, shape ({len(x)},)", got=got, remedy="Return a tensor of that shape."
            )
        return raw.reshape(len(x)).float()

    def reject(self, x: Tensor, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return (score − threshold) · scale per row; it is positive if the input is rejected."""
        return (self.score(x, logits, features) - self.threshold) * self.scale

    def describe(self) -> str:
        if self.rate is None:
            return f"threshold {self.threshold:.6g}, not calibrated"
        return (
            f"threshold {self.threshold:.6g}, at most {100 * self.rate:g} % of {self.samples:,} clean inputs rejected"
        )


def as_detector(detector: Any) -> Detector:
    """Make a Detector from a module or a function; return a Detector unchanged."""
    if isinstance(detector, Detector):
        return detector
    if not callable(detector):
        raise ModelError(
            expected="a module or function that scores inputs",
            got=type(detector).__name__,
            remedy="Write brinell.wrap(net, detector=lambda x: score(x)) or detector=module.",
        )
    if isinstance(detector, nn.Module):
        return Detector(detector, reads=_reads(detector.forward))
    return Detector(_Function(detector).eval())


def negated(score: Tensor) -> Tensor:
    """Return the score of the opposite decision: positive (rejected) where `score` is at most 0; NaN stays NaN."""
    # A score of zero is accepted, so the negated score must be above zero.
    least = torch.finfo(score.dtype).tiny
    return torch.where(score > 0, -score, (-score).clamp(min=least))


@dataclass(frozen=True, eq=False)
class Inverted(DelegatingClassifier):
    """A classifier whose detector decides the opposite. Make it with `inverted`."""

    inner: Classifier

    @property
    def base(self) -> Classifier:
        return self.inner

    @property
    def name(self) -> str:
        return f"{self.inner.name}, detector inverted"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"inverted {self.inner.fingerprint}".encode()).hexdigest()

    def forward(self, x: Tensor) -> Output:
        """Return the output of `base` with the opposite decision: an input is rejected if `base` accepts it."""
        out = self.inner.forward(x)
        if out.reject is None:
            raise ModelError(
                expected="a classifier with a detector to invert",
                got="a classifier without a detector",
                remedy="Add a detector: brinell.wrap(net, detector=…).",
            )
        return replace(out, reject=negated(out.reject))

    def to(self, device: torch.device) -> "Inverted":
        return Inverted(self.inner.to(device))


def inverted(classifier: Classifier) -> Inverted:
    """Return a classifier with the opposite detector decision: it accepts exactly what `classifier` rejects.

    Method: the inverted test of Zimmermann et al. 2022, sec. 3.2. An attack that considers the detector must be able
    to trigger it as well as to evade it.

    >>> from brinell.models import wrap
    >>> model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), detector=lambda x: x[:, 0] - 0.5)
    >>> x = torch.tensor([[0.2, 0, 0, 0], [0.5, 0, 0, 0], [0.9, 0, 0, 0]])
    >>> (model.forward(x).reject > 0).tolist(), (inverted(model).forward(x).reject > 0).tolist()
    ([False, False, True], [True, True, False])
    """
    return Inverted(classifier)
