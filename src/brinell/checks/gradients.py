"""Check for signs that an attack may fail for reasons other than robustness. The findings are stored in the Run."""

import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import backward, grad

from brinell.checks.model import SAME, relative_difference
from brinell.core.attack import Requires
from brinell.core.plan import Plan, Stages
from brinell.core.ranking import rank_targets
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import ModelError, error_text, first_line
from brinell.finding import Finding
from brinell.ops import rng
from brinell.ops.losses import LOSSES
from brinell.ops.rowwise import flat

# Two independent averages of the gradient should point the same way at least this much (cosine, median over samples).
SETTLED = 0.9
LEVELS = 255
# Inputs that are asked for one by one, and by how much of their spread the logits may differ then (convolutions of
# other shapes round differently, in reduced precision most).
ALONE, ROUNDED = 8, 0.05
# Code that computes gradients: calling it inside forward means that the model optimises while it predicts.
_GRADIENT_CODE = {grad.__code__, backward.__code__}
# Where every way to a gradient ends.
_ENGINE = "run_backward"
_GRADIENT_MODULES = ("torch._functorch.eager_transforms", "torch.func")


def check_no_optimisation(oracle: Oracle, x: Tensor) -> Finding:
    """Check that the forward pass computes no gradients."""
    seen: set[str] = set()
    engine: set[str] = set()

    def watch(frame: FrameType, event: str, what: Any) -> None:
        if event == "c_call" and getattr(what, "__name__", "") == _ENGINE:
            engine.add(frame.f_code.co_name)
        if event != "call":
            return
        inner = frame.f_globals.get("__name__") in _GRADIENT_MODULES and "grad" in frame.f_code.co_name
        if frame.f_code in _GRADIENT_CODE or inner:
            seen.add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        oracle.output(x[:1])
    finally:
        _profile_again(before)
    seen = seen or engine
    if not seen:
        return Finding("optimisation in forward", "ok", "the forward pass computes no gradients")
    return Finding(
        "optimisation in forward",
        "warn",
        f"the forward pass itself computes gradients ({', '.join(sorted(seen))}): the defence adapts to each input, "
        "and attacks that treat it as a fixed function may fail; write an attack that is adapted to this defence.",
    )


def _profile_again(before: Any) -> None:
    """Restore the profiler `before`; a cProfile object is not a function and must be enabled instead."""
    if before is None or callable(before):
        sys.setprofile(before)
    else:
        before.enable()


def check_half_weights(oracle: Oracle) -> Finding:
    """Check that no weights are in half precision, whose rounding makes logits and gradients inexact."""
    kinds = sorted(oracle.classifier.dtypes() & {"float16", "bfloat16"})
    if not kinds:
        return Finding("half-precision weights", "ok", "no weights in float16 or bfloat16")
    return Finding(
        "half-precision weights",
        "warn",
        f"weights in {', '.join(kinds)}: rounding flattens the loss and makes a model look robust; call net.float().",
    )


def check_batch_shape(oracle: Oracle, threat: Threat, x: Tensor, logits: Tensor) -> Finding:
    """Check that the answer does not depend on the batch size, at clean inputs and around them (off the 8-bit grid).

    Rounding makes small differences; larger ones, or another class of a clean input, are a warning. A shift of the
    logits or another temperature is none.
    """
    n, alone = min(len(x), ALONE), Oracle(oracle.classifier, 1)
    around = ball_around(threat, x[:n]).inside(x[:n], rng.keys(0, torch.arange(n, device=x.device)))
    try:
        one = alone.output(x[:n]).logits
        off = alone.output(around).logits
    except Exception as error:  # whatever the model itself raises
        why = error_text(error)
        return Finding("batch shape", "warn", f"the model fails on a batch of one input ({why}); make net(x[:1]) work.")
    changed = int((one.argmax(1) != logits[:n].argmax(1)).sum())
    pairs = (logits[:n], one), (oracle.output(around).logits, off)
    worst = max(relative_difference(_unscaled(a), _unscaled(b)) for a, b in pairs)
    if not changed and worst <= ROUNDED:
        return Finding("batch shape", "ok", "answers do not depend on the batch shape", value=worst)
    if relative_difference(logits, oracle.output(x).logits) > SAME:
        return Finding(
            "batch shape", "ok", "not checked: the model is randomised, so its outputs differ at any batch size"
        )
    return Finding(
        "batch shape",
        "warn",
        f"in a batch of one, {changed} of {n} clean inputs get another class, and logits change by {worst:.2g} of "
        "their spread: predictions depend on the batch shape. Remove operations over the batch from the model.",
        value=worst,
        threshold=ROUNDED,
    )


def _unscaled(logits: Tensor) -> Tensor:
    """Return the logits minus the smallest of their row, divided by their spread.

    With two classes that would leave nothing but the decision: there the median spread divides all rows.
    """
    low = logits.amin(1, keepdim=True)
    spread = logits.amax(1, keepdim=True) - low
    return (logits - low) / (spread.median() if logits.shape[1] == 2 else spread).clamp(min=1e-30)


def _losses(stages: Stages) -> dict[str, tuple[int, ...]]:
    """Return the losses whose gradients the stages follow: a dict from loss to the target ranks of its stage."""
    own = [s for s in stages if s.via is None and s.attack.requires is not Requires.LOGITS]
    followed = [s for s in own if not LOSSES[s.attack.loss].matches]
    return {s.attack.loss: s.ranks for s in followed}


def ball_around(threat: Threat, x: Tensor) -> Ball:
    """Return the balls of the threat; without a radius, one level of 8 bits everywhere, or as far in that norm."""
    ball = threat.ball(torch.arange(len(x), device="cpu"), x.device)
    if threat.unlimited:
        return replace(ball, eps=torch.full_like(ball.eps, threat.norm.diameter(flat(x).shape[1]) / LEVELS))
    return ball


def check_zero_gradients(
    oracle: Oracle, plan: Plan, threat: Threat, x: Tensor, y: Tensor, logits: Tensor
) -> list[Finding]:
    """Check that every loss of the plan has a non-zero gradient at the clean points and in the balls around them.

    Only points that are still classified correctly count: a misclassified point needs no gradient, and the gradient of
    the DLR loss is zero where the true class has the third-largest logit.
    """
    around = ball_around(threat, x).inside(x, rng.keys(0, torch.arange(len(x), device=x.device)))
    dead: dict[str, tuple[float, float]] = {}
    for loss, ranks in _losses(plan.stages_for(threat)).items():
        target = rank_targets(logits, y, ranks[:1] if LOSSES[loss].targeted else ())[:, 0]
        answers = [oracle.query(at, y, target, loss, Requires.GRAD) for at in (x, around)]
        zero = torch.cat([flat(a.gradient) == 0 for a in answers])
        standing = torch.cat([a.logits.argmax(1) == y for a in answers])
        zero = zero[standing] if bool(standing.any()) else zero
        dead[loss] = (float(zero.all(1).float().mean()), float(zero.float().mean()))
    # A plan that saves passes vouches for models without any such sign only.
    alive = plan.strength != "audited" and any(rows == 0 for rows, _ in dead.values())
    return [_zero_check(loss, *shares, others=alive) for loss, shares in dead.items()]


def _zero_check(loss: str, rows: float, coordinates: float, others: bool) -> Finding:
    name = f"zero gradient ({loss})"
    if rows == 0:
        return Finding(
            name, "ok", f"{100 * coordinates:.1f} % of the coordinates of the {loss} gradient are exactly zero"
        )
    message = (
        f"the gradient of the {loss} loss is exactly zero at {100 * rows:.0f} % of the points checked "
        f"({100 * coordinates:.0f} % of all coordinates): it gives no direction there (saturated or masked gradients)"
    )
    if others:
        return Finding(name, "info", f"{message}; another loss of the plan has gradients everywhere.")
    return Finding(
        name,
        "warn",
        f"{message}. Remove quantisation and saturation, wrap them with brinell.models.bpda, or use the plan square.",
    )


def check_expectation(oracle: Oracle, stages: Stages, x: Tensor, y: Tensor, logits: Tensor) -> list[Finding]:
    """Check, if a stage averages gradients of a randomised model, that two independent averages agree."""
    averaging = [s for s in stages if s.via is None and s.eot > 1 and s.attack.requires is not Requires.LOGITS]
    return [_settled(oracle, s.attack.loss, s.eot, s.ranks, x, y, logits) for s in averaging[:1]]


def _settled(
    oracle: Oracle, loss: str, draws: int, ranks: tuple[int, ...], x: Tensor, y: Tensor, logits: Tensor
) -> Finding:
    target = rank_targets(logits, y, ranks[:1])[:, 0]
    a, b = (flat(oracle.query(x, y, target, loss, Requires.GRAD, draws).gradient) for _ in range(2))
    cosine = float(torch.cosine_similarity(a, b, dim=1).median())
    if cosine >= SETTLED:
        return Finding("expectation", "ok", f"two averages of {draws} gradients agree (cosine {cosine:.2f})")
    # The noise of a mean falls with the number of draws: cos = s / (s + v / n).
    share = max(cosine, 1e-3)
    wanted = int(draws * (1 - share) / share * SETTLED / (1 - SETTLED)) + 1
    return Finding(
        "expectation",
        "warn",
        f"two averages of {draws} gradients differ (cosine {cosine:.2f}): average over about {wanted} draws "
        "(brinell.Eot).",
    )


def check_few_classes(notes: list[str]) -> Finding:
    """Return a finding that says whether the plan was changed because the model has few classes."""
    if not any("classes" in note for note in notes):
        return Finding("few classes", "ok", "the model has enough classes for every loss of the plan")
    return Finding("few classes", "info", "the plan was adapted to the model's few classes; see the notes of the Run.")


def run_gradient_checks(
    oracle: Oracle, plan: Plan, threat: Threat, x: Tensor, y: Tensor, logits: Tensor, notes: list[str]
) -> list[Finding]:
    """Run every check of this file that applies to the plan."""
    checks = [
        check_no_optimisation(oracle, x),
        check_half_weights(oracle),
        check_batch_shape(oracle, threat, x, logits),
        check_few_classes(notes),
    ]
    if not plan.needs_gradients:
        return checks
    try:
        return [
            *checks,
            *check_zero_gradients(oracle, plan, threat, x, y, logits),
            *check_expectation(oracle, plan.stages_for(threat), x, y, logits),
        ]
    except RuntimeError as error:
        raise ModelError(
            expected="a model with gradients with respect to its input",
            got=first_line(error),
            remedy="Remove torch.no_grad(), detach() and non-differentiable parts from forward, wrap them with "
            "brinell.models.bpda, or use a plan without gradients (blackbox).",
        ) from error
