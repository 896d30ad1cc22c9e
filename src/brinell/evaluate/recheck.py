"""A second look at a stored Run: every adversarial has to be what its row says, on this model and these samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.classifier import Classifier
from brinell.core.goal import GOALS, Goal
from brinell.core.problem import Problem, sample_hashes
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import RunError
from brinell.results import CLEAN, Run, counted

MISCLASSIFY = "misclassify"
# Why a point does not reach a goal, where it is not a matter of the class alone.
MISSED = {"evade": "not misclassified, or rejected", "trip": "not misclassified, or not rejected"}


def goal_of(run: Run) -> Goal:
    """The goal a Run was made for; Runs from before there were others are about the class."""
    return GOALS[run.manifest["identity"].get("goal", MISCLASSIFY)]


@dataclass(frozen=True)
class Verification:
    """The outcome of re-checking a Run: how many adversarials were looked at, and what is wrong with which sample.

    >>> print(Verification(3, {7: "not misclassified"}))
    2 of 3 adversarials verified; 1 failed: sample 7 (not misclassified)
    """

    checked: int
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every adversarial holds."""
        return not self.failures

    def __str__(self) -> str:
        good = f"{self.checked - len(self.failures)} of {self.checked} adversarials verified"
        if self.ok:
            return good
        some = ", ".join(f"sample {i} ({why})" for i, why in list(self.failures.items())[:5])
        return f"{good}; {len(self.failures)} failed: {some}{' …' if len(self.failures) > 5 else ''}"


def reasons(
    ball: Ball, goal: Goal, oracle: Oracle, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, draws: int
) -> list[str]:
    """For every point, the first thing that is wrong with it as an adversarial; "" where nothing is."""
    fooled = torch.stack([goal.reached(oracle.output(x), y, t) for _ in range(draws)], 1)
    tests = [
        (~x.flatten(1).isfinite().all(1), "not finite"),
        (~ball.allows(x0, x), "outside the box"),
        (~ball.contains(x0, x), "further than eps"),
        (2 * fooled.sum(1) <= draws, MISSED.get(goal.name, "not misclassified")),
    ]
    return [next((why for mask, why in tests if bool(mask[i])), "") for i in range(len(x))]


def recheck(run: Run, classifier: Classifier, problem: Problem, threat: Threat, oracle: Oracle) -> Verification:
    """Re-check the adversarial of every sample that counts as broken by an attack; one that has none fails."""
    adv = run.adversarials()
    where = {int(i): k for k, i in enumerate(adv.ids)}
    hashes, labels = _stored(run)
    # A randomised model is judged as it was when the Run was made: by the majority of so many passes.
    draws = run.manifest["identity"]["plan"].get("draws", 1)
    goal = goal_of(run)
    failures = {i: "no adversarial stored" for i in hashes if i not in where}
    seen: set[int] = set()
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
        for i, why in zip(ids, reasons(ball, goal, oracle, x0, x, y, y, draws), strict=True):
            if why:
                failures[i] = why
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
    return Verification(len(hashes), {**_clean_failures(run, classifier, problem, oracle), **failures})


def _stored(run: Run) -> tuple[dict[int, str], dict[int, int]]:
    """Hashes of the inputs and labels of the samples that attacks broke."""
    rows = run.rows()
    rows = rows.filter(pa.array(counted(rows) & (np.asarray(rows["attack"]) != CLEAN)))
    ids = rows["sample_id"].to_pylist()
    hashes = dict(zip(ids, rows["x_sha256"].to_pylist(), strict=True))
    return hashes, dict(zip(ids, rows["label"].to_pylist(), strict=True))


def _clean_failures(run: Run, classifier: Classifier, problem: Problem, oracle: Oracle) -> dict[int, str]:
    """Samples that count as broken because the model errs on the clean input, and does not."""
    rows = run.rows()
    wrong = rows.filter(pa.array(counted(rows) & (np.asarray(rows["attack"]) == CLEAN)))
    ids = set(wrong["sample_id"].to_pylist())
    if not ids or run.manifest["identity"]["plan"].get("draws", 1) > 1:
        return {}
    failures: dict[int, str] = {}
    for chunk in problem.chunks(4096):
        index = torch.tensor([r for r, i in enumerate(chunk.ids.tolist()) if i in ids], dtype=torch.long)
        if not len(index):
            continue
        out = oracle.output(chunk.x[index].to(classifier.device))
        right = (out.logits.argmax(1).cpu() == chunk.y[index]) & out.logits.isfinite().all(1).cpu()
        if out.reject is not None and goal_of(run).name != MISCLASSIFY:
            right &= (out.reject <= 0).cpu()
        failures |= dict.fromkeys(chunk.ids[index[right]].tolist(), "the clean input is classified correctly")
    return failures
