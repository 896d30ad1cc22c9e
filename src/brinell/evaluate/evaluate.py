"""The main job: a classifier, a problem, a threat and a plan in; a Run out."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.classifier import Classifier, Output
from brinell.core.goal import Evade, Misclassify
from brinell.core.problem import Chunk, Problem
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.calibration import lanes_for
from brinell.engine.events import Listener, Note
from brinell.engine.execution import settle
from brinell.engine.lanes import Recordings
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, PlanError, RunError
from brinell.evaluate import agreement, door, inputs
from brinell.evaluate.checks import watchful
from brinell.evaluate.choice import Choice, choose, remembered
from brinell.evaluate.cost import Ahead, foresee, worst_seconds
from brinell.evaluate.detectors import guarded, watched
from brinell.evaluate.environment import environment
from brinell.evaluate.plan import Plan, Stage, adapt, audited, suits
from brinell.evaluate.progress import listening
from brinell.evaluate.stages import Setup, run_stage
from brinell.evaluate.tables import Clean, clean
from brinell.evaluate.verify import Verification
from brinell.evaluate.verify import verify as verify_run
from brinell.evaluate.work import IN_PROCESS, Crew, Job, Launcher
from brinell.results import ROWS, Proportion, Run, Writer, new_manifest, wilson
from brinell.results.claims import contradictions
from brinell.results.radii import SAMPLE_IDS
from brinell.results.stored import NOTHING, Known, Stored

# Samples held in memory at a time: at most this many, and at most this many bytes of inputs.
CHUNK, CHUNK_BYTES = 16384, 1 << 28
# Blocks of rows in flight unless told otherwise: enough to spread the engine's own work.
BLOCKS = {"cpu": 4}
# The clean accuracy a user expects must lie in this confidence interval of the measured one.
EXPECTED_CONFIDENCE = 0.999

Examination = Callable[[Run, Classifier, Problem, Threat, Plan], Run]
"""What is done with a finished Run and what it was made with; the Run as it is then."""
UNKEPT = "Adversarials were verified and not stored, as asked: this Run cannot be verified again from disk."
# Evaluations that take less than so many seconds even if nothing breaks are not announced.
WORTH_ASKING = 10.0


def _slots(
    slots: int | None, oracle: Oracle, device: torch.device, shape: tuple[int, ...], recordings: Recordings | None
) -> int:
    if slots is None:
        lanes = BLOCKS.get(device.type, 1) if recordings is None else lanes_for(oracle, shape)
        return oracle.block * lanes
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
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
    first_output: Output
    checks: list[door.Check]
    notes: list[str]
    device: torch.device
    individual: bool = False
    pace: float = 0.0
    choice: Choice | None = None

    @property
    def oracle(self) -> Oracle:
        """The model."""
        return self.setup.oracle

    @property
    def first_logits(self) -> Tensor:
        """The model's logits for the first chunk."""
        return self.first_output.logits

    def facts(self) -> Clean:
        """What is known of the first chunk by now, without the hashes of its inputs."""
        return replace(clean(replace(self.first, x=self.first.x[:0]), [self.first_output]), chunk=self.first)

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
        known = [self.first_output] if chunk.offset == 0 else []
        more = [self.oracle.output(x) for _ in range(self.plan.draws - len(known))]
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
            **({"execution": "compile"} if self.oracle.compiled else {}),
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
    execution: str = "auto",
    device: torch.device | None = None,
) -> Session:
    """Look at everything before anything is written; `device` is what the work is done on, if not here."""
    device = classifier.device if device is None else device
    precisions.check(precision)
    way = settle(execution, device)
    if precision == precisions.AUTO and device.type != classifier.device.type:
        raise InputError(
            expected="a precision to use on the workers",
            got=f"auto, with the model on {classifier.device} where nothing about {device.type} can be measured",
            remedy="Choose float32, tf32 or bfloat16, or put the model on the workers' kind of device.",
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise InputError(expected="a whole number of 64 bits as seed", got=repr(seed), remedy="Use seed=0.")
    threat.check(problem.shape(), len(problem))
    mode = door.train_mode(classifier)
    oracle = Oracle(classifier, default_block(device), listener, precision=_steering(precision))
    oracle = replace(oracle, compiled=way == "compile")
    first = next(problem.chunks(_chunk_size(problem)))
    begun = time.perf_counter()
    answer = door.first_answer(oracle, first)
    pace = (time.perf_counter() - begun) / -(-len(first) // oracle.block) / oracle.block
    logits = answer.logits
    if not problem.streamed:  # then every label can be looked at now
        door.labels(Chunk(problem.ids, problem.x, problem.y), logits.shape[1])
    image, norm = first.x.ndim == 4, threat.norm
    fitted, notes = adapt(plan, classes=logits.shape[1], sparse=norm.sparse, image=image, norm=norm.name)
    suits(fitted, threat)
    for s in fitted.stages:
        s.ranking_threat(threat).check(problem.shape(), len(problem))
    fitted, more = guarded(fitted, classifier, answer)
    checks = [mode, *_look(oracle, fitted, threat, first, logits, notes), *watched(oracle, fitted, first, answer)]
    notes = [*door.single_logit(logits), *notes, *more]
    for note in notes:
        listener(Note(note))
    recordable = _recordable(way, device, checks, fitted)
    # Workers elsewhere record and measure for themselves.
    recordings = Recordings(listener) if recordable and classifier.device.type == "cuda" else None
    shape = problem.shape()
    setup = Setup(
        oracle,
        threat,
        seed,
        _slots(slots, oracle, device, shape, recordings),
        oracle.precision,
        # Without a radius no success is near enough to stop at.
        early_exit and not threat.unlimited,
        goal=Misclassify() if answer.reject is None else Evade(),
        listener=listener,
        draws=fitted.draws,
        recordings=recordings,
        recordable=recordable,
        shape=shape if slots is None else None,
    )
    alone = individual or threat.unlimited
    session = Session(setup, fitted, problem, first, answer, checks, notes, device, alone, pace)
    _check_expected(session, expected)
    return _settled(session) if precision == precisions.AUTO else session


def _steering(precision: str) -> str:
    return precisions.FLOAT32 if precision == precisions.AUTO else precision


def _settled(s: Session) -> Session:
    """The evaluation with the precision that a probe finds best, and a note that says why."""
    choice = choose(s.setup, s.plan, s.facts())
    s.setup.listener(Note(str(choice)))
    setup = replace(s.setup, oracle=replace(s.oracle, precision=choice.precision), precision=choice.precision)
    return replace(s, setup=setup, notes=[*s.notes, str(choice)], choice=choice)


def _recordable(execution: str, device: torch.device, checks: list[door.Check], plan: Plan) -> bool:
    """Where iterations can be recorded: not of a randomised model, whose noise may come from the host."""
    steady = plan.draws == 1 and all(c.level == "ok" for c in checks if c.name == "randomised")
    return execution != "eager" and device.type == "cuda" and steady


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
        checks = [_expected_noise(c) if c.name == "randomised" else c for c in checks]
    return [*checks, *watchful(oracle, plan, threat, x, y, logits, notes)]


def _expected_noise(check: door.Check) -> door.Check:
    """Noise is what the plan is for; without any the verdict must not make allowances for it."""
    if check.level == "ok":
        return replace(check, level="info", message=f"{check.message}: the plan is for randomised models, this is none")
    return replace(check, level="ok")


def _check_expected(s: Session, expected: float | None) -> None:
    if expected is None:
        return
    if not 0 <= expected <= 1:
        raise InputError(
            expected="expected_clean_accuracy between 0 and 1", got=f"{expected}", remedy="Write 0.85 for 85 %."
        )
    good, n = int(clean(s.first, [s.first_output]).correct.sum()), len(s.first)
    low, high = wilson(good, n, EXPECTED_CONFIDENCE)
    if not low <= expected <= high:
        raise ModelError(
            expected=f"a clean accuracy of {100 * expected:.1f} %",
            got=f"{Proportion(good, n)}",
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
    execution: str = "auto",
    device: torch.device | str | None = None,
    progress: bool | None = None,
    expected_clean_accuracy: float | None = None,
    individual: bool = False,
    audit: float | int | None = None,
    escalate: bool = False,
    images: bool = True,
    launch: Launcher = IN_PROCESS,
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
    if not isinstance(launch, Launcher):
        raise InputError(
            expected="a launcher", got=repr(launch)[:80], remedy="Write launch=brinell.launch.Ray(workers=2)."
        )
    inputs.refuse_nowhere(resume, out)
    model = inputs.as_classifier(classifier, device)
    data, chosen = inputs.as_problem(problem), chosen_plan(plan, audit, escalate)
    folder = Path(out) if out is not None else None
    with precisions.exact(model.device), listening(progress) as listener:
        session = prepare(
            model,
            data,
            inputs.as_threat(threat),
            chosen,
            seed=seed,
            slots=slots,
            precision=remembered(precision, folder if resume else None),
            listener=listener,
            expected=expected_clean_accuracy,
            individual=individual,
            execution=execution,
            device=launch.device,
        )
        begun = time.perf_counter()
        with launch.open(session.setup, session.plan) as crew:
            folder = folder or Path(tempfile.mkdtemp(prefix="brinell-"))
            if progress is not False and launch.device is None:
                _announce(session, folder if resume else None, escalate)
            with _writer(session, folder, resume, images) as writer:
                _run(session, writer, crew)
                if escalate and _unsettled(session, folder):
                    writer.update(finished=False)
                    _run(session, writer, crew, everyone=True)
                _close(session, writer, time.perf_counter() - begun)
    run = Run.open(folder)
    for examine in also:
        run = examine(run, model, data, session.setup.threat, chosen)
    return run


def chosen_plan(plan: Any, audit: float | int | None, escalate: bool) -> Plan:
    """The plan with the audit asked for; refuses to escalate from none."""
    chosen = inputs.as_plan(plan)
    if audit is not None:
        chosen = audited(chosen, audit)
    if escalate and all(s.share is None for s in chosen.stages):
        raise PlanError(
            expected="a plan with an audit to escalate from",
            got=f"{chosen.name}, without one",
            remedy="Use the plan fast with its audit, or autoattack.",
        )
    return chosen


def ahead(s: Session, folder: Path | None, escalate: bool) -> Ahead:
    """What lies ahead of an evaluation that is about to begin, or (with the folder of a Run) to go on."""
    first = s.first
    rest, known = float(len(s.problem) - len(first)), NOTHING
    if folder is not None and (folder / "manifest.json").exists():
        stored = Stored(folder)
        known, rest = stored.of(first.ids.tolist()), _rest(s, Run.open(folder), stored)
    warned = any(c.level in ("warn", "fail") for c in s.checks)
    return Ahead(s.setup, s.plan, s.facts(), rest, s.pace, known, s.individual, escalate, warned)


def _rest(s: Session, run: Run, stored: Stored) -> float:
    """How many samples beyond the first chunk the work left there amounts to, by the samples that are stored."""
    n = len(s.problem) - len(s.first)
    if run.finished or not n:
        return 0.0
    begun = stored.samples_beyond(s.first.ids.tolist())
    # Chunks are begun one after another: of the samples begun, those of the last one may be half done.
    last = begun % _chunk_size(s.problem) or min(begun, _chunk_size(s.problem))
    return n - begun + last / 2


def _announce(s: Session, folder: Path | None, escalate: bool) -> None:
    """Say what the evaluation will cost, where that is long enough to be worth a probe."""
    if worst_seconds(s.plan, len(s.problem), s.pace) < WORTH_ASKING:
        return
    told = foresee(ahead(s, folder, escalate))
    for text in (f"expected: {told}", *told.notes):
        s.setup.listener(Note(text))


def _writer(s: Session, folder: Path, resume: bool, images: bool) -> Writer:
    manifest = new_manifest(s.identity(), environment(s.oracle.classifier.device))
    if not (resume and (folder / "manifest.json").exists()):
        more: dict[str, Any] = {} if s.choice is None else {"precision_choice": s.choice.to_json()}
        if not images:
            more["images"] = False
        if isinstance(s.setup.threat.eps, Tensor):
            # Whose radii these are: parts of an evaluation are put together by it.
            more[SAMPLE_IDS] = [i for chunk in s.problem.chunks(agreement.CHUNK) for i in chunk.ids.tolist()]
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


def _run(s: Session, writer: Writer, crew: Crew, everyone: bool = False) -> None:
    """Attack what the Run does not hold yet, and store it as it comes."""
    stored = Stored(writer.path)

    def read() -> Iterator[tuple[Chunk, Known]]:
        for chunk in s.chunks():
            yield chunk, stored.of(chunk.ids.tolist())

    shape = tuple(s.first.x.shape[1:])
    job = Job(s.setup, s.plan, read, s.clean, len(s.problem), shape, s.individual, everyone, s.setup.listener)
    images = writer.manifest.get("images", True)
    for part in crew.parts(job):
        if images:
            writer.append(part.table, part.ids, part.x)
        else:
            writer.append(part.table)
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
    start = writer.manifest.get("startup_seconds") or 0.0
    if s.setup.recordings is not None:
        start += s.setup.recordings.seconds
    writer.update(finished=True, wall_seconds=before + seconds, startup_seconds=start, notes=notes)


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
    """Re-check a Run: its rows against its manifest and the data, and every stored adversarial on the model.

    Method: schema, numbers of rows, ids, labels, hashes of inputs, attacks and their numbers, seed, threat and counts
    must agree; of each adversarial class, distance in float64, box, finiteness and origin are looked at, and the model
    is asked about every clean input. What a Run lacks because it is unfinished is no fault. A model with another
    fingerprint than the Run's is told in the notes.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:32]
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", progress=False)
    >>> brinell.verify(run, "demo", data).ok
    True
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    model, data = inputs.as_classifier(classifier), inputs.as_problem(problem)
    objections = contradictions(opened, whole=opened.finished)
    threat = agreement.threat_for(opened, data)
    if isinstance(threat.eps, Tensor):
        threat.check(data.shape(), len(data))
    agreement.refuse_shapes(opened, data)
    door.train_mode(model)
    objections += [*agreement.other_data(opened, data), *agreement.strengthened(opened)]
    notes = [*agreement.foreign(opened, model), *([] if opened.finished else ["The Run is not finished."])]
    with precisions.exact(model.device):
        oracle = Oracle(model, default_block(model.device))
        found = verify_run(opened, model, data, threat, oracle)
        objections += agreement.other_classes(opened, oracle, data)
    failures = {**found.failures, **agreement.facts(opened, data)}
    return replace(found, failures=failures, objections=tuple(objections), notes=tuple(notes))
