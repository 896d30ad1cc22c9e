"""The entries of a leaderboard: records, some of them with their Run."""

import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from brinell.errors import BrinellError, InputError, RunError
from brinell.leaderboard.records import RECORD, Record, of_run, published, read, record_files
from brinell.results.format.manifest import MANIFEST
from brinell.results.run import Run
from brinell.verification.consistency import same_radius

Place = str | os.PathLike[str]
# Fields in which a record beside a Run must agree with the Run.
MEASURED = (
    "run_hash", "clean", "autoattack", "n", "interval", "clean_interval", "unreliable", "verdict", "plan", "seed",
    "fingerprint",
)  # fmt: skip


@dataclass(frozen=True)
class BoardEntry:
    """A line of a board: a record, and its Run if available; `repeated` says that another board counts the record."""

    record: Record
    run: Run | None = None
    repeated: bool = False

    @property
    def external(self) -> bool:
        """Whether attacks other than the leaderboard's reached the best known accuracy."""
        return self.record.external is not None

    @property
    def ranked(self) -> bool:
        """Whether the entry has an accuracy and a reliable verdict; without a Run it needs no verdict."""
        return self.record.best is not None and self.record.verdict in (None, "reliable")


def collect(runs: Iterable[Place] = (), folder: Place | None = None, with_published: bool = True) -> list[BoardEntry]:
    """Return entries of published records, of records in `folder`, and of `runs`; a later entry replaces an equal one.

    Two entries are equal if model, threat, radius, and Run (or status, without a Run) are equal. If the folder has a
    Run beside a record, the entry holds the record and the Run. A bad record in the folder is left out with a warning.

    >>> len(collect())
    236
    """
    entries = [BoardEntry(r) for r in published()] if with_published else []
    if folder is not None:
        if not Path(folder).is_dir():
            raise InputError(
                expected="a folder of records",
                got=f"{folder}, which is not a folder",
                remedy="Pass a folder with --records.",
            )
        entries += _readable(Path(folder), alone=not entries)
    entries += [_checked(entry_of_run(Path(run))) for run in runs]
    return list({(e.record.key, e.record.eps, e.record.run_hash or e.record.status): e for e in entries}.values())


def _readable(folder: Path, alone: bool) -> list[BoardEntry]:
    """Return the entries of a folder of records; warn of each bad record, and raise its error if all are bad."""
    beside = (path.parent for path in sorted(folder.rglob(RECORD)))
    sources: list[Callable[[], BoardEntry]] = [partial(_entry_of_file, path) for path in record_files(folder)]
    sources += [partial(entry_of_run, path) for path in beside if (path / MANIFEST).exists()]
    entries, errors = [], []
    for source in sources:
        try:
            entries.append(_checked(source()))
        except BrinellError as error:
            errors.append(error)
    if errors and not entries and alone:
        raise errors[0]
    for bad in errors:
        warnings.warn(f"A record is left out: {bad}", stacklevel=2)
    return entries


def _entry_of_file(path: Path) -> BoardEntry:
    return BoardEntry(read(path))


def _checked(entry: BoardEntry) -> BoardEntry:
    entry.record.check()
    return entry


def entry_of_run(path: Path) -> BoardEntry:
    """Return the entry of a Run, with the record in its folder or else with a record made from its manifest."""
    run = Run.open(path)
    beside = run.path / RECORD
    if not beside.exists():
        return BoardEntry(_record_of(run), run)
    record = read(beside)
    measured = of_run(run, record.dataset, record.threat, record.name)
    wrong = [f for f in MEASURED if getattr(record, f) not in (None, getattr(measured, f))]
    differences = [f"{f} {getattr(record, f)} instead of {getattr(measured, f)}" for f in wrong]
    eps = run.identity.threat.eps
    if record.eps is not None and isinstance(eps, int | float) and not same_radius(record.eps, eps):
        differences.append(f"eps {record.eps} instead of {eps}")
    if differences:
        raise RunError(
            expected=f"a record that agrees with its Run, {run.path}",
            got=", ".join(differences),
            remedy=f"Change these fields in {RECORD} to the values of the Run, or delete the file.",
        )
    missing = {f: getattr(measured, f) for f in (*MEASURED, "eps") if getattr(record, f) is None}
    return BoardEntry(replace(record, **missing), run)


def _record_of(run: Run) -> Record:
    """Return a record for a Run without a record file; a zoo model's name, "data/threat/model", gives the data set."""
    threat = run.identity.threat
    if threat.eps is None:
        raise RunError(
            expected="a Run with a radius for a leaderboard",
            got=f"{run.path}, whose threat has no radius",
            remedy="Evaluate with a radius (--eps).",
        )
    *above, name = (run.identity.model.name or run.path.name).split("/")
    dataset = above[0] if len(above) == 2 else run.identity.data.name or "unnamed"
    record = of_run(run, _part(dataset), _part(str(threat.norm)), _part(name))
    return record if record.eps is not None else replace(record, eps=f"{threat.eps:.6g}")


def _part(text: str) -> str:
    """Return the text with "-" in place of characters that are unsafe in file names."""
    return re.sub(r"[^\w.+ -]+", "-", Path(text).name if "." in text else text).strip(" .-+") or "unnamed"
