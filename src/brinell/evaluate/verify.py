"""Nothing found is trusted until verified: a fresh forward, the distance in float64, the box, finiteness."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.classifier import Classifier
from brinell.core.goal import Goal, Misclassify
from brinell.core.problem import Problem, sample_hashes
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.errors import RunError
from brinell.results import CLEAN, Run, counted

LEVELS = 255


@dataclass(frozen=True)
class Verified:
    """For every point: whether it holds, the model's class, the distance, whether it holds in 8 bits, and (columns of
    `judged`) which of the fresh passes it fooled."""

    ok: Tensor
    pred: Tensor
    distance: Tensor
    ok_8bit: Tensor
    judged: Tensor


def check_points(
    oracle: Oracle, goal: Goal, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, ball: Ball, draws: int = 1
) -> Verified:
    """Re-check adversarial points on the model with fresh passes; more than half of them must be fooled."""
    outputs = [oracle.output(x) for _ in range(draws)]
    judged = torch.stack([goal.margin(out, y, t) > 0 for out in outputs], 1)
    rounded = (x * LEVELS).round() / LEVELS
    margin_8bit = goal.margin(oracle.output(rounded), y, t)
    return Verified(
        ok=(2 * judged.sum(1) > draws) & ball.contains(x0, x),
        pred=outputs[0].logits.argmax(1),
        distance=ball.distance(x0, x),
        ok_8bit=(margin_8bit > 0) & ball.contains(x0, rounded),
        judged=judged,
    )


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


def _reason(
    ball: Ball, goal: Goal, oracle: Oracle, x0: Tensor, x: Tensor, y: Tensor, t: Tensor, draws: int
) -> list[str]:
    fooled = torch.stack([goal.margin(oracle.output(x), y, t) > 0 for _ in range(draws)], 1)
    tests = [
        (~x.flatten(1).isfinite().all(1), "not finite"),
        (~ball.allows(x0, x), "outside the box"),
        (~ball.contains(x0, x), "further than eps"),
        (2 * fooled.sum(1) <= draws, "not misclassified"),
    ]
    return [next((why for mask, why in tests if bool(mask[i])), "") for i in range(len(x))]


def verify(run: Run, classifier: Classifier, problem: Problem, threat: Threat, oracle: Oracle) -> Verification:
    """Re-check the adversarial of every sample that counts as broken by an attack; one that has none fails."""
    adv = run.adversarials()
    where = {int(i): k for k, i in enumerate(adv.ids)}
    hashes = _hashes(run)
    # A randomised model is judged as it was when the Run was made: by the majority of so many passes.
    draws = run.manifest["identity"]["plan"].get("draws", 1)
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
        for i, why in zip(ids, _reason(ball, Misclassify(), oracle, x0, x, y, y, draws), strict=True):
            if why:
                failures[i] = why
        for i, digest in zip(ids, sample_hashes(chunk.x[index]), strict=True):
            if hashes.get(i) != digest:
                failures[i] = "the clean input is not the one that was attacked"
        seen |= set(ids)
    if len(seen) < len(where):
        raise RunError(
            expected=f"all {len(where)} attacked samples in the problem",
            got=f"{len(seen)} of them",
            remedy="Verify with the data the Run was made from (same ids).",
        )
    return Verification(len(hashes), failures)


def _hashes(run: Run) -> dict[int, str]:
    rows = run.rows()
    rows = rows.filter(pa.array(counted(rows) & (np.asarray(rows["attack"]) != CLEAN)))
    return dict(zip(rows["sample_id"].to_pylist(), rows["x_sha256"].to_pylist(), strict=True))
