"""What a user declares about a system, in a TOML file: purpose, data, threat, units, levels and risks."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from brinell.errors import InputError, did_you_mean, error_text
from brinell.untrusted import cleaned, parse_number, parse_toml, read_toml

MEASURES = ("clean", "robust", "certified")
LEVEL_KEYS = ("measure", "norm", "eps", "at_least")
ALL = 100


class Level(NamedTuple):
    """A declared level: the measure must be at least `at_least` per cent; a norm or radius of None means every one."""

    measure: str
    at_least: float
    norm: str | None = None
    eps: str | None = None

    @property
    def radius(self) -> float | None:
        """The radius as a number."""
        return None if self.eps is None else parse_number(self.eps)

    def __str__(self) -> str:
        norm = f" under {self.norm.capitalize()}" if self.norm else ""
        radius = f" at eps = {self.eps}" if self.eps else ""
        return f"{self.measure} accuracy{norm}{radius} of at least {self.at_least:g}\u00a0%"


class Declared(NamedTuple):
    """The declarations: texts and lists by section and field (empty where missing), the unit, and the levels."""

    fields: dict[str, dict[str, Any]]
    unit: str
    per_unit: float
    levels: tuple[Level, ...] = ()
    file: bool = False


def template() -> str:
    """Return the text of the TOML file to fill in."""
    return (files("brinell.dossier") / "files" / "system.toml").read_text(encoding="utf-8")


def declared(path: Path | None = None) -> Declared:
    """Return the declarations in a TOML file; without a file, every field is missing.

    >>> declared().fields["system"]["name"], declared().per_unit
    ('', 255.0)
    """
    known = parse_toml(template())
    try:
        given = {} if path is None else cleaned(read_toml(path))
    except (OSError, ValueError) as error:
        raise _bad(
            path, error_text(error), "Correct the file; brinell dossier --template prints an empty one."
        ) from None
    levels = given.pop("levels", [])
    _check_names(path, "section", given, known)
    fields = {section: _fields(path, section, given.get(section, {}), known[section]) for section in known}
    unit = fields.pop("units")
    per_unit = unit["per_unit"]
    if isinstance(per_unit, bool) or not isinstance(per_unit, int | float) or not 0 < per_unit < float("inf"):
        raise _bad(path, f"units.per_unit = {per_unit!r}", "Write a positive number, such as 255.")
    if not isinstance(levels, list):
        raise _bad(path, "[levels]", "Write [[levels]], once for each level.")
    return Declared(fields, unit["name"], float(per_unit), tuple(_level(path, x) for x in levels), path is not None)


def missing_fields(fields: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the fields that are empty, as section.field."""
    return [f"{section}.{name}" for section, values in fields.items() for name, value in values.items() if not value]


def _fields(path: Path | None, section: str, given: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _bad(path, f"{section} = {given!r}"[:80], f"Write [{section}], and its fields on the lines below.")
    _check_names(path, "field", given, known)
    return {
        name: _value(path, f"{section}.{name}", given.get(name, default), default) for name, default in known.items()
    }


def _value(path: Path | None, name: str, value: Any, default: Any) -> Any:
    if isinstance(default, list):
        values = value if isinstance(value, list) else [value]
        return [_value(path, name, v, "") for v in values]
    if isinstance(default, str) and isinstance(value, dict | list):
        raise _bad(path, f"{name} = {value!r}"[:80], f'Write a text: {name.rpartition(".")[2]} = "…".')
    return str(value).strip() if isinstance(default, str) else value


def _level(path: Path | None, given: Any) -> Level:
    if not isinstance(given, dict):
        raise _bad(path, f"the level {given!r}"[:80], "Write [[levels]], once for each level.")
    _check_names(path, "field of a level", given, LEVEL_KEYS)
    measure, percent = given.get("measure", "robust"), given.get("at_least")
    if measure not in MEASURES:
        raise _bad(path, f"measure = {measure!r}"[:80], f"Use one of {', '.join(MEASURES)}.")
    # 0.4 would be 0.4 %, which nearly every model meets.
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 1 <= percent <= ALL:
        raise _bad(path, f"at_least = {percent!r}"[:80], "Write a number from 1 to 100: 40 for 40 %.")
    norm, eps = (None if given.get(key) is None else str(given[key]) for key in ("norm", "eps"))
    try:
        return Level(measure, float(percent), norm, eps if eps is None or parse_number(eps) >= 0 else None)
    except ValueError as error:
        raise _bad(path, f"eps = {eps!r}: {error}"[:80], 'Write eps = "8/255" or eps = 0.5.') from None


def _check_names(path: Path | None, what: str, given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            raise _bad(path, f"the unknown {what} {name!r}"[:80], did_you_mean(name, known))


def _bad(path: Path | None, got: str, remedy: str) -> InputError:
    return InputError(expected=f"a description of the system in {path}", got=got, remedy=remedy)
