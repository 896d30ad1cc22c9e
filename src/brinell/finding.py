"""`Finding`, the type of all that a check, a probe, a rule of the verdict, an audit or a verification reports."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Level = Literal["ok", "info", "warn", "fail"]
"""ok: no problem; info: worth knowing; warn: a sign of a problem; fail: a defect."""
LEVELS: tuple[Level, ...] = ("ok", "info", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """A named statement: its level, what was found, what to do about it, and where the documentation explains it.

    `value` and `threshold` are the measured number and the limit it is compared with. `sample` is the id of the sample
    that the finding is about. Each is None where it does not apply.

    >>> print(Finding("zero gradients", "warn", "a quarter of the gradients is zero", "Use a logit loss."))
    warn  zero gradients: a quarter of the gradients is zero. Use a logit loss.
    """

    name: str
    level: Level
    message: str
    remedy: str = ""
    anchor: str = ""
    value: float | None = None
    threshold: float | None = None
    sample: int | None = None

    def __str__(self) -> str:
        remedy = f" {self.remedy}" if self.remedy and self.level != "ok" else ""
        stop = "." if remedy and not self.message.endswith(".") else ""
        return f"{self.level:<4}  {self.name}: {self.message}{stop}{remedy}"

    @property
    def ok(self) -> bool:
        """Whether the level is "ok": nothing is wrong."""
        return self.level == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set as a dict, for a manifest or a script."""
        given = {key: value for key, value in vars(self).items() if value is not None and value != ""}
        return {"name": self.name, "level": self.level, "message": self.message, **given}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Finding":
        """Return the finding of a stored check, or of a stored probe, which has the keys `sentence` and `mitigation`.

        An unknown level counts as a warning.

        >>> Finding.from_json({"name": "black box", "level": "warn", "sentence": "3 fell", "mitigation": "Use Square."})
        Finding(name='black box', level='warn', message='3 fell', remedy='Use Square.', ...)
        """
        level = stored["level"] if stored["level"] in LEVELS else "warn"
        message = stored["message"] if "message" in stored else stored["sentence"]
        remedy = stored.get("remedy") or stored.get("mitigation") or ""
        given = {key: stored.get(key) for key in ("value", "threshold", "sample")}
        return cls(stored["name"], cast(Level, level), message, remedy, stored.get("anchor") or "", **given)


def n_samples(count: int, before: str = "", kind: str = "sample") -> str:
    """Return the number with its noun.

    >>> n_samples(1), f"0 of {n_samples(1, kind='survivor')}", n_samples(2, "correct ")
    ('1 sample', '0 of 1 survivor', '2 correct samples')
    """
    return f"{count:,} {before}{kind}{'' if count == 1 else 's'}"


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level of all findings, "ok" if there are none.

    >>> worst([Finding("a", "ok", ""), Finding("b", "fail", ""), Finding("c", "warn", "")])
    'fail'
    """
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
