"""The default folders of Runs: their names, and which of them holds an evaluation."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from brinell.errors import RunError
from brinell.results.format.manifest import MANIFEST, Manifest, decode, differences, material

AUTO = "auto"
"""As the folder of a Run: a folder in `runs/`, named after the evaluation."""
PARENT = "runs"
# So that the four parts fit into a file name.
LONGEST = 50


def default_name(identity: Mapping[str, Any]) -> str:
    """Return the name of the default folder of an evaluation: model, data, norm, radius and plan.

    >>> threat, plan = {"norm": "Linf", "eps": 8 / 255, "eps_text": "8/255"}, {"name": "fast"}
    >>> default_name({"model": {"name": "My Net"}, "data": {"name": "cifar10"}, "threat": threat, "plan": plan})
    'My_Net-cifar10-linf-8_255-fast'
    """
    threat = identity["threat"]
    eps = threat.get("eps_text") or threat.get("eps")
    size = "per_sample" if isinstance(eps, list) else eps if isinstance(eps, str) else f"{eps:.4g}"
    norm = str(threat.get("norm") or "threat").lower()
    names = (identity["model"]["name"] or "model", identity["data"]["name"] or "data", norm, size)
    return "-".join(_safe(part) for part in (*names, identity["plan"]["name"]))


def default_folder(identity: Mapping[str, Any], parent: Path | None = None, given: Collection[str] = ()) -> Path:
    """Return the default folder of an evaluation: the one that holds it, else the first free one (…, …-2, …-3).

    `given` are as for `holds`.
    """
    parent = parent or Path(PARENT)
    found, name = stored_folder(identity, parent, given), default_name(identity)
    if found is not None:
        return found
    taken, k = {folder.name for folder in _numbered(parent, name)}, 2
    if name not in taken:
        return parent / name
    while f"{name}-{k}" in taken:
        k += 1
    return parent / f"{name}-{k}"


def stored_folder(identity: Mapping[str, Any], parent: Path, given: Collection[str] = ()) -> Path | None:
    """Return the default folder that holds a Run of this very evaluation, the newest if there are several; or None."""
    folders = reversed(_numbered(parent, default_name(identity)))
    return next((folder for folder in folders if holds(folder, identity, given) is not None), None)


def holds(folder: Path, identity: Mapping[str, Any], given: Collection[str] = ()) -> Manifest | None:
    """Return the manifest of the Run in a folder if the Run is of this evaluation (names may differ), else None.

    `given` are fields of the identity that nobody asked for, such as a precision chosen here: they may differ too.
    """
    if not (folder / MANIFEST).exists():
        return None
    try:
        stored = decode(folder)
    except RunError:
        return None
    fields = differences(stored.identity.raw, identity)
    return (
        None if material({name: pair for name, pair in fields.items() if name.split(".")[0] not in given}) else stored
    )


def _safe(part: str) -> str:
    """Return a part of a file name that every system accepts."""
    return re.sub(r"[^\w.+=]+", "_", part, flags=re.ASCII).strip("._")[:LONGEST] or "_"


def _numbered(parent: Path, name: str) -> list[Path]:
    """Return the existing folders NAME, NAME-2, NAME-3, … in this order."""
    pattern = re.compile(rf"{re.escape(name)}(?:-([1-9]\d*))?")
    matched = ((pattern.fullmatch(folder.name), folder) for folder in (parent.iterdir() if parent.is_dir() else ()))
    numbered = [(int(match[1] or 1), folder) for match, folder in matched if match]
    return [folder for _, folder in sorted(numbered)]
