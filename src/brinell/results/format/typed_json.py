"""Typed objects of the manifest: declared fields are type-checked when they are read, other keys are kept in `raw`."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from brinell.errors import RunError

R = TypeVar("R", bound="StoredObject")


@dataclass(frozen=True)
class StoredObject:
    """A JSON object of the manifest with typed fields; `raw` is the stored object, with keys of later versions.

    The annotation of a field says which JSON types it accepts; `metadata={"key": ...}` gives its JSON key if that
    differs from the field's name. A field without a default must be present. A tuple is stored as a list.
    """

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    @classmethod
    def read(cls: type[R], raw: Mapping[str, Any], path: str = "") -> R:
        """Convert a JSON object to this class; raise a RunError that names the first value of a wrong type."""
        values = {}
        for name, key, required, kinds in _declared(cls):  # type: ignore[arg-type] # classes are hashable
            if raw.get(key) is not None or required:
                values[name] = _read_value(raw.get(key), kinds, f"{path}{key}")
        return cls(raw=raw, **values)


@cache
def _declared(cls: type[StoredObject]) -> tuple[tuple[str, str, bool, Mapping[type, Any]], ...]:
    """Return the name, the JSON key, whether it must be present and the JSON types of every field of a class."""
    hints = get_type_hints(cls)
    return tuple(
        (spec.name, spec.metadata.get("key", spec.name), spec.default is MISSING, _kinds(hints[spec.name]))
        for spec in fields(cls)[1:]
    )


@cache
def _kinds(hint: Any) -> dict[type, Any]:
    """Return a dict from each JSON type that a field annotation accepts, except None, to the Python type to read."""
    kinds: dict[type, Any] = {}
    for kind in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        origin = get_origin(kind) or kind
        if kind is float:
            kinds |= {int: int, float: float}
        elif origin is Mapping or issubclass(origin, StoredObject):
            kinds[dict] = kind
        elif kind is not type(None):
            kinds[list if origin in (tuple, Sequence) else origin] = kind
    return kinds


def _read_value(value: Any, kinds: Mapping[type, Any], path: str, index: str = "") -> Any:
    # True and False are no numbers, although Python says so.
    if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
        raise RunError(
            expected=f"a manifest with {path} as {'a list of ' * bool(index)}{' or '.join(t.__name__ for t in kinds)}",
            got="none" if value is None else repr(value)[:60],
            remedy="The Run is refused: restore manifest.json from a copy, or evaluate into a new folder.",
        )
    kind = next(kind for json_type, kind in kinds.items() if isinstance(value, json_type))
    if isinstance(value, dict) and get_origin(kind) is None:
        return kind.read(value, "" if path == "identity" else f"{path}{index}.")
    if not isinstance(value, list) or get_args(kind) == (Any,):
        return value
    entries = tuple(_read_value(v, _kinds(get_args(kind)[0]), path, f"[{i}]") for i, v in enumerate(value))
    return entries if get_origin(kind) is tuple else value
