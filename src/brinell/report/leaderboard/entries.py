"""What stands on a leaderboard: records, some of them with the Run behind their numbers."""

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brinell.errors import InputError, RunError
from brinell.results.manifest import MANIFEST, lookup
from brinell.results.records import PERCENTAGES, RECORD, Record, of_run, published, read, read_folder
from brinell.results.run import Run

Place = str | os.PathLike[str]
# What a record beside a Run cannot say otherwise than the Run does.
MEASURED = ("run_hash", "clean", "autoattack", "n", "interval")
# What files of others may hold; anything else is refused before a page is made of it.
TEXTS = ("title", "link", "authors", "venue", "architecture")
PERHAPS_TEXTS = ("footnote", "eps", "verdict", "plan", "date", "version", "run_hash", "fingerprint")
FLAGS = ("extra_data", "unreliable")
LISTS_OF_TEXTS = ("reasons", "restrictions")
LISTS_OF_NUMBERS = ("interval", "clean_interval")


@dataclass(frozen=True)
class Entry:
    """A record, and the Run behind it where it is at hand."""

    record: Record
    run: Run | None = None

    @property
    def external(self) -> bool:
        """Whether attacks other than the leaderboard's found the best known number."""
        return self.record.external is not None

    @property
    def ranked(self) -> bool:
        """Whether the number takes part in the ranking: a Run only if its verdict believes it."""
        return self.record.best is not None and self.record.verdict in (None, "reliable")


def collect(runs: Iterable[Place] = (), folder: Place | None = None, with_published: bool = True) -> list[Entry]:
    """Published records, then those of a folder, then Runs; of equal ones the last counts.

    Two are equal where the model, the threat and the radius are, and the Run or, without one, the status. Runs with a
    record in the folder are read as Runs.

    >>> len(collect())
    236
    """
    found = [Entry(r) for r in published()] if with_published else []
    if folder is not None:
        found += [Entry(r) for r in _records(Path(folder))]
        found += [of_folder(path.parent) for path in sorted(Path(folder).rglob(RECORD)) if _beside_run(path)]
    found += [of_folder(Path(run)) for run in runs]
    for entry in found:
        _refuse_nonsense(entry.record)
    kept = {(e.record.key, e.record.eps, e.record.run_hash or e.record.status): e for e in found}
    return list(kept.values())


def of_folder(path: Path) -> Entry:
    """The Run in a folder as an entry: with the record beside it, or else with what its manifest says."""
    run = Run.open(path)
    beside = run.path / RECORD
    if not beside.exists():
        return Entry(_told(run), run)
    record = read(beside)
    measured = of_run(run, record.dataset, record.threat, record.name)
    wrong = [f for f in MEASURED if getattr(record, f) not in (None, getattr(measured, f))]
    if wrong:
        raise RunError(
            expected=f"a record of the Run it lies beside, {run.path}",
            got=", ".join(f"{f} {getattr(record, f)} instead of {getattr(measured, f)}" for f in wrong),
            remedy=f"Write {RECORD} again, or remove it.",
        )
    return Entry(record, run)


def _refuse_nonsense(r: Record) -> None:
    """Refuse values of other kinds than a record's, above all numbers that are none."""
    numbers: dict[str, Any] = {f: getattr(r, f) for f in (*PERCENTAGES, "n", "seed", "forward_passes")}
    numbers |= {f"{f}[{i}]": v for f in LISTS_OF_NUMBERS for i, v in enumerate(getattr(r, f) or ())}
    numbers |= {f"cost.{f}": getattr(r.cost, f, None) for f in ("forwards", "backwards", "seconds")}
    texts: dict[str, Any] = {f: getattr(r, f) for f in TEXTS}
    texts |= {f: getattr(r, f) or "" for f in PERHAPS_TEXTS}
    texts |= {f"{f}[{i}]": v for f in LISTS_OF_TEXTS for i, v in enumerate(getattr(r, f))}
    wrong = [f for f, v in numbers.items() if v is not None and not _finite(v)]
    wrong += [f for f, v in texts.items() if not isinstance(v, str)]
    wrong += [f for f in FLAGS if not isinstance(getattr(r, f), bool | None)]
    wrong += [f for f in LISTS_OF_NUMBERS if len(getattr(r, f) or (0, 0)) != 2]
    if wrong:
        raise RunError(
            expected=f"a record of {r.key} with texts, finite numbers and flags",
            got=f"other values in {', '.join(wrong)}",
            remedy="Correct the file, or leave it out.",
        )


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _records(folder: Path) -> list[Record]:
    if not folder.is_dir():
        raise InputError(expected="a folder of records", got=str(folder), remedy="Check the path.")
    return read_folder(folder)


def _beside_run(path: Path) -> bool:
    return (path.parent / MANIFEST).exists()


def _told(run: Run) -> Record:
    """A record from the manifest alone: a model of the zoo has a name that says its data, others name it themselves."""
    threat: dict[str, Any] = lookup(run.manifest, "identity.threat") or {}
    if threat.get("eps") is None:
        raise RunError(
            expected="a Run at one radius for a leaderboard",
            got=f"{run.path}, which has none",
            remedy="Evaluate at a radius (--eps).",
        )
    *above, name = str(lookup(run.manifest, "identity.model.name") or run.path.name).split("/")
    dataset = above[0] if len(above) == 2 else str(lookup(run.manifest, "identity.data.name") or "unnamed")
    record = of_run(run, _part(dataset), _part(str(threat["norm"])), _part(name))
    return record if record.eps is not None else replace(record, eps=f"{threat['eps']:.6g}")


def _part(text: str) -> str:
    """Text as a part of a file's name, which a record asks for."""
    return re.sub(r"[^\w.+ -]+", "-", Path(text).name if "." in text else text).strip(" .-+") or "unnamed"
