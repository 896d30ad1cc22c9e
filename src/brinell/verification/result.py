"""The findings of a verification, sorted into failures, objections and notes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from brinell.errors import RunError
from brinell.finding import Finding

SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class VerificationFindings:
    """The findings of a verification. A failure is about one sample, an objection about the Run; a note is no fault."""

    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are no failures and no objections."""
        return all(finding.level != "fail" for finding in self.findings)

    @property
    def failures(self) -> dict[int, str]:
        """What is wrong with each failed sample, by id."""
        return {f.sample: f.message for f in self.findings if f.level == "fail" and f.sample is not None}

    @property
    def objections(self) -> tuple[str, ...]:
        """What is wrong with the Run as a whole."""
        return tuple(f.message for f in self.findings if f.level == "fail" and f.sample is None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing and no fault."""
        return tuple(f.message for f in self.findings if f.level == "info")

    def first_failures(self) -> str:
        """Return the first failures as text."""
        return ", ".join(f"sample {i} ({message})" for i, message in list(self.failures.items())[:SHOWN])

    def described(self, text: str, *more_wrong: str) -> str:
        """Return the text followed by objections, `more_wrong` and notes."""
        wrong = " ".join([*self.objections, *more_wrong])
        more = [*([f"Refused: {wrong}"] if wrong else []), *self.notes]
        return f"{text}. {' '.join(more)}" if more else text


def refused(expected: str, got: object) -> RunError:
    """Return the error for a Run that cannot be verified."""
    return RunError(expected=expected, got=str(got), remedy="The Run is refused.")


def failures(by_sample: Mapping[int, str]) -> list[Finding]:
    """Return a finding for every failed sample."""
    return [Finding("sample", "fail", message, sample=i) for i, message in by_sample.items()]


def objection(name: str, message: str) -> Finding:
    """Return a finding against a whole Run."""
    return Finding(name, "fail", message)


def note(name: str, message: str) -> Finding:
    """Return a finding that is no fault."""
    return Finding(name, "info", message)


def as_notes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings as notes, for callers to whom they are no fault."""
    return [note(finding.name, finding.message) for finding in findings]
