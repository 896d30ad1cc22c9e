"""Whether a manifest has the shape its readers rely on: what is there is of the right kind."""

from collections.abc import Mapping
from typing import Any

NUMBER = (int, float)
# By dotted path: what a value must be where there is one; null is none. Old Runs and foreign ones may lack any of them.
KINDS: dict[str, tuple[type, ...]] = {
    "identity": (dict,),
    "identity.threat": (dict,),
    "identity.threat.norm": (str,),
    "identity.threat.eps": (int, float, list),
    "identity.threat.eps_text": (str,),
    "identity.threat.box": (list,),
    "identity.threat.mask": (dict,),
    "identity.goal": (str,),
    "identity.plan": (dict,),
    "identity.plan.name": (str,),
    "identity.plan.strength": (str,),
    "identity.plan.description": (str,),
    "identity.plan.citation": (str,),
    "identity.plan.stages": (list,),
    "identity.plan.draws": (int,),
    "identity.model": (dict,),
    "identity.model.fingerprint": (str,),
    "identity.model.name": (str,),
    "identity.model.classes": (int,),
    "identity.data": (dict,),
    "identity.data.fingerprint": (str,),
    "identity.data.n": (int,),
    "identity.data.name": (str,),
    "identity.data.sources": (list,),
    "identity.seed": (int,),
    "identity.precision": (str,),
    "environment": (dict,),
    "resumed": (list,),
    "merged_from": (list,),
    "sample_ids": (list,),
    "created": (str,),
    "finished": (bool,),
    "images": (bool,),
    "wall_seconds": NUMBER,
}
# Lists, and what every entry must have; nothing: it is a text.
LISTED: dict[str, dict[str, Any]] = {
    "checks": {"name": str, "level": str, "message": str},
    "probes": {"attack": str, "items": {"name": str, "level": str, "sentence": str}},
    "notes": {},
}


def misshapen(manifest: Mapping[str, Any]) -> tuple[str, str] | None:
    """What was expected and what is there instead, of the first value that is of the wrong kind; None for a sound one.

    >>> misshapen({"identity": {"data": {"n": "many"}}})
    ('data.n as int', "'many'")
    >>> misshapen({"identity": {"data": {"n": 3}}, "notes": ["a"]})
    """
    for path, kinds in KINDS.items():
        for value in _at(manifest, path.split(".")):
            # True is no number, though Python says so.
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                names = " or ".join(k.__name__ for k in kinds)
                return f"{path.removeprefix('identity.')} as {names}", _short(value)
    stages = _list(manifest, "identity.plan.stages")
    if not all(isinstance(s, dict) and isinstance(s.get("name"), str) for s in stages):
        return "named stages", _short(stages)
    radii = _list(manifest, "identity.threat.eps")
    if not all(isinstance(e, NUMBER) and not isinstance(e, bool) for e in radii):
        return "threat.eps as numbers", _short(radii)
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in _list(manifest, "sample_ids")):
        return "sample_ids as whole numbers", _short(manifest["sample_ids"])
    for field, parts in LISTED.items():
        held = manifest.get(field) or []
        if not isinstance(held, list) or not all(_has(entry, parts) for entry in held):
            return f"{field} as Brinell writes them", _short(held)
    return None


def _at(value: Any, parts: list[str]) -> list[Any]:
    """The value at a path, in a list, or an empty list where any part is absent."""
    for part in parts:
        if not isinstance(value, Mapping) or part not in value:
            return []
        value = value[part]
    return [] if value is None else [value]


def _list(manifest: Mapping[str, Any], path: str) -> list[Any]:
    """The entries of a list, none where there is something else."""
    return [entry for value in _at(manifest, path.split(".")) if isinstance(value, list) for entry in value]


def _has(entry: object, parts: dict[str, Any]) -> bool:
    """Whether an entry has these parts: texts, or lists of entries with parts of their own."""
    if not parts:
        return isinstance(entry, str)
    if not isinstance(entry, dict):
        return False
    return all(
        isinstance(entry.get(name), str)
        if kind is str
        else isinstance(entry.get(name), list) and all(_has(inner, kind) for inner in entry[name])
        for name, kind in parts.items()
    )


def _short(value: Any) -> str:
    return repr(value)[:60]
