"""Check after the attacks: walks of a few gradient steps from a few survivors show what attacks of full size missed."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.checks.differences import disagreement, in_the_direction_of_an_attack
from brinell.core.attack import Requires, Response
from brinell.core.criterion import Criterion
from brinell.core.threat import Ball
from brinell.engine.oracle import Oracle
from brinell.engine.precision import FLOAT32
from brinell.finding import Finding, n_samples
from brinell.models.bpda import has_bpda
from brinell.ops.losses import likeliest_wrong
from brinell.ops.rowwise import rows

SMALLER, GRADIENTS, RUNNER_UP = "smaller radius", "gradients at survivors", "runner-up class"
# Steps of the walk through growing radii, and of the walk to the runner-up class.
GROWING, FAR = 8, 10
# The walk to the runner-up begins with steps of this size in every coordinate; each is shorter by this factor.
FIRST, SHORTER = 0.25, 0.6
# Fewer survivors say nothing about the runner-up class, and at least this share should reach it.
FEW, REACHED = 8, 0.1
# A walk may break one survivor: attacks miss a sample now and then, and a walk is one more start.
EXCUSED = 1


@dataclass(frozen=True)
class Survivors:
    """Samples that no attack broke, with their labels and the allowed perturbations."""

    x: Tensor
    y: Tensor
    ball: Ball


def gradient_at(oracle: Oracle, x: Tensor, y: Tensor, target: Tensor | None = None) -> Response:
    """Return the answer with the gradient of the margin, or of the margin towards a class, in float32."""
    none = torch.full_like(y, -1)
    loss = "margin" if target is None else "margin-towards"
    return oracle.in_precision(FLOAT32).query(x, y, none if target is None else target, loss, Requires.GRAD)


@dataclass(frozen=True)
class Walk:
    """A walk through growing radii: the mask of broken samples at each radius, and the points at the last."""

    broken: list[Tensor]
    end: Tensor


def walk_growing(oracle: Oracle, criterion: Criterion, s: Survivors) -> Walk:
    """Take a few gradient steps, whose radius grows from a part of eps to eps."""
    none, x, broken = torch.full_like(s.y, -1), s.x, list[Tensor]()
    for step in range(1, GROWING + 1):
        r = gradient_at(oracle, x, s.y)
        smaller = replace(s.ball, eps=s.ball.eps * step / GROWING)
        x = smaller.project(s.x, x + rows(s.ball.eps * 2 / GROWING, x) * s.ball.steepest(r.gradient))
        broken.append(criterion.reached(oracle.output(x), s.y, none) & s.ball.contains(s.x, x))
    return Walk(broken, x)


def check_growing_radii(oracle: Oracle, criterion: Criterion, s: Survivors) -> tuple[Finding, Tensor]:
    """Check that hardly any survivor breaks at a smaller radius; return the finding and the points where the walk ends.

    A model may be weak near its inputs only, where attacks that take steps of the size of eps never look.
    """
    walk = walk_growing(oracle, criterion, s)
    return _smaller(int(torch.stack(walk.broken).any(0).sum()), len(s.x)), walk.end


def _smaller(broken: int, n: int) -> Finding:
    if broken <= EXCUSED:
        what = f"a walk through growing radii broke {broken or 'none'} of {n_samples(n, kind='survivor')}"
        return Finding(SMALLER, "ok", what, value=broken / n)
    return Finding(
        SMALLER,
        "warn",
        f"{broken} of {n} survivors broke in a walk of {GROWING} gradient steps through growing radii: the "
        "attacks missed them",
        "The model may be weak close to its inputs only: attack with smaller radii too, or search for the smallest "
        "perturbation (brinell curve).",
        value=broken / n,
        threshold=EXCUSED / n,
    )


def check_gradients(oracle: Oracle, s: Survivors) -> Finding:
    """Check that the gradients at survivors are right: a gradient that is wrong for a few classes protects just these.

    Method: finite differences in the direction of an attack, as `brinell.checks.differences` makes them before it.
    """
    r = gradient_at(oracle, s.x, s.y)
    step = in_the_direction_of_an_attack(s.ball, r.gradient)
    found = disagreement(oracle.in_precision(FLOAT32), s.x, s.y, r.gradient, [step], "")
    counted = f"{found.reversed} of {n_samples(found.n, kind='survivor')}"
    if not found.wrong:
        return Finding(GRADIENTS, "ok", f"the gradient is reversed at {counted}", value=found.median)
    return Finding(
        GRADIENTS,
        "info" if has_bpda(oracle.classifier.torch_module) else "warn",
        f"changes of the margin contradict its gradient at survivors: median disagreement {found.median:.2f}, "
        f"reversed at {counted} (0 is perfect, 1 unrelated, 2 reversed)",
        "Samples may have survived because their gradients are wrong: repair the gradient (brinell.models.bpda), or "
        "use a plan without gradients (blackbox).",
        value=found.median,
    )


def check_runner_up(oracle: Oracle, s: Survivors) -> list[Finding]:
    """Check that survivors can become the class with the second-largest logit, far outside their balls.

    A class that can never win, just below the largest logit, draws every attack to itself: margins and targets then say
    nothing about the classes that the model does predict. Nothing for few survivors or two classes.
    """
    clean = oracle.output(s.x).logits
    if len(s.x) < FEW or clean.shape[1] == 2:
        return []
    target = likeliest_wrong(clean, s.y, 1)[:, 0]
    x, reached = s.x, torch.zeros_like(s.y, dtype=torch.bool)
    for step in range(FAR):
        r = gradient_at(oracle, x, s.y, target)
        reached |= r.logits.argmax(1) == target
        # The sign, whatever the norm: the way is free, and steps in L1 would move single coordinates.
        x = s.ball.apply(x, FIRST * SHORTER**step * s.ball.masked(r.gradient.sign()))
    reached |= oracle.output(x).logits.argmax(1) == target
    return [_runner_up(int(reached.sum()), len(s.x))]


def _runner_up(reached: int, n: int) -> Finding:
    what = f"{reached} of {n} survivors become their runner-up class far outside their balls"
    if reached > REACHED * n:
        return Finding(RUNNER_UP, "ok", what, value=reached / n)
    return Finding(
        RUNNER_UP,
        "warn",
        f"only {what}: classes that never win may draw the attacks to themselves, or gradients lead nowhere",
        "Remove outputs that are never predicted, or use decisions alone (hop-skip-jump).",
        value=reached / n,
        threshold=REACHED,
    )
