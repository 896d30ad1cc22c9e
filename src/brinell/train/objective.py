"""The adversarial points of a batch, and the loss that is minimised on these points."""

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


def kl_divergence(clean: Logits, logits: Logits, y: Labels | None = None, t: Labels | None = None) -> Scalars:
    """Return KL(softmax(clean) ‖ softmax(logits)) per row; labels y and targets t are ignored.

    >>> kl_divergence(torch.zeros(1, 2), torch.zeros(1, 2)).item()
    0.0
    """
    return F.kl_div(logits.log_softmax(1), clean.log_softmax(1), reduction="none", log_target=True).sum(1)


def adversarial_points(method: Method, classifier: Classifier, x: Points, y: Labels, key: Keys, ball: Ball) -> Points:
    """Return the adversarial point of each image, or x if the method has no attack; the caller sets eval mode."""
    if method.attack is None:
        return x
    none = torch.full_like(y, -1)
    start = x + method.start * rng.normal(rng.fold(key, 1), tuple(x.shape[1:])) if method.start else None
    rows = Batch(x, y, key, none, start)
    if method.beta:
        return attack_batch(
            classifier, method.attack, rows, ball, partial(kl_divergence, _logits(classifier, x)), method.keep
        )
    if method.targets:
        return _worst_target(method, classifier, rows, ball)
    return attack_batch(classifier, method.attack, rows, ball, keep=method.keep)


def _logits(classifier: Classifier, x: Tensor) -> Tensor:
    with torch.no_grad():
        return classifier.forward(x).logits


def _worst_target(method: Method, classifier: Classifier, p: Batch, ball: Ball) -> Points:
    """Attack every image once per target t from the same start; return the image's point with the largest z_t − z_y."""
    assert method.attack is not None
    logits = _logits(classifier, p.x)
    targets = likeliest_wrong(logits, p.y, method.copies(logits.shape[1])).T  # (k, b), likeliest first
    k, b = targets.shape

    def repeated(v: Tensor) -> Tensor:
        return v.repeat(k, *[1] * (v.ndim - 1))

    start = None if p.start is None else repeated(p.start)
    many = Batch(repeated(p.x), repeated(p.y), repeated(p.key), targets.reshape(-1), start)
    wide = Ball(ball.norm, repeated(ball.eps), ball.mask)
    x = attack_batch(classifier, method.attack, many, wide, keep=method.keep)
    if k == 1:
        return x
    margins = minimum_margin(_logits(classifier, x), many.y, many.target).view(k, b)
    chosen = margins.argmax(0) * b + torch.arange(b, device=x.device)
    return flat(x)[chosen].view_as(p.x)


def training_loss(
    method: Method, classifier: Classifier, x: Points, adversarial: Points, y: Labels, smoothing: float
) -> Tensor:
    """Return the method's loss, averaged over the batch and differentiable in the weights."""
    if not method.beta:
        return F.cross_entropy(classifier.forward(adversarial).logits, y, label_smoothing=smoothing)
    clean, attacked = classifier.forward(x).logits, classifier.forward(adversarial).logits
    clean_loss = F.cross_entropy(clean, y, label_smoothing=smoothing)
    return clean_loss + method.beta * kl_divergence(clean, attacked).mean()
