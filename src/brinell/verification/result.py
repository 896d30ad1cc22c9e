"""The findings of a verification, sorted into failures, objections and notes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from brinell.errors import RunError
from brinell.finding import Finding

SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class VerificationFindings:
    """The findings of a verification: failures (about a sample), objections (about the Run) and notes (no fault)."""

    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no failures and no objections."""
        return all(finding.level != "fail" for finding in self.findings)

    @property
    def failures(self) -> dict[int, str]:
        """What is wrong with each failed sample, by sample id."""
        return {f.sample: f.message for f in self.findings if f.level == "fail" and f.sample is not None}

    @property
    def objections(self) -> tuple[str, ...]:
        """What is wrong with the Run as a whole, one message per objection."""
        return tuple(f.message for f in self.findings if f.level == "fail" and f.sample is None)

    @property
    def notes(self) -> tuple[str, ...]:
        """The messages of the notes, which are worth knowing but no fault."""
        return tuple(f.message for f in self.findings if f.level == "info")

    def first_failures(self) -> str:
        """Return the first five failures as text."""
        return ", ".join(f"sample {i} ({message})" for i, message in list(self.failures.items())[:SHOWN])

    def described(self, text: str, *more_wrong: str) -> str:
        """Return `text`, then "Refused:" with the objections and `more_wrong` (if there are any), then the notes."""
        wrong = " ".join([*self.objections, *more_wrong])
        more = [*([f"Refused: {wrong}"] if wrong else []), *self.notes]
        return f"{text}. {' '.join(more)}" if more else text


def refused(expected: str, got: object) -> RunError:
    """Return the RunError, with these texts, for a Run that cannot be verified."""
    return RunError(expected=expected, got=str(got), remedy="Restore the Run from a copy, or evaluate again.")


def failures(by_sample: Mapping[int, str]) -> list[Finding]:
    """Return a "fail" finding for every failed sample; `by_sample` is what is wrong, by sample id."""
    return [Finding("sample", "fail", message, sample=i) for i, message in by_sample.items()]


def objection(name: str, message: str) -> Finding:
    """Return a "fail" finding about a whole Run."""
    return Finding(name, "fail", message)


def note(name: str, message: str) -> Finding:
    """Return an "info" finding, which is no fault."""
    return Finding(name, "info", message)


def as_notes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings as notes ("info"), for callers that do not count them as faults."""
    return [note(finding.name, finding.message) for finding in findings]
