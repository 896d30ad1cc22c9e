"""The attack under examination, the samples it is tried on, and a count of what that costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.attack import Response
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.engine.loop import Slots
from brinell.engine.oracle import Oracle
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import run_stage


@dataclass
class PassCount:
    """Passes so far, rows times passes."""

    forwards: int = 0
    backwards: int = 0

    def add(self, forwards: int, backwards: int = 0) -> None:
        """So many more."""
        self.forwards += forwards
        self.backwards += backwards


@dataclass(frozen=True)
class ProbedAttack:
    """The attack on the table: its session, the samples that are right at first, and a count of what is spent."""

    prepared: PreparedEvaluation
    stage: Stage
    clean: Clean
    at: Tensor
    spent: PassCount

    @property
    def oracle(self) -> Oracle:
        """The attacked model."""
        return self.prepared.oracle

    @property
    def x(self) -> Tensor:
        """The samples that are right at first."""
        return self.clean.chunk.x[self.at.cpu()].to(self.clean.logits.device)

    @property
    def y(self) -> Tensor:
        """Their labels."""
        return self.clean.chunk.y[self.at.cpu()].to(self.clean.logits.device)

    def run(
        self,
        stage: Stage,
        who: Tensor,
        *,
        threat: Threat | None = None,
        observe: "Callable[[Slots, Response], None] | None" = None,
    ) -> "tuple[Tensor, Tensor]":
        """Which of the samples `who` (a mask over `at`) fall to a stage, and the adversarials of all who fall."""
        context = replace(self.prepared.context, early_exit=observe is None, observe=observe)
        context = context if threat is None else replace(context, threat=threat)
        index = self.at[who.to(self.at.device)]
        fell = torch.zeros(len(self.clean.chunk), dtype=torch.bool)
        points = self.clean.chunk.x.clone()
        for part in run_stage(context, stage, self.clean, index):
            won = part.at[part.counted].cpu()
            fell[won] = True
            points[won] = part.x
            table = part.table
            self.spent.add(sum(table["forwards"].to_pylist()), sum(table["backwards"].to_pylist()))
        return fell[self.at.cpu()], points[self.at.cpu()]
