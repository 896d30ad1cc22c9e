"""The state of one evaluation: what has been settled about it, its samples as they are read, and its identity."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.checks import model as model_checks
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Output
from brinell.core.plan import Plan
from brinell.cost.precision import PrecisionChoice
from brinell.engine.oracle import Oracle, default_block, other_blocks
from brinell.errors import InputError
from brinell.evaluation.rows import Clean, clean
from brinell.evaluation.run_stage import StageContext
from brinell.finding import Finding

# Samples held in memory at a time: at most this many, and at most this many bytes of inputs.
CHUNK, CHUNK_BYTES = 16384, 1 << 28


def chunk_size(problem: Problem) -> int:
    """How many samples of the problem are held in memory at a time."""
    size = 4 * int(np.prod(problem.shape()))
    return max(1, min(CHUNK, CHUNK_BYTES // size))


@dataclass
class PreparedEvaluation:
    """An evaluation ready to go: everything has been checked, nothing has been written."""

    context: StageContext
    plan: Plan
    problem: Problem
    first: Chunk
    first_output: Output
    checks: list[Finding]
    notes: list[str]
    device: torch.device
    individual: bool = False
    pace: float = 0.0
    """Seconds that one clean answer took."""
    choice: PrecisionChoice | None = None
    fingerprint: str | None = None
    """The model's, where it was asked for before: all weights are read for it."""

    @property
    def oracle(self) -> Oracle:
        """The model."""
        return self.context.oracle

    @property
    def first_logits(self) -> Tensor:
        """The model's logits for the first chunk."""
        return self.first_output.logits

    @property
    def warned(self) -> bool:
        """Whether a check found something that puts the attacks' answer in doubt."""
        return any(c.level in ("warn", "fail") for c in self.checks)

    def facts(self) -> Clean:
        """What is known of the first chunk by now, without the hashes of its inputs."""
        return replace(clean(replace(self.first, x=self.first.x[:0]), [self.first_output]), chunk=self.first)

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk, checked."""
        for chunk in self.problem.chunks(chunk_size(self.problem)):
            model_checks.require_known_labels(chunk, self.first_logits.shape[1])
            if chunk.offset == 0 and not torch.equal(chunk.x, self.first.x):
                raise InputError(
                    expected="data that read the same every time",
                    got="other inputs at the second reading",
                    remedy="Remove random augmentation from the data set.",
                )
            yield chunk

    def clean(self, chunk: Chunk) -> Clean:
        """The model's clean answers about a chunk; those of the first one were asked for at the model_checks."""
        x = chunk.x.to(self.oracle.classifier.device)
        known = [self.first_output] if chunk.offset == 0 else []
        more = [self.oracle.output(x) for _ in range(self.plan.draws - len(known))]
        return clean(chunk, known + more)

    def identity(self) -> dict[str, Any]:
        """What makes two evaluations the same."""
        c = self.oracle.classifier
        fingerprint = c.fingerprint if self.fingerprint is None else self.fingerprint
        return {
            "brinell_format": 1,
            "threat": self.context.threat.to_json(),
            "goal": self.context.criterion.name,
            "plan": self.plan.to_json(),
            "individual": self.individual,
            "model": {"fingerprint": fingerprint, "name": c.name, "classes": self.first_logits.shape[1]},
            "data": {"fingerprint": self.problem.fingerprint(), "n": len(self.problem), "name": self.problem.name},
            "seed": self.context.seed,
            "precision": self.context.precision,
            "block": default_block(self.device),
            **({"other_blocks": others} if (others := other_blocks(self.device)) else {}),
            **({"execution": "compile"} if self.oracle.compiled else {}),
        }
