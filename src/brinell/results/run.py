"""`Run`: the rows and adversarials of a stored evaluation, and everything computed from them."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import MissingExtra, RunError
from brinell.finding import Finding
from brinell.results import row_queries
from brinell.results.audit_bound import audit
from brinell.results.bracket import bracket, by_proof, certified_radii, states
from brinell.results.format import files
from brinell.results.format.manifest import MANIFEST, Manifest, decode
from brinell.results.format.schema import NUMBERS, ROWS, Evidence, counted, is_evidence, without_proofs
from brinell.results.format.shards import Shards
from brinell.results.layers import layers
from brinell.results.repeats import repeated
from brinell.results.row_queries import Cost, Ids, StageResult
from brinell.results.statistics import Proportion
from brinell.results.summary import card, sentence, summary
from brinell.results.verdict import judge


class Run:
    """One evaluation on disk. Rows are read once, at first use.

    `manifest` is the manifest as stored, a plain JSON object. `identity` says what was evaluated: threat, criterion,
    plan, model, data, seed and precision. `environment` has versions and hardware, `notes` says how the plan was
    adapted to the model. `created` is the time of the start (UTC, ISO 8601), `wall_seconds` is the wall-clock time.
    `finished` says whether the evaluation is complete, and `images` says whether the adversarials were kept. `shards`
    are the files of rows and adversarials, with their checksums. `verdict` judges whether the result can be trusted.
    `bracket` is the certified and the robust accuracy together (None without certificates). `audit` bounds how many
    samples a short plan missed, and `layers` is the rest of its evidence (None without an audit). `repeats` has the
    spread of the accuracies of a randomised model (None for other models).

    >>> run = Run.open("tests/results/golden_run_v1")
    >>> print(run.robust_accuracy)
    33.3 % [9.7, 70.0], n = 6
    """

    def __init__(self, path: str | os.PathLike[str], manifest: Manifest | None = None) -> None:
        path = Path(path)
        manifest = decode(path) if manifest is None else manifest
        self.path, self._manifest, self.manifest = path, manifest, dict(manifest.raw)
        self.identity, self.environment, self.notes = manifest.identity, manifest.environment, list(manifest.notes)
        self.created, self.wall_seconds = manifest.created, manifest.wall_seconds
        self.finished, self.images = manifest.finished or manifest.certifying, manifest.images
        self.shards = Shards.open(path, manifest)

    @classmethod
    def open(cls, path: "Run | str | os.PathLike[str]") -> "Run":
        """Open the Run in a folder, even while it is being written; a Run object is returned unchanged.

        Raise a RunError if the manifest is damaged, or if a file is missing or has another size than the Run lists.
        The content of a file is compared with its hash whenever it is read.
        """
        if isinstance(path, Run):
            return path
        return cls(path)

    def named(self, name: str) -> "Run":
        """Return this Run with another name of the model, for a report; what is stored stays as it is.

        >>> Run.open("tests/results/golden_run_v1").named("Ours").identity.model.name
        'Ours'
        """
        identity = dict(self._manifest.identity.raw)
        identity["model"] = {**(identity.get("model") or {}), "name": name}
        return Run(self.path, Manifest.read({**self._manifest.raw, "identity": identity}))

    @staticmethod
    def merge(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> "Run":
        """Merge Runs on different parts of the data into one Run; see brinell.results.merge."""
        from brinell.results.merge import merge

        return merge(paths, out)

    @cached_property
    def _table(self) -> pa.Table:
        return row_queries.arrange(without_proofs(self.shards.all_rows()), self.attacks)

    @cached_property
    def _numbers(self) -> pa.Table:
        if "_table" in self.__dict__:
            return self._table.select(NUMBERS)
        table = without_proofs(self.shards.all_rows(NUMBERS))
        if row_queries.has_repetitions(table):
            return self._table.select(NUMBERS)  # all columns are needed to see whether repetitions agree
        return row_queries.arrange(table, self.attacks)

    def rows(self) -> pa.Table:
        """Return the rows of the clean pass and the attacks, sorted by sample and by the attack's place in the plan.

        The clean row is the first of its sample. `certificates` returns the other rows.
        """
        return self._table

    def certificates(self) -> pa.Table:
        """Return the rows of certificates, sorted by sample, the largest radius of each sample first."""
        return self._certificates

    @cached_property
    def _certificates(self) -> pa.Table:
        if not self._manifest.certifiers:
            return ROWS.empty_table()
        table = self.shards.all_rows()
        table = table.filter(pa.array(is_evidence(table, Evidence.CERTIFICATE)))
        radius = np.asarray(pc.fill_null(table["radius"], 0.0), dtype=np.float64)
        return table.take(np.lexsort((-radius, row_queries.ids_of(table))))

    def numbers(self) -> pa.Table:
        """Return all rows with only the columns that accuracies, costs and the verdict need, to save memory."""
        return self._numbers

    @property
    def sample_names(self) -> dict[int, str]:
        """The name of each sample by its id, e.g. that of its file; empty if the data have no names."""
        table = self.shards.all_rows(("sample_id", "attack", "sample_name"))
        clean = table.filter(pa.array(is_evidence(table, Evidence.CLEAN)))
        pairs = zip(clean["sample_id"].to_pylist(), clean["sample_name"].to_pylist(), strict=True)
        return {i: name for i, name in pairs if name is not None}

    def margins(self) -> pa.Table:
        """Return all rows with only the columns that say how near the decision boundary the attacks came."""
        columns = ("sample_id", "attack", "clean_margin", "adv_margin")
        return self._table.select(columns) if "_table" in self.__dict__ else self.shards.all_rows(columns)

    @cached_property
    def chance_accuracy(self) -> float | None:
        """The accuracy that guessing reaches on these samples; None if unknown."""
        columns = ("sample_id", "attack", "label", "clean_pred")
        table = self._table if "_table" in self.__dict__ else self.shards.all_rows(columns)
        return row_queries.chance_accuracy(table, self.identity.model.classes)

    @property
    def missing_classes(self) -> int:
        """The number of classes of the model that have no sample in the data; 0 if the classes are unknown."""
        classes, columns = self.identity.model.classes, ("attack", "label")
        if not classes:
            return 0
        table = self._table if "_table" in self.__dict__ else self.shards.all_rows(columns)
        return row_queries.missing_classes(table, classes)

    @property
    def sample_radii(self) -> dict[int, float] | None:
        """The radius of each sample by its id; None if all samples share one radius, or the manifest lacks the ids."""
        return self._manifest.sample_radii

    def adversarials(self) -> files.Adversarials:
        """Return the verified adversarials, one per broken sample (the nearest), sorted by sample id."""
        return gather(self.shards, self.nearest_rows())

    def nearest_rows(self) -> pa.Table:
        """Return the rows of the verified adversarials, one per broken sample (the nearest), sorted by sample id."""
        if not self.images:
            raise RunError(
                expected="a Run that keeps its adversarials",
                got=f"{self.path}, evaluated with images=False (--no-images)",
                remedy="Evaluate into another folder with the same arguments, but images=True (without --no-images).",
            )
        table = self.rows()
        table = table.filter(pa.array(counted(table) & ~is_evidence(table, Evidence.CLEAN)))
        table = table.filter(pc.is_valid(table["adv_shard"]))
        distance = np.asarray(pc.fill_null(table["distance"], np.inf), dtype=np.float64)
        ids = row_queries.ids_of(table)
        order = np.lexsort((distance, ids))  # stable: the earlier attack wins a tie
        _, first = np.unique(ids[order], return_index=True)
        return table.take(order[first])

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks in the order of the plan."""
        return [stage.name for stage in self.identity.plan.stages]

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The results of the checks as stored: name, level and message of each."""
        return [dict(check.raw) for check in self._manifest.checks]

    @property
    def findings(self) -> list[Finding]:
        """The results of the checks as `Finding` objects."""
        return self._manifest.findings

    @property
    def randomised(self) -> bool:
        """Whether several passes judge each point and the model's outputs differ between passes."""
        deterministic = any(check.name == "randomised" and check.level == "info" for check in self.findings)
        return self.identity.plan.draws > 1 and not deterministic

    @property
    def probes(self) -> list[dict[str, Any]]:
        """The probes as stored, one per probed attack: name of the attack, number of samples, and items (findings)."""
        return [dict(probe.raw) for probe in self._manifest.probes]

    @property
    def probe_findings(self) -> list[tuple[str, Finding]]:
        """The findings of all probes, as pairs of attack name and finding."""
        return [(probe.attack, finding) for probe in self._manifest.probes for finding in probe.findings]

    @property
    def clean_accuracy(self) -> Proportion:
        """Share of samples that the model classifies correctly without an attack."""
        return self._accuracy([])

    @property
    def robust_accuracy(self) -> Proportion:
        """Share of samples classified correctly that no attack broke; an upper bound on the true robust accuracy."""
        return self._accuracy(None)

    @property
    def certified_accuracy(self) -> Proportion | None:
        """Share of samples proved to be robust: a lower bound on the true one; None without certificates."""
        return None if self.bracket is None else self.bracket.certified

    def states(self) -> dict[int, str]:
        """Return the state of every sample by its id: "broken" (also if misclassified), "certified" or "open"."""
        return dict(states(self))

    def certified_radii(self) -> dict[int, float]:
        """Return the largest radius that is proved for each certified sample, by sample id."""
        return certified_radii(self)

    def accuracy_after(self) -> list[tuple[str, Proportion]]:
        """Return, for each attack of the plan, its name and the accuracy under this and all earlier attacks."""
        names = self.attacks
        return [(name, self._accuracy(names[: i + 1])) for i, name in enumerate(names)]

    def accuracy_alone(self) -> list[tuple[str, Proportion]]:
        """Return the accuracy under each attack alone, for attacks that attacked every correctly classified sample.

        If the Run was made with `individual=True`, these are all attacks of the plan except the attacks of an audit.
        """
        correct = self.clean_accuracy.k
        return [(s.attack, self._accuracy([s.attack])) for s in self.stages() if s.attacked == correct]

    def survivors(self) -> Ids:
        """Return the sorted ids of the survivors: correctly classified samples that no attack broke."""
        return row_queries.survivors(self.numbers())

    def skipped(self) -> Ids:
        """Return the sorted ids of the survivors that some attack of the plan (audits do not count) did not attack."""
        table, survivors = self.numbers(), self.survivors()
        ids = row_queries.ids_of(table)
        stages = self.identity.plan.main_stages
        missing = [np.setdiff1d(survivors, ids[row_queries.is_attack(table, stage.name)]) for stage in stages]
        return np.unique(np.concatenate([survivors[:0], *missing]))

    def stages(self) -> list[StageResult]:
        """Return how many samples each attack of the plan attacked and broke."""
        return [row_queries.stage(self.numbers(), name) for name in self.attacks]

    def steps(self) -> list[tuple[StageResult, Proportion]]:
        """Return the attacks of the plan that attacked at least one sample, each with the accuracy after it.

        If proofs found counterexamples, they are the last step: the last accuracy is always the robust accuracy.
        """
        pairs = zip(self.stages(), (p for _, p in self.accuracy_after()), strict=True)
        proofs = [] if self.bracket is None else [(p, self.robust_accuracy) for p in by_proof(self)]
        return [(stage, p) for stage, p in pairs if stage.attacked] + proofs

    @property
    def idle(self) -> str:
        """The attacks of the plan that attacked no sample, as a sentence; empty if there are none."""
        names = ", ".join(stage.attack for stage in self.stages() if not stage.attacked)
        return f"{'No sample for' if self.finished else 'Not started'}: {names}." if names else ""

    @property
    def unverified(self) -> pa.Table:
        """Rows that are broken but failed verification; they do not count as broken."""
        broken = np.asarray(self.rows()["broken"], dtype=bool)
        return self.rows().filter(pa.array(broken & ~counted(self.rows())))

    @property
    def cost(self) -> Cost:
        """Forward passes, backward passes and seconds of compute, in total and per sample."""
        return row_queries.cost(self.numbers())

    audit = cached_property(audit)
    bracket = cached_property(bracket)
    layers = cached_property(layers)
    repeats = cached_property(repeated)
    verdict = cached_property(judge)
    sentence = sentence

    # Reports are imported on demand: results are a lower layer and do without their dependencies.

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        format: str | None = None,
        data: Any = None,
        classes: Sequence[str] = (),
        problem: Any = None,
    ) -> Path:
        """Write a report and return its path: one self-contained .html file, or .md, .tex, .json, .csv or .xml.

        The file's ending gives the format, unless `format` does. `data` (or `problem`) are the data of the Run; with
        them, an HTML page shows the clean inputs. `classes` are the class names. HTML needs the extra `report`.
        """
        from brinell.report.write import write

        return write(self, path, format=format, problem=problem if data is None else data, classes=classes)

    def to_latex(self) -> str:
        """Return the accuracies as LaTeX tables with captions, for a paper."""
        from brinell.report.write import text

        return text([self], "tex")

    def plot_accuracy(self, axes: Any = None) -> Any:
        """Draw the accuracy after each attack. All `plot_…` methods need matplotlib and return its axes."""
        return _plots().accuracy(self, axes)

    def plot_classes(self, axes: Any = None, classes: Sequence[str] = ()) -> Any:
        """Draw the clean and the robust accuracy of every class."""
        return _plots().classes(self, axes, classes)

    def plot_margins(self, axes: Any = None) -> Any:
        """Draw the clean margins of robust, broken and misclassified samples."""
        return _plots().margins(self, axes)

    def plot_distances(self, axes: Any = None) -> Any:
        """Draw the robustness curve if the threat has no radius, else a histogram of the adversarials' distances."""
        return _plots().distances(self, axes)

    def plot_cost(self, axes: Any = None) -> Any:
        """Draw the number of forward and backward passes of each stage."""
        return _plots().cost(self, axes)

    _repr_html_ = card
    __str__ = summary

    def __repr__(self) -> str:
        i, state = self.identity, "finished" if self.finished else "unfinished"
        what = f"{i.model.name or 'unnamed model'}, {i.threat.norm} {i.threat.eps_text or i.threat.eps}, {i.plan.name}"
        try:
            return f"<Run {self.path}: {what}, {state}, robust {self.robust_accuracy}>"
        except RunError:
            return f"<Run {self.path}: {what}, {state}, damaged>"

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame (needs pandas)."""
        try:
            return self.rows().to_pandas()
        except ImportError:
            got, remedy = "an installation without it", "Install it: pip install pandas."
            raise MissingExtra(expected="pandas, for a DataFrame of the rows", got=got, remedy=remedy) from None

    def _accuracy(self, attacks: Sequence[str] | None) -> Proportion:
        return Proportion(len(row_queries.survivors(self.numbers(), attacks)), len(row_queries.samples(self.numbers())))


def _plots() -> Any:
    from brinell.report import plots

    return plots


def gather(run: Shards, table: pa.Table) -> files.Adversarials:
    """Return the stored adversarials of the given rows of a Run, in the order of the rows."""
    ids = row_queries.ids_of(table)
    shards = np.array(table["adv_shard"].to_pylist(), dtype=object)
    place = np.asarray(pc.fill_null(table["adv_row"], -1), dtype=np.int64)
    x: Any = None
    for shard in sorted(set(shards)):
        rows = shards == shard
        stored = run.adversarials(shard)
        _check_ids(run.run, shard, stored.ids, place[rows], ids[rows])
        if x is None:
            x = np.empty((len(ids), *stored.x.shape[1:]), np.float32)
        if x.shape[1:] != stored.x.shape[1:]:
            raise RunError(
                expected="adversarials of one shape",
                got=f"the shapes {x.shape[1:]} and {stored.x.shape[1:]}",
                remedy="Restore the Run from a copy, or evaluate into a new folder.",
            )
        x[rows] = stored.x[place[rows]]
    # Copied: arrow's arrays are read-only, and torch warns about that.
    return files.Adversarials(ids.copy(), np.zeros(0, np.float32) if x is None else x)


def _check_ids(path: Path, shard: str, stored: Ids, place: Ids, ids: Ids) -> None:
    if not (place.min() >= 0 and place.max() < len(stored) and np.array_equal(stored[place], ids)):
        raise RunError(
            expected="the adversarials that the rows of the Run refer to",
            got=f"adversarials of other samples in {files.adversarials_file(path, shard)}",
            remedy="Restore the file from a copy, or evaluate into a new folder.",
        )


def open_runs(*paths: "Run | str | os.PathLike[str]") -> list[Run]:
    """Open the Runs at `paths`: folders of Runs, folders with Runs somewhere below, or Run objects (kept as they are).

    >>> [run.path.name for run in open_runs("tests/results/golden_run_v1")]
    ['golden_run_v1']
    """
    found: list[Run] = []
    for path in paths:
        if isinstance(path, Run) or (Path(path) / MANIFEST).is_file():
            found.append(Run.open(path))
        else:
            found += [Run.open(file.parent) for file in sorted(Path(path).rglob(MANIFEST))]
    return found
