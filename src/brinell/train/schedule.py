"""The learning rate and the radius as functions of the step number, without state."""

import math

# As in the papers: a tenth of the peak after 60 of 100 epochs and a hundredth after 90.
MILESTONES, DROP = (0.6, 0.9), 0.1
# One cycle (Smith & Topin 2018, with the numbers of torch's scheduler): start at 1/25 of the peak, reach the peak after
# 30 % of the steps, then fall to a ten-thousandth of the first value.
RISE, FIRST, LAST = 0.3, 1 / 25, 1e-4
SCHEDULES, ANNEALS = ("multistep", "one-cycle", "constant"), ("cosine", "linear")


def multistep(step: int, total: int) -> float:
    """Return the learning rate as a share of its peak: divided by ten after 60 % and again after 90 % of all steps.

    >>> [multistep(s, 100) for s in (59, 60)]
    [1.0, 0.1]
    """
    # Integers, because 0.6 × 5 is not 3 in floating point.
    passed = sum(1000 * step >= round(1000 * m) * total for m in MILESTONES)
    return DROP**passed


def one_cycle(step: int, total: int, anneal: str = "cosine") -> float:
    """Return the learning rate at a step as a share of its peak: it rises, then falls, along half a cosine or a line.

    >>> round(one_cycle(0, 100), 3), one_cycle(29, 100)
    (0.04, 1.0)
    """
    top, end = RISE * total - 1, total - 1
    if step <= top:
        return _between(FIRST, 1.0, step / top if top else 1.0, anneal)
    # With three steps or fewer there is no rise.
    started = max(top, 0.0)
    return _between(1.0, FIRST * LAST, (step - started) / max(end - started, 1.0), anneal)


def _between(a: float, b: float, share: float, anneal: str) -> float:
    if anneal == "linear":
        return a + (b - a) * share
    return b + (a - b) / 2 * (1 + math.cos(math.pi * share))


def learning_rate(schedule: str, anneal: str, peak: float, step: int, total: int) -> float:
    """Return the learning rate at step number `step` (counted from 0) of `total` steps."""
    if schedule == "constant":
        return peak
    return peak * (multistep(step, total) if schedule == "multistep" else one_cycle(step, total, anneal))


def radius(eps: float, step: int, per_epoch: int, ramp: float) -> float:
    """Return the radius at a step: it grows linearly to eps over the first `ramp` epochs of `per_epoch` steps.

    >>> radius(0.1, 49, 100, ramp=1.0), radius(0.1, 500, 100, ramp=1.0), radius(0.1, 0, 100, ramp=0.0)
    (0.05, 0.1, 0.1)
    """
    return eps * min(1.0, (step + 1) / (ramp * per_epoch)) if ramp > 0 else eps
