"""Typed objects of the manifest: declared fields are checked when they are read, and every other key is kept.

An object keeps the JSON it was read from in `raw`, so that keys of later versions survive reading and writing.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from brinell.errors import RunError

R = TypeVar("R", bound="StoredObject")


def stored(*types: type, key: str = "", default: Any = None, entries: Any = None, required: bool = False) -> Any:
    """Declare a stored field: its JSON types, its key where the name differs, its default, the type of list entries.

    A type may be a StoredObject. A list of StoredObjects is read as a tuple.
    """
    return field(default=default, metadata={"types": types, "key": key, "entries": entries, "required": required})


@dataclass(frozen=True)
class StoredObject:
    """A JSON object of the manifest: typed fields and `raw`, the object as stored."""

    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    @classmethod
    def read(cls: type[R], raw: Mapping[str, Any], path: str = "") -> R:
        """Return the typed object of a JSON object, or a RunError that names the first value of a wrong type."""
        values = {}
        for spec in _stored_fields(cls):
            key, where = _key(spec), f"{path}{_key(spec)}"
            if raw.get(key) is not None:
                values[spec.name] = _read_value(raw[key], spec, where)
            elif spec.metadata["required"]:
                raise _wrong_type(where, spec.metadata["types"], None)
        return cls(raw=raw, **values)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object: every key as it was read, and the fields that have changed since."""
        given = {_key(spec): (getattr(self, spec.name), spec.default) for spec in _stored_fields(type(self))}
        changed = {
            key: _to_json(value)
            for key, (value, default) in given.items()
            if self.raw.get(key) is not None or value != default
        }
        return {**self.raw, **changed}


def _stored_fields(kind: type[StoredObject]) -> list[Field[Any]]:
    return [spec for spec in fields(kind) if "types" in spec.metadata]


def _key(spec: Field[Any]) -> str:
    return spec.metadata["key"] or spec.name


def _read_value(value: Any, spec: Field[Any], path: str) -> Any:
    types, entries = spec.metadata["types"], spec.metadata["entries"]
    if issubclass(types[0], StoredObject):
        if not isinstance(value, Mapping):
            raise _wrong_type(path, (dict,), value)
        return types[0].read(value, "" if path == "identity" else f"{path}.")
    if not _is(value, types):
        raise _wrong_type(path, types, value)
    if entries is None or not isinstance(value, list):
        return value
    if isinstance(entries, type) and issubclass(entries, StoredObject):
        if not all(isinstance(entry, Mapping) for entry in value):
            raise _wrong_type(path, (dict,), value, "a list of ")
        return tuple(entries.read(entry, f"{path}[{i}].") for i, entry in enumerate(value))
    if not all(_is(entry, entries) for entry in value):
        raise _wrong_type(path, entries if isinstance(entries, tuple) else (entries,), value, "a list of ")
    return value


def _is(value: Any, types: Any) -> bool:
    """Whether a value has one of the types; True and False are no numbers, although Python says so."""
    return isinstance(value, types) and (not isinstance(value, bool) or types in (bool, (bool,)))


def _to_json(value: Any) -> Any:
    if isinstance(value, StoredObject):
        return value.to_json()
    return [_to_json(entry) for entry in value] if isinstance(value, tuple) else value


def _wrong_type(path: str, types: tuple[type, ...], value: Any, prefix: str = "") -> RunError:
    return RunError(
        expected=f"a manifest with {path} as {prefix}{' or '.join(t.__name__ for t in types)}",
        got="none" if value is None else repr(value)[:60],
        remedy="The Run is refused: restore the manifest from a copy, or evaluate into a new folder.",
    )
