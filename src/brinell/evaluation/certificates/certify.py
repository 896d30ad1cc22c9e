"""`brinell.certify`: add certificates to the survivors of a finished Run."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from brinell.arguments import DataLike, ModelLike
from brinell.certification import Bounds
from brinell.core.certificate import Certifier
from brinell.core.dataset import READ, Chunk, Problem
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.events import Listener, Note
from brinell.engine.oracle import Oracle, default_block
from brinell.environment import environment
from brinell.errors import ModelError, RunError
from brinell.evaluation import coerce
from brinell.evaluation.certificates.certifiers import SECONDS, SMOOTHING, Call, call_of
from brinell.evaluation.certificates.rows import certificate_rows
from brinell.evaluation.progress import EVERY, show_progress
from brinell.evaluation.rows import clean, require_same_answers
from brinell.results import Run, Writer
from brinell.results.format.manifest import MISCLASSIFY
from brinell.results.format.resume import StoredRows
from brinell.results.row_queries import Ids

# Samples certified at a time: the first number, the largest, and the seconds between which a batch should take.
FIRST, MOST, SHORT, LONG = 16, 512, 5.0, 20.0


def certify(
    run: "Run | str | os.PathLike[str]", classifier: ModelLike, problem: DataLike,
    *, method: "str | Sequence[str] | Certifier | None" = None, seconds: float = SECONDS,
    device: torch.device | str | None = None, progress: bool | Listener | None = None,
) -> Run:  # fmt: skip
    """Certify the survivors of a finished Run, store the certificates in it, and return the Run with them.

    `classifier` and `problem` are those of the evaluation. `method` is the last of the methods to try, from cheap to
    exact: "interval", "crown", "optimised", "branch-and-bound", "exact"; or a list of methods, or your own Certifier.
    By default it is "branch-and-bound", and "smoothing" for a model of `brinell.models.smoothed`. `seconds` limits
    the time per sample. Each survivor is certified for the radius of the threat. A survivor that is certified already,
    or that these methods left open, is not tried again, so an interrupted call is continued by the same call. The
    robust accuracy changes only if a method finds a counterexample that the model confirms.

    >>> import brinell
    >>> data = brinell.data.load("demo", 16)
    >>> run = brinell.evaluate("demo", data, brinell.Linf(0.001), "fgsm", progress=False)
    >>> run = certify(run, "demo", data, method="crown", progress=False)
    >>> run.certified_accuracy <= run.robust_accuracy
    True
    """
    opened = Run.open(run)
    model, data = coerce.as_classifier(classifier, device), coerce.as_problem(problem)
    coerce.require_same_model(opened, model)
    threat = _bounded(opened)
    call = call_of(model, method, seconds, opened.identity.seed or 0)
    left = np.setdiff1d(opened.survivors(), _done(opened, call))
    return store(opened, call, model, data, lambda ids: _of_samples(opened, threat, ids), left, progress)


def store(
    run: Run, call: Call, model: Classifier, data: Problem, threat_of: Callable[[Tensor], Threat], left: Ids,
    progress: "bool | Listener | None",
) -> Run:  # fmt: skip
    """Certify the samples `left` of a finished Run, each within `threat_of(ids)`, and store the certificates."""
    _refuse_other_kinds(run, call)
    _refuse_missing(run, data)
    oracle = Oracle(model, default_block(model.device))
    manifest = {**run.manifest, "environment": environment(model.device, model.torch_module)}
    exact = precisions.exact(model.device)
    with exact, oracle.calls.named(), show_progress(progress) as listener, Writer.resume(run.path, manifest) as writer:
        _certify(run, call, oracle, data, threat_of, left, writer, listener)
        if writer.stored.certifying:
            writer.update(finished=True, certifying=False)
    return Run.open(run.path)


def _certify(
    run: Run, call: Call, oracle: Oracle, data: Problem, threat_of: Callable[[Tensor], Threat], left: Ids,
    writer: Writer, listener: Listener,
) -> None:  # fmt: skip
    stored, known, report = StoredRows(run.path), coerce.stored_samples(run), _Report(len(left), listener)
    seed = run.identity.seed or 0
    certifier = call.certifier
    if isinstance(certifier, Bounds):
        certifier = replace(certifier, report=report.now)
    for chunk in _batches(data, left):
        coerce.require_same_samples(run, known, chunk)
        answer = clean(chunk, [oracle.output(chunk.x.to(oracle.classifier.device), named=chunk.ids)])
        require_same_answers(answer, stored.of(chunk.ids.tolist()))
        ball = threat_of(chunk.ids)
        x, y = (v.to(oracle.classifier.device) for v in (chunk.x, chunk.y))
        found = certifier.certify(x, y, ball)
        rows = certificate_rows(answer, found, ball, oracle, call.hash, seed)
        _begin(writer, call)
        writer.append(rows.table, *((rows.ids, rows.x) if run.images else ()))
        report(len(chunk), sum(c.certified for c in found))


def _begin(writer: Writer, call: Call) -> None:
    """Note in the manifest that certificates are being added, and by what, before the first of them."""
    calls = list(writer.stored.certifiers)
    if call.to_json() not in calls or not writer.stored.certifying:
        new = [] if call.to_json() in calls else [call.to_json()]
        writer.update(finished=False, certifying=True, certifiers=[*calls, *new])


def _batches(data: Problem, left: Ids) -> Iterator[Chunk]:
    """Yield the samples `left` in batches that take a few seconds each, so that an interruption loses little."""
    size = FIRST
    for chunk in data.chunks(READ):
        wanted = np.flatnonzero(np.isin(chunk.ids.numpy(), left))
        while len(wanted):
            at = torch.from_numpy(wanted[:size])
            wanted, begun = wanted[size:], time.perf_counter()
            yield replace(chunk, ids=chunk.ids[at], x=chunk.x[at], y=chunk.y[at])
            spent = time.perf_counter() - begun
            size = min(2 * size, MOST) if spent < SHORT else max(size // 2, 1) if spent > LONG else size


class _Report:
    """Sends a note about the progress every few seconds, and at the end."""

    def __init__(self, samples: int, listener: Listener) -> None:
        self.samples, self.listener = samples, listener
        self.done, self.certified, self.last = 0, 0, time.perf_counter()

    def __call__(self, samples: int, certified: int) -> None:
        self.done, self.certified = self.done + samples, self.certified + certified
        self.now("")

    def now(self, doing: str) -> None:
        """Send the state and what is done next, if the last note is old or everything is done."""
        if self.done == self.samples or time.perf_counter() - self.last > EVERY:
            self.last = time.perf_counter()
            state = f"certify: {self.done}/{self.samples} survivors tried, {self.certified} certified"
            self.listener(Note(f"{state}{'; now ' if doing else ''}{doing}"))


def _done(run: Run, call: Call) -> Ids:
    """Return the ids of the samples that are certified, or that the same methods left open."""
    table = run.certificates()
    tried = table.filter(pc.equal(table["attack_hash"], call.hash))
    certified = [i for i, state in run.states().items() if state == "certified"]
    return np.union1d(np.asarray(tried["sample_id"], dtype=np.int64), np.array(certified, dtype=np.int64))


def _of_samples(run: Run, threat: Threat, ids: Tensor) -> Threat:
    """Return the threat for these samples: their own radii if every sample has one."""
    radii = run.sample_radii
    if radii is None:
        return threat
    eps = [radii[i] for i in ids.tolist()]
    return replace(threat, eps=torch.tensor(eps, dtype=torch.float64, device="cpu"))


def _bounded(run: Run) -> Threat:
    """Return the threat of the Run; refuse an unfinished Run and a threat without a radius."""
    if not run.finished:
        raise RunError(
            expected="a finished Run",
            got=f"an unfinished Run in {run.path}",
            remedy="Finish it first, with resume=True (--resume): only survivors of all attacks are certified.",
        )
    if run.identity.threat.unbounded or (run.identity.threat.per_sample and run.sample_radii is None):
        raise RunError(
            expected="a Run whose threat has a radius",
            got=f"a Run without one in {run.path}",
            remedy="Evaluate at a radius, or call brinell.curve(..., certify=True) (brinell curve --certify).",
        )
    return coerce.threat_of(run)


def _refuse_other_kinds(run: Run, call: Call) -> None:
    """Refuse what a proof about the class for every input does not speak of: a detector, and random outputs."""
    if run.identity.criterion != MISCLASSIFY:
        raise ModelError(
            expected="a Run of a model without a detector",
            got=f"a Run with the criterion {run.identity.criterion}",
            remedy="Certify the network alone: evaluate it without its detector first.",
        )
    if run.randomised and SMOOTHING not in call.settings.get("methods", ()):
        raise ModelError(
            expected="a deterministic model, or one of brinell.models.smoothed",
            got="a Run of a model whose outputs differ between passes",
            remedy="Certificates need a fixed function. Write the model as brinell.models.smoothed(net, sigma).",
        )


def _refuse_missing(run: Run, data: Problem) -> None:
    n = run.clean_accuracy.n
    if len(data) != n:
        raise RunError(
            expected=f"the {n:,} samples of the Run in {run.path}",
            got=f"{len(data):,} samples",
            remedy="Pass the data of the evaluation (same --n, same preprocessing).",
        )
