"""One batch: the adversarial points of a method, and the loss that is minimised on them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from brinell.core.attack import Batch
from brinell.core.model import Classifier
from brinell.core.threat import Ball
from brinell.engine.attack_batch import attack_batch
from brinell.ops import rng
from brinell.ops.losses import likeliest_wrong, minimum_margin
from brinell.ops.rowwise import flat
from brinell.ops.types import Keys, Labels, Logits, Points, Scalars
from brinell.train.methods import Method


def divergence(clean: Logits, logits: Logits, y: Labels | None = None, t: Labels | None = None) -> Scalars:
    """KL(softmax(clean) ‖ softmax(logits)) per row; labels are not looked at.

    >>> divergence(torch.zeros(1, 2), torch.zeros(1, 2)).item()
    0.0
    """
    return F.kl_div(logits.log_softmax(1), clean.log_softmax(1), reduction="none", log_target=True).sum(1)


def perturbed(method: Method, classifier: Classifier, x: Points, y: Labels, key: Keys, ball: Ball) -> Points:
    """The points to train on, one per image. The model must be in the mode it is to be attacked in."""
    if method.attack is None:
        return x
    none = torch.full_like(y, -1)
    start = x + method.start * rng.normal(rng.fold(key, 1), tuple(x.shape[1:])) if method.start else None
    rows = Batch(x, y, key, none, start)
    if method.beta:
        return attack_batch(
            classifier, method.attack, rows, ball, partial(divergence, _logits(classifier, x)), method.keep
        )
    if method.targets:
        return _worst_target(method, classifier, rows, ball)
    return attack_batch(classifier, method.attack, rows, ball, keep=method.keep)


def _logits(classifier: Classifier, x: Tensor) -> Tensor:
    with torch.no_grad():
        return classifier.forward(x).logits


def _worst_target(method: Method, classifier: Classifier, p: Batch, ball: Ball) -> Points:
    """Every image towards several targets side by side, from one start; then the target with the largest z_t − z_y."""
    assert method.attack is not None
    logits = _logits(classifier, p.x)
    targets = likeliest_wrong(logits, p.y, method.copies(logits.shape[1])).T  # (k, b), likeliest first
    k, b = targets.shape

    def again(v: Tensor) -> Tensor:
        return v.repeat(k, *[1] * (v.ndim - 1))

    start = None if p.start is None else again(p.start)
    many = Batch(again(p.x), again(p.y), again(p.key), targets.reshape(-1), start)
    wide = Ball(ball.norm, again(ball.eps), ball.mask)
    x = attack_batch(classifier, method.attack, many, wide, keep=method.keep)
    if k == 1:
        return x
    margins = minimum_margin(_logits(classifier, x), many.y, many.target).view(k, b)
    chosen = margins.argmax(0) * b + torch.arange(b, device=x.device)
    return flat(x)[chosen].view_as(p.x)


def objective(
    method: Method, classifier: Classifier, x: Points, crafted: Points, y: Labels, smoothing: float
) -> Tensor:
    """The mean loss of the batch, with a graph to the weights."""
    if not method.beta:
        return F.cross_entropy(classifier.forward(crafted).logits, y, label_smoothing=smoothing)
    clean, moved = classifier.forward(x).logits, classifier.forward(crafted).logits
    fit = F.cross_entropy(clean, y, label_smoothing=smoothing)
    return fit + method.beta * divergence(clean, moved).mean()
