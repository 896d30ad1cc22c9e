"""Verify the stored adversarials of a Run on the model and the data."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from brinell.core.criterion import CRITERIA, Criterion
from brinell.core.dataset import Problem, sample_hashes
from brinell.core.model import Classifier
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import RunError
from brinell.evaluation.context import chunk_size
from brinell.results import Run, counted, row_queries
from brinell.results.format.manifest import MISCLASSIFY
from brinell.results.format.schema import Evidence, is_evidence
from brinell.results.run import gather
from brinell.verification.randomised import doubtful_note, ever_fooled, ever_right
from brinell.verification.result import VerificationFindings, failures, refused
from brinell.verification.sampling import Rerun

SLACK = 1e-6
CHUNK = 4096
OTHER_INPUT = "the clean input is not the one that was attacked"
WRONGLY_BROKEN = "the clean input is classified correctly"
WRONGLY_ACCEPTED = "the clean input is misclassified or rejected, and the Run counts it as right"
WRONGLY_RIGHT = "the clean input is misclassified, and the Run counts it as right"
WRONGLY_ROBUST = "its stored adversarial holds, and the Run does not count it"
# Why a point does not meet a criterion that involves a detector.
MISSED = {"evade": "not misclassified, or rejected", "trip": "not misclassified, or not rejected"}


def criterion_of(run: Run) -> Criterion:
    """Return the criterion of a Run, which says when a point is adversarial; raise a RunError if unknown."""
    name = run.identity.criterion
    if name not in CRITERIA:
        raise refused(f"a criterion (goal in the manifest) among {', '.join(CRITERIA)}", repr(name)[:60])
    return CRITERIA[name]


def missed_criterion(criterion: Criterion) -> str:
    """Return, in words, what is wrong with a point that does not meet the criterion."""
    return MISSED.get(criterion.name, "not misclassified")


@dataclass(frozen=True)
class Verification(VerificationFindings):
    """The verification of a Run: the number of adversarials that were checked, and the findings.

    `attacked` are the ids of the samples that an attack broke. `doubtful` are the ids of samples whose adversarial now
    fools some passes of a randomised model, but not most. `again` says which survivors were attacked again and what
    that shows, None if none were. `unchecked` says that no model was given, so that nothing could be verified.

    >>> from brinell.finding import Finding
    >>> print(Verification(3, findings=(Finding("sample", "fail", "not misclassified", sample=7),)))
    2 of 3 adversarials verified; 1 sample failed: sample 7 (not misclassified)
    >>> print(Verification(3, findings=(Finding("seeds", "fail", "The rows have the seeds [1], the manifest 0."),)))
    3 of 3 adversarials verified. Refused: The rows have the seeds [1], the manifest 0.
    """

    checked: int
    attacked: frozenset[int] | None = None
    doubtful: frozenset[int] = frozenset()
    again: Rerun | None = None
    unchecked: bool = False

    @property
    def held(self) -> int:
        """The number of adversarials that passed all checks."""
        wrong = {i for i in self.failures if self.attacked is None or i in self.attacked}
        return self.checked - len(wrong | self.doubtful)

    def __str__(self) -> str:
        text, n = f"{self.held} of {self.checked} adversarials verified", len(self.failures)
        text = "No adversarial verified" if self.unchecked else text
        if n:
            text += f"; {n} sample{'s' * (n > 1)} failed: {self.first_failures()}{' …' if n > 5 else ''}"
        if self.again is None:
            return self.described(text)
        return "\n".join(filter(None, [self.described(f"{text}; {self.again}"), self.again.reasons]))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data, for scripts."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "held": self.held,
            "again": None if self.again is None else self.again.to_json(),
            "failures": {str(i): message for i, message in self.failures.items()},
            "objections": list(self.objections),
            "notes": list(self.notes),
        }


def first_defects(
    ball: Ball, criterion: Criterion, oracle: Oracle, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, draws: int
) -> list[str]:
    """Return for every point of `x` the first reason why it is no valid adversarial of `x0`; "" if it is valid."""
    oracle = oracle.sized("claims")  # the batch size of the first verification
    fooled = torch.stack([criterion.reached(oracle.output(x), y, t) for _ in range(draws)], 1)
    tests = [
        (~x.flatten(1).isfinite().all(1), "not finite"),
        (~ball.allows(x0, x), "outside the box"),
        (~ball.contains(x0, x), "further than eps"),
        (2 * fooled.sum(1) <= draws, missed_criterion(criterion)),
    ]
    return [next((defect for mask, defect in tests if bool(mask[i])), "") for i in range(len(x))]


def _chunk(problem: Problem) -> int:
    """Return how many samples are verified at a time."""
    return min(CHUNK, chunk_size(problem))


def verify_adversarials(
    run: Run, classifier: Classifier, problem: Problem, threat: Threat, oracle: Oracle
) -> Verification:
    """Verify the adversarial of every sample that an attack broke, and every clean prediction.

    A broken sample without a stored adversarial fails. On a randomised model, an adversarial must fool most of `draws`
    passes, the number in the plan of the Run.
    """
    nearest = run.nearest_rows()
    position = {int(i): k for k, i in enumerate(row_queries.ids_of(nearest))}
    hashes, labels, distances = _stored(run)
    draws, criterion = run.identity.plan.draws, criterion_of(run)
    failed = {i: "no adversarial stored" for i in hashes if i not in position}
    seen: set[int] = set()
    doubtful: set[int] = set()
    for chunk in problem.chunks(_chunk(problem)):
        index = chunk.rows_of(position)
        if not len(index):
            continue
        ids = chunk.ids[index].tolist()
        device = classifier.device
        x0, y = chunk.x[index].to(device), chunk.y[index].to(device)
        # Read with the data: the adversarials of all samples may not fit into memory.
        x = torch.from_numpy(gather(run.shards, nearest.take([position[i] for i in ids])).x).to(device)
        ball = threat.ball(index + chunk.offset, device)
        defects = first_defects(ball, criterion, oracle, x0, x, y, y, draws)
        missed = [k for k, defect in enumerate(defects) if draws > 1 and defect == missed_criterion(criterion)]
        for k, fooled in zip(missed, ever_fooled(criterion, oracle, x[missed], y[missed], draws), strict=True):
            defects[k] = "" if fooled else defects[k]
            doubtful |= {ids[k]} if fooled else set()
        failed |= {i: defect for i, defect in zip(ids, defects, strict=True) if defect}
        columns = (ball.distance(x0, x).tolist(), sample_hashes(chunk.x[index]), chunk.y[index].tolist())
        for i, d, digest, label in zip(ids, *columns, strict=True):
            if labels.get(i) != label:
                failed[i] = f"the label is {label}, the Run was made with {labels.get(i)}"
            elif hashes.get(i) != digest:
                failed[i] = OTHER_INPUT
            # In float64 only the order of a sum can make a difference.
            elif i not in failed and not abs(d - distances.get(i, d)) <= SLACK * max(d, SLACK):
                failed[i] = f"the distance is {d:.6g}, the Run stores {distances[i]:.6g}"
        seen |= set(ids)
    if len(seen) < len(position):
        raise RunError(
            expected=f"data with all {len(position)} samples that are broken in the Run",
            got=f"data with {len(seen)} of these samples",
            remedy="Pass the data that the Run was made from, with the same ids.",
        )
    failed = {**_clean_failures(run, problem, oracle), **_uncounted(run, problem, threat, oracle), **failed}
    doubtful -= set(failed)
    findings = (*failures(failed), *doubtful_note(len(doubtful), draws))
    return Verification(len(hashes), frozenset(hashes), frozenset(doubtful), findings=findings)


def _stored(run: Run) -> tuple[dict[int, str], dict[int, int], dict[int, float]]:
    """Return input hash, label and smallest distance of every broken sample, as three dicts by sample id."""
    rows = run.rows()
    rows = rows.filter(pa.array(counted(rows) & ~is_evidence(rows, Evidence.CLEAN)))
    ids = rows["sample_id"].to_pylist()
    hashes = dict(zip(ids, rows["x_sha256"].to_pylist(), strict=True))
    nearest: dict[int, float] = {}
    for i, d in zip(ids, rows["distance"].to_pylist(), strict=True):
        nearest[i] = min(nearest.get(i, math.inf), math.inf if d is None else d)
    return hashes, dict(zip(ids, rows["label"].to_pylist(), strict=True)), nearest


def _uncounted(run: Run, problem: Problem, threat: Threat, oracle: Oracle) -> dict[int, str]:
    """Return the survivors with a stored adversarial that the Run does not count (`verified` is false) and that holds.

    Brinell stores no such adversarials, but earlier versions did, if they failed the verification.
    """
    rows, criterion, draws = run.rows(), criterion_of(run), run.identity.plan.draws
    stored = np.asarray(pc.is_valid(rows["adv_shard"]), dtype=bool) & ~counted(rows)
    rows = rows.filter(pa.array(stored & np.isin(row_queries.ids_of(rows), run.survivors())))
    adv = gather(run.shards, rows) if rows.num_rows and run.images else None
    failed: dict[int, str] = {}
    if adv is None:
        return failed
    if tuple(adv.x.shape[1:]) != problem.shape():
        raise refused(f"adversarials of shape {problem.shape()}", tuple(adv.x.shape[1:]))
    for chunk in problem.chunks(_chunk(problem)):
        place = {i: row for row, i in enumerate(chunk.ids.tolist())}
        which = [k for k, i in enumerate(adv.ids.tolist()) if i in place]
        if not which:
            continue
        index = torch.tensor([place[int(adv.ids[k])] for k in which], dtype=torch.long, device="cpu")
        x0, y, x = (v.to(oracle.classifier.device) for v in (chunk.x[index], chunk.y[index], torch.from_numpy(adv.x)))
        ball = threat.ball(index + chunk.offset, x0.device)
        defects = first_defects(ball, criterion, oracle, x0, x[which], y, y, draws)
        failed |= {int(adv.ids[k]): WRONGLY_ROBUST for k, why in zip(which, defects, strict=True) if not why}
    return failed


def _clean_failures(run: Run, problem: Problem, oracle: Oracle) -> dict[int, str]:
    """Return the samples whose clean outcome is wrong; of a randomised model, those that are never right."""
    rows = run.rows().filter(pa.array(is_evidence(run.rows(), Evidence.CLEAN)))
    broken = dict(zip(rows["sample_id"].to_pylist(), counted(rows).tolist(), strict=True))
    preds = dict(zip(rows["sample_id"].to_pylist(), rows["clean_pred"].to_pylist(), strict=True))
    draws, failed = run.identity.plan.draws, dict[int, str]()
    if draws > 1:
        right = {i for i, wrong in broken.items() if not wrong}
        return dict.fromkeys(sorted(right - ever_right(oracle, problem, right, draws)), WRONGLY_RIGHT)
    for chunk in problem.chunks(_chunk(problem)):
        index = chunk.rows_of(broken)
        if not len(index):
            continue
        out = oracle.output(chunk.x[index].to(oracle.classifier.device))
        right_here = (out.logits.argmax(1).cpu() == chunk.y[index]) & out.logits.isfinite().all(1).cpu()
        if out.reject is not None and criterion_of(run).name != MISCLASSIFY:
            right_here &= (out.reject <= 0).cpu()
        columns = (chunk.ids[index].tolist(), right_here.tolist(), out.logits.argmax(1).tolist())
        for i, correct, pred in zip(*columns, strict=True):
            if correct == broken[i]:
                wrong = WRONGLY_RIGHT if out.reject is None else WRONGLY_ACCEPTED
                failed[i] = WRONGLY_BROKEN if correct else wrong
            elif pred != preds[i] and bool(out.logits.isfinite().all()):
                failed[i] = f"the clean input is classified as {pred}, the Run stores {preds[i]}"
    return failed
