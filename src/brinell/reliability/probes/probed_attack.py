"""The probed attack, its samples, and a count of the passes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import Response
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Slots
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import run_stage


@dataclass
class PassCount:
    """Forward and backward passes so far, counted per row."""

    forwards: int = 0
    backwards: int = 0

    def add(self, forwards: int, backwards: int = 0) -> None:
        self.forwards += forwards
        self.backwards += backwards


@dataclass(frozen=True)
class ProbedAttack:
    """An attack under test: its prepared evaluation, the correctly classified samples at `at`, and the passes made."""

    prepared: PreparedEvaluation
    stage: Stage
    clean: Clean
    at: Tensor
    passes: PassCount

    @property
    def oracle(self) -> Oracle:
        return self.prepared.oracle

    @property
    def x(self) -> Tensor:
        return self.clean.chunk.x[self.at.cpu()].to(self.clean.logits.device)

    @property
    def y(self) -> Tensor:
        return self.clean.chunk.y[self.at.cpu()].to(self.clean.logits.device)

    def run(
        self, stage: Stage, who: Tensor,
        *, threat: Threat | None = None, observe: "Callable[[Slots, Response], None] | None" = None,
    ) -> "tuple[Tensor, Tensor]":  # fmt: skip
        """Return which samples of the mask `who` break under a stage, and the adversarials of those that break."""
        context = replace(self.prepared.context, early_exit=observe is None, observe=observe)
        context = context if threat is None else replace(context, threat=threat)
        index = self.at[who.to(self.at.device)]
        broken = torch.zeros(len(self.clean.chunk), dtype=torch.bool)
        points = self.clean.chunk.x.clone()
        for at, rows in run_stage(context, stage, self.clean, index):
            broken[at.cpu()] = True
            points[at.cpu()] = torch.as_tensor(rows.x)
            self.passes.add(sum(rows.table["forwards"].to_pylist()), sum(rows.table["backwards"].to_pylist()))
        return broken[self.at.cpu()], points[self.at.cpu()]
