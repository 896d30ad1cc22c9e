"""Whether a release may pass: what speaks against a Run, each reason with what to do."""

from collections.abc import Sequence
from typing import NamedTuple

from brinell.errors import InputError, one_of
from brinell.results import Run
from brinell.results.verdict import VERDICT_LEVELS, VerdictLevel

REQUIRABLE = VERDICT_LEVELS[:-1]
"""The verdicts a gate may be content with; an invalid Run never passes."""


class Objection(NamedTuple):
    """What was looked at, and the sentence that speaks against the Run."""

    about: str
    sentence: str


def least(fail_under: float | None, require: str | None) -> VerdictLevel | None:
    """The least verdict that passes: the one asked for, "reliable" where only a percentage is, else none.

    >>> least(45.0, None), least(45.0, "suspicious"), least(None, None)
    ('reliable', 'suspicious', None)
    """
    if require is not None:
        names: tuple[str, ...] = REQUIRABLE
        return VERDICT_LEVELS[names.index(one_of("a verdict to require", require, names))]
    return None if fail_under is None else VERDICT_LEVELS[0]


def below(runs: Sequence[Run], percent: float | None) -> list[str]:
    """A sentence for every Run whose robust accuracy may be under so many per cent: its lower bound is.

    >>> run = Run.open("tests/results/golden_run_v1")
    >>> below([run], 5.0), below([run], 45.0)[0][-50:]
    ([], 'the lower bound of its 95 % interval is below 45 %')
    """
    if percent is None:
        return []
    why = f"the lower bound of its 95 % interval is below {percent:g} %"
    return [
        f"{run.path}: robust accuracy {run.robust_accuracy}; {why}"
        for run in runs
        if 100 * run.robust_accuracy.low < percent
    ]


def objections(run: Run, fail_under: float | None = None, require: str | None = None) -> list[Objection]:
    """All that keeps a Run from passing: it is not finished, its verdict is under what is required, it is too low.

    With neither a percentage nor a verdict nothing is asked of the Run. An unfinished Run never passes.

    >>> run = Run.open("tests/results/golden_run_v1")
    >>> [o.about for o in objections(run, 45.0)], objections(run, 5.0, "suspicious")
    (['verdict', 'robust accuracy of at least 45 %'], [])
    """
    check_percent(fail_under)
    wanted = least(fail_under, require)
    if wanted is None:
        return []
    found = []
    if not run.finished:
        found.append(
            Objection(
                "finished",
                f"{run.path}: expected a finished Run, got one that was interrupted or is still being written, so its "
                "robust accuracy is only an upper bound. Go on with brinell evaluate --resume.",
            )
        )
    if VERDICT_LEVELS.index(run.verdict.level) > VERDICT_LEVELS.index(wanted):
        found.append(Objection("verdict", f"{run.path}: {_unfit(run, wanted)}"))
    return [*found, *(Objection(bar(fail_under), low) for low in below([run], fail_under))]


def bar(percent: float | None) -> str:
    """The name of the case that the percentage decides."""
    return f"robust accuracy of at least {percent:g} %"


def check_percent(percent: float | None) -> None:
    """Per cent, not a share: 0.45 would let nearly everything pass."""
    if percent is not None and not (percent == 0 or 1 <= percent <= 100):
        raise InputError(
            expected="--fail-under in per cent, from 1 to 100", got=f"{percent:g}", remedy="Write 45 for 45 %."
        )


def _unfit(run: Run, wanted: VerdictLevel) -> str:
    level = run.verdict.level
    remedy = "Do what the reasons say and evaluate again"
    if level in REQUIRABLE:
        remedy += f", or accept it with --require {level}"
    accepted = " or ".join(VERDICT_LEVELS[: VERDICT_LEVELS.index(wanted) + 1])
    return f"expected the verdict {accepted}, got {run.verdict} {remedy}."
