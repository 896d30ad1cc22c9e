"""Evaluate a classifier: attack every sample with a plan and store the outcome as a Run."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brinell.core.dataset import READ, Chunk, Problem
from brinell.core.execution import Execution
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.estimate import announce_cost
from brinell.engine import precision as precisions
from brinell.environment import environment
from brinell.errors import InputError, RunError
from brinell.evaluation import coerce
from brinell.evaluation.audit import needs_escalation
from brinell.evaluation.backend import IN_PROCESS, AttackJob, Backend, Executor, require_backend
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.prepare import prepare, stored_precision
from brinell.evaluation.progress import show_progress
from brinell.results import Run, SeedRuns, Writer, new_manifest
from brinell.results.format.manifest import MANIFEST
from brinell.results.format.resume import StoredOutcomes, StoredRows

Examination = Callable[[Run, Classifier, Problem, Threat, Plan], Run]
"""Examines a finished Run, with what it was made from, and returns the Run with the result."""
NO_IMAGES = "Adversarials were verified but not stored, as requested: this Run cannot be verified again from disk."


def evaluate(
    classifier: Any, problem: Any, threat: Threat, plan: Any = "autoattack",
    *, out: str | os.PathLike[str] | None = None, resume: bool = False, seed: int = 0, slots: int | None = None,
    precision: str = "float32", execution: str | Execution = "auto", device: torch.device | str | None = None,
    progress: bool | None = None, expected_clean_accuracy: float | None = None, individual: bool = False,
    audit: float | int | None = None, escalate: bool = False, queries: int | None = None, rank_by: Any = None,
    rank_eps: float | str | None = None, targets: int | None = None, steps: int | None = None,
    rel_step: float | None = None, images: bool = True, launch: Backend = IN_PROCESS,
    also: Sequence[Examination] = (),
) -> Run:  # fmt: skip
    """Attack every sample with the plan, store the outcome in the folder `out` and return it as a Run.

    `classifier` is a module, a wrapped model, "demo", the name of a zoo model, "FILE.py:FACTORY" or the folder of
    `brinell train`. `problem` is (x, y), a Dataset, a DataLoader, or what `brinell.data.load` reads, with options after
    commas ("cifar10-c,corruption=fog"). `plan` is a name, an attack, or a list of attacks.

    Storage: without `out` the Run is in a new temporary folder. `resume=True` continues the interrupted Run in `out`.
    `images=False` verifies adversarials without storing them.
    Attacks: `individual=True` runs every attack on all correct samples. `queries` limits the queries per sample, for
    plans without gradients. `targets` is the number of target classes, `steps` is the number of steps, and `rel_step`
    is their length as a multiple of eps, for weak plans such as "mm3-f20". `rank_by` ("fgsm", "pgd20" or an attack)
    ranks target classes by the logits at that attack's last iterate, within `rank_eps`. `audit` is the share of
    survivors that the plan "fast" attacks at full strength (0: none). `escalate=True` attacks all survivors at full
    strength if the audit contradicts the result or is too small, or if a check warns.
    Execution: see `brinell.Execution`. `execution` is an Execution or one of its modes.
    `launch=brinell.distributed.Ray()` computes on workers; the rows are the same. `progress`: None shows progress,
    False is silent. `also` lists tests of the finished Run, e.g. `[brinell.reliability.WithTest()]`.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm", progress=False)
    >>> run.robust_accuracy.n
    32
    """
    require_backend(launch)
    coerce.require_folder(resume, out)
    options = {"seed": seed, "slots": slots, "precision": precision, "execution": execution, "device": device}
    how = Execution.from_options(options)
    model, data = coerce.as_classifier(classifier, how.device), coerce.as_problem(problem)
    chosen = coerce.as_plan(
        plan, targets=targets, steps=steps, rel_step=rel_step, rank_by=rank_by, rank_eps=rank_eps, queries=queries,
        audit=audit, escalate=escalate,
    )  # fmt: skip
    folder = None if out is None else Path(out)
    stored = folder if resume else None
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(
            model, data, coerce.as_threat(threat), chosen,
            replace(how, precision=stored_precision(how.precision, stored)), listener, expected=expected_clean_accuracy,
            individual=individual, device=launch.device,
        )  # fmt: skip
        begun = time.perf_counter()
        with launch.open(prepared.context, prepared.plan) as executor:
            folder = folder or Path(tempfile.mkdtemp(prefix="brinell-"))
            if progress is not False and launch.device is None:
                announce_cost(prepared, stored, escalate)
            with _writer(prepared, folder, resume, images) as writer:
                _attack_remaining(prepared, writer, executor)
                if escalate and needs_escalation(Run.open(folder), prepared.warned):
                    writer.update(finished=False)
                    _attack_remaining(prepared, writer, executor, everyone=True)
                _finish(prepared, writer, time.perf_counter() - begun)
    run = Run.open(folder)
    for examine in also:
        run = examine(run, model, data, prepared.context.threat, chosen)
    return run


def evaluate_seeds(
    classifier: Any, problem: Any, threat: Threat, plan: Any = "autoattack",
    *, seeds: int, seed: int = 0, out: str | os.PathLike[str] | None = None, **options: Any,
) -> SeedRuns:  # fmt: skip
    """Evaluate with a number `seeds` of consecutive seeds, the first of which is `seed`; return the Runs together.

    The Runs are stored in the folders seed-0, seed-1, … of `out`. `options` are options of `evaluate`; `resume=True`
    continues interrupted Runs.

    >>> import brinell
    >>> data = brinell.data.load("demo", 16)
    >>> found = evaluate_seeds("demo", data, brinell.Linf(0.1), "fgsm", seeds=2, progress=False)
    >>> len(found.runs), found.deviation
    (2, 0.0)
    """
    model, data = coerce.as_classifier(classifier, options.get("device")), coerce.as_problem(problem)
    return over_seeds(
        lambda s, folder: evaluate(model, data, threat, plan, seed=s, out=folder, **options), seeds, seed, out
    )


def over_seeds(
    run: Callable[[int, Path | None], Run], seeds: int, seed: int = 0, out: str | os.PathLike[str] | None = None
) -> SeedRuns:
    """Call `run` with each seed and the folder for its Run (None without `out`), and return the Runs together."""
    if seeds < 1:
        raise InputError(expected="at least 1 seed", got=f"{seeds} seeds", remedy="Write e.g. seeds=5 (--seeds 5).")
    chosen = range(seed, seed + seeds)
    return SeedRuns(tuple(run(s, None if out is None else Path(out) / f"seed-{s}") for s in chosen))


def _writer(s: PreparedEvaluation, folder: Path, resume: bool, images: bool) -> Writer:
    manifest = new_manifest(s.identity(), environment(s.oracle.classifier.device))
    if not (resume and (folder / MANIFEST).exists()):
        more: dict[str, Any] = {} if s.precision_choice is None else {"precision_choice": s.precision_choice}
        if not images:
            more["images"] = False
        if isinstance(s.context.threat.eps, Tensor):
            # The samples that the radii belong to: parts of an evaluation are merged by them.
            more["sample_ids"] = [i for chunk in s.problem.chunks(READ) for i in chunk.ids.tolist()]
        notes = s.notes if images else [*s.notes, NO_IMAGES]
        # Written at once, so that a Run that is killed now has its checks.
        return Writer.create(folder, {**manifest, "checks": [c.to_json() for c in s.checks], "notes": notes, **more})
    kept = Run.open(folder).images
    if kept != images:
        raise RunError(
            expected=f"a Run to resume that {'does not store' if kept else 'stores'} adversarials, for images={images}",
            got=f"a Run that {'stores' if kept else 'does not store'} adversarials",
            remedy=f"Pass images={kept} ({'without' if kept else 'with'} --no-images), or use another folder.",
        )
    return Writer.resume(folder, manifest)


def _attack_remaining(s: PreparedEvaluation, writer: Writer, executor: Executor, everyone: bool = False) -> None:
    """Run the attacks whose rows the Run lacks, and store the rows as samples finish."""
    stored = StoredRows(writer.path)

    def read() -> Iterator[tuple[Chunk, StoredOutcomes]]:
        for chunk in s.chunks():
            yield chunk, stored.of(chunk.ids.tolist())

    shape = tuple(s.first.x.shape[1:])
    job = AttackJob(s.context, s.plan, read, s.clean, len(s.problem), shape, s.individual, everyone, s.context.listener)
    images = writer.stored.images
    for rows in executor.run(job):
        if images:
            writer.append(rows.table, rows.ids, rows.x)
        else:
            writer.append(rows.table)
    s.oracle.shrunk.extend(job.shrunk)
    seen = list(writer.stored.workers)
    new = [w for i, w in enumerate(job.workers) if w not in seen and w not in job.workers[:i]]
    if new:
        writer.update(workers=[*seen, *new])


def _finish(s: PreparedEvaluation, writer: Writer, seconds: float) -> None:
    stored = writer.stored
    if stored.finished:  # there was nothing left to do: the Run stays as it is
        return
    notes = list(stored.notes)
    notes += [f"The device ran out of memory: the model was queried with {b} rows at a time." for b in s.oracle.shrunk]
    notes += dict.fromkeys(s.oracle.notes)
    before = stored.wall_seconds or 0.0
    start = stored.startup_seconds or 0.0
    graphs = s.context.graph_cache
    if graphs is not None:
        start += graphs.seconds
        if graphs.unneeded_forwards:
            notes.append(
                f"Speculative execution made up to {graphs.unneeded_forwards:,} extra forward passes. "
                "They are not part of the reported cost."
            )
    writer.update(finished=True, wall_seconds=before + seconds, startup_seconds=start, notes=notes)
