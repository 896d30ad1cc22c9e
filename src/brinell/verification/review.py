"""Review submissions together: the best known upper bound on a model's robust accuracy."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brinell.arguments import DataLike, ModelLike
from brinell.checks import model as model_checks
from brinell.checks.leaderboard import check_restrictions
from brinell.core.criterion import Criterion, Evades, Misclassified
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.data.load import load
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import InputError, RunError
from brinell.evaluation import coerce
from brinell.evaluation.progress import say
from brinell.evaluation.rows import clean
from brinell.leaderboard import records
from brinell.leaderboard.definitions import LEADERBOARDS
from brinell.leaderboard.records import RECORD, Record
from brinell.results import Adversarials, Proportion, Run, row_queries
from brinell.verification.adversarials import CHUNK, criterion_of
from brinell.verification.bundle import digest
from brinell.verification.consistency import refuse_unreadable
from brinell.verification.plans import recognised
from brinell.verification.provenance import first_ids, threat_for
from brinell.verification.sampling import RerunSample, sampling_of
from brinell.verification.submission import (
    CheckedSubmission,
    SampleStatus,
    check_file,
    check_run,
    distances,
    open_submission,
)

AGAIN = "run again"


@dataclass(frozen=True)
class Review:
    """The result of `review`: the checked submissions, the status of each sample, the threat, and the seed."""

    submissions: tuple[CheckedSubmission, ...]
    samples: tuple[SampleStatus, ...]
    threat: str
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether every submission passed: no failures and no objections."""
        return all(submission.ok for submission in self.submissions)

    @property
    def parts(self) -> tuple[CheckedSubmission, ...]:
        """The same as `submissions`, under the name of earlier versions."""
        return self.submissions

    @property
    def clean_accuracy(self) -> Proportion:
        """Share of samples whose clean input is classified correctly."""
        return Proportion(sum(s.right for s in self.samples), len(self.samples))

    @property
    def bound(self) -> Proportion:
        """Share of samples that no submission breaks: the best known upper bound on the robust accuracy."""
        return Proportion(sum(s.standing for s in self.samples), len(self.samples))

    def __str__(self) -> str:
        head = [str(submission) for submission in self.submissions]
        bound = f"best known robust accuracy under {self.threat}: {self.bound}"
        chosen = [f"samples to run again chosen by seed {self.seed}"] if any(s.rerun for s in self.submissions) else []
        return "\n".join([*head, *chosen, f"clean accuracy: {self.clean_accuracy}", bound])

    def to_json(self) -> dict[str, Any]:
        """Return the review as JSON-compatible data, for scripts."""
        whole = {"clean_accuracy": self.clean_accuracy, "bound": self.bound}
        return {
            "ok": self.ok,
            "threat": self.threat,
            "seed": self.seed,
            **{k: {"value": p.value, "low": p.low, "high": p.high, "k": p.k, "n": p.n} for k, p in whole.items()},
            "submissions": [submission.to_json() for submission in self.submissions],
            "samples": [{"id": s.id, "right": s.right, "distance": s.distance, "by": s.by} for s in self.samples],
        }


def review(
    submissions: Sequence[str | os.PathLike[str]],
    classifier: ModelLike,
    problem: DataLike | None = None,
    threat: Threat | None = None,
    *,
    rerun: int | None = None,
    hidden: int | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    full_plan: bool = False,
    progress: bool | None = False,
) -> Review:
    """Check submissions on the model; return the best known upper bound on its robust accuracy, and all findings.

    A submission is a bundle of `brinell submit`, the folder of a Run, or a .npz or .safetensors file with `ids` and
    `x`, the adversarials of any attack. `problem` is what `brinell.evaluate` takes; the default is the data set that
    the Runs name. `threat` is needed if no submission is a Run.

    Method: every adversarial is verified again (class, float64 distance, box, finiteness). For Runs, hashes and schema
    are checked, rows are compared with manifest, model and data, clean predictions are repeated, and random survivors
    are attacked again, as in `brinell.verify`, which explains `rerun`, `hidden`, `confidence` and `full_plan`. `seed`
    and the hash of the Run choose these samples. Without a seed, a random seed is drawn and returned, so that the
    author of a Run cannot know the seed in advance. In a file of adversarials, a point that does not fool the model is
    no failure.
    `progress=None` shows on standard error what is being done.
    Cost: one forward pass per sample and adversarial, and the plan on the samples that are attacked again.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:8], brinell.Linf(0.1), "fgsm", progress=False)
    >>> result = review([run.path], "demo", rerun=2)
    >>> result.ok, result.bound == run.robust_accuracy
    (True, True)
    """
    if not submissions:
        raise InputError(expected="at least one submission", got="none", remedy="Pass paths of bundles, Runs or files.")
    sampling = sampling_of(rerun, hidden, confidence, seed, full_plan)
    model = coerce.as_classifier(classifier)
    model_checks.check_train_mode(model)
    with ExitStack() as stack:
        opened = _named([(Path(path), open_submission(Path(path), stack)) for path in submissions])
        runs = [entry for entry in opened.values() if isinstance(entry, Run)]
        for run in runs:
            refuse_unreadable(run)
            criterion_of(run)
        data = _data(runs) if problem is None else coerce.as_problem(problem)
        ball = _threat(runs, threat, data)
        ball.check(data.shape(), len(data))
        with exact(model.device):
            return _review(opened, model, data, ball, sampling, progress)


def certify(submission: str | os.PathLike[str], result: Review, classifier: Any, problem: Any = None) -> Record:
    """Return the verified record of a submission that passed a review in which samples were run again.

    Name and description of the model come from the record in the submission. Every number is computed anew, the
    leaderboard's restrictions are checked again, and all submissions together give the best known accuracy. The record
    must name the data and the norm of the Run, and the Run must be on the first samples of the data.
    """
    path = Path(submission)
    checked = next((s for s in result.submissions if s.name in (path.name, str(path))), None)
    if checked is None or not checked.ok or checked.again is None:
        raise RunError(
            expected="a submission that passed the review, with samples run again",
            got=f"{path.name}, which {_why_not(checked)}",
            remedy="Correct what the review reports, and review again without rerun=0 (--rerun 0).",
        )
    with ExitStack() as stack:
        run = open_submission(path, stack)
        if not isinstance(run, Run) or not (run.path / RECORD).exists():
            raise RunError(
                expected="a Run with a record",
                got=f"{path.name} without {RECORD}",
                remedy="Make Run and record with brinell benchmark.",
            )
        if digest(run.path) != checked.root:
            raise RunError(
                expected="the submission that was reviewed",
                got="a submission that has changed since the review",
                remedy="Review the submission again.",
            )
        submitted = records.read(run.path / RECORD)
        facts = {k: getattr(submitted, k) for k in records.ABOUT}
        record = records.of_run(run, submitted.dataset, submitted.threat, submitted.name, facts)
        model = coerce.as_classifier(classifier)
        data = _data([run]) if problem is None else coerce.as_problem(problem)
        ids = set(row_queries.samples(run.numbers()).tolist())
        _refuse_other_leaderboard(run, submitted, data, ids)
        _refuse_own_plan(run, model, data)
        restrictions = check_restrictions(model, data, coerce.threat_of(run))
    violated = tuple(f"{c.name}: {c.message}" for c in restrictions if c.level == "fail")
    bound = Proportion(sum(s.standing for s in result.samples if s.id in ids), len(ids))
    return replace(records.with_bound(record, bound), run=path.name, restrictions=violated)


def _why_not(checked: CheckedSubmission | None) -> str:
    if checked is None:
        return "was not reviewed"
    return "had no samples run again" if checked.ok else "did not pass"


def _refuse_other_leaderboard(run: Run, record: Record, data: Problem, ids: set[int]) -> None:
    norm, name = run.identity.threat.norm, run.identity.data.name
    known = {b.dataset for b in LEADERBOARDS}
    claims = (
        ("the norm of the Run", record.threat, norm, record.threat == norm),
        ("the data of the Run", record.dataset, name, record.dataset == name or name not in known),
    )
    for what, claimed, truth, fits in claims:
        if not fits:
            remedy = f"Write {truth} in {RECORD}."
            raise RunError(expected=f"{RECORD} to name {what}, {truth}", got=claimed, remedy=remedy)
    if set(first_ids(data, len(ids))) != ids:
        raise RunError(
            expected=f"a Run on the first {len(ids):,} samples of the data",
            got="a Run on other samples",
            remedy="Evaluate on the first samples of the data, as brinell benchmark does.",
        )


def _refuse_own_plan(run: Run, model: Classifier, data: Problem) -> None:
    oracle = Oracle(model, default_block(model.device))
    if recognised(run.identity.plan, coerce.threat_of(run), oracle, data) is None:
        raise RunError(
            expected="a Run of a plan that is built into Brinell",
            got=f"the plan {run.identity.plan.name}, whose strength is only claimed",
            remedy="Evaluate with brinell benchmark.",
        )


def _review(
    held: Mapping[str, "Run | Adversarials"],
    model: Classifier,
    data: Problem,
    threat: Threat,
    sampling: RerunSample,
    progress: bool | None,
) -> Review:
    oracle = Oracle(model, default_block(model.device))
    runs = [entry for entry in held.values() if isinstance(entry, Run)]
    scope = set[int]().union(*(row_queries.samples(run.numbers()).tolist() for run in runs))
    criterion = criterion_of(runs[0]) if runs else _default_criterion(oracle, data)
    draws = max([run.identity.plan.draws for run in runs], default=1)
    say(f"classify {len(scope) or len(data):,} clean samples", progress)
    samples = _clean(oracle, data, scope, draws)
    results = []
    for name, entry in held.items():
        say(f"{name}: check rows and adversarials on the model", progress)
        if isinstance(entry, Run):
            result, good, again = check_run(name, entry, oracle, data, threat, samples, sampling, progress)
            holding = {name: good, **({f"{name}, {AGAIN}": again} if len(again.ids) else {})}
        else:
            holding, result = check_file(name, entry, oracle, data, threat, criterion, draws, samples)
        results.append(result)
        for by, adversarials in holding.items():
            for i, distance in distances(adversarials, data, threat):
                known = samples.get(i)
                if known is not None and (known.distance is None or distance < known.distance):
                    samples[i] = replace(known, distance=distance, by=by)
    return Review(tuple(results), tuple(samples[i] for i in sorted(samples)), repr(threat), sampling.seed)


def _named(pairs: list[tuple[Path, "Run | Adversarials"]]) -> dict[str, "Run | Adversarials"]:
    """Return a dict of the submissions by file name, or by path if two files have the same name."""
    names = [path.name for path, _ in pairs]
    return {(path.name if names.count(path.name) == 1 else str(path)): entry for path, entry in pairs}


def _data(runs: list[Run]) -> Problem:
    """Load the data set that the Runs name; the hashes of its samples are compared later."""
    named = {(run.identity.data.name, run.identity.data.n or 0) for run in runs}
    names = {name for name, _ in named}
    # A name, not a path: the author of a Run must not choose which files are read here.
    if len(names) != 1 or not all(isinstance(n, str) and re.fullmatch(r"\w[\w.-]*", n) for n in names):
        raise InputError(
            expected="the data as problem, since the submissions do not name one common data set",
            got=f"no problem, and Runs that name {', '.join(map(repr, sorted(map(str, names)))) or 'no data set'}",
            remedy="Pass the data with problem= (--data).",
        )
    return load(str(names.pop()), max(n for _, n in named))


def _threat(runs: list[Run], threat: Threat | None, data: Problem) -> Threat:
    threats = [threat_for(run, data) for run in runs] + ([] if threat is None else [coerce.as_threat(threat)])
    if not threats:
        raise InputError(
            expected="a threat, which files of adversarials do not contain",
            got="no threat and no Run",
            remedy="Pass threat= (--norm and --eps).",
        )
    for other in threats[1:]:
        first, second = ({k: v for k, v in t.to_json().items() if k != "eps_text"} for t in (threats[0], other))
        if first != second:
            raise RunError(
                expected="submissions for one threat",
                got=f"{threats[0]} and {other}",
                remedy="Review the submissions of each threat separately.",
            )
    return threats[0]


def _default_criterion(oracle: Oracle, data: Problem) -> Criterion:
    reject = model_checks.first_forward(oracle, next(data.chunks(1))).reject
    return Misclassified() if reject is None else Evades()


def _clean(oracle: Oracle, data: Problem, scope: set[int], draws: int) -> dict[int, SampleStatus]:
    """Return the status of the samples in `scope` (all if empty), by id; `right` comes from new clean passes."""
    out: dict[int, SampleStatus] = {}
    for chunk in data.chunks(CHUNK):
        x = chunk.x.to(oracle.classifier.device)
        right = clean(replace(chunk, x=chunk.x[:0]), [oracle.output(x) for _ in range(draws)]).correct.tolist()
        for i, y, good in zip(chunk.ids.tolist(), chunk.y.tolist(), right, strict=True):
            if not scope or i in scope:
                out[i] = SampleStatus(i, y, good)
    return out
