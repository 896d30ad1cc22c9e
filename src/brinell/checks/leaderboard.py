"""Check the restrictions that a leaderboard puts on models, so that attacks measure robustness.

A model that fails a check is not comparable with other models. "Limits:" lists what a check does not detect.
"""

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from brinell.checks import gradients as gradient_checks
from brinell.checks import model as model_checks
from brinell.checks.model import SAME
from brinell.core.attack import Requires
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import first_line
from brinell.finding import Finding
from brinell.ops import rng
from brinell.ops.rowwise import flat

GRADIENTS, DETERMINISTIC, NO_LOOP = "non-zero gradients", "deterministic forward", "no optimisation in forward"
# The losses whose gradients count: cross-entropy saturates in large logits, the margin does not.
LOSSES = ("ce", "margin")
# The share of points that may lack a gradient.
HALF = 0.5
# Passes over the same inputs, every other one after a pass over different inputs.
PASSES = 8
# A layer called more often than this in one pass is part of a loop.
LOOP = 10


def check_gradients(oracle: Oracle, threat: Threat, x: Tensor, y: Tensor) -> Finding:
    """Check that at least half of the points, clean or random inside the threat, have a finite, non-zero gradient.

    Method: a point lacks a gradient if each gradient, of cross-entropy and of the margin, is exactly zero or not
    finite. Misclassified points count only if no point is classified correctly.
    Limits: the check misses non-zero gradients that mislead attacks (noise, shattering); `brinell probe` finds them.
    """
    if not oracle.classifier.differentiable:
        return Finding(GRADIENTS, "fail", "the model is marked as a black box and has no gradients.")
    ball = threat.ball(torch.arange(len(x), device="cpu"), x.device)
    around = ball.inside(x, rng.keys(0, torch.arange(len(x), device=x.device)))
    lacking, standing = [], []
    try:
        for at in (x, around):
            answers = [oracle.query(at, y, y, loss, Requires.GRAD) for loss in LOSSES]
            slopes = torch.stack([flat(a.gradient) for a in answers])
            # The oracle gives zero where a gradient is no number.
            lacking.append((slopes == 0).all(2).all(0))
            standing.append(answers[0].logits.argmax(1) == y)
    except RuntimeError as error:
        reason = first_line(error).rstrip(".")
        return Finding(GRADIENTS, "fail", f"the model has no gradient with respect to its input ({reason}).")
    blind, counts = torch.cat(lacking), torch.cat(standing)
    share = float((blind[counts] if bool(counts.any()) else blind).float().mean())
    message = f"{100 * share:.0f} % of the points checked have no gradient (exactly zero or not finite)"
    return Finding(GRADIENTS, "ok" if share <= HALF else "fail", message + ("" if share <= HALF else "."))


def check_deterministic(oracle: Oracle, x: Tensor) -> Finding:
    """Check that the same inputs get the same logits, also after passes over other inputs.

    Limits: the check misses noise that is a function of the input, and noise too rare to occur in a few passes.
    """
    first, worst = oracle.output(x).logits, 0.0
    for i in range(PASSES):
        if i % 2:
            oracle.output(1 - x)
        again = oracle.output(x).logits
        difference = model_checks.relative_difference(first, again)
        worst = max(worst, difference) if bool(again.isfinite().all()) else float("inf")
    if worst <= SAME:
        return Finding(DETERMINISTIC, "ok", f"{PASSES} passes over the same inputs agree with the first pass")
    return Finding(
        DETERMINISTIC,
        "fail",
        f"repeated passes over the same inputs differ by {worst:.2g} of the logits' spread, or are not finite.",
    )


def check_no_loop(oracle: Oracle, x: Tensor) -> Finding:
    """Check that the forward pass computes no gradients.

    Method: calls of autograd are traced. A layer that one pass calls many times is reported, but is no fault: recurrent
    networks and integrators call layers repeatedly.
    Limits: the check misses searches without gradients, and gradients of other frameworks, compiled code and threads.
    """
    finding = gradient_checks.check_no_optimisation(oracle, x)
    if finding.level != "ok":
        return replace(finding, name=NO_LOOP, level="fail")
    layer, times = _busiest(oracle.classifier, x[:1])
    if times > LOOP:
        facts = f"the forward pass computes no gradients, but calls the layer {layer} {times} times"
        return Finding(NO_LOOP, "info", facts)
    return replace(finding, name=NO_LOOP)


def _busiest(classifier: Classifier, x: Tensor) -> tuple[str, int]:
    """Return the name of the layer with weights that one pass calls most often, and the number of calls."""
    module = classifier.torch_module
    if module is None:
        return "", 0
    calls = Counter[str]()
    layers = [(name, m) for name, m in module.named_modules() if next(m.parameters(recurse=False), None) is not None]
    hooks = [m.register_forward_pre_hook(lambda *_, name=name: calls.update([name])) for name, m in layers]
    try:
        with torch.no_grad():
            classifier.forward(x)
    finally:
        for hook in hooks:
            hook.remove()
    return calls.most_common(1)[0] if calls else ("", 0)


def check_restrictions(classifier: Classifier, problem: Problem, threat: Threat) -> list[Finding]:
    """Check RobustBench's restrictions: non-zero gradients, a deterministic forward pass, no optimisation loop.

    Reference: Croce et al. 2021, RobustBench, sec. 3.
    """
    oracle = Oracle(classifier, default_block(classifier.device))
    chunk = next(problem.chunks(oracle.block))
    model_checks.first_forward(oracle, chunk)
    x, y = chunk.x.to(classifier.device), chunk.y.to(classifier.device)
    with exact(classifier.device):
        return [check_gradients(oracle, threat, x, y), check_deterministic(oracle, x), check_no_loop(oracle, x)]
