"""Leaderboard records, one per model and threat: fields, JSON files, the published records, and records of Runs."""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, Literal, get_args

from brinell.errors import InputError, RunError, error_text
from brinell.results import statistics
from brinell.results.analyses import Measure
from brinell.results.row_queries import Cost
from brinell.results.run import Run
from brinell.results.statistics import Proportion
from brinell.storage import make_folder, write_atomic
from brinell.untrusted import cleaned, parse_number, read_json
from brinell.verification.bundle import digest

PUBLISHED = "robustbench.csv"
# Titles and authors by link, and licences and footnotes by model, of the published records.
PAPERS, NOTES = "papers.csv", "notes.csv"
CORRUPTIONS, CORRUPTIONS_3D = "corruptions", "corruptions_3d"
"""The threats whose boards rank by an accuracy under corruptions instead of attacks."""
# The spellings of an unknown number in the published table.
NOTHING = ("", "null")
# How the radius of a threat without one is written.
UNLIMITED = "inf"
RECORD = "record.json"
"""File name of a record in the folder of its Run."""

Status = Literal["published", "unverified", "verified"]
Interval = tuple[float, float]

# Fields of a record, and their names in the files of the public leaderboard, where they are text.
PERCENTAGES = {
    "clean": "clean_acc", "autoattack": "autoattack_acc", "external": "external", "reported": "reported",
    "corruptions": "corruptions_acc", "corruptions_mce": "corruptions_mce", "corruptions_3d": "corruptions_acc_3d",
    "corruptions_mce_3d": "corruptions_mce_3d",
}  # fmt: skip
PLAIN = {
    "link": "link", "authors": "authors", "venue": "venue", "architecture": "architecture", "dataset": "dataset",
    "extra_data": "additional_data", "forward_passes": "number_forward_passes", "eps": "eps",
    "unreliable": "unreliable", "footnote": "footnote",
}  # fmt: skip
OURS = (
    "threat",
    "licence",
    "status",
    "n",
    "verdict",
    "plan",
    "seed",
    "run",
    "run_hash",
    "fingerprint",
    "date",
    "version",
    "certified",
)
COST = ("forwards", "backwards", "seconds")
# Types of the fields: texts, optional texts, flags and lists; the others are numbers.
TEXTS = ("title", "link", "authors", "venue", "architecture", "licence")
OPTIONAL_TEXTS = ("footnote", "eps", "verdict", "plan", "date", "version", "run_hash", "fingerprint")
FLAGS = ("extra_data", "unreliable")
LISTS_OF_TEXTS = ("reasons", "restrictions")
LISTS_OF_NUMBERS = ("interval", "clean_interval")
LISTS = (*LISTS_OF_NUMBERS, *LISTS_OF_TEXTS)
# Relative to another model, so not bounded by 100.
RELATIVE = ("corruptions_mce", "corruptions_mce_3d")
# Percentages are stored with two digits.
ROUNDED = 0.01
# The largest record, the longest text of a field, and the most texts of a list.
RECORD_BYTES, LONGEST_TEXT, MOST_TEXTS = 1 << 20, 1_000, 1_000
LONGEST = {"authors": 20_000, "footnote": 5_000}
# The names of data set, threat and model are parts of file names.
LONGEST_NAME = 80
# Optional facts that the authors state about a model.
ABOUT = (
    "title", "link", "authors", "venue", "architecture", "licence", "extra_data", "forward_passes", "reported",
    "footnote",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One line of a leaderboard. Accuracies and intervals are percentages, None if unknown.

    `autoattack` is the robust accuracy under the plan of the leaderboard, `external` a lower robust accuracy that other
    attacks reached, `reported` the robust accuracy that the authors claim. `status` is "published" (copied, not run
    again), "unverified" (measured by the author of the record) or "verified" (checked by somebody else). `restrictions`
    are the violated restrictions of the leaderboard. `corruptions` is the mean accuracy over all corruptions.
    `certified` is the share of samples that are proved to be robust. `licence` is the licence of the weights as an SPDX
    identifier, "" if unknown. `title` is the title of the paper.

    >>> Record("cifar10", "Linf", "Mine", clean=90.0, autoattack=55.1, external=54.0, reported=60.5).overestimation
    6.5
    """

    dataset: str
    threat: str
    name: str
    status: Status = "unverified"
    title: str = ""
    link: str = ""
    authors: str = ""
    venue: str = ""
    architecture: str = ""
    licence: str = ""
    extra_data: bool | None = None
    forward_passes: int = 1
    footnote: str | None = None
    eps: str | None = None
    clean: float | None = None
    autoattack: float | None = None
    external: float | None = None
    reported: float | None = None
    unreliable: bool | None = None
    corruptions: float | None = None
    corruptions_mce: float | None = None
    corruptions_3d: float | None = None
    corruptions_mce_3d: float | None = None
    n: int | None = None
    interval: Interval | None = None
    clean_interval: Interval | None = None
    verdict: str | None = None
    reasons: tuple[str, ...] = ()
    restrictions: tuple[str, ...] = ()
    plan: str | None = None
    seed: int | None = None
    run: str | None = None
    run_hash: str | None = None
    fingerprint: str | None = None
    cost: Cost | None = None
    date: str | None = None
    version: str | None = None
    certified: float | None = None

    def __post_init__(self) -> None:
        parts = (self.dataset, self.threat, self.name)
        if not all(re.fullmatch(r"\w[\w.+ -]*", part) and len(part.encode()) <= LONGEST_NAME for part in parts):
            raise InputError(
                expected="dataset, threat and name of letters, digits, spaces and . + - _, a letter or digit first, "
                f"of at most {LONGEST_NAME} bytes each",
                got=repr("/".join(parts))[: 4 * LONGEST_NAME],
                remedy="Pass another name, e.g. Mine2026Better_WRN-28-10.",
            )
        if self.status not in get_args(Status):
            raise InputError(
                expected=f"a status among {', '.join(get_args(Status))}",
                got=repr(self.status),
                remedy="Pass one of these as `status`.",
            )

    @property
    def key(self) -> str:
        """The name of the model as in the zoo, "data/threat/model"."""
        return f"{self.dataset}/{self.threat}/{self.name}"

    @property
    def robust_accuracy(self) -> statistics.Interval | None:
        """The robust accuracy under the plan of the leaderboard, as a share with its interval."""
        if self.autoattack is None:
            return None
        low, high = self.interval or (self.autoattack, self.autoattack)
        return statistics.Interval(self.autoattack / 100, low / 100, high / 100, self.n)

    @property
    def setting(self) -> str:
        """Threat, plan and data of the robust accuracy."""
        parts = (self.threat, self.eps and f"eps = {self.eps}", self.plan and f"plan {self.plan}", self.dataset)
        return ", ".join(part for part in (*parts, self.n and f"n = {self.n:,}") if part)

    def measures(self) -> tuple[Measure, ...]:
        """Return the numbers for figures over many models: clean and reported, or corrupted accuracy."""
        low, high = self.clean_interval or (None, None)
        clean = () if self.clean is None else (Measure("clean accuracy, %", self.clean, low, high),)
        reported = () if self.reported is None else (Measure("reported robust accuracy, %", self.reported),)
        if self.corruptions is None:
            return (*clean, *reported)
        low, high = self.interval or (None, None)
        x = None if self.clean is None else ("clean accuracy, %", self.clean)
        return (Measure("accuracy under corruptions, %", self.corruptions, low, high, x),)

    @property
    def best(self) -> float | None:
        """The lowest known robust accuracy or, without any, the accuracy under corruptions; leaderboards sort by it."""
        known = [value for value in (self.external, self.autoattack) if value is not None]
        return min(known, default=self.corruptions_3d if self.threat == CORRUPTIONS_3D else self.corruptions)

    @property
    def contradicted(self) -> bool:
        """Whether more samples are certified than withstood the attacks: one of the two numbers is wrong."""
        return self.certified is not None and self.best is not None and self.certified > self.best + ROUNDED

    @property
    def non_commercial(self) -> bool:
        """Whether the licence of the weights forbids commercial use."""
        return "NC" in self.licence.split("-")

    @property
    def overestimation(self) -> float | None:
        """The reported minus the best known robust accuracy, in percentage points; None if either is unknown."""
        if self.reported is None or self.best is None:
            return None
        return round(self.reported - self.best, 2)

    @property
    def year(self) -> int | None:
        """The year of the venue: the last number from 1900 to 2099 in its name; None without such a number."""
        found = re.findall(r"\b(?:19|20)\d\d\b", self.venue)
        return int(found[-1]) if found else None

    def check(self) -> "Record":
        """Return the record, or raise a RunError if a field has a wrong type or a number is out of range."""
        r = self
        numbers: dict[str, Any] = {f: getattr(r, f) for f in (*PERCENTAGES, "certified", "n", "seed", "forward_passes")}
        numbers |= {f"{f}[{i}]": v for f in LISTS_OF_NUMBERS for i, v in enumerate(getattr(r, f) or ())}
        numbers |= {f"cost.{f}": getattr(r.cost, f, None) for f in COST}
        texts: dict[str, Any] = {f: getattr(r, f) for f in TEXTS}
        texts |= {f: "" if getattr(r, f) is None else getattr(r, f) for f in OPTIONAL_TEXTS}
        texts |= {f"{f}[{i}]": v for f in LISTS_OF_TEXTS for i, v in enumerate(getattr(r, f))}
        wrong = [f for f, v in numbers.items() if v is not None and not _fits(f, v)]
        wrong += [f for f, v in texts.items() if not isinstance(v, str) or len(v) > LONGEST.get(f, LONGEST_TEXT)]
        wrong += ["eps"] if r.eps is not None and not _is_radius(r.eps) else []
        wrong += ["certified, which is above the robust accuracy"] if not wrong and r.contradicted else []
        wrong += [f for f in LISTS_OF_TEXTS if len(getattr(r, f)) > MOST_TEXTS]
        wrong += [f for f in FLAGS if not isinstance(getattr(r, f), bool | None)]
        wrong += [f for f in LISTS_OF_NUMBERS if getattr(r, f) is not None and len(getattr(r, f)) != 2]
        if wrong:
            raise RunError(
                expected=f"a record of {r.key} with valid texts, flags, finite numbers and percentages from 0 to 100",
                got=f"invalid values in {', '.join(wrong[:10])}",
                remedy="Put valid values into these fields, or leave the record out.",
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-compatible data: RobustBench's fields under its names, then Brinell's fields."""
        return {
            "name": self.title or self.name,
            **{theirs: getattr(self, ours) for ours, theirs in PLAIN.items()},
            **{
                theirs: None if (p := getattr(self, ours)) is None else f"{p:.2f}"
                for ours, theirs in PERCENTAGES.items()
            },
            "id": self.name,
            **{ours: getattr(self, ours) for ours in OURS},
            **{ours: None if (values := getattr(self, ours)) is None else list(values) for ours in LISTS},
            "cost": None if self.cost is None else {k: getattr(self.cost, k) for k in COST},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], **known: Any) -> "Record":
        """Return the record from data of `to_json` or of RobustBench; `known` supplies fields that `stored` lacks."""
        fields: dict[str, Any] = {ours: stored[theirs] for ours, theirs in PLAIN.items() if theirs in stored}
        fields["eps"] = None if fields.get("eps") in NOTHING else fields.get("eps")
        percentages = {ours: stored[theirs] for ours, theirs in PERCENTAGES.items() if theirs in stored}
        fields |= {ours: None if text in (None, *NOTHING) else _percentage(text) for ours, text in percentages.items()}
        fields |= {ours: stored[ours] for ours in OURS if ours in stored}
        fields |= {ours: tuple(stored[ours]) for ours in LISTS if stored.get(ours) is not None}
        if stored.get("cost") is not None:
            fields["cost"] = Cost(**stored["cost"], samples=stored.get("n") or 0)
        # A file without an id comes from the public leaderboard and is named after the model.
        fields["name"] = stored.get("id", known.get("name", stored.get("name")))
        fields["title"] = "" if stored.get("name") == fields["name"] else stored.get("name", "")
        return cls(**{**known, **fields})

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the record as JSON to a .json file, or to dataset/threat/name.json in a folder; return the file's path.

        Of the path of the Run only the last folder is written: records are shared, and local paths are private.
        """
        place = Path(path)
        if place.suffix != ".json":
            place = place / self.dataset / self.threat / f"{self.name}.json"
        make_folder(place.parent)
        shared = replace(self, run=None if self.run is None else Path(self.run).name)
        text = json.dumps(shared.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
        write_atomic(place, f"{text}\n".encode())
        return place


def read(path: str | os.PathLike[str]) -> Record:
    """Return the record in a JSON file; a file of RobustBench must be in a folder dataset/threat/."""
    place = Path(path)
    above = place.resolve().parent
    known = {"dataset": above.parent.name, "threat": above.name, "name": place.stem, "status": "published"}
    try:
        stored = cleaned(read_json(place, RECORD_BYTES))
        return Record.from_json(stored, **({} if "id" in stored else known)).check()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            expected=f"a leaderboard record in {place}",
            got=error_text(error),
            remedy="Restore the file from a copy, or measure the model again with brinell benchmark.",
        ) from error


def read_folder(folder: str | os.PathLike[str]) -> list[Record]:
    """Read every record in a folder and its subfolders, sorted by path.

    JSON files of other things are ignored: a record is an object with a clean accuracy. A damaged file is an error.
    """
    return [read(path) for path in record_files(folder)]


def record_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files of records in a folder and its subfolders, sorted by path; damaged JSON files count."""
    return [path for path in sorted(Path(folder).rglob("*.json")) if _is_record(path)]


def _is_record(path: Path) -> bool:
    try:
        stored = read_json(path, RECORD_BYTES)
    except (OSError, ValueError):
        return True  # a damaged record is an error, not ignored
    return isinstance(stored, dict) and "clean_acc" in stored


def ranked(records: Iterable[Record]) -> list[Record]:
    """Return the records sorted by `best`, highest first; records without an accuracy come last.

    >>> [r.name for r in ranked(r for r in published() if (r.dataset, r.threat) == ("cifar10", "L2"))][0]
    'Wang2023Better_WRN-70-16'
    """
    return sorted(records, key=lambda r: (r.best is None, -(r.best or 0.0), r.key))


@cache
def _published() -> tuple[Record, ...]:
    papers = {row["link"]: row for row in _table(PAPERS)}
    notes = {row["model"]: row for row in _table(NOTES)}
    lines = (_line(row) for row in _table(PUBLISHED))
    return tuple(_with_paper(r, papers[r.link], notes[r.key]) for r in lines)


def _table(name: str) -> list[dict[str, str]]:
    text = (resources("brinell.leaderboard") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _with_paper(record: Record, paper: Mapping[str, str], note: Mapping[str, str]) -> Record:
    return replace(
        record, title=paper["title"], authors=paper["authors"], licence=note["licence"],
        footnote=note["footnote"] or None,
    )  # fmt: skip


def published() -> list[Record]:
    """Return the 236 records of the public leaderboard RobustBench as published; Brinell has not run them again.

    >>> carmon = find(published(), "cifar10/Linf/Carmon2019Unlabeled")
    >>> carmon.status, carmon.clean, carmon.best, carmon.year, carmon.title
    ('published', 89.69, 59.53, 2019, 'Unlabeled Data Improves Adversarial Robustness')
    """
    return list(_published())


def published_record(record: Record) -> Record | None:
    """Return the published record of the same model and threat, or None; "corruptions" also covers 3D corruptions.

    >>> published_record(Record("imagenet", "corruptions_3d", "AlexNet")).corruptions_3d
    28.47
    """
    threat = CORRUPTIONS if record.threat == CORRUPTIONS_3D else record.threat
    return find(published(), f"{record.dataset}/{threat}/{record.name}")


def find(records: Iterable[Record], key: str) -> Record | None:
    """Return the first record with this key, "data/threat/model", or None."""
    return next((r for r in records if r.key == key), None)


def _line(row: Mapping[str, str]) -> Record:
    flags = {"true": True, "false": False, "": None}
    fields: dict[str, Any] = {k: row[k] for k in ("dataset", "threat", "name", "link", "architecture", "venue")}
    fields |= {k: None if row[k] in NOTHING else float(row[k]) for k in PERCENTAGES}
    fields |= {k: flags[row[k]] for k in FLAGS}
    return Record(**fields, eps=row["eps"] or None, forward_passes=int(row["forward_passes"]), status="published")


def of_run(run: Run, dataset: str, threat: str, name: str, about: Mapping[str, Any] | None = None) -> Record:
    """Return the record of a finished Run; `about` maps keys in `ABOUT` to facts about the model."""
    with_facts(Record(dataset, threat, name), about)
    if not run.finished:
        raise RunError(
            expected="a finished Run",
            got=f"{run.path}, which is unfinished",
            remedy="Finish the Run with brinell evaluate --resume.",
        )
    identity, verdict = run.identity, run.verdict
    if identity.threat.mask is not None:
        raise RunError(
            expected="a Run without a mask", got=f"{run.path}, which has a mask", remedy="Evaluate without the mask."
        )
    measured = Record(
        dataset,
        threat,
        name,
        eps=identity.threat.eps_text,
        clean=percent(run.clean_accuracy.value),
        autoattack=percent(run.robust_accuracy.value),
        unreliable=verdict.level != "reliable",
        n=run.clean_accuracy.n,
        interval=interval_of(run.robust_accuracy),
        clean_interval=interval_of(run.clean_accuracy),
        verdict=verdict.level,
        reasons=tuple(map(str, verdict.reasons)),
        plan=identity.plan.name,
        seed=identity.seed,
        run=str(run.path),
        run_hash=digest(run.path),
        fingerprint=identity.model.fingerprint,
        cost=run.cost,
        date=run.created,
        version=run.environment.brinell,
        certified=None if run.bracket is None else percent(run.bracket.certified.value),
    )
    return with_facts(measured, about)


def with_facts(record: Record, about: Mapping[str, Any] | None) -> Record:
    """Return the record with facts about the model added; raise an InputError for keys that are not in `ABOUT`.

    >>> with_facts(Record("demo", "Linf", "Mine"), {"venue": "ICML 2026", "reported": 61.5}).year
    2026
    """
    unknown = sorted(set(about or {}) - set(ABOUT))
    if unknown:
        raise InputError(
            expected=f"facts among {', '.join(ABOUT)}",
            got=", ".join(unknown),
            remedy="Leave other facts out of `about`.",
        )
    return replace(record, **(about or {})).check()


def with_bound(record: Record, bound: Proportion) -> Record:
    """Return the record as "verified"; `bound` becomes `external` if it is below `autoattack` or this is unknown."""
    more = record.autoattack is None or percent(bound.value) < record.autoattack
    return replace(record, status="verified", external=percent(bound.value) if more else record.external)


def percent(share: float) -> float:
    """Return a share in per cent, rounded to two decimals as in records."""
    return round(100 * share, 2)


def interval_of(p: Proportion) -> Interval:
    """Return the 95 % interval of a proportion in per cent."""
    return percent(p.low), percent(p.high)


def _percentage(value: object) -> float:
    """Return a number, or the number in a text."""
    return parse_number(value) if isinstance(value, str) else float(value)  # type: ignore[arg-type]


def _is_radius(text: object) -> bool:
    try:
        return isinstance(text, str) and (text == UNLIMITED or parse_number(text) > 0)
    except ValueError:
        return False


def _fits(field: str, value: object) -> bool:
    """Return whether a number fits its field: finite, percentages from 0 to 100, counts not negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return False
    share = (field in PERCENTAGES or field == "certified") and field not in RELATIVE
    return 0 <= value <= 100 if share else value >= (1 if field == "forward_passes" else 0) or field == "seed"
