"""What an attack did on its way: one value per sample, run and iteration, for a small sample of rows."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.core.attack import Response
from brinell.core.criterion import Criterion
from brinell.core.model import Output
from brinell.engine.loop import Slots
from brinell.evaluation.run_stage import StageContext
from brinell.ops.rowwise import flat


@dataclass(frozen=True)
class Trajectories:
    """Arrays of shape (samples, legs, iterations); NaN and False where nothing was asked.

    `success` is whether the point reaches the goal inside the threat, `slope` the share of the gradient's coordinates
    that are not exactly zero (NaN for attacks without gradients), `wrong` whether the class is another.
    """

    loss: Tensor
    margin: Tensor
    success: Tensor
    wrong: Tensor
    slope: Tensor

    def __len__(self) -> int:
        return len(self.loss)

    def best_attempt(self) -> "Trajectories":
        """Of every sample the run that came closest to the goal, as arrays of one leg."""
        top = self.margin.nan_to_num(-torch.inf).amax(2).argmax(1)
        index = torch.arange(len(self))
        parts = {name: getattr(self, name)[index, top][:, None] for name in self.__dataclass_fields__}
        return Trajectories(**parts)


@dataclass
class TrajectoryRecorder:
    """Sees every iteration of an engine (`Engine.observe`) and remembers what a trajectory needs."""

    context: StageContext
    criterion: Criterion
    attempts: int
    queries: int
    samples: int
    seen: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.samples, self.attempts, self.queries)
        nan = torch.full(shape, torch.nan)
        self.seen = {name: nan.clone() for name in ("loss", "margin", "slope")}
        self.seen |= {name: torch.zeros(shape, dtype=torch.bool) for name in ("success", "wrong")}

    def __call__(self, s: Slots, a: Response) -> None:
        """Remember the rows that are alive."""
        live = s.live.nonzero()[:, 0]
        p, out = s.rows, Output(a.logits, a.reject)
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
            self.seen[name][where] = value[live].cpu()

    def trajectories(self) -> Trajectories:
        """What was seen, without the iterations that no row reached."""
        asked = int((~self.seen["loss"].isnan()).any(0).any(0).sum())
        return Trajectories(**{name: value[:, :, : max(asked, 1)] for name, value in self.seen.items()})
