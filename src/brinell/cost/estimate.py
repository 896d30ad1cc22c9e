"""Estimate the cost of an evaluation before it runs."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from brinell.arguments import DataLike, ModelLike, PlanLike, RankingLike
from brinell.core.execution import Execution, ExecutionOptions
from brinell.core.threat import Threat
from brinell.cost.budget import Estimate, longest_seconds
from brinell.cost.extrapolate import predict
from brinell.cost.outcomes import RemainingWork
from brinell.cost.pilot import preserve_rng
from brinell.engine import precision as precisions
from brinell.engine.events import Note
from brinell.engine.oracle import Oracle
from brinell.evaluation import coerce
from brinell.evaluation.context import PreparedEvaluation, chunk_size
from brinell.evaluation.prepare import prepare, stored_settings
from brinell.results import Run
from brinell.results.format.folders import AUTO, default_folder
from brinell.results.format.manifest import MANIFEST
from brinell.results.format.resume import NOTHING_STORED, StoredRows

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The cost of shorter evaluations, in seconds, is not announced, and no pilot is made if no outcome can take so long.
MIN_ANNOUNCED = 60.0
# On a GPU a pilot takes up to 15 s, most of it to start, and may take a twentieth of the evaluation.
MIN_ON_GPU = 300.0


def estimate(
    classifier: ModelLike, problem: DataLike, threat: Threat, plan: PlanLike = "autoattack",
    *, out: str | os.PathLike[str] | None = None, resume: bool = False, seconds: float | None = None,
    individual: bool = False, audit: float | int | None = None, escalate: bool | None = None,
    queries: int | None = None, rank_by: RankingLike = None, rank_eps: float | str | None = None,
    targets: int | None = None, steps: int | None = None, rel_step: float | None = None,
    adaptive: bool = False, **options: "Unpack[ExecutionOptions]",
) -> Estimate:  # fmt: skip
    """Estimate the passes and seconds that `evaluate` takes with the same arguments; nothing is written.

    Method: a pilot runs the plan on a few samples whose clean margins represent all samples. Cost: the clean pass of
    the first samples, then at most `seconds` (default: a fifth of the longest possible run, but at least one
    and at most two). With `resume`, only the work that the Run in `out` lacks is estimated. `options` are options of
    `brinell.Execution`.

    >>> import brinell
    >>> cost = brinell.estimate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm")
    >>> cost.samples, cost.forwards <= 32 + 2 * 32
    (32, True)
    """
    coerce.require_folder(resume, out)
    how = Execution.from_options(options)
    data = coerce.as_problem(problem)
    model = coerce.as_classifier(classifier, how.device, data)
    chosen = coerce.as_plan(
        plan, targets=targets, steps=steps, rel_step=rel_step, rank_by=rank_by, rank_eps=rank_eps, queries=queries,
        audit=audit, escalate=escalate,
    )  # fmt: skip
    folder = Path(out) if resume and out not in (None, AUTO) else None
    with precisions.exact(model.device):
        prepared = prepare(
            model, data, coerce.as_threat(threat), chosen,
            stored_settings(how, folder), individual=individual, adaptive=adaptive,
        )  # fmt: skip
        if resume and out == AUTO:
            folder = default_folder(prepared.identity(), given=prepared.open_settings)
        return predict(remaining_work(prepared, folder, escalate), seconds)


def remaining_work(s: PreparedEvaluation, folder: Path | None, escalate: bool | None) -> RemainingWork:
    """Return the work of an evaluation: all of it or, if `folder` holds a Run to resume, what this Run lacks."""
    first = s.first
    rest, known = float(len(s.problem) - len(first)), NOTHING_STORED
    if folder is not None and (folder / MANIFEST).exists():
        stored = StoredRows(folder)
        known, rest = stored.of(first.ids.tolist()), _rest(s, Run.open(folder), stored)
    return RemainingWork(s.context, s.plan, s.first_clean(), rest, s.pace, known, s.individual, escalate, s.warned)


def _rest(s: PreparedEvaluation, run: Run, stored: StoredRows) -> float:
    """Return the approximate number of samples beyond the first chunk that the Run has not finished."""
    n = len(s.problem) - len(s.first)
    if run.finished or not n:
        return 0.0
    begun = stored.count_other_samples(s.first.ids.tolist())
    # Chunks run one after another: assume that half of the work on the last one is done.
    size = chunk_size(s.problem)
    last = begun % size or min(begun, size)
    return n - begun + last / 2


def announce_cost(s: PreparedEvaluation, folder: Path | None, escalate: bool | None) -> None:
    """Send the estimated cost to the listener unless the evaluation is short."""
    if not _takes_long(s) or (not escalate and _is_finished(folder)):
        return
    cost = predict(remaining_work(s, folder, escalate))
    if cost.seconds < MIN_ANNOUNCED:
        return
    for text in (f"expected: {cost}", *cost.notes):
        s.context.listener(Note(text))


def _takes_long(s: PreparedEvaluation) -> bool:
    if s.expected_seconds is not None:
        return s.expected_seconds >= MIN_ON_GPU
    n = float(s.first_clean().correct.float().mean()) * len(s.problem)
    # The first pass also starts libraries: where it says so, the pace of a second one decides.
    paces = (lambda: s.pace, lambda: _second_pace(s))
    return all(longest_seconds(s.stages, n, pace()) >= MIN_ANNOUNCED for pace in paces)


def _second_pace(s: PreparedEvaluation) -> float:
    """Return the seconds per row of one more forward pass, which no cost counts."""
    oracle = Oracle(s.oracle.classifier, s.oracle.block)
    x = s.first.x[: oracle.block].to(oracle.classifier.device)
    begun = time.perf_counter()
    with preserve_rng(x.device):
        oracle.output(x, named=s.first.ids[: oracle.block])
    return (time.perf_counter() - begun) / oracle.block


def _is_finished(folder: Path | None) -> bool:
    """Return whether the folder holds a finished Run, to which only `escalate` can add."""
    return folder is not None and (folder / MANIFEST).exists() and Run.open(folder).finished
