"""Find networks inside a model that can be attacked in its place: they predict the same classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.core.model import Classifier
from brinell.core.surrogate import Surrogate
from brinell.evaluation.adaptive.modules import MOST, record_calls
from brinell.models.surrogate import surrogate_of
from brinell.models.wrap import TorchClassifier
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat

# A network stands in for the model if it predicts the same class this often, and this much more often than chance.
AGREES, ABOVE_CHANCE = 0.5, 1.5
# Two functions are the same if logits and gradients agree this closely.
SAME, PARALLEL = 1e-5, 0.999
# A wide output may have this many columns per class, of which the largest counts (sub-classes).
MOST_COLUMNS = 16


@dataclass(frozen=True)
class Found:
    """A surrogate and how often it predicts the class that the model predicts."""

    how: Surrogate
    agreement: float


@dataclass(frozen=True)
class _Function:
    """Logits at some points and the gradient of the margin of the predicted class, to compare functions."""

    logits: Tensor
    grad: Tensor

    def equals(self, other: "_Function") -> bool:
        spread = (self.logits.amax(1) - self.logits.amin(1)).median().clamp(min=1e-12)
        if float((self.logits - other.logits).abs().max() / spread) > SAME:
            return False
        alike = torch.cosine_similarity(flat(self.grad), flat(other.grad), dim=1)
        zero = (flat(self.grad) == 0).all(1) & (flat(other.grad) == 0).all(1)
        return bool(((alike > PARALLEL) | zero).all())


def _function(classifier: Classifier, x: Tensor) -> _Function | None:
    """Return the logits and gradients at x, off the 8-bit grid; None if there are no gradients."""
    point = x.detach().clone().requires_grad_(True)
    try:
        with torch.enable_grad():
            z = classifier.forward(point).logits
            (grad,) = torch.autograd.grad(margin(z, z.argmax(1)).sum(), point)
    except Exception:  # whatever a submodule says to an input that it is not made for
        return None
    return _Function(z.detach(), grad) if bool(grad.isfinite().all()) else None


def _agreement(candidate: Classifier, x: Tensor, logits: Tensor) -> float:
    """Return how often the candidate predicts the class of these logits; 0 if it does not answer without gradients."""
    try:
        with torch.no_grad():
            own = candidate.forward(x).logits
    except Exception:  # as above
        return 0.0
    return float((own.argmax(1) == logits.argmax(1)).float().mean())


def find_networks(
    classifier: TorchClassifier, x: Tensor, nearby: Tensor, logits: Tensor, random: bool = False
) -> list[Found]:
    """Return surrogates whose gradients differ from the model's, the most similar predictions first.

    Tried are every submodule applied to the input itself, and every submodule whose output in a pass of the model has
    the shape of the logits, or several columns per class. `logits` are the model's at x; `nearby` are points around x.
    A `random` model is equal to none of them. Cost: a forward and a backward pass of each.
    """
    threshold = max(AGREES, ABOVE_CHANCE / logits.shape[1])
    own = None if random else _function(classifier, nearby)
    known = [] if own is None else [own]
    results: list[Found] = []
    for how in [*_inner_networks(classifier, x, logits), *_inner_logits(classifier, x, logits)]:
        candidate = surrogate_of(classifier, how)
        agreement = _agreement(candidate, x, logits)
        function = _function(candidate, nearby) if agreement >= threshold else None
        if function is None or any(function.equals(f) for f in known) or not bool(function.grad.any()):
            continue
        known.append(function)
        results.append(Found(how, agreement))
    return sorted(results, key=lambda found: -found.agreement)


def _inner_networks(classifier: TorchClassifier, x: Tensor, logits: Tensor) -> list[Surrogate]:
    """Return the submodules that map the input itself to something of the shape of the logits."""
    point = classifier.normalised(x.clone())
    found: list[Surrogate] = []
    for name, module in [pair for pair in classifier.module.named_modules() if pair[0]][:MOST]:
        if next(module.parameters(), None) is None:
            continue
        try:
            with torch.no_grad():
                out = module(point.clone())
        except Exception:  # made for another input
            continue
        columns = _columns(out, logits)
        if columns:
            found.append(Surrogate(networks=(name,), columns=columns))
    return found


def _columns(out: object, logits: Tensor) -> int:
    """Return how many columns of an output there are per class, 0 if it has not the shape of logits."""
    if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim != 2 or len(out) != len(logits):
        return 0
    columns, rest = divmod(out.shape[1], logits.shape[1])
    return 0 if rest or columns > MOST_COLUMNS else columns


def _inner_logits(classifier: TorchClassifier, x: Tensor, logits: Tensor) -> list[Surrogate]:
    """Return the submodules whose output in a pass of the model has the shape of the logits and a gradient."""
    with torch.enable_grad():
        calls = record_calls(classifier, x.detach().clone().requires_grad_(True))
    widths = [(name, _columns(out, logits)) for name, (_, out) in calls.items() if out.requires_grad]
    return [Surrogate(outputs=(name,), columns=columns) for name, columns in widths if columns]
