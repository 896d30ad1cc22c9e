"""A second look at a stored Run: every adversarial has to be what its row says, on this model and these samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.criterion import CRITERIA, Criterion
from brinell.core.dataset import Problem, sample_hashes
from brinell.core.model import Classifier
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import CLAIMS_BLOCK, Oracle
from brinell.errors import RunError
from brinell.results import CLEAN, Run, counted
from brinell.results.format.manifest import MISCLASSIFY
from brinell.verification.randomised import doubt, ever_fooled

SLACK = 1e-6
# Why a point does not reach a goal, where it is not a matter of the class alone.
WRONGLY_BROKEN = "the clean input is classified correctly"
WRONGLY_ACCEPTED = "the clean input is misclassified or rejected, and the Run counts it as right"
WRONGLY_RIGHT = "the clean input is misclassified, and the Run counts it as right"
MISSED = {"evade": "not misclassified, or rejected", "trip": "not misclassified, or not rejected"}


def goal_of(run: Run) -> Criterion:
    """The goal a Run was made for; Runs from before there were others are about the class."""
    name = run.identity.criterion
    if name not in CRITERIA:
        raise RunError(
            expected=f"a goal among {', '.join(CRITERIA)}", got=repr(name)[:60], remedy="The Run is refused."
        )
    return CRITERIA[name]


def missed_goal(criterion: Criterion) -> str:
    """Why a point that does not reach the goal fails."""
    return MISSED.get(criterion.name, "not misclassified")


@dataclass(frozen=True)
class Verification:
    """The outcome of re-checking a Run: how many adversarials were looked at, and what is wrong with which sample.

    `objections` are sentences about rows that do not fit the manifest or each other, `notes` what is no fault. Of a
    randomised model `doubtful` adversarials fool some passes, this time not most of them.

    >>> print(Verification(3, {7: "not misclassified"}))
    2 of 3 adversarials verified; 1 sample failed: sample 7 (not misclassified)
    >>> print(Verification(3, objections=("The rows have the seeds [1], the manifest 0.",)))
    3 of 3 adversarials verified. Refused: The rows have the seeds [1], the manifest 0.
    """

    checked: int
    failures: Mapping[int, str] = field(default_factory=dict)
    objections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    attacked: frozenset[int] | None = None
    doubtful: frozenset[int] = frozenset()

    @property
    def ok(self) -> bool:
        """Whether every adversarial holds and the rows are what the manifest says."""
        return not self.failures and not self.objections

    @property
    def held(self) -> int:
        """Adversarials that hold."""
        wrong = {i for i in self.failures if self.attacked is None or i in self.attacked}
        return self.checked - len(wrong | self.doubtful)

    def __str__(self) -> str:
        text, n = f"{self.held} of {self.checked} adversarials verified", len(self.failures)
        if n:
            some = ", ".join(f"sample {i} ({why})" for i, why in list(self.failures.items())[:5])
            text += f"; {n} sample{'s' * (n > 1)} failed: {some}{' …' if n > 5 else ''}"
        more = [*([f"Refused: {' '.join(self.objections)}"] if self.objections else []), *self.notes]
        return ". ".join([text, " ".join(more)]) if more else text


def reasons(
    ball: Ball, criterion: Criterion, oracle: Oracle, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, draws: int
) -> list[str]:
    """For every point, the first thing that is wrong with it as an adversarial; "" where nothing is."""
    oracle = oracle.sized(CLAIMS_BLOCK)  # as they were asked about when they were verified
    fooled = torch.stack([criterion.reached(oracle.output(x), y, t) for _ in range(draws)], 1)
    tests = [
        (~x.flatten(1).isfinite().all(1), "not finite"),
        (~ball.allows(x0, x), "outside the box"),
        (~ball.contains(x0, x), "further than eps"),
        (2 * fooled.sum(1) <= draws, missed_goal(criterion)),
    ]
    return [next((why for mask, why in tests if bool(mask[i])), "") for i in range(len(x))]


def recheck(run: Run, classifier: Classifier, problem: Problem, threat: Threat, oracle: Oracle) -> Verification:
    """Re-check the adversarial of every sample that counts as broken by an attack; one that has none fails."""
    adv = run.adversarials()
    where = {int(i): k for k, i in enumerate(adv.ids)}
    hashes, labels, told = _stored(run)
    # A randomised model is judged as it was when the Run was made: by the majority of so many passes.
    draws = run.identity.plan.draws
    criterion = goal_of(run)
    failures = {i: "no adversarial stored" for i in hashes if i not in where}
    seen: set[int] = set()
    doubtful: set[int] = set()
    for chunk in problem.chunks(4096):
        rows = [r for r, i in enumerate(chunk.ids.tolist()) if i in where]
        if not rows:
            continue
        index = torch.tensor(rows)
        ids = chunk.ids[index].tolist()
        device = classifier.device
        x0, y = chunk.x[index].to(device), chunk.y[index].to(device)
        x = torch.from_numpy(np.stack([adv.x[where[i]] for i in ids])).to(device)
        ball = threat.ball(index + chunk.offset, device)
        said = reasons(ball, criterion, oracle, x0, x, y, y, draws)
        missed = [k for k, why in enumerate(said) if draws > 1 and why == missed_goal(criterion)]
        for k, fooled in zip(missed, ever_fooled(criterion, oracle, x[missed], y[missed], draws), strict=True):
            said[k] = "" if fooled else said[k]
            doubtful |= {ids[k]} if fooled else set()
        failures |= {i: why for i, why in zip(ids, said, strict=True) if why}
        for i, d in zip(ids, ball.distance(x0, x).tolist(), strict=True):
            # Told in float64, and the same wherever it is measured but for the order of a sum.
            if i not in failures and not abs(d - told.get(i, d)) <= SLACK * max(d, SLACK):
                failures[i] = f"the distance is {d:.6g}, the Run tells of {told[i]:.6g}"
        for i, digest in zip(ids, sample_hashes(chunk.x[index]), strict=True):
            if hashes.get(i) != digest:
                failures[i] = "the clean input is not the one that was attacked"
        for i, label in zip(ids, chunk.y[index].tolist(), strict=True):
            if labels.get(i) != label:
                failures[i] = f"the label is {label}, the Run was made with {labels.get(i)}"
        seen |= set(ids)
    if len(seen) < len(where):
        raise RunError(
            expected=f"all {len(where)} attacked samples in the problem",
            got=f"{len(seen)} of them",
            remedy="Verify with the data the Run was made from (same ids).",
        )
    failures = {**_clean_failures(run, classifier, problem, oracle), **failures}
    doubtful -= set(failures)
    notes = tuple(doubt(len(doubtful), draws))
    return Verification(len(hashes), failures, (), notes, frozenset(hashes), frozenset(doubtful))


def _stored(run: Run) -> tuple[dict[int, str], dict[int, int], dict[int, float]]:
    """Hashes of the inputs, labels and distances of the samples that attacks broke; of several distances the least."""
    rows = run.rows()
    rows = rows.filter(pa.array(counted(rows) & (np.asarray(rows["attack"]) != CLEAN)))
    ids = rows["sample_id"].to_pylist()
    hashes = dict(zip(ids, rows["x_sha256"].to_pylist(), strict=True))
    nearest: dict[int, float] = {}
    for i, d in zip(ids, rows["distance"].to_pylist(), strict=True):
        nearest[i] = min(nearest.get(i, math.inf), math.inf if d is None else d)
    return hashes, dict(zip(ids, rows["label"].to_pylist(), strict=True)), nearest


def _clean_failures(run: Run, classifier: Classifier, problem: Problem, oracle: Oracle) -> dict[int, str]:
    """Samples whose clean input the model judges otherwise than the Run says."""
    rows = run.rows().filter(pa.array(np.asarray(run.rows()["attack"]) == CLEAN))
    told = dict(zip(rows["sample_id"].to_pylist(), counted(rows).tolist(), strict=True))
    if run.identity.plan.draws > 1:
        return {}
    failures: dict[int, str] = {}
    for chunk in problem.chunks(4096):
        index = torch.tensor([r for r, i in enumerate(chunk.ids.tolist()) if i in told], dtype=torch.long)
        if not len(index):
            continue
        out = oracle.output(chunk.x[index].to(classifier.device))
        right = (out.logits.argmax(1).cpu() == chunk.y[index]) & out.logits.isfinite().all(1).cpu()
        if out.reject is not None and goal_of(run).name != MISCLASSIFY:
            right &= (out.reject <= 0).cpu()
        for i, good in zip(chunk.ids[index].tolist(), right.tolist(), strict=True):
            if good == told[i]:
                wrong = WRONGLY_RIGHT if out.reject is None else WRONGLY_ACCEPTED
                failures[i] = WRONGLY_BROKEN if good else wrong
    return failures
