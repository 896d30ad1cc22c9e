"""The release gate: whether a Run reaches the required verdict and robust accuracy."""

from brinell.errors import InputError, one_of
from brinell.finding import Finding
from brinell.results import Run
from brinell.results.verdict import FEWEST, VERDICT_LEVELS, VerdictLevel

REQUIRABLE = VERDICT_LEVELS[:-1]
"""The verdicts that a gate may require; an invalid Run never passes."""


def required_verdict(fail_under: float | None, require: str | None) -> VerdictLevel | None:
    """Return the worst verdict that passes: `require` if given, else "reliable" if `fail_under` is given, else None.

    >>> required_verdict(45.0, None), required_verdict(45.0, "upper-bound"), required_verdict(None, None)
    ('reliable', 'upper bound', None)
    """
    if require is not None:
        names: tuple[str, ...] = REQUIRABLE
        known = require.replace("-", " ")
        return VERDICT_LEVELS[names.index(one_of("a verdict to require", known, names))]
    return None if fail_under is None else VERDICT_LEVELS[0]


def check_gate(run: Run, fail_under: float | None = None, require: str | None = None) -> list[Finding]:
    """Return one finding for each reason to refuse a Run: it is unfinished, has a bad verdict or a low accuracy.

    Without `fail_under` and `require` every Run passes. With `fail_under` or `require`, an unfinished Run never passes.
    The lower bound of the 95 % interval of the robust accuracy must reach `fail_under`, in per cent.

    >>> run = Run.open("tests/results/golden_run_v1")
    >>> [f.name for f in check_gate(run, 45.0)], check_gate(run, 5.0, "suspicious")
    (['verdict', 'robust accuracy of at least 45 %'], [])
    """
    check_percent(fail_under)
    wanted = required_verdict(fail_under, require)
    if wanted is None:
        return []
    findings = []
    if not run.finished:
        message = (
            f"{run.path}: expected a finished Run, got one that was interrupted or is still running. Its robust "
            "accuracy is only an upper bound."
        )
        findings.append(Finding("finished", "fail", message, "Continue with brinell evaluate --resume."))
    if VERDICT_LEVELS.index(run.verdict.level) > VERDICT_LEVELS.index(wanted):
        findings.append(_verdict(run, wanted))
    if fail_under is not None and 100 * run.robust_accuracy.low < fail_under:
        bound = f"the lower bound of its 95 % interval is below {fail_under:g} %"
        message = f"{run.path}: robust accuracy {run.robust_accuracy}; {bound}"
        findings.append(Finding(accuracy_name(fail_under), "fail", message))
    return findings


def accuracy_name(percent: float) -> str:
    """Return the name of the finding about a robust accuracy that is too low."""
    return f"robust accuracy of at least {percent:g} %"


def check_percent(percent: float | None) -> None:
    """Raise an InputError for a fraction such as 0.45 instead of 45: with 0.45 %, nearly every Run would pass."""
    if percent is not None and not (percent == 0 or 1 <= percent <= 100):
        raise InputError(
            expected="--fail-under in per cent: 0, or a number from 1 to 100",
            got=f"{percent:g}",
            remedy="Write 45 for 45 %.",
        )


def _verdict(run: Run, wanted: VerdictLevel) -> Finding:
    level = run.verdict.level
    if not run.finished:
        remedy = "Finish the Run first"
    elif 0 < run.clean_accuracy.n < FEWEST and level == "upper bound":
        remedy = f"Below {FEWEST} samples no attack makes a Run with survivors reliable: evaluate more"
    else:
        remedy = "Correct the causes that the verdict names and evaluate again"
    if level in REQUIRABLE and run.finished:
        remedy += f", or accept it with --require {level.replace(' ', '-')}"
    accepted = " or ".join(VERDICT_LEVELS[: VERDICT_LEVELS.index(wanted) + 1])
    return Finding("verdict", "fail", f"{run.path}: expected the verdict {accepted}, got {run.verdict}", f"{remedy}.")
