"""The manifest of a Run: what was evaluated, where, and what was noticed; never a percentage.

Layout, all plain JSON::

    schema_version   int, see brinell.results.SCHEMA_VERSION
    identity         what makes two evaluations the same; a Run is resumed only under an equal identity
      brinell_format   1
      threat           {norm, eps, box}
      goal             str
      plan             {name, description, citation, strength: "weak" | "standard",
                        stages: [{name, attack: {...}, hash}]}
      model            {fingerprint, name, classes}
      data             {fingerprint, n, name}; after a merge also sources: [{fingerprint, n, name}]
      seed, precision, block
    environment      {brinell: version, torch, driver, git commit, hardware, ...}
    resumed          [{at, environment}], one entry for each resume under another environment
    merged_from      [{data, environment, created, finished, wall_seconds}], only after a merge
    checks           [{name, level: "ok" | "info" | "warn" | "fail", message}]
    notes            [str], such as adaptations of the plan to the model
    created          UTC time, ISO 8601
    finished         bool
    wall_seconds     float, or null while unknown
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from brinell.errors import InputError, RunError
from brinell.results.format.schema import SCHEMA_VERSION
from brinell.results.format.validate import misshapen

MANIFEST = "manifest.json"
ABSENT = "nothing"
# How things are called does not make two evaluations different.
FOR_PEOPLE = ("threat.eps_text", "model.name", "data.name")


def new_manifest(identity: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a Run that starts now.

    >>> manifest = new_manifest({"seed": 0}, {"brinell": "1.0"})
    >>> manifest["schema_version"], manifest["finished"], manifest["identity"]
    (1, False, {'seed': 0})
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": dict(identity),
        "environment": dict(environment),
        "checks": [],
        "notes": [],
        "created": now(),
        "finished": False,
        "wall_seconds": None,
    }


def now() -> str:
    """Return the UTC time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def encode(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest as strict JSON."""
    try:
        return (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            expected="a manifest of plain, finite JSON values",
            got=str(error),
            remedy="Use str, int, finite float, bool, None, list and dict only.",
        ) from error


def decode(path: Path) -> dict[str, Any]:
    """Return the manifest in the folder, or refuse a folder that has none that can be read."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_bytes(), parse_constant=_no_number)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            expected=f"a Run with a manifest at {file}",
            got="no such file",
            remedy="Name the folder that an evaluation wrote (brinell evaluate --out FOLDER).",
        ) from None
    except RecursionError as error:
        raise _damaged(file, "JSON nested without end") from error
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        raise _damaged(file, "JSON without an identity")
    version = manifest.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version > SCHEMA_VERSION:
        raise RunError(
            expected=f"a Run of schema version {SCHEMA_VERSION} or earlier",
            got=f"version {version} in {file}",
            remedy="Update Brinell to read it.",
        )
    if wrong := misshapen(manifest):
        raise RunError(
            expected=f"a manifest with {wrong[0]}",
            got=f"{wrong[1]} in {file}",
            remedy="It is refused: restore the file from a copy, or evaluate into a new folder.",
        )
    return manifest


def _no_number(name: str) -> float:
    raise ValueError(f"{name}, which is no JSON")


def attack_hash(body: Mapping[str, Any]) -> str:
    """Everything that decides the outcome of a stage, as one short hash.

    >>> attack_hash({"name": "fgsm"}) == attack_hash({"name": "fgsm"}) != attack_hash({"name": "pgd"})
    True
    """
    text = json.dumps(body, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return every field in which two identities differ, by dotted path, with both values.

    >>> differences({"threat": {"eps": 1, "norm": "L2"}, "seed": 0}, {"threat": {"eps": 2, "norm": "L2"}})
    {'seed': (0, 'nothing'), 'threat.eps': (1, 2)}
    """
    left, right = (_flatten(json.loads(encode(side)), "") for side in (a, b))
    pairs = {path: (left.get(path, ABSENT), right.get(path, ABSENT)) for path in sorted({*left, *right})}
    return {path: (old, new) for path, (old, new) in pairs.items() if old != new}


def material(fields: Mapping[str, Any]) -> bool:
    """Whether any of the differing fields makes two evaluations different; names do not."""
    return any(path not in FOR_PEOPLE for path in fields)


def lookup(manifest: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or None where any part is absent.

    >>> lookup({"identity": {"seed": 3}}, "identity.seed"), lookup({}, "identity.seed")
    (3, None)
    """
    value: Any = manifest
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flatten(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict) and (value or not path):
        parts = [_flatten(v, f"{path}.{k}" if path else k) for k, v in value.items()]
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        parts = [_flatten(v, f"{path}[{i}]") for i, v in enumerate(value)]
    else:
        return {path: value}
    return {k: v for part in parts for k, v in part.items()}


def _damaged(file: Path, got: str) -> RunError:
    return RunError(
        expected=f"readable JSON in {file}",
        got=got,
        remedy="Restore the file from a copy, or evaluate into a new folder.",
    )
