"""The main job: a classifier, a problem, a threat and a plan in; a Run out."""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
from brinell.engine.precision import FLOAT32
from brinell.errors import InputError, ModelError, PlanError, RunError
from brinell.evaluate import door, inputs
from brinell.evaluate.audit import in_audit
from brinell.evaluate.checks import watchful
from brinell.evaluate.environment import environment
from brinell.evaluate.plan import Plan, Stage, adapt, audited, suits
from brinell.evaluate.progress import listening
from brinell.evaluate.stages import Finished, Setup, run_stage
from brinell.evaluate.tables import Clean, clean, clean_rows
from brinell.evaluate.verify import Verification
from brinell.evaluate.verify import verify as verify_run
from brinell.results import CLEAN, ROWS, Run, Writer, counted, new_manifest, wilson

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
    individual: bool = False
    stored: dict[str, dict[int, bool]] = field(default_factory=dict)
    hashes: dict[int, str] = field(default_factory=dict)

    @property
    def oracle(self) -> Oracle:
        """The model."""
        return self.setup.oracle

    def chunks(self) -> Iterator[Clean]:
        """Every chunk with the model's clean answers."""
        device = self.oracle.classifier.device
        for chunk in self.problem.chunks(_chunk_size(self.problem)):
            door.labels(chunk, self.first_logits.shape[1])
            x = chunk.x.to(device)
            known = [self.first_logits] if chunk.offset == 0 else []
            if known and not torch.equal(chunk.x, self.first.x):
                raise InputError(
                    expected="data that read the same every time",
                    got="other inputs at the second reading",
                    remedy="Remove random augmentation from the data set.",
                )
            more = [self.oracle.output(x).logits for _ in range(self.plan.draws - len(known))]
            yield clean(chunk, known + more)

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
            "block": default_block(c.device),
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
) -> Session:
    """Look at everything before anything is written."""
    precisions.check(precision)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise InputError(expected="a whole number of 64 bits as seed", got=repr(seed), remedy="Use seed=0.")
    threat.check(problem.shape(), len(problem))
    mode = door.train_mode(classifier)
    oracle = Oracle(classifier, default_block(classifier.device), listener, precision=precision)
    first = next(problem.chunks(_chunk_size(problem)))
    logits = door.first_answer(oracle, first)
    if not problem.streamed:  # then every label can be looked at now
        door.labels(Chunk(problem.ids, problem.x, problem.y), logits.shape[1])
    image, norm = first.x.ndim == 4, threat.norm
    fitted, notes = adapt(plan, classes=logits.shape[1], sparse=norm.sparse, image=image, norm=norm.name)
    suits(fitted, threat)
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
        _slots(slots, classifier.device),
        precision,
        # Without a radius no success is near enough to stop at.
        early_exit and not threat.unlimited,
        listener=listener,
        draws=fitted.draws,
    )
    session = Session(setup, fitted, problem, first, logits, checks, notes, individual or threat.unlimited)
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
) -> Run:
    """Attack every sample with the plan and store what happened as a Run in the folder `out`.

    `classifier` may be a bare module or "demo", `problem` a bare (x, y) or "demo". Without `out` the Run goes to a new
    temporary folder. `resume=True` goes on with a Run that was interrupted. `individual=True` lets every attack see
    every sample. `audit` is the share of its survivors that the plan "fast" attacks at full strength (0: no audit);
    `escalate=True` attacks all of them so where the audit objects or is too small or a check warns, with `resume` also
    those of a finished Run. `progress`: None shows it (a bar on a terminal, plain lines elsewhere), False is silent.

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
        )
        folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="brinell-"))
        begun = time.perf_counter()
        with _writer(session, folder, resume) as writer:
            for c in session.chunks():
                _evaluate_chunk(session, c, writer)
            if escalate and _unsettled(session, folder):
                writer.update(finished=False)
                session.stored = _stored(folder, session.hashes)
                for c in session.chunks():
                    _evaluate_chunk(session, c, writer, everyone=True)
            _close(session, writer, time.perf_counter() - begun)
    return Run.open(folder)


def _writer(s: Session, folder: Path, resume: bool) -> Writer:
    manifest = new_manifest(s.identity(), environment(s.oracle.classifier.device))
    if not (resume and (folder / "manifest.json").exists()):
        writer = Writer.create(folder, manifest)
        writer.update(checks=[c.to_json() for c in s.checks], notes=s.notes)
        return writer
    writer = Writer.resume(folder, manifest)
    s.stored = _stored(folder, s.hashes)
    return writer


def _stored(folder: Path, hashes: dict[int, str]) -> dict[str, dict[int, bool]]:
    """Which attacks have seen which samples, and whether they fell; notes the samples' hashes on the way."""
    rows = Run.open(folder).rows()
    names, ids = rows["attack"].to_pylist(), rows["sample_id"].to_pylist()
    stored: dict[str, dict[int, bool]] = {}
    for name, i, fell, digest in zip(names, ids, counted(rows).tolist(), rows["x_sha256"].to_pylist(), strict=True):
        stored.setdefault(name, {})[i] = fell
        hashes[i] = digest
    return stored


def _unsettled(s: Session, folder: Path) -> bool:
    """Whether the short plan's answer is in doubt: its audit objects or is too small, or a check warns."""
    run = Run.open(folder)
    found = run.audit
    if found is None or found.complete:
        return False
    warned = any(c.level in ("warn", "fail") for c in s.checks)
    return warned or found.objects or found.too_small(run.robust_accuracy)


def _evaluate_chunk(s: Session, c: Clean, writer: Writer, everyone: bool = False) -> None:
    ids = c.chunk.ids.tolist()
    for i, digest in zip(ids, c.hashes, strict=True):
        if s.hashes.get(i, digest) != digest:
            raise RunError(
                expected=f"the same sample {i} as in the Run",
                got="another input under that id",
                remedy="Use another folder.",
            )
    fresh = [k for k, i in enumerate(ids) if i not in s.stored.get(CLEAN, {})]
    if fresh:
        writer.append(clean_rows(c, np.asarray(fresh), s.setup.seed, FLOAT32, 0.0))
    standing = c.correct.clone()
    for stage in s.plan.stages:
        done = s.stored.get(stage.name, {})
        known = torch.tensor([i in done for i in ids], device=standing.device)
        attackable = c.correct if s.individual else standing
        if stage.share is not None and not everyone:
            attackable = attackable & in_audit(s.setup.seed, c.chunk.ids, stage.share).to(standing.device)
        for part in run_stage(s.setup, stage, c, (attackable & ~known).nonzero()[:, 0]):
            _store(writer, part)
            standing[part.at[part.counted]] = False
        fell = torch.tensor([done.get(i, False) for i in ids], device=standing.device)
        standing &= ~fell


def _store(writer: Writer, part: Finished) -> None:
    ids = np.asarray(part.table["sample_id"])[part.counted.cpu().numpy()]
    writer.append(part.table, ids, part.x.numpy())


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
        for c in session.chunks():
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
