"""Losses: functions of (logits, labels, targets) with one value per row. Attacks maximise every loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from brinell.ops.types import Doubles, Labels, Logits, Scalars

# Croce & Hein 2020 divide by a difference of logits that may be zero; their code adds this.
TINY = 1e-12


def _at(logits: Tensor, index: Tensor) -> Tensor:
    return logits.gather(1, index[:, None])[:, 0]


def _ranked(logits: Tensor, n: int) -> Tensor:
    return logits.topk(n, dim=1).values


def best_other(logits: Logits, y: Labels) -> Scalars:
    """Return, per row, the largest logit among the classes other than y."""
    return logits.scatter(1, y[:, None], -torch.inf).amax(1)


def likeliest_wrong(logits: Logits, y: Labels, k: int) -> Tensor:
    """Return the k wrong classes with the largest logits, likeliest first: shape (b, k).

    >>> likeliest_wrong(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]), 2).tolist()
    [[2, 1]]
    """
    first = logits.scatter(1, y[:, None], torch.inf)
    return first.argsort(dim=1, descending=True, stable=True)[:, 1 : k + 1]


def margin(logits: Logits, y: Labels, t: Labels | None = None) -> Scalars:
    """Return, per row, the largest wrong logit minus the true logit (Carlini & Wagner 2017). Positive: misclassified.

    >>> margin(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([0])).item()
    2.0
    """
    return best_other(logits, y) - _at(logits, y)


def probability_margin(logits: Logits, y: Labels, t: Labels | None = None) -> Scalars:
    """Return, per row, the largest wrong probability minus the true one (Xie et al. 2025). Positive: misclassified.

    Method: with s = logΣ exp(z_i − z_y) over the wrong classes, p_y = 1 − σ(s) and p_j = exp(z_j − z_y − softplus(s)),
    so that gradients keep their relative precision where p_y is nearly 1. Limits: the value rounds to −1 where the
    wrong probabilities sum to less than 3e-8, and the gradient vanishes where they underflow.

    >>> probability_margin(torch.tensor([[0.0, 1.0, 1.0]]).log(), torch.tensor([1])).item()
    0.0
    """
    wrong = logits.scatter(1, y[:, None], -torch.inf)
    true, best = _at(logits, y), _at(logits, wrong.detach().argmax(1))
    odds = wrong.logsumexp(1) - true
    return (best - true - softplus(odds)).exp() + odds.sigmoid() - 1


def ce(logits: Logits, y: Labels, t: Labels | None = None) -> Scalars:
    """Return, per row, the cross-entropy of the true class y."""
    return logits.logsumexp(1) - _at(logits, y)


def ce_targeted(logits: Logits, y: Labels, t: Labels) -> Scalars:
    """Return, per row, the log-probability of the target class t."""
    return _at(logits, t) - logits.logsumexp(1)


def dlr(logits: Logits, y: Labels, t: Labels | None = None) -> Scalars:
    """Return, per row, the difference of logits ratio (Croce & Hein 2020, eq. 6): margin / (z_(1) − z_(3)).

    z_(i) is the i-th largest logit, so at least three classes are needed.
    """
    top = _ranked(logits, 3)
    # As defined, the competitor is the runner-up where the true class has the largest logit, else the leader.
    leads = logits.argmax(1) == y
    return (torch.where(leads, top[:, 1], top[:, 0]) - _at(logits, y)) / (top[:, 0] - top[:, 2] + TINY)


def dlr_targeted(logits: Logits, y: Labels, t: Labels) -> Scalars:
    """Return, per row, the targeted DLR (Croce & Hein 2020, eq. 7): (z_t − z_y) / (z_(1) − (z_(3) + z_(4)) / 2).

    z_(i) is the i-th largest logit, so at least four classes are needed.
    """
    top = _ranked(logits, 4)
    return (_at(logits, t) - _at(logits, y)) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


def minimum_margin(logits: Logits, y: Labels, t: Labels) -> Scalars:
    """Return, per row, z_t − z_y for the target class t: the loss of the Minimum-Margin attack, without rescaling."""
    return _at(logits, t) - _at(logits, y)


def margin_towards(logits: Logits, y: Labels, t: Labels) -> Scalars:
    """Return, per row, z_t − z_y if there is a target class t, or the untargeted margin if t is −1."""
    best = logits.scatter(1, y[:, None], -torch.inf).argmax(1)
    return minimum_margin(logits, y, torch.where(t < 0, best, t))


def _over(size: Tensor) -> Tensor:
    """Return `size` for use as a divisor: magnitudes below `TINY` are raised to `TINY`, signs are kept."""
    return torch.where(size < 0, size.clamp(max=-TINY), size.clamp(min=TINY))


def match(values: Doubles, y: Labels, t: Doubles) -> Scalars:
    """Return −½‖values − t‖² per row, where `t` holds the values to match in place of target classes."""
    return -(values - t).square().sum(1) / 2


LOGITS = "logits"


@dataclass(frozen=True)
class Loss:
    """A loss: its function, whether it needs a target, and the fewest classes for which it is defined.

    For a model with fewer than `classes` classes the loss named `instead` is used. `of` names the model output that the
    loss reads. If `matches` is true, the loss receives values to match in place of target classes.
    """

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    targeted: bool = False
    classes: int = 2
    instead: str | None = None
    of: str = LOGITS
    matches: bool = False


LOSSES: dict[str, Loss] = {
    "ce": Loss(ce),
    "ce-targeted": Loss(ce_targeted, targeted=True),
    "margin": Loss(margin),
    "probability-margin": Loss(probability_margin),
    "dlr": Loss(dlr, classes=4, instead="margin"),
    "dlr-targeted": Loss(dlr_targeted, targeted=True, classes=4, instead="minimum-margin"),
    "minimum-margin": Loss(minimum_margin, targeted=True),
    "margin-towards": Loss(margin_towards),
    # Rescalings of the minimum margin (Tables 2 and 4 of the Minimum-Margin paper).
    "mm-softmax": Loss(lambda z, y, t: minimum_margin(z.softmax(1), y, t), targeted=True),
    "mm-sigmoid": Loss(lambda z, y, t: minimum_margin(z.sigmoid(), y, t), targeted=True),
    "mm-max": Loss(lambda z, y, t: minimum_margin(z, y, t) / _over(_at(z, y)), targeted=True),
    "mm-sum": Loss(lambda z, y, t: minimum_margin(z, y, t) / _over(_at(z, y) + _at(z, t)), targeted=True),
    "mm-min-max": Loss(lambda z, y, t: minimum_margin(z, y, t) / (z.amax(1) - z.amin(1) + TINY), targeted=True),
    # Matching a natural input of another class (Sabour et al. 2016; Tramèr et al. 2020 for logits).
    "match-logits": Loss(match, matches=True),
    "match-features": Loss(match, of="features", matches=True),
}
"""All losses by name. For a model with fewer classes than `classes`, the denominator of DLR is meaningless."""
