"""What all submissions together leave standing: the best known bound on a model's robust accuracy."""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from brinell.evaluation.rows import clean
from brinell.leaderboard import records
from brinell.leaderboard.definitions import LEADERBOARDS
from brinell.leaderboard.records import RECORD, Record
from brinell.results import Adversarials, Proportion, Run, row_queries
from brinell.verification.adversarials import goal_of
from brinell.verification.bundle import digest
from brinell.verification.consistency import refuse_incomplete, refuse_many
from brinell.verification.provenance import CHUNK, first_ids, threat_for
from brinell.verification.submission import (
    CheckedSubmission,
    SampleStatus,
    check_file,
    check_run,
    distances,
    open_submission,
)

RERUN = 16
AGAIN = "run again"
# Of a drawn seed: more than anybody can prepare for, and exact in any reader of JSON.
SEED_BITS = 48


@dataclass(frozen=True)
class Review:
    """All submissions together: the best known bound on a model's robust accuracy, sample by sample."""

    parts: tuple[CheckedSubmission, ...]
    samples: tuple[SampleStatus, ...]
    threat: str
    seed: int = 0

    @property
    def ok(self) -> bool:
        """Whether no submission is refused."""
        return all(part.ok for part in self.parts)

    @property
    def clean_accuracy(self) -> Proportion:
        """Samples whose clean input is right."""
        return Proportion(sum(s.right for s in self.samples), len(self.samples))

    @property
    def bound(self) -> Proportion:
        """Samples that nothing in any submission breaks: the best known bound on the robust accuracy."""
        return Proportion(sum(s.standing for s in self.samples), len(self.samples))

    def __str__(self) -> str:
        head = [str(part) for part in self.parts]
        bound = f"best known robust accuracy under {self.threat}: {self.bound}"
        chosen = [f"samples to run again chosen by seed {self.seed}"] if any(p.rerun for p in self.parts) else []
        return "\n".join([*head, *chosen, f"clean accuracy: {self.clean_accuracy}", bound])

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        whole = {"clean_accuracy": self.clean_accuracy, "bound": self.bound}
        return {
            "ok": self.ok,
            "threat": self.threat,
            "seed": self.seed,
            **{k: {"value": p.value, "low": p.low, "high": p.high, "k": p.k, "n": p.n} for k, p in whole.items()},
            "submissions": [
                {
                    "name": p.name,
                    "ok": p.ok,
                    "checked": p.checked,
                    "held": p.held,
                    "failures": {str(i): why for i, why in p.failures.items()},
                    "objections": list(p.objections),
                    "rerun": p.rerun,
                    "alike": p.alike,
                    "notes": list(p.notes),
                }
                for p in self.parts
            ],
            "samples": [{"id": s.id, "right": s.right, "distance": s.distance, "by": s.by} for s in self.samples],
        }


def review(
    submissions: Sequence[str | os.PathLike[str]],
    classifier: Any,
    problem: Any = None,
    threat: Threat | None = None,
    *,
    rerun: int = RERUN,
    seed: int | None = None,
) -> Review:
    """Check submissions on the model, and say what all of them together leave standing.

    A submission is a bundle of `brinell submit`, the folder of a Run, or a .npz or .safetensors file with `ids` and
    `x`, adversarials of whatever attack. `problem` is what `brinell.evaluate` takes; without it the data set that the
    Runs name. `threat` is needed where no Run tells it.

    Method: every adversarial is asked about again (class, distance in float64, box, finiteness). Of Runs also hashes,
    schema, the fit of rows, manifest, model and data, all clean predictions, and `rerun` samples attacked again, chosen
    by `seed` and the Run's hash. Without a seed one is drawn, which whoever made the Run could not know; the result
    tells it, and with it the same samples are chosen. Of files only images that leave the threat are held against them.
    Cost: a forward per sample and adversarial, and the plan on `rerun` samples per Run.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:8], brinell.Linf(0.1), "fgsm", progress=False)
    >>> result = review([run.path], "demo", rerun=2)
    >>> result.ok, result.bound == run.robust_accuracy
    (True, True)
    """
    if not submissions:
        raise InputError(expected="at least one submission", got="none", remedy="Name bundles, Runs or files.")
    if isinstance(rerun, bool) or rerun < 0:
        raise InputError(expected="rerun of at least 0", got=f"{rerun}", remedy=f"The default is {RERUN}.")
    model = coerce.as_classifier(classifier)
    model_checks.check_train_mode(model)
    with ExitStack() as stack:
        held = _named([(Path(path), open_submission(Path(path), stack)) for path in submissions])
        runs = [thing for thing in held.values() if isinstance(thing, Run)]
        for run in runs:
            _refuse_unreadable(run)
        data = _data(runs) if problem is None else coerce.as_problem(problem)
        ball = _threat(runs, threat, data)
        ball.check(data.shape(), len(data))
        drawn = secrets.randbits(SEED_BITS) if seed is None else seed
        with exact(model.device):
            return _review(held, model, data, ball, rerun, drawn)


def _refuse_unreadable(run: Run) -> None:
    """A RunError for a Run that cannot be checked at all, before its rows are read."""
    refuse_incomplete(run)
    refuse_many(run)
    goal_of(run)


def certify(submission: str | os.PathLike[str], result: Review, classifier: Any, problem: Any = None) -> Record:
    """The verified record of a submission that a review found nothing wrong with, after samples were run again.

    Facts about the model and its name are taken from the record in the submission; every number is computed anew, the
    restrictions are looked at again, and what other submissions broke of the same samples makes the best known
    accuracy. The record must name the data and the norm of the Run, and the samples must be the first of the data.
    """
    path = Path(submission)
    own = next((part for part in result.parts if part.name in (path.name, str(path))), None)
    if own is None or not own.ok or not own.rerun:
        raise RunError(
            expected="a submission that holds, with samples run again",
            got=f"{path.name}, which {'was not reviewed' if own is None else 'does not' if not own.ok else 'had none'}",
            remedy="Only such a one gets a verified record.",
        )
    with ExitStack() as stack:
        run = open_submission(path, stack)
        if not isinstance(run, Run) or not (run.path / RECORD).exists():
            raise RunError(
                expected="a Run with a record", got=f"{path.name} without", remedy="Make it with brinell benchmark."
            )
        if digest(run.path) != own.root:
            raise RunError(
                expected="the submission that was reviewed", got="one that has changed since", remedy="Review it again."
            )
        told = records.read(run.path / RECORD)
        facts = {k: getattr(told, k) for k in records.ABOUT}
        record = records.of_run(run, told.dataset, told.threat, told.name, facts)
        model = coerce.as_classifier(classifier)
        data = _data([run]) if problem is None else coerce.as_problem(problem)
        ids = set(row_queries.samples(run.numbers()).tolist())
        _refuse_elsewhere(run, told, data, ids)
        found = check_restrictions(model, data, coerce.threat_of(run))
    violated = tuple(f"{c.name}: {c.message}" for c in found if c.level == "fail")
    own_bound = Proportion(sum(s.standing for s in result.samples if s.id in ids), len(ids))
    return replace(records.with_bound(record, own_bound), run=path.name, restrictions=violated)


def _refuse_elsewhere(run: Run, told: Record, data: Problem, ids: set[int]) -> None:
    """A RunError where a record claims a place on a leaderboard that its Run is not about."""
    norm, name = run.identity.threat.norm, run.identity.data.name
    known = {b.dataset for b in LEADERBOARDS}
    claims = (
        ("the norm of its Run", told.threat, norm, told.threat == norm),
        ("the data of its Run", told.dataset, name, told.dataset == name or name not in known),
    )
    for what, claimed, truth, fits in claims:
        if not fits:
            raise RunError(expected=f"a record with {what}, {truth}", got=claimed, remedy="It gets no verified record.")
    if set(first_ids(data, len(ids))) != ids:
        raise RunError(
            expected=f"a Run on the first {len(ids):,} samples of the data",
            got="one on chosen ones",
            remedy="It gets no verified record: evaluate on the first n.",
        )


def _review(
    held: Mapping[str, "Run | Adversarials"], model: Classifier, data: Problem, threat: Threat, rerun: int, seed: int
) -> Review:
    oracle = Oracle(model, default_block(model.device))
    runs = [thing for thing in held.values() if isinstance(thing, Run)]
    scope = set[int]().union(*(row_queries.samples(run.numbers()).tolist() for run in runs))
    criterion = goal_of(runs[0]) if runs else _goal(oracle, data)
    draws = max([run.identity.plan.draws for run in runs], default=1)
    table = _Table(_clean(oracle, data, scope, draws))
    parts = []
    for name, thing in held.items():
        if isinstance(thing, Run):
            part, good, again = check_run(name, thing, oracle, data, threat, table.samples, rerun, seed)
            parts.append(part)
            found = {name: good, **({f"{name}, {AGAIN}": again} if len(again.ids) else {})}
        else:
            found, checked = check_file(name, thing, oracle, data, threat, criterion, draws, table.samples)
            parts.append(checked)
        for by, adversarials in found.items():
            for i, distance in distances(adversarials, data, threat):
                table.offer(i, distance, by)
    return Review(tuple(parts), tuple(table.samples[i] for i in sorted(table.samples)), repr(threat), seed)


@dataclass
class _Table:
    """The samples by id, with the nearest adversarial so far."""

    samples: dict[int, SampleStatus]

    def offer(self, id: int, distance: float, by: str) -> None:
        now = self.samples.get(id)
        if now is not None and (now.distance is None or distance < now.distance):
            self.samples[id] = replace(now, distance=distance, by=by)


def _named(pairs: list[tuple[Path, "Run | Adversarials"]]) -> dict[str, "Run | Adversarials"]:
    """Submissions by the name of their file, or by their path where two are called the same."""
    names = [path.name for path, _ in pairs]
    return {(path.name if names.count(path.name) == 1 else str(path)): thing for path, thing in pairs}


def _data(runs: list[Run]) -> Problem:
    """The data set that the Runs name; the hashes of its samples are compared later."""
    named = {(run.identity.data.name, run.identity.data.n or 0) for run in runs}
    names = {name for name, _ in named}
    # A name, no path: whoever made the Run does not choose what is read here.
    if len(names) != 1 or not all(isinstance(n, str) and re.fullmatch(r"\w[\w.-]*", n) for n in names):
        raise InputError(
            expected="the data, since the submissions do not name one data set",
            got=f"none, and {', '.join(map(repr, sorted(map(str, names)))) or 'no Run'}",
            remedy="Pass problem= (--data).",
        )
    return load(str(names.pop()), max(n for _, n in named))


def _threat(runs: list[Run], threat: Threat | None, data: Problem) -> Threat:
    threats = [threat_for(run, data) for run in runs] + ([] if threat is None else [coerce.as_threat(threat)])
    if not threats:
        raise InputError(
            expected="a threat, since no Run tells one", got="none", remedy="Pass threat= (--norm and --eps)."
        )
    for other in threats[1:]:
        first, second = ({k: v for k, v in t.to_json().items() if k != "eps_text"} for t in (threats[0], other))
        if first != second:
            raise RunError(
                expected="submissions for one threat", got=f"{threats[0]} and {other}", remedy="Verify them apart."
            )
    return threats[0]


def _goal(oracle: Oracle, data: Problem) -> Criterion:
    first = next(data.chunks(1))
    answered = model_checks.first_forward(oracle, first)
    return Misclassified() if answered.reject is None else Evades()


def _clean(oracle: Oracle, data: Problem, scope: set[int], draws: int) -> dict[int, SampleStatus]:
    """Every sample that Runs are about (all, without Runs), and whether its clean input is right."""
    out: dict[int, SampleStatus] = {}
    for chunk in data.chunks(CHUNK):
        x = chunk.x.to(oracle.classifier.device)
        right = clean(replace(chunk, x=chunk.x[:0]), [oracle.output(x) for _ in range(draws)]).correct.tolist()
        for i, y, good in zip(chunk.ids.tolist(), chunk.y.tolist(), right, strict=True):
            if not scope or i in scope:
                out[i] = SampleStatus(i, y, good)
    return out
