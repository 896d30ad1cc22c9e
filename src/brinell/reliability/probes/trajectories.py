"""Trajectories of an attack: one value per sample, attempt and iteration."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.core.attack import Response
from brinell.core.criterion import Criterion
from brinell.core.model import Output
from brinell.engine.slots import Slots
from brinell.evaluation.context import StageContext
from brinell.ops.rowwise import flat


@dataclass(frozen=True)
class Trajectories:
    """Arrays of shape (samples, attempts, iterations); NaN and False where there was no query.

    `success`: the point meets the criterion inside the threat. `slope`: the share of gradient coordinates that are not
    exactly zero (NaN for attacks without gradients). `wrong`: the predicted class is not the label.
    """

    loss: Tensor
    margin: Tensor
    success: Tensor
    wrong: Tensor
    slope: Tensor

    def __len__(self) -> int:
        return len(self.loss)

    def best_attempt(self) -> "Trajectories":
        """Return for every sample the attempt with the largest margin, as arrays with one attempt."""
        top = self.margin.nan_to_num(-torch.inf).amax(2).argmax(1)
        index = torch.arange(len(self))
        parts = {name: getattr(self, name)[index, top][:, None] for name in self.__dataclass_fields__}
        return Trajectories(**parts)


@dataclass
class TrajectoryRecorder:
    """Records every iteration of the engine (`Engine.observe`) for `Trajectories`."""

    context: StageContext
    criterion: Criterion
    attempts: int
    queries: int
    samples: int
    recorded: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.samples, self.attempts, self.queries)
        nan = torch.full(shape, torch.nan)
        self.recorded = {name: nan.clone() for name in ("loss", "margin", "slope")}
        self.recorded |= {name: torch.zeros(shape, dtype=torch.bool) for name in ("success", "wrong")}

    def __call__(self, s: Slots, a: Response) -> None:
        live = s.live.nonzero()[:, 0]
        p, out = s.batch, Output(a.logits, a.reject)
        ball = self.context.threat.ball(torch.zeros(1, dtype=torch.long), a.logits.device)
        ball = type(ball)(ball.norm, s.eps, ball.mask)
        inside = ball.contains(p.x, s.state.x)
        exploring = s.state.exploring
        if exploring is not None:
            inside = inside & ~exploring
        slope = torch.full_like(a.loss, torch.nan)
        if a.grad is not None or a.jacobian is not None:
            slope = (flat(a.gradient if a.grad is not None else a.jacobian) != 0).float().mean(1)  # type: ignore[arg-type]
        values = {
            "loss": a.loss,
            "margin": self.criterion.margin(out, p.y, p.target),
            "success": self.criterion.reached(out, p.y, p.target) & inside,
            "wrong": a.logits.argmax(1) != p.y,
            "slope": slope,
        }
        where = (s.at[live].cpu(), s.attempt[live].cpu(), s.state.t[live].cpu())
        for name, value in values.items():
            self.recorded[name][where] = value[live].cpu()

    def trajectories(self) -> Trajectories:
        """Return what was recorded, without the iterations that no row reached."""
        reached = int((~self.recorded["loss"].isnan()).any(0).any(0).sum())
        return Trajectories(**{name: value[:, :, : max(reached, 1)] for name, value in self.recorded.items()})
