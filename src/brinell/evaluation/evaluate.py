"""Evaluate a classifier: attack every sample with a plan and store the outcome as a Run."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.arguments import CertifyLike, DataLike, ModelLike, PlanLike, RankingLike
from brinell.checks.survivors import Kept, first_ids, run_survivor_checks
from brinell.core.dataset import READ, Chunk, Problem
from brinell.core.execution import Execution
from brinell.core.keywords import Unknown, refuse_separate_labels, refuse_unknown
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.estimate import announce_cost
from brinell.cost.settings import GpuSettings
from brinell.engine import precision as precisions
from brinell.engine.cuda.kept import kept_for_process
from brinell.engine.events import Listener, Note
from brinell.environment import environment, moved
from brinell.errors import BrinellError, InputError, ModelError, RunError
from brinell.evaluation import coerce
from brinell.evaluation.audit import needed_reach
from brinell.evaluation.backend import IN_PROCESS, AttackJob, Backend, Executor, require_backend
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.prepare import prepare, stored_settings, with_chosen
from brinell.evaluation.progress import show_progress, watched
from brinell.evaluation.rows import require_same_answers
from brinell.finding import Finding
from brinell.results import Run, SeedRuns, Writer, new_manifest
from brinell.results.format import files
from brinell.results.format.folders import AUTO, PARENT, default_folder, holds
from brinell.results.format.manifest import MANIFEST, decode
from brinell.results.format.resume import StoredOutcomes, StoredRows
from brinell.results.format.schema import Evidence, counted, is_evidence
from brinell.results.format.writer import refuse_other, refuse_used
from brinell.results.run import gather

Examination = Callable[[Run, Classifier, Problem, Threat, Plan], Run]
"""Examines a finished Run, with what it was made from, and returns the Run with the result."""
NO_IMAGES = "Adversarials were verified but not stored, as requested: this Run cannot be verified again from disk."


def evaluate(
    classifier: ModelLike, problem: DataLike, threat: Threat, plan: PlanLike = "autoattack",
    *, out: str | os.PathLike[str] | None = None, resume: bool = False, seed: int = 0, slots: int | None = None,
    precision: str = "auto", execution: str | Execution = "auto", device: torch.device | str | None = None,
    progress: bool | Listener | None = None, expected_clean_accuracy: float | None = None, individual: bool = False,
    audit: float | int | None = None, escalate: bool | None = None, queries: int | None = None,
    rank_by: RankingLike = None, rank_eps: float | str | None = None, targets: int | None = None,
    steps: int | None = None, rel_step: float | None = None, images: bool = True, launch: Backend = IN_PROCESS,
    also: Sequence[Examination] = (), adaptive: bool = False, test: bool | None = None, certify: CertifyLike = False,
    name: str | None = None, **unknown: Unknown,
) -> Run:  # fmt: skip
    """Attack every sample with the plan, store the outcome in the folder `out` and return it as a Run.

    `classifier` is a module, a wrapped model, "demo", the name of a zoo model, "FILE.py:FACTORY" or the folder of
    `brinell train`. `problem` is (x, y), a Dataset, a DataLoader, or what `brinell.data.load` reads, with options after
    commas ("cifar10-c,corruption=fog"). `plan` is a name, an attack, or a list of attacks.

    Storage: `out="auto"` names the folder after the evaluation, in `runs/` (runs/demo-demo-linf-8_255-fast, …-2);
    without `out` it is temporary. `resume=True` continues the interrupted Run in `out`. A finished Run of the same
    evaluation in `out` is returned. `images=False` verifies adversarials without storing them. `name` is a name for
    the model in reports.
    Attacks: `individual=True` runs every attack on all correct samples. `queries` limits the queries per sample, for
    plans without gradients. `targets` is the number of target classes, `steps` is the number of steps, and `rel_step`
    is their length as a multiple of eps, for weak plans such as "mm3-f20". `rank_by` ("fgsm", "pgd20" or an attack)
    ranks target classes by the logits at that attack's last iterate, within `rank_eps`; "malt" ranks them by distance
    in a linear model. `audit` is the share of survivors, drawn at random, that the plan "fast" attacks at full strength
    (0: only its first attack, no evidence). If its evidence contradicts it, it attacks more survivors, or all, at full
    strength. `escalate=False` forbids this; `escalate=True` does so also if the audit is too small or a check warns.
    `adaptive=True` probes the model and also attacks around what hides its gradients; the Run's check "adaptive" says
    how.
    Execution: see `brinell.Execution`. `execution` is an Execution or one of its modes.
    `launch=brinell.distributed.Ray()` computes on workers; the rows are the same. `progress`: None shows progress,
    False is silent, a function receives the events of `brinell.engine.events`.
    Tests of the finished Run: `test=None` makes a small binarization test if the verdict would be reliable and the test
    costs at most 5 % of the passes, `test=True` makes the full test, and `test=False` makes none. `also` lists further
    tests, e.g. `[brinell.reliability.WithProbe()]`.
    Certificates: `certify=True` then certifies the survivors as `brinell.certify` does; the name of a method, such as
    "crown", chooses how far it goes.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm", progress=False)
    >>> run.robust_accuracy.n
    32
    """
    refuse_unknown(unknown, evaluate)
    refuse_separate_labels(problem, threat)
    require_backend(launch)
    coerce.require_folder(resume, out)
    limit = coerce.as_threat(threat)
    options = {"seed": seed, "slots": slots, "precision": precision, "execution": execution, "device": device}
    how = Execution.from_options(options)
    model, data = coerce.as_model_and_data(classifier, problem, how.device)
    chosen = coerce.as_plan(
        plan, targets=targets, steps=steps, rel_step=rel_step, rank_by=rank_by, rank_eps=rank_eps, queries=queries,
        audit=audit, escalate=escalate,
    )  # fmt: skip
    stored = Path(out) if resume and out is not None else None
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(
            model, data, limit, chosen,
            stored_settings(how, stored), listener, expected=expected_clean_accuracy, individual=individual,
            device=launch.device, adaptive=adaptive,
        )  # fmt: skip
        prepared.name = name
        begun = time.perf_counter()
        folder, resume = _folder(prepared, out, resume)
        prepared = _as_stored(prepared, folder) if resume else prepared
        _refuse_unfit(prepared, folder, resume)
        with _kept(prepared), launch.open(prepared.context, prepared.plan) as executor:
            if progress in (None, True) and launch.device is None:
                announce_cost(prepared, folder if resume else None, escalate)
            with _writer(prepared, folder, resume, images) as writer, _resumable(prepared, folder, listener):
                prepared.release_first()
                kept = _stored_adversarials(prepared.context.seed, Run.open(folder))
                _attack(prepared, writer, executor, kept, escalate)
                _finish(prepared, writer, kept, begun)
    run = Run.open(folder)
    for examine in (*also, *_tests(test if launch.device is None else bool(test))):
        run = examine(run, model, data, prepared.context.threat, chosen)
    return _certified(run, model, data, certify, progress) if certify else run


def _certified(run: Run, model: Classifier, data: Problem, method: Any, progress: bool | Listener | None) -> Run:
    # Imported here: other evaluations do without.
    from brinell.evaluation.certificates.certify import certify

    return certify(run, model, data, method=None if method is True else method, progress=progress)


def _folder(s: PreparedEvaluation, out: str | os.PathLike[str] | None, resume: bool) -> tuple[Path, bool]:
    """Return the folder of the Run, and whether to resume: also where the folder holds this evaluation, finished."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="brinell-")), resume
    folder = default_folder(s.identity(), given=s.open_settings) if out == AUTO else Path(out)
    if out == AUTO and resume and not (folder / MANIFEST).exists():
        s.context.listener(Note(f"{PARENT} has no Run of this evaluation to resume: it starts in {folder}"))
    if resume or not (folder / MANIFEST).exists():
        return folder, resume
    stored = holds(folder, s.identity(), s.open_settings)
    if stored is None or not stored.finished:
        return folder, False
    s.context.listener(Note(f"{folder} holds this evaluation already, finished: nothing is computed again"))
    return folder, True


def _refuse_unfit(s: PreparedEvaluation, folder: Path, resume: bool) -> None:
    """Raise a RunError if the folder cannot take this evaluation; nothing is computed for it then."""
    if (folder / MANIFEST).exists():
        another = holds(folder, s.identity(), s.open_settings) is None
        if resume or (another and files.shards(folder)):
            refuse_other(folder, decode(folder), {"identity": s.identity()})
    if not resume:
        refuse_used(folder)


def _as_stored(s: PreparedEvaluation, folder: Path) -> PreparedEvaluation:
    """Return the evaluation with the settings of the Run in the folder, where the user left them open."""
    if not s.open_settings or not (folder / MANIFEST).exists():
        return s
    stored = decode(folder)
    settings = GpuSettings.read(stored.identity.raw)
    if settings is None or not stored.environment.raw.get("cuda") or not holds(folder, s.identity(), s.open_settings):
        return s
    return with_chosen(s, settings)


@contextmanager
def _kept(s: PreparedEvaluation) -> Iterator[None]:
    """Use what an earlier evaluation of the same model kept in this process, and keep what this one makes."""
    c, cache = s.oracle.classifier, s.context.graph_cache
    if cache is None or s.fingerprint is None:
        yield
        return
    gradients = c.differentiable and s.plan.needs_gradients
    with kept_for_process(s.oracle, cache, s.fingerprint, s.problem.shape(), gradients):
        yield


def _tests(test: bool | None) -> list[Examination]:
    """Return the binarization test that `evaluate` makes: the full one (True), a small one (None) or none (False)."""
    if test is False:
        return []
    # Imported here: the tests of a finished Run are a higher layer.
    from brinell.reliability.attach import WithSmallTest, WithTest

    return [WithTest()] if test else [WithSmallTest()]


def evaluate_seeds(
    classifier: ModelLike, problem: DataLike, threat: Threat, plan: PlanLike = "autoattack",
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
    data = coerce.as_problem(problem)
    model = coerce.as_classifier(classifier, options.get("device"), data)
    return over_seeds(
        lambda s, folder: evaluate(model, data, threat, plan, seed=s, out=folder, **options), seeds, seed, out
    )


def over_seeds(
    run: Callable[[int, Path | str | None], Run], seeds: int, seed: int = 0, out: str | os.PathLike[str] | None = None
) -> SeedRuns:
    """Call `run` with each seed and the folder for its Run (None without `out`), and return the Runs together."""
    if seeds < 1:
        raise InputError(expected="at least 1 seed", got=f"{seeds} seeds", remedy="Write e.g. seeds=5 (--seeds 5).")
    chosen = range(seed, seed + seeds)
    if out is None or out == AUTO:
        return SeedRuns(tuple(run(s, out) for s in chosen))
    return SeedRuns(tuple(run(s, Path(out) / f"seed-{s}") for s in chosen))


def _writer(s: PreparedEvaluation, folder: Path, resume: bool, images: bool) -> Writer:
    model = s.oracle.classifier
    manifest = new_manifest(s.identity(), environment(model.device, model.torch_module))
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
    stored = decode(folder)
    # Before anything is added. The rest of the answers is compared chunk by chunk.
    require_same_answers(s.first_clean(), StoredRows(folder).of(s.first.ids.tolist()))
    kept = stored.images
    if kept != images:
        raise RunError(
            expected=f"a Run to resume that {'does not store' if kept else 'stores'} adversarials, for images={images}",
            got=f"a Run that {'stores' if kept else 'does not store'} adversarials",
            remedy=f"Pass images={kept} ({'without' if kept else 'with'} --no-images), or use another folder.",
        )
    writer = Writer.resume(folder, manifest)
    different = moved(stored.last_environment, manifest["environment"])
    if different:
        note = f"Resumed in another environment ({'; '.join(different)}): answers may differ in their last digits."
        s.context.listener(Note(note))
        writer.update(notes=[*writer.stored.notes, note])
    return writer


def _stored_adversarials(seed: int, run: Run) -> Kept:
    """Return the adversarials for the checks after the attacks: those of a resumed Run that are stored already."""
    kept = Kept(seed)
    if run.images and run.shards.names:
        table = run.shards.all_rows(("sample_id", "attack", "broken", "verified", "adv_shard", "adv_row"))
        table = table.filter(pa.array(counted(table) & ~is_evidence(table, Evidence.CLEAN)))
        ids, first = np.unique(np.asarray(table["sample_id"], dtype=np.int64), return_index=True)
        stored = gather(run.shards, table.take(first[np.isin(ids, first_ids(seed, ids))]))
        kept.add(stored.ids, stored.x)
    return kept


@contextmanager
def _resumable(s: PreparedEvaluation, folder: Path, listener: Listener) -> Iterator[None]:
    """After a failure of the model, the device or the data, say that the finished rows are stored and how to go on."""
    calls = s.oracle.calls
    try:
        with watched(calls, listener), calls.named():
            yield
    except (ModelError, InputError) as error:
        raise _with_advice(error, folder) from (error.__cause__ or error)
    except KeyboardInterrupt:
        listener(Note(f"interrupted in {calls}; what was finished before is stored"))
        raise


def _with_advice(error: ModelError | InputError, folder: Path) -> BrinellError:
    advice = f"The rows finished so far are stored: continue with resume=True, out={str(folder)!r} (--resume --out)."
    return type(error)(expected=error.expected, got=error.got, remedy=f"{error.remedy} {advice}")


def _attack(s: PreparedEvaluation, writer: Writer, executor: Executor, kept: Kept, escalate: bool | None) -> None:
    """Run the plan; then its audit on more survivors, as far as what it found requires."""
    done = 0.0
    planned = min((stage.near for stage in s.stages if stage.near), default=0.0)
    while True:
        _attack_remaining(s, writer, executor, kept, done)
        needed, why = needed_reach(Run.open(writer.path), s.warned, escalate)
        if needed <= max(done, planned):
            return
        writer.update(finished=False, **({"certifying": False} if writer.stored.certifying else {}))
        note = f"{why}, so the full plan attacked all survivors."
        if why and note not in writer.stored.notes:
            writer.update(notes=[*writer.stored.notes, note])
            s.context.listener(Note(note))
        done = needed


def _attack_remaining(
    s: PreparedEvaluation, writer: Writer, executor: Executor, kept: Kept, reach: float = 0.0
) -> None:
    """Run the attacks whose rows the Run lacks, and store the rows as samples finish."""
    stored = StoredRows(writer.path)

    def read() -> Iterator[tuple[Chunk, StoredOutcomes]]:
        for chunk in s.chunks():
            yield chunk, stored.of(chunk.ids.tolist())
            del chunk  # free before the next one is read

    shape = tuple(s.first.x.shape[1:])
    job = AttackJob(s.context, s.plan, read, s.clean, len(s.problem), shape, s.individual, reach, s.context.listener)
    images = writer.stored.images
    for rows in executor.run(job):
        kept.add(rows.ids, rows.x)
        if images:
            writer.append(rows.table, rows.ids, rows.x)
        else:
            writer.append(rows.table)
    s.oracle.shrunk.extend(job.shrunk)
    seen = list(writer.stored.workers)
    new = [w for i, w in enumerate(job.workers) if w not in seen and w not in job.workers[:i]]
    if new:
        writer.update(workers=[*seen, *new])


def _examined(s: PreparedEvaluation, run: Run, kept: Kept) -> list[Finding]:
    """Return what the checks after the attacks find; randomised models are not checked."""
    if s.plan.draws > 1 or any(c.level != "ok" for c in s.checks if c.name == "randomised"):
        return []
    gradients = s.oracle.classifier.differentiable and s.plan.needs_gradients
    return run_survivor_checks(
        s.oracle.exact(),  # nothing is compiled for a few queries
        s.context.criterion,
        s.context.threat,
        s.first_chunk(),
        s.first_logits,
        run.survivors(),
        kept,
        gradients,
    )


def _finish(s: PreparedEvaluation, writer: Writer, kept: Kept, begun: float) -> None:
    stored = writer.stored
    if stored.finished or stored.certifying:  # there was nothing left to do: the Run stays as it is
        return
    examined = {c.name: c.to_json() for c in _examined(s, Run.open(writer.path), kept)}
    checks = [*(dict(c.raw) for c in stored.checks if c.name not in examined), *examined.values()]
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
    seconds = before + time.perf_counter() - begun
    # Workers count for themselves.
    asked = {} if stored.workers else {"asked_rows": (stored.asked_rows or 0) + s.oracle.calls.rows}
    writer.update(finished=True, wall_seconds=seconds, startup_seconds=start, notes=notes, checks=checks, **asked)
