"""What stands on a leaderboard: records, some of them with the Run behind their numbers."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from brinell.errors import InputError, RunError
from brinell.leaderboard.records import RECORD, Record, of_run, published, read, read_folder
from brinell.results.format.manifest import MANIFEST
from brinell.results.run import Run
from brinell.verification.consistency import same_radius

Place = str | os.PathLike[str]
# What a record beside a Run cannot say otherwise than the Run does.
MEASURED = (
    "run_hash", "clean", "autoattack", "n", "interval", "clean_interval", "unreliable", "verdict", "plan", "seed",
    "fingerprint",
)  # fmt: skip


@dataclass(frozen=True)
class BoardEntry:
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


def collect(runs: Iterable[Place] = (), folder: Place | None = None, with_published: bool = True) -> list[BoardEntry]:
    """Published records, then those of a folder, then Runs; of equal ones the last counts.

    Two are equal where the model, the threat and the radius are, and the Run or, without one, the status. Runs with a
    record in the folder are read as Runs.

    >>> len(collect())
    236
    """
    found = [BoardEntry(r) for r in published()] if with_published else []
    if folder is not None:
        found += [BoardEntry(r) for r in _records(Path(folder))]
        found += [entry_of_run(path.parent) for path in sorted(Path(folder).rglob(RECORD)) if _beside_run(path)]
    found += [entry_of_run(Path(run)) for run in runs]
    for entry in found:
        entry.record.check()
    kept = {(e.record.key, e.record.eps, e.record.run_hash or e.record.status): e for e in found}
    return list(kept.values())


def entry_of_run(path: Path) -> BoardEntry:
    """The Run in a folder as an entry: with the record beside it, or else with what its manifest says."""
    run = Run.open(path)
    beside = run.path / RECORD
    if not beside.exists():
        return BoardEntry(_told(run), run)
    record = read(beside)
    measured = of_run(run, record.dataset, record.threat, record.name)
    wrong = [f for f in MEASURED if getattr(record, f) not in (None, getattr(measured, f))]
    said = [f"{f} {getattr(record, f)} instead of {getattr(measured, f)}" for f in wrong]
    eps = run.identity.threat.eps
    if record.eps is not None and isinstance(eps, int | float) and not same_radius(record.eps, eps):
        said.append(f"eps {record.eps} instead of {eps}")
    if said:
        raise RunError(
            expected=f"a record of the Run it lies beside, {run.path}",
            got=", ".join(said),
            remedy=f"Write {RECORD} again, or remove it.",
        )
    # What is left out is not unknown: the Run says it.
    told = {f: getattr(measured, f) for f in (*MEASURED, "eps") if getattr(record, f) is None}
    return BoardEntry(replace(record, **told), run)


def _records(folder: Path) -> list[Record]:
    if not folder.is_dir():
        raise InputError(expected="a folder of records", got=str(folder), remedy="Check the path.")
    return read_folder(folder)


def _beside_run(path: Path) -> bool:
    return (path.parent / MANIFEST).exists()


def _told(run: Run) -> Record:
    """A record from the manifest alone: a model of the zoo has a name that says its data, others name it themselves."""
    threat = run.identity.threat
    if threat.eps is None:
        raise RunError(
            expected="a Run at one radius for a leaderboard",
            got=f"{run.path}, which has none",
            remedy="Evaluate at a radius (--eps).",
        )
    *above, name = (run.identity.model.name or run.path.name).split("/")
    dataset = above[0] if len(above) == 2 else run.identity.data.name or "unnamed"
    record = of_run(run, _part(dataset), _part(str(threat.norm)), _part(name))
    return record if record.eps is not None else replace(record, eps=f"{threat.eps:.6g}")


def _part(text: str) -> str:
    """Text as a part of a file's name, which a record asks for."""
    return re.sub(r"[^\w.+ -]+", "-", Path(text).name if "." in text else text).strip(" .-+") or "unnamed"
