"""Records of a leaderboard, one model under one threat each: read, published elsewhere, or made of a Run."""

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from brinell.errors import InputError, RunError, told
from brinell.leaderboard.records import ABOUT, PERCENTAGES, RECORD, Interval, Record
from brinell.results.format.manifest import lookup
from brinell.results.run import Run
from brinell.results.statistics import Proportion
from brinell.verification.bundle import digest

__all__ = [
    "ABOUT",
    "PERCENTAGES",
    "RECORD",
    "Record",
    "find",
    "of_run",
    "published",
    "ranked",
    "read",
    "read_folder",
    "with_bound",
    "with_facts",
]

PUBLISHED = "robustbench.csv"
# How the table of the public leaderboard writes that a number is not known.
NOTHING = ("", "null")


def read(path: str | os.PathLike[str]) -> Record:
    """The record in a file; in a folder dataset/threat/ the file of the public leaderboard will do as well."""
    place = Path(path)
    above = place.resolve().parent
    known = {"dataset": above.parent.name, "threat": above.name, "name": place.stem, "status": "published"}
    try:
        stored = json.loads(place.read_bytes())
        return Record.from_json(stored, **({} if "id" in stored else known))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(
            expected=f"a record of a leaderboard in {place}",
            got=told(error),
            remedy="Restore the file, or measure the model again.",
        ) from error


def read_folder(folder: str | os.PathLike[str]) -> list[Record]:
    """Every record in a folder and those in it, as dataset/threat/name.json or beside Runs, in the order of the names.

    Other JSON files are left alone: a record is an object that tells a clean accuracy.
    """
    return [read(path) for path in sorted(Path(folder).rglob("*.json")) if _is_record(path)]


def _is_record(path: Path) -> bool:
    try:
        stored = json.loads(path.read_bytes())
    except ValueError:
        return path.name == RECORD  # a damaged record is told of, not passed over
    return isinstance(stored, dict) and "clean_acc" in stored


def ranked(records: Iterable[Record]) -> list[Record]:
    """The records by the best known robust accuracy, the highest first; those without one at the end.

    >>> [r.name for r in ranked(r for r in published() if (r.dataset, r.threat) == ("cifar10", "L2"))][0]
    'Wang2023Better_WRN-70-16'
    """
    return sorted(records, key=lambda r: (r.best is None, -(r.best or 0.0), r.key))


@cache
def _published() -> tuple[Record, ...]:
    text = (resources("brinell.results") / PUBLISHED).read_text(encoding="utf-8")
    return tuple(_line(row) for row in csv.DictReader(text.splitlines()))


def published() -> list[Record]:
    """The 236 records of the public leaderboard RobustBench, as they were published; none was run again.

    >>> carmon = find(published(), "cifar10/Linf/Carmon2019Unlabeled")
    >>> carmon.status, carmon.clean, carmon.best, carmon.year
    ('published', 89.69, 59.53, 2019)
    """
    return list(_published())


def find(records: Iterable[Record], key: str) -> Record | None:
    """The first record of this key, "data/threat/model", or None."""
    return next((r for r in records if r.key == key), None)


def _line(row: Mapping[str, str]) -> Record:
    flags = {"true": True, "false": False, "": None}
    told: dict[str, Any] = {k: row[k] for k in ("dataset", "threat", "name", "link", "architecture", "venue")}
    numbers: dict[str, Any] = {k: None if row[k] in NOTHING else float(row[k]) for k in PERCENTAGES}
    return Record(
        **told,
        **numbers,
        eps=row["eps"] or None,
        extra_data=flags[row["extra_data"]],
        unreliable=flags[row["unreliable"]],
        forward_passes=int(row["forward_passes"]),
        status="published",
    )


def of_run(run: Run, dataset: str, threat: str, name: str, about: Mapping[str, Any] | None = None) -> Record:
    """What a finished Run says about a model, as a record; `about` are further fields, of those in ABOUT."""
    with_facts(Record(dataset, threat, name), about)
    if not run.finished:
        raise RunError(
            expected="a finished Run to make a record of", got=f"{run.path}, unfinished", remedy="Resume it first."
        )
    identity, verdict = run.manifest["identity"], run.verdict
    if lookup(identity, "threat.mask") is not None:
        raise RunError(
            expected="a Run under a threat that others have too",
            got=f"{run.path}, with a mask of its own",
            remedy="Evaluate without the mask.",
        )
    measured = Record(
        dataset,
        threat,
        name,
        eps=identity["threat"].get("eps_text"),
        clean=_percent(run.clean_accuracy.value),
        autoattack=_percent(run.robust_accuracy.value),
        unreliable=verdict.level != "reliable",
        n=run.clean_accuracy.n,
        interval=_interval(run.robust_accuracy),
        clean_interval=_interval(run.clean_accuracy),
        verdict=verdict.level,
        reasons=tuple(map(str, verdict.reasons)),
        plan=identity["plan"]["name"],
        seed=identity["seed"],
        run=str(run.path),
        run_hash=digest(run.path),
        fingerprint=identity["model"]["fingerprint"],
        cost=run.cost,
        date=run.manifest["created"],
        version=lookup(run.manifest, "environment.brinell"),
    )
    return with_facts(measured, about)


def with_facts(record: Record, about: Mapping[str, Any] | None) -> Record:
    """The record with what is told about its model; what is measured cannot be told.

    >>> with_facts(Record("demo", "Linf", "Mine"), {"venue": "ICML 2026", "reported": 61.5}).year
    2026
    """
    unknown = sorted(set(about or {}) - set(ABOUT))
    if unknown:
        raise InputError(
            expected=f"facts about a model among {', '.join(ABOUT)}",
            got=", ".join(unknown),
            remedy="Everything else is measured.",
        )
    return replace(record, **(about or {})).check()


def with_bound(record: Record, bound: Proportion) -> Record:
    """The record after somebody else checked it; what other attacks found more is the best known accuracy."""
    more = record.autoattack is None or _percent(bound.value) < record.autoattack
    return replace(record, status="verified", external=_percent(bound.value) if more else record.external)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _interval(p: Proportion) -> Interval:
    return _percent(p.low), _percent(p.high)
