"""The main job: a classifier, a problem, a threat and a plan in; a Run out."""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.classifier import Classifier
from brinell.core.problem import Chunk, Problem
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, PlanError
from brinell.evaluate import door, inputs
from brinell.evaluate.checks import watchful
from brinell.evaluate.environment import environment
from brinell.evaluate.plan import Plan, Stage, adapt, audited
from brinell.evaluate.progress import listening
from brinell.evaluate.stages import Setup, run_stage
from brinell.evaluate.tables import Clean, clean
from brinell.evaluate.verify import Verification
from brinell.evaluate.verify import verify as verify_run
from brinell.evaluate.work import IN_PROCESS, Crew, Job, Launcher
from brinell.results import ROWS, Run, Writer, new_manifest, wilson
from brinell.results.stored import Known, Stored

# Samples held in memory at a time: at most this many, and at most this many bytes of inputs.
CHUNK, CHUNK_BYTES = 16384, 1 << 28
# Blocks of rows in flight unless told otherwise: enough to spread the engine's own work.
BLOCKS = {"cpu": 4}
# The clean accuracy a user expects must lie in this confidence interval of the measured one.
EXPECTED_CONFIDENCE = 0.999


def _slots(slots: int | None, device: torch.device) -> int:
    if slots is None:
        return default_block(device) * BLOCKS.get(device.type, 1)
    if not isinstance(slots, int) or slots < 1:
        raise InputError(
            expected="slots of at least 1, a whole number", got=f"{slots}", remedy="Leave it out for the default."
        )
    return slots


def _chunk_size(problem: Problem) -> int:
    size = 4 * int(np.prod(problem.shape()))
    return max(1, min(CHUNK, CHUNK_BYTES // size))


@dataclass
class Session:
    """An evaluation ready to go: everything has been checked, nothing has been written."""

    setup: Setup
    plan: Plan
    problem: Problem
    first: Chunk
    first_logits: Tensor
    checks: list[door.Check]
    notes: list[str]
    device: torch.device
    individual: bool = False

    @property
    def oracle(self) -> Oracle:
        """The model."""
        return self.setup.oracle

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk, checked."""
        for chunk in self.problem.chunks(_chunk_size(self.problem)):
            door.labels(chunk, self.first_logits.shape[1])
            if chunk.offset == 0 and not torch.equal(chunk.x, self.first.x):
                raise InputError(
                    expected="data that read the same every time",
                    got="other inputs at the second reading",
                    remedy="Remove random augmentation from the data set.",
                )
            yield chunk

    def clean(self, chunk: Chunk) -> Clean:
        """The model's clean answers about a chunk; those of the first one were asked for at the door."""
        x = chunk.x.to(self.oracle.classifier.device)
        known = [self.first_logits] if chunk.offset == 0 else []
        more = [self.oracle.output(x).logits for _ in range(self.plan.draws - len(known))]
        return clean(chunk, known + more)

    def identity(self) -> dict[str, Any]:
        """What makes two evaluations the same."""
        c = self.oracle.classifier
        return {
            "brinell_format": 1,
            "threat": self.setup.threat.to_json(),
            "goal": self.setup.goal.name,
            "plan": self.plan.to_json(),
            "individual": self.individual,
            "model": {"fingerprint": c.fingerprint, "name": c.name, "classes": self.first_logits.shape[1]},
            "data": {"fingerprint": self.problem.fingerprint(), "n": len(self.problem), "name": self.problem.name},
            "seed": self.setup.seed,
            "precision": self.setup.precision,
            "block": default_block(self.device),
        }


def prepare(
    classifier: Classifier,
    problem: Problem,
    threat: Threat,
    plan: Plan,
    *,
    seed: int,
    slots: int | None,
    precision: str,
    listener: Listener,
    early_exit: bool = True,
    expected: float | None = None,
    individual: bool = False,
    device: torch.device | None = None,
) -> Session:
    """Look at everything before anything is written; `device` is what the work is done on, if not here."""
    device = classifier.device if device is None else device
    precisions.check(precision)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise InputError(expected="a whole number of 64 bits as seed", got=repr(seed), remedy="Use seed=0.")
    threat.check(problem.shape(), len(problem))
    mode = door.train_mode(classifier)
    oracle = Oracle(classifier, default_block(device), listener, precision=precision)
    first = next(problem.chunks(_chunk_size(problem)))
    logits = door.first_answer(oracle, first)
    if not problem.streamed:  # then every label can be looked at now
        door.labels(Chunk(problem.ids, problem.x, problem.y), logits.shape[1])
    fitted, notes = adapt(plan, classes=logits.shape[1], sparse=threat.norm.sparse, image=first.x.ndim == 4)
    for s in fitted.stages:
        s.ranking_threat(threat).check(problem.shape(), len(problem))
    checks = [mode, *_look(oracle, fitted, threat, first, logits, notes)]
    notes = [*door.single_logit(logits), *notes]
    for note in notes:
        listener(Note(note))
    setup = Setup(
        oracle,
        threat,
        seed,
        _slots(slots, device),
        precision,
        early_exit,
        listener=listener,
        draws=fitted.draws,
    )
    session = Session(setup, fitted, problem, first, logits, checks, notes, device, individual)
    _check_expected(session, expected)
    return session


def _look(
    oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, logits: Tensor, notes: list[str]
) -> list[door.Check]:
    """What one block of samples tells about the model before the first attack step."""
    door.labels(first, logits.shape[1])
    if plan.needs_gradients:
        door.gradients(oracle.classifier)
    n = min(len(first), oracle.block)
    x, y, logits = first.x[:n].to(logits.device), first.y[:n].to(logits.device), logits[:n]
    checks = door.inspect(oracle, x, logits)
    if plan.draws > 1:
        # The plan is made for randomised models.
        checks = [replace(c, level="ok") if c.name == "randomised" else c for c in checks]
    return [*checks, *watchful(oracle, plan, threat, x, y, logits, notes)]


def _check_expected(s: Session, expected: float | None) -> None:
    if expected is None:
        return
    if not 0 <= expected <= 1:
        raise InputError(
            expected="expected_clean_accuracy between 0 and 1", got=f"{expected}", remedy="Write 0.85 for 85 %."
        )
    good, n = int(clean(s.first, [s.first_logits]).correct.sum()), len(s.first)
    low, high = wilson(good, n, EXPECTED_CONFIDENCE)
    if not low <= expected <= high:
        raise ModelError(
            expected=f"a clean accuracy of {100 * expected:.1f} %",
            got=f"{100 * good / n:.1f} % on {n} samples",
            remedy="Check normalisation, channel order, resizing and label order before attacking.",
        )


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
    device: torch.device | str | None = None,
    progress: bool | None = None,
    expected_clean_accuracy: float | None = None,
    individual: bool = False,
    audit: float | int | None = None,
    escalate: bool = False,
    launch: Launcher = IN_PROCESS,
) -> Run:
    """Attack every sample with the plan and store what happened as a Run in the folder `out`.

    `classifier` may be a bare module or "demo", `problem` a bare (x, y) or "demo". Without `out` the Run goes to a new
    temporary folder. `resume=True` goes on with a Run that was interrupted. `individual=True` lets every attack see
    every sample. `audit` is the share of its survivors that the plan "fast" attacks at full strength (0: no audit);
    `escalate=True` attacks all of them so where the audit objects or is too small or a check warns, with `resume` also
    those of a finished Run. `progress`: None shows it (a bar on a terminal, plain lines elsewhere), False is silent.
    `launch` says where the work is done: in this process, or by workers (`brinell.launch.Ray`); the rows are the same.

    >>> import brinell
    >>> run = brinell.evaluate("demo", brinell.data.load("demo")[:32], brinell.Linf(0.1), "fgsm", progress=False)
    >>> run.robust_accuracy.n
    32
    """
    model = inputs.as_classifier(classifier, device)
    data, chosen = inputs.as_problem(problem), inputs.as_plan(plan)
    if audit is not None:
        chosen = audited(chosen, audit)
    if escalate and all(s.share is None for s in chosen.stages):
        raise PlanError(
            expected="a plan with an audit to escalate from",
            got=f"{chosen.name}, without one",
            remedy="Use the plan fast with its audit, or autoattack.",
        )
    with precisions.exact(model.device), listening(progress) as listener:
        session = prepare(
            model,
            data,
            inputs.as_threat(threat),
            chosen,
            seed=seed,
            slots=slots,
            precision=precision,
            listener=listener,
            expected=expected_clean_accuracy,
            individual=individual,
            device=launch.device,
        )
        begun = time.perf_counter()
        with launch.open(session.setup, session.plan) as crew:
            folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="brinell-"))
            with _writer(session, folder, resume) as writer:
                _run(session, writer, crew)
                if escalate and _unsettled(session, folder):
                    writer.update(finished=False)
                    _run(session, writer, crew, everyone=True)
                _close(session, writer, time.perf_counter() - begun)
    return Run.open(folder)


def _writer(s: Session, folder: Path, resume: bool) -> Writer:
    manifest = new_manifest(s.identity(), environment(s.oracle.classifier.device))
    if not (resume and (folder / "manifest.json").exists()):
        writer = Writer.create(folder, manifest)
        writer.update(checks=[c.to_json() for c in s.checks], notes=s.notes)
        return writer
    return Writer.resume(folder, manifest)


def _run(s: Session, writer: Writer, crew: Crew, everyone: bool = False) -> None:
    """Attack what the Run does not hold yet, and store it as it comes."""
    stored = Stored(writer.path)

    def read() -> Iterator[tuple[Chunk, Known]]:
        for chunk in s.chunks():
            yield chunk, stored.of(chunk.ids.tolist())

    shape = tuple(s.first.x.shape[1:])
    job = Job(s.setup, s.plan, read, s.clean, len(s.problem), shape, s.individual, everyone, s.setup.listener)
    for part in crew.parts(job):
        writer.append(part.table, part.ids, part.x)
    s.oracle.shrunk.extend(job.shrunk)
    seen = list(writer.manifest.get("workers", []))
    new = [w for i, w in enumerate(job.workers) if w not in seen and w not in job.workers[:i]]
    if new:
        writer.update(workers=[*seen, *new])


def _unsettled(s: Session, folder: Path) -> bool:
    """Whether the short plan's answer is in doubt: its audit objects or is too small, or a check warns."""
    run = Run.open(folder)
    found = run.audit
    if found is None or found.complete:
        return False
    warned = any(c.level in ("warn", "fail") for c in s.checks)
    return warned or found.objects or found.too_small(run.robust_accuracy)


def _close(s: Session, writer: Writer, seconds: float) -> None:
    if writer.manifest["finished"]:  # resumed for nothing: the Run stays as it is
        return
    notes = list(writer.manifest["notes"])
    notes += [f"The device ran out of memory: the model was asked about {b} rows at a time." for b in s.oracle.shrunk]
    before = writer.manifest.get("wall_seconds") or 0.0
    writer.update(finished=True, wall_seconds=before + seconds, notes=notes)


def attack(
    classifier: Any,
    problem: Any,
    threat: Threat,
    attack: "AnyAttack | Stage",
    *,
    seed: int = 0,
    slots: int | None = None,
    start: Tensor | None = None,
    early_exit: bool = True,
    device: torch.device | str | None = None,
    progress: bool | None = False,
) -> pa.Table:
    """Run one attack on every sample, misclassified ones too, and return its rows in the problem's order.

    For attack researchers: nothing is stored. `start` gives explicit start points, one per sample; `early_exit=False`
    lets every row use its whole budget, as the reference implementations do.

    >>> import brinell
    >>> rows = brinell.attack("demo", brinell.data.load("demo")[:8], brinell.L2(1.0), brinell.attacks.APGD(steps=5))
    >>> rows.num_rows, rows["forwards"].to_pylist()[0] <= 6
    (8, True)
    """
    model = inputs.as_classifier(classifier, device)
    data, chosen = inputs.as_problem(problem), inputs.as_plan(attack)
    with precisions.exact(model.device), listening(progress) as listener:
        session = prepare(
            model,
            data,
            inputs.as_threat(threat),
            chosen,
            seed=seed,
            slots=slots,
            precision="float32",
            listener=listener,
            early_exit=early_exit,
        )
        begin = _start(start, data)
        tables = []
        for chunk in session.chunks():
            c = session.clean(chunk)
            everyone = torch.arange(len(c.chunk), device=c.logits.device)
            here = None if begin is None else begin[c.chunk.offset : c.chunk.offset + len(c.chunk)]
            parts = [p for s in session.plan.stages for p in run_stage(session.setup, s, c, everyone, here)]
            tables.append(_in_order([p.table for p in parts], c.chunk.ids))
    return pa.concat_tables(tables) if tables else ROWS.empty_table()


def _in_order(tables: list[pa.Table], ids: Tensor) -> pa.Table:
    place = {i: k for k, i in enumerate(ids.tolist())}
    table = pa.concat_tables(tables)
    order = np.argsort([place[i] for i in table["sample_id"].to_pylist()], kind="stable")
    return table.take(pa.array(order))


def _start(start: Tensor | None, problem: Problem) -> Tensor | None:
    if start is None:
        return None
    begin = torch.as_tensor(start, dtype=torch.float32)
    wanted = (len(problem), *problem.shape())
    if tuple(begin.shape) != wanted or not bool(begin.isfinite().all()):
        raise InputError(
            expected=f"finite start points of shape {wanted}",
            got=f"shape {tuple(begin.shape)}",
            remedy="One per sample.",
        )
    return begin


def verify(run: "Run | str | os.PathLike[str]", classifier: Any, problem: Any) -> Verification:
    """Re-check every stored adversarial of a Run on the model: class, distance in float64, box, finiteness, origin.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = inputs.as_classifier(classifier), inputs.as_problem(problem)
    threat = inputs.threat_of(opened)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    door.train_mode(model)
    with precisions.exact(model.device):
        oracle = Oracle(model, default_block(model.device))
        return verify_run(opened, model, data, threat, oracle)
