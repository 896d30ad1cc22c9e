"""One finding: what a check, a probe, a rule of the verdict, an audit or a verification has to say."""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warn", "fail"]
"""Nothing wrong; worth knowing; a sign of trouble; a defect."""
LEVELS: tuple[Level, ...] = ("ok", "note", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """A named statement: how bad it is, what was found, what to do about it, and where the documentation explains it.

    `value` and `threshold` are the measured number and the limit it was compared with, where there is one.

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

    def __str__(self) -> str:
        message = self.message if not self.remedy or self.message.endswith(".") else f"{self.message}."
        remedy = f" {self.remedy}" if self.remedy and self.level != "ok" else ""
        return f"{self.level:<4}  {self.name}: {message if remedy else self.message}{remedy}"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.level == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, for a manifest or a script."""
        optional = {
            "remedy": self.remedy or None,
            "anchor": self.anchor or None,
            "value": self.value,
            "threshold": self.threshold,
        }
        given = {key: value for key, value in optional.items() if value is not None}
        return {"name": self.name, "level": self.level, "message": self.message, **given}
