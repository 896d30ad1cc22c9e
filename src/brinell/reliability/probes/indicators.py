"""The six indicators of attack failure of Pintor et al. 2022, and the trajectories they are computed from."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brinell.core.attack import Response
from brinell.core.criterion import Criterion
from brinell.core.model import Output
from brinell.engine.oracle import Oracle
from brinell.engine.slots import Slots
from brinell.evaluation.context import StageContext
from brinell.finding import Finding
from brinell.ops import rng
from brinell.ops.rowwise import flat
from brinell.reliability.probes.result import graded

# Pintor et al.: a hundred neighbours within 4/255 per coordinate; the loss may gain at most 5 % of its range over the
# last ten iterations.
RADIUS, NEIGHBOURS = 8 / 255, 100
WINDOW, GAIN = 10, 0.05
# Predictions are unstable if the margin changes by more than UNSTABLE of its value and more than ROUGH of the change
# has no direction. Pure noise has about 0.6; smooth networks and networks with a few kinks stay far below.
UNSTABLE, ROUGH = 0.1, 0.3
# The share of samples that may fail without a warning.
FEW = 0.05

REMEDIES = {
    "unavailable gradients": "Replace parts without gradients (brinell.models.bpda), use a loss on the logits such as "
    "margin or DLR instead of a saturated one, or a black-box attack (Square).",
    "unstable predictions": "Average gradients over noise (brinell.Eot), use larger steps and more restarts, or a "
    "black-box attack.",
    "silent success": "Evaluate the best point of the trajectory, as Brinell does, not the last one.",
    "incomplete optimisation": "Use more steps, larger or adaptive steps (APGD), or restarts.",
    "transfer failure": "Attack the evaluated model itself, including its detector and its preprocessing.",
    "unconstrained failure": "Check the sign and the computation of the gradient, and drop conflicting loss terms.",
}


@dataclass(frozen=True)
class Trajectories:
    """The iterations of an attack: arrays (samples, attempts, iterations), NaN and False where no query was made.

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
        index = torch.arange(len(self), device="cpu")
        parts = {name: getattr(self, name)[index, top][:, None] for name in self.__dataclass_fields__}
        return Trajectories(**parts)


@dataclass
class TrajectoryRecorder:
    """A function that the engine calls after every query (`observe`) and that records `Trajectories`."""

    context: StageContext
    criterion: Criterion
    attempts: int
    queries: int
    samples: int
    recorded: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.samples, self.attempts, self.queries)
        nan = torch.full(shape, torch.nan, dtype=torch.float32, device="cpu")
        self.recorded = {name: nan.clone() for name in ("loss", "margin", "slope")}
        self.recorded |= {name: torch.zeros(shape, dtype=torch.bool, device="cpu") for name in ("success", "wrong")}

    def __call__(self, s: Slots, a: Response) -> None:
        live = s.live.nonzero()[:, 0]
        p, out = s.batch, Output(a.logits, a.reject)
        ball = self.context.threat.ball(torch.zeros(1, dtype=torch.long, device="cpu"), a.logits.device)
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
        """Return the recorded arrays, without the iterations that no attempt reached."""
        reached = int((~self.recorded["loss"].isnan()).any(0).any(0).sum())
        return Trajectories(**{name: value[:, :, : max(reached, 1)] for name, value in self.recorded.items()})


def few(n: int, share: float = FEW) -> float:
    """Return the share of n samples that may fail without a warning: `share`, but at least one sample.

    >>> few(100), few(8)
    (0.05, 0.125)
    """
    return max(share, 1 / n)


def unavailable_gradients(t: Trajectories) -> Finding:
    """Check that an attempt starts with a nonzero loss gradient, unless its starting point is already misclassified.

    Value: the share of samples for which no attempt starts with a nonzero gradient or at a misclassified point.
    """
    name = "unavailable gradients"
    if bool(t.slope[:, :, 0].isnan().all()):
        return Finding(name, "ok", "the attack uses no gradients", threshold=0.0)
    asked = ~t.loss[:, :, 0].isnan()
    dead = (t.slope[:, :, 0] == 0) & ~t.wrong[:, :, 0]
    share = _share((dead | ~asked).all(1) & asked.any(1))
    zeros = 1 - float(t.slope[:, :, 0][asked].mean())
    text = f"no gradient at the start for {_percent(share)} of the samples ({_percent(zeros)} of all coordinates are 0)"
    return graded(name, share, 0.0, text, REMEDIES[name])


def silent_success(t: Trajectories, keeps_best: bool) -> Finding:
    """Check that an attempt that finds an adversarial also ends at an adversarial.

    Value: the share of samples that are broken during an attempt, but not at the end of any attempt. Attacks that
    return their best point (`keeps_best`) are exempt.
    """
    name = "silent success"
    if keeps_best:
        return Finding(name, "ok", "the attack returns its best point", threshold=FEW)
    ever = t.success.any(2).any(1)
    last = _last(t.success, t.loss).any(1)
    share = _share(ever & ~last)
    text = f"{_percent(share)} of the samples were broken during the attack but not at its end"
    return graded(name, share, few(len(t)), text, REMEDIES[name])


def incomplete_optimisation(t: Trajectories) -> Finding:
    """Check that the best loss has stopped growing at the end of the attack.

    Value: the share of samples that are unbroken and whose loss still grows in their best attempt.

    Each loss curve is rescaled to its own range; the best loss so far may gain at most 5 % within the last ten
    iterations.
    """
    name = "incomplete optimisation"
    broken = t.success.any(2).any(1)
    growing = torch.tensor(
        [still_growing(path[~path.isnan()]) for path in t.best_attempt().loss[:, 0]], dtype=torch.bool, device="cpu"
    )
    share = _share(growing & ~broken)
    text = f"{_percent(share)} of the samples are unbroken and their loss was still growing at the end"
    return graded(name, share, few(len(t)), text, REMEDIES[name])


def still_growing(loss: Tensor) -> bool:
    """Return whether the best loss gains more than 5 % of its range in the last ten iterations.

    >>> still_growing(torch.arange(50.0)), still_growing(torch.cat([torch.arange(30.0), torch.full((20,), 30.0)]))
    (True, False)
    """
    path = loss[loss.isfinite()]
    if len(path) < 2 or float(path.max()) == float(path.min()):
        return False
    best = (path - path.min()) / (path.max() - path.min())
    end = best.cummax(0).values[-WINDOW:]
    return float(end.max() - end.min()) > GAIN


def transfer_failure(attacked: Tensor, evaluated: Tensor, same: bool) -> Finding:
    """Check that the attacked and the evaluated model give every adversarial found the same class (−1: rejected).

    Value: the share of adversarials with different predictions.
    """
    name = "transfer failure"
    share = _share(attacked != evaluated)
    whose = "a second forward pass" if same else "the evaluated model"
    return graded(name, share, 0.0, f"{whose} disagrees on {_percent(share)} of the points found", REMEDIES[name])


def unconstrained_failure(before: float, surviving: float, n: int) -> Finding:
    """Check that the attack breaks every sample when the radius covers the whole box.

    Value: the share of samples that survive in the whole box (`surviving`).
    """
    name = "unconstrained failure"
    text = f"of {n} samples {_percent(before)} survive within the threat, {_percent(surviving)} in the whole box"
    return graded(name, surviving, few(n), text, REMEDIES[name])


@dataclass(frozen=True)
class Stability:
    """The relative change of the margin at random neighbours (`value`), and the share of it that is noise (`rough`)."""

    value: float
    rough: float
    forwards: int


def stability(
    oracle: Oracle, criterion: Criterion, x: Tensor, y: Tensor, seed: int, neighbours: int = NEIGHBOURS,
    radius: float = RADIUS,
) -> Stability:  # fmt: skip
    """Return how much the margin m changes, relative to m, at random neighbours of x.

    Method: neighbours are drawn in opposite pairs x ± d with d uniform in ±radius/2. Per sample, average |m(x) − m(x ±
    d)| / |m(x)|, at most 1. A change that x + d and x − d have in common cannot come from a slope; its share of all
    changes (`rough`) tells noise from steepness. Neighbours are not clipped to the box, so that pairs stay opposite.
    Cost: `neighbours` + 1 forwards per sample.
    """
    none = torch.full_like(y, -1)

    def margin(v: Tensor) -> Tensor:
        return criterion.margin(oracle.output(v), y, none).double()

    here = margin(x)
    change, odd, even = torch.zeros_like(here), torch.zeros_like(here), torch.zeros_like(here)
    pairs = max(neighbours // 2, 1)
    key = rng.fold(rng.keys(seed, torch.arange(len(x), device=x.device)), rng.digest("neighbours"))
    for i in range(pairs):
        d = (rng.uniform(rng.fold(key, i), tuple(x.shape[1:])) - 0.5) * radius
        up, down = margin(x + d) - here, margin(x - d) - here
        change += (up.abs() + down.abs()) / (2 * pairs)
        odd += (up - down).abs() / (2 * pairs)
        even += (up + down).abs() / (2 * pairs)
    relative = (change / here.abs().clamp(min=torch.finfo(here.dtype).tiny)).clamp(max=1.0)
    rough = float(even.sum() / (even + odd).sum().clamp(min=torch.finfo(here.dtype).tiny))
    return Stability(float(relative.mean()), rough, 2 * pairs + 1)


def unstable_predictions(s: Stability) -> Finding:
    """Check that margins at neighbours are about equal, or that their differences come from a slope, not from noise."""
    name = "unstable predictions"
    text = f"margins change by {_percent(s.value)} among neighbours; {_percent(s.rough)} of the change is not a slope"
    if s.value > UNSTABLE and s.rough < ROUGH:
        return Finding(
            name, "ok", f"{text}: the model is steep, not noisy", REMEDIES[name], value=s.value, threshold=UNSTABLE
        )
    return graded(name, s.value, UNSTABLE, text, REMEDIES[name])


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask) if len(mask) else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1g} %"


def _last(values: Tensor, asked: Tensor) -> Tensor:
    """Return `values` at the last iteration of each attempt, (samples, attempts); False if `asked` is all NaN."""
    count = (~asked.isnan()).sum(2)
    return values.gather(2, (count - 1).clamp(min=0)[:, :, None])[:, :, 0] & (count > 0)
