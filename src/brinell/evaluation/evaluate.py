"""The main job: a classifier, a problem, a threat and a plan in; a Run out."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brinell.core.dataset import READ, Chunk, Problem
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.cost.estimate import announce_cost
from brinell.cost.precision import stored_precision
from brinell.engine import precision as precisions
from brinell.environment import environment
from brinell.errors import InputError, RunError
from brinell.evaluation import coerce
from brinell.evaluation.backend import IN_PROCESS, AttackJob, Backend, Executor
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.prepare import chosen_plan, prepare
from brinell.evaluation.progress import listening
from brinell.results import Run, Writer, new_manifest
from brinell.results.format.manifest import MANIFEST
from brinell.results.format.resume import StoredOutcomes, StoredRows

Examination = Callable[[Run, Classifier, Problem, Threat, Plan], Run]
"""What is done with a finished Run and what it was made with; the Run as it is then."""
UNKEPT = "Adversarials were verified and not stored, as asked: this Run cannot be verified again from disk."


def evaluate(
    classifier: Any,
    problem: Any,
    threat: Threat,
    plan: Any = "autoattack",
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    slots: int | None = None,
    precision: str = "float32",
    execution: str = "auto",
    device: torch.device | str | None = None,
    progress: bool | None = None,
    expected_clean_accuracy: float | None = None,
    individual: bool = False,
    audit: float | int | None = None,
    escalate: bool = False,
    images: bool = True,
    launch: Backend = IN_PROCESS,
    also: Sequence[Examination] = (),
) -> Run:
    """Attack every sample with the plan and store what happened as a Run in the folder `out`.

    `classifier` may be a bare module or "demo", `problem` a bare (x, y) or "demo". Without `out` the Run goes to a new
    temporary folder. `resume=True` goes on with the interrupted Run in `out`. `individual=True` lets every attack see
    every sample. `audit` is the share of its survivors that the plan "fast" attacks at full strength (0: no audit);
    `escalate=True` attacks all of them so where the audit objects or is too small or a check warns, with `resume` also
    those of a finished Run. `images=False` verifies adversarials and stores none. `precision` is that of the attacks'
    own passes ("tf32", "bfloat16": faster where the device has them; what they find is verified in float32; "auto":
    the best after a try). `execution="graph"` records iterations on CUDA devices and replays them, "compile" fuses
    kernels, which takes a while to start. `launch` says where the work is done, in this process or by workers
    (`brinell.launch.Ray`); the rows are the same. `also` examines the finished Run further, e.g. tests of the plan that
    its verdict reads (`brinell.reliability.WithTest()`, `WithProbe()`). `progress`: None shows it (a bar on a terminal,
    plain lines elsewhere), False is silent.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm", progress=False)
    >>> run.robust_accuracy.n
    32
    """
    if not isinstance(launch, Backend):
        raise InputError(
            expected="a launcher", got=repr(launch)[:80], remedy="Write launch=brinell.launch.Ray(workers=2)."
        )
    coerce.refuse_nowhere(resume, out)
    model = coerce.as_classifier(classifier, device)
    data, chosen = coerce.as_problem(problem), chosen_plan(plan, audit, escalate)
    folder = Path(out) if out is not None else None
    with precisions.exact(model.device), listening(progress) as listener:
        prepared = prepare(
            model,
            data,
            coerce.as_threat(threat),
            chosen,
            seed=seed,
            slots=slots,
            precision=stored_precision(precision, folder if resume else None),
            listener=listener,
            expected=expected_clean_accuracy,
            individual=individual,
            execution=execution,
            device=launch.device,
        )
        begun = time.perf_counter()
        with launch.open(prepared.context, prepared.plan) as crew:
            folder = folder or Path(tempfile.mkdtemp(prefix="brinell-"))
            if progress is not False and launch.device is None:
                announce_cost(prepared, folder if resume else None, escalate)
            with _writer(prepared, folder, resume, images) as writer:
                _run(prepared, writer, crew)
                if escalate and _unsettled(prepared, folder):
                    writer.update(finished=False)
                    _run(prepared, writer, crew, everyone=True)
                _close(prepared, writer, time.perf_counter() - begun)
    run = Run.open(folder)
    for examine in also:
        run = examine(run, model, data, prepared.context.threat, chosen)
    return run


def _writer(s: PreparedEvaluation, folder: Path, resume: bool, images: bool) -> Writer:
    manifest = new_manifest(s.identity(), environment(s.oracle.classifier.device))
    if not (resume and (folder / MANIFEST).exists()):
        more: dict[str, Any] = {} if s.choice is None else {"precision_choice": s.choice.to_json()}
        if not images:
            more["images"] = False
        if isinstance(s.context.threat.eps, Tensor):
            # Whose radii these are: parts of an evaluation are put together by it.
            more["sample_ids"] = [i for chunk in s.problem.chunks(READ) for i in chunk.ids.tolist()]
        notes = s.notes if images else [*s.notes, UNKEPT]
        # In one writing: a Run that is killed now must not lack its checks later.
        return Writer.create(folder, {**manifest, "checks": [c.to_json() for c in s.checks], "notes": notes, **more})
    kept = Run.open(folder).images
    if kept != images:
        raise RunError(
            expected=f"to go on with a Run that {'keeps' if kept else 'does not keep'} its adversarials",
            got=f"images={images}",
            remedy=f"Pass images={kept} ({'without' if kept else 'with'} --no-images), or use another folder.",
        )
    return Writer.resume(folder, manifest)


def _run(s: PreparedEvaluation, writer: Writer, crew: Executor, everyone: bool = False) -> None:
    """Attack what the Run does not hold yet, and store it as it comes."""
    stored = StoredRows(writer.path)

    def read() -> Iterator[tuple[Chunk, StoredOutcomes]]:
        for chunk in s.chunks():
            yield chunk, stored.of(chunk.ids.tolist())

    shape = tuple(s.first.x.shape[1:])
    job = AttackJob(s.context, s.plan, read, s.clean, len(s.problem), shape, s.individual, everyone, s.context.listener)
    images = writer.stored.images
    for part in crew.parts(job):
        if images:
            writer.append(part.table, part.ids, part.x)
        else:
            writer.append(part.table)
    s.oracle.shrunk.extend(job.shrunk)
    seen = list(writer.stored.workers)
    new = [w for i, w in enumerate(job.workers) if w not in seen and w not in job.workers[:i]]
    if new:
        writer.update(workers=[*seen, *new])


def _unsettled(s: PreparedEvaluation, folder: Path) -> bool:
    """Whether the short plan's answer is in doubt: its audit objects or is too small, or a check warns."""
    run = Run.open(folder)
    found = run.audit
    if found is None or found.complete:
        return False
    return s.warned or found.objects or found.too_small(run.robust_accuracy)


def _close(s: PreparedEvaluation, writer: Writer, seconds: float) -> None:
    stored = writer.stored
    if stored.finished:  # resumed for nothing: the Run stays as it is
        return
    notes = list(stored.notes)
    notes += [f"The device ran out of memory: the model was asked about {b} rows at a time." for b in s.oracle.shrunk]
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
