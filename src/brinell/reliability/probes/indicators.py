"""The six indicators of attack failure of Pintor et al. 2022, on the trajectories of any attack."""

from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.core.criterion import Criterion
from brinell.engine.oracle import Oracle
from brinell.finding import Finding
from brinell.ops import rng
from brinell.reliability.probes.result import graded
from brinell.reliability.probes.trajectories import Trajectories

# Pintor et al.: neighbours within ±4/255 of every coordinate, a hundred of them; the last ten values of the loss, of
# which none may lie 5 % of the whole way below the best.
RADIUS, NEIGHBOURS = 8 / 255, 100
WINDOW, GAIN = 10, 0.05
# Unstable: the margin changes by more than this share of itself, and this much of the change has no direction. Pure
# noise has about 0.6; a network that is smooth or has a few kinks stays far below.
UNSTABLE, ROUGH = 0.1, 0.3
# Shares of the samples that may be lost to a single unlucky one without an objection.
FEW = 0.05

ADVICE = {
    "unavailable gradients": "replace parts without gradients (brinell.models.bpda), use a loss of the logits such as "
    "margin or DLR instead of a saturated one, or attack without gradients (Square)",
    "unstable predictions": "average gradients over noise (brinell.Eot), use larger steps and more restarts, or attack "
    "without gradients",
    "silent success": "count the best point of the path, as Brinell does, not the last one",
    "incomplete optimisation": "take more steps, larger or adaptive ones (APGD), or restarts",
    "transfer failure": "attack the model that is evaluated, its detector and its preprocessing included",
    "unconstrained failure": "check the sign and the computation of the gradient, drop loss terms that conflict",
}


def few(n: int, share: float = FEW) -> float:
    """The share of n samples that raises no objection: one sample never does.

    >>> few(100), few(8)
    (0.05, 0.125)
    """
    return max(share, 1 / n)


def unavailable_gradients(t: Trajectories) -> Finding:
    """At the start of a run the gradient of the loss must not be zero, unless the point is misclassified already.

    Value: the share of samples all of whose runs start without a gradient.
    """
    name = "unavailable gradients"
    if bool(t.slope[:, :, 0].isnan().all()):
        return Finding(name, "ok", "the attack follows no gradients", threshold=0.0)
    asked = ~t.loss[:, :, 0].isnan()
    dead = (t.slope[:, :, 0] == 0) & ~t.wrong[:, :, 0]
    share = _share((dead | ~asked).all(1) & asked.any(1))
    zeros = 1 - float(t.slope[:, :, 0][asked].mean())
    text = f"no gradient at the start for {_percent(share)} of the samples ({_percent(zeros)} of all coordinates are 0)"
    return graded(name, share, 0.0, text, ADVICE[name])


def silent_success(t: Trajectories, keeps_best: bool) -> Finding:
    """A run must not pass through an adversarial and end elsewhere. Value: share of samples for whom all of them do.

    Attacks that keep their best point themselves (`keeps_best`) end with it, whatever they asked about last.
    """
    name = "silent success"
    if keeps_best:
        return Finding(name, "ok", "the attack keeps its best point itself", threshold=FEW)
    ever = t.success.any(2).any(1)
    last = _last(t.success, t.loss).any(1)
    share = _share(ever & ~last)
    text = f"{_percent(share)} of the samples were broken on the way and not at the end of any run"
    return graded(name, share, few(len(t)), text, ADVICE[name])


def incomplete_optimisation(t: Trajectories) -> Finding:
    """The best loss must no longer grow at the end. Value: share of samples that stand and whose best run still grows.

    Of every path, rescaled to its own range, the best loss so far may not gain more than 5 % within the last ten
    iterations. A sample that is broken needs no better loss and does not count.
    """
    name = "incomplete optimisation"
    broken = t.success.any(2).any(1)
    growing = torch.tensor([still_growing(path[~path.isnan()]) for path in t.best_attempt().loss[:, 0]])
    share = _share(growing & ~broken)
    text = f"the loss of {_percent(share)} of the samples stood firm and was still growing at the end"
    return graded(name, share, few(len(t)), text, ADVICE[name])


def still_growing(loss: Tensor) -> bool:
    """Whether a path's best loss, rescaled to the path's own range, gains more than 5 % in its last ten values.

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
    """Both models must say the same about what was found: class, or rejection (−1). Value: share that differs."""
    name = "transfer failure"
    share = _share(attacked != evaluated)
    whose = "a second look at the same model" if same else "the evaluated model"
    return graded(name, share, 0.0, f"{whose} disagrees about {_percent(share)} of the points found", ADVICE[name])


def unconstrained_failure(before: float, standing: float, n: int) -> Finding:
    """As the threat grows to the whole box an attack must break everything. Value: the share that stands at the end."""
    name = "unconstrained failure"
    text = f"of {n} samples {_percent(before)} stand at the threat, {_percent(standing)} when everything may change"
    return graded(name, standing, few(n), text, ADVICE[name])


@dataclass(frozen=True)
class Stability:
    """How much margins change among neighbours: by the definition (`value`), and the part that has no direction."""

    value: float
    rough: float
    forwards: int


def stability(
    oracle: Oracle,
    criterion: Criterion,
    x: Tensor,
    y: Tensor,
    seed: int,
    neighbours: int = NEIGHBOURS,
    radius: float = RADIUS,
) -> Stability:
    """Mean relative change of the margin over random neighbours, drawn in opposite pairs x ± d, d uniform in ±radius/2.

    Method: per sample mean |m(x) − m(x ± d)| / |m(x)|, at most 1. What m(x + d) and m(x − d) have in common is not
    explained by any slope; its share of the change tells noise from steepness. Neighbours are not clipped to the box,
    so that pairs stay opposite. Cost: `neighbours` + 1 forwards.
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
    """Neighbours must have about the same margin, or differ as a slope would make them."""
    name = "unstable predictions"
    text = f"margins change by {_percent(s.value)} among near neighbours, {_percent(s.rough)} of it without direction"
    if s.value > UNSTABLE and s.rough < ROUGH:
        return Finding(name, "ok", f"{text}: steep, not noisy", ADVICE[name], value=s.value, threshold=UNSTABLE)
    return graded(name, s.value, UNSTABLE, text, ADVICE[name])


def _share(mask: Tensor) -> float:
    return int(mask.sum()) / len(mask) if len(mask) else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1g} %"


def _last(values: Tensor, asked: Tensor) -> Tensor:
    """The value at the last iteration that was asked, per sample and leg; False where there was none."""
    count = (~asked.isnan()).sum(2)
    return values.gather(2, (count - 1).clamp(min=0)[:, :, None])[:, :, 0] & (count > 0)
