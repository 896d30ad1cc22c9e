"""The conformance check of classifiers."""

import torch
from torch import Tensor

from brinell.core.model import Classifier
from brinell.ops.rowwise import flat, rows
from brinell.testing.norms import require


def check_classifier(classifier: Classifier, x: Tensor) -> None:
    """Check that a classifier evaluates rows independently and reproducibly, and has gradients if `differentiable`.

    `x` holds at least four inputs in [0, 1].

    >>> from brinell.models.wrap import wrap
    >>> net = torch.nn.Linear(12, 3).eval()
    >>> check_classifier(wrap(net), torch.rand(4, 12))
    """
    require(isinstance(classifier, Classifier), f"{classifier!r} lacks members of brinell.core.model.Classifier")
    require(len(x) >= 4, "pass at least four inputs as x")
    require(not classifier.modes(), f"modules in train mode: {classifier.modes()}")
    require(classifier.fingerprint == classifier.fingerprint, "the fingerprint changes from call to call")
    before = x.clone()
    with torch.no_grad():
        logits = classifier.forward(x).logits
        again, flipped, part = (classifier.forward(v).logits for v in (x, x.flip(0), x[1:3]))
    require(torch.equal(x, before), "forward changes its input in place")
    sound = logits.ndim == 2 and len(logits) == len(x) and logits.shape[1] >= 2
    require(sound, f"logits have shape {tuple(logits.shape)}, not (inputs, classes)")
    require(logits.dtype == torch.float32 and logits.isfinite().all(), "logits must be finite float32 numbers")
    slack = 1e-5 * float(logits.abs().max())
    require(torch.allclose(logits, again, 1e-4, slack), "two passes over the same input differ")
    alike = torch.allclose(logits.flip(0), flipped, 1e-4, slack)
    require(alike, "the logits of a row depend on its position in the batch")
    require(torch.allclose(logits[1:3], part, 1e-4, slack), "the logits of a row depend on the other rows")
    if classifier.differentiable:
        _check_gradient(classifier, x)


def _check_gradient(classifier: Classifier, x: Tensor) -> None:
    point = x.detach().clone().requires_grad_()
    logits = classifier.forward(point).logits
    require(logits.requires_grad, "the classifier declares itself differentiable, but forward detaches the gradient")
    grad = torch.autograd.grad(logits[:, 0].sum(), point)[0]
    require(grad.isfinite().all(), "gradients must be finite")
    # For most rows a short step along the gradient changes the logit as predicted; a few may cross a kink.
    slope = flat(grad).norm(dim=1)
    h = 1e-2
    step = rows(h / slope.clamp(min=1e-12), grad) * grad
    with torch.no_grad():
        up, down = (classifier.forward(v).logits[:, 0] for v in (x + step / 2, x - step / 2))
    off = ((up - down) / h - slope).abs() / (slope + 1e-6)
    require((slope == 0).all() or off.median() < 0.2, "gradients do not agree with finite differences")
