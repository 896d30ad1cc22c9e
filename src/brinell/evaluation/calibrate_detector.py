"""Set the threshold of a detector so that few clean inputs are rejected."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from brinell.arguments import DataLike
from brinell.checks import model as model_checks
from brinell.core.model import Output
from brinell.core.references import References
from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError
from brinell.evaluation import coerce
from brinell.models.detector import Detector
from brinell.models.wrap import TorchClassifier
from brinell.ops.losses import margin
from brinell.ops.rowwise import concat

CHUNK = 4096
# Natural inputs kept of every class, for attacks that imitate one.
KEPT = 4


def threshold_at(scores: Tensor, rate: float) -> float:
    """Return the smallest score such that at most a share `rate` of all scores is larger.

    >>> threshold_at(torch.tensor([4.0, 1.0, 3.0, 2.0]), 0.25), threshold_at(torch.tensor([1.0, 2.0, 2.0, 2.0]), 0.5)
    (3.0, 2.0)
    """
    allowed = math.floor(rate * len(scores) + 1e-9)
    return float(scores.sort().values[len(scores) - 1 - allowed])


def calibrated(classifier: TorchClassifier, problem: DataLike, rate: float = 0.05) -> TorchClassifier:
    """Return the classifier with a detector threshold that rejects at most the share `rate` of the samples.

    Method: the threshold is the smallest score such that at most this share of samples has a larger score. Scores are
    then scaled so that their 5 % and 95 % quantiles differ by the median margin of the correctly classified samples:
    the detector's and the classifier's terms of an attack's objective then have the same scale. No sample changes
    between accepted and rejected. A few samples of every class with low scores are kept as references for attacks that
    imitate a natural input. Do not calibrate on samples that will be evaluated. Cost: one forward per sample.

    >>> import brinell
    >>> from brinell.models.demo import demo_net
    >>> noisy = brinell.wrap(demo_net(), detector=lambda x: x.diff(dim=3).abs().mean((1, 2, 3)))
    >>> guarded = calibrated(noisy, brinell.data.load("demo", 100), rate=0.1)
    >>> int((guarded.forward(brinell.data.load("demo", 100).x).reject > 0).sum())
    10
    """
    model, data = coerce.as_classifier(classifier), coerce.as_problem(problem)
    if not isinstance(model, TorchClassifier) or model.detector is None:
        raise ModelError(
            expected="a classifier with a detector",
            got=f"{model.name or type(model).__name__}, which has no detector",
            remedy="Add a detector: brinell.wrap(net, detector=…).",
        )
    if not 0 <= rate < 1:
        raise InputError(expected="a rate of at least 0 and below 1", got=f"{rate}", remedy="Write 0.05 for 5 %.")
    model_checks.check_train_mode(model)
    plain = replace(model, detector=replace(model.detector, threshold=0.0, scale=1.0))
    with precisions.exact(model.device):
        oracle = Oracle(plain, default_block(model.device))
        parts = [(oracle.output(c.x.to(model.device)), c.y.to(model.device)) for c in data.chunks(CHUNK)]
    out, y = concat([o for o, _ in parts]), torch.cat([labels for _, labels in parts])
    return replace(model, detector=_set(model.detector, out, y, rate))


def _set(detector: Detector, out: Output, y: Tensor, rate: float) -> Detector:
    scores = _finite(out)
    threshold = threshold_at(scores, rate)
    right = (out.logits.argmax(1) == y) & (scores <= threshold)
    ranked = scores.sort().values
    spread = float(ranked[int(0.95 * (len(ranked) - 1))] - ranked[int(0.05 * (len(ranked) - 1))])
    usual = float(margin(out.logits, y)[right].abs().median()) if bool(right.any()) else 0.0
    scale = usual / spread if spread > 0 and usual > 0 else 1.0
    kept = _least_suspicious(scores, y, right)
    features = None if out.features is None else out.features[kept]
    references = References(y[kept], out.logits[kept], features) if len(kept) else None
    return replace(detector, threshold=threshold, scale=scale, rate=rate, samples=len(scores), references=references)


def _finite(out: Output) -> Tensor:
    assert out.reject is not None
    bad = int((~out.reject.isfinite()).sum())
    if bad:
        raise ModelError(
            expected="a detector with finite scores for clean inputs",
            got=f"{bad} of {len(out.reject)} scores that are NaN or infinite",
            remedy="Look for a division by zero, a log(0) or an overflow in the detector.",
        )
    return out.reject


def _least_suspicious(scores: Tensor, y: Tensor, right: Tensor) -> Tensor:
    """Return the positions of a few samples per class: accepted, correctly classified, with the smallest scores."""
    order = scores.argsort(stable=True)
    order = order[right[order]]
    picked = [order[y[order] == k][:KEPT] for k in y.unique().tolist()]
    return torch.cat(picked) if picked else order
