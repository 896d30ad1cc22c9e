"""Smoothness: lower bounds on local Lipschitz constants of a network and its layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.analysis.intervals import Floats, bootstrap, interval_series
from brinell.analysis.layers import OUTPUT, Function, default_layers, layer_function
from brinell.arguments import DataLike, ModelLike
from brinell.checks import model as model_checks
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier
from brinell.core.threat import Ball, Linf, Threat
from brinell.engine import precision as precisions
from brinell.engine.oracle import default_block
from brinell.errors import InputError, one_of
from brinell.evaluation import coerce
from brinell.ops import rng
from brinell.ops.norms import NORMS, Norm
from brinell.ops.rowwise import flat, rows, where
from brinell.results import Interval
from brinell.results.analyses import AnalysisReport, Figure, Measure, Table

# Croce et al. 2021, appendix on smoothness: radius 8/255, 50 steps of a fifth of it, L1 at the output per Linf.
EPS, STEPS, REL_STEP, OUTPUT_NORM = "8/255", 50, 0.2, "L1"
# Pairs nearer than this share of the radius are ignored: rounding errors would look like slopes.
NEAREST = 1e-2
TINY = 1e-30


@dataclass(frozen=True)
class Layer:
    """Lower bounds on the local Lipschitz constants of the network up to one layer; `values` has one per sample."""

    name: str
    mean: Interval
    values: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest value: a lower bound on the largest local Lipschitz constant of all samples."""
        return max(self.values)


@dataclass(frozen=True)
class Smoothness:
    """Lower bounds on local Lipschitz constants for each of `layers`; the last is the output of the network.

    With `angular`, each layer output is divided by its Euclidean norm first: only its direction counts.
    """

    model: str
    threat: str
    output_norm: str
    angular: bool
    steps: int
    restarts: int
    layers: tuple[Layer, ...]

    @property
    def output(self) -> Layer:
        return self.layers[-1]

    def findings(self) -> AnalysisReport:
        """Return a table with one row per layer, and a figure of the mean lower bounds."""
        columns = ("layer", "n", "mean lower bound", "95 % interval", "median", "largest")
        table = tuple(
            (
                l.name, l.mean.n, _short(l.mean.value), f"[{_short(l.mean.low)}, {_short(l.mean.high)}]",
                _short(float(np.median(l.values))), _short(l.largest),
            )
            for l in self.layers
        )  # fmt: skip
        what = "direction" if self.angular else "value"
        mean = self.output.mean
        summary = (
            f"Within {self.threat} the {what} of the output changes by at least {_short(mean.value)} "
            f"[{_short(mean.low)}, {_short(mean.high)}] ({self.output_norm}) per unit of distance on average "
            f"(n = {mean.n}). These are lower bounds from a search."
        )
        names = tuple(l.name for l in self.layers)
        bars = interval_series("mean", names, [l.mean for l in self.layers], scale=1)
        title = "Local Lipschitz constants, lower bounds" + (", angular" if self.angular else "")
        figure = Figure(title, "bars", "layer", f"{self.output_norm} per unit", (bars,))
        kind = "smoothness-angular" if self.angular else "smoothness"
        return AnalysisReport(kind, "Smoothness", summary, (Table(title, columns, table),), (figure,))

    def measures(self) -> tuple[Measure, ...]:
        """Return the mean lower bound at the network's output, the layer that all models have."""
        mean = self.output.mean
        return (Measure("Lipschitz constant of the output, mean lower bound", mean.value, mean.low, mean.high),)


def _short(v: float) -> str:
    return f"{v:.4g}"


def smoothness(
    classifier: ModelLike, problem: DataLike, threat: Threat | None = None,
    *, layers: Sequence[str] | None = None, output_norm: str = OUTPUT_NORM, angular: bool = False,
    steps: int = STEPS, restarts: int = 2, seed: int = 0, device: torch.device | str | None = None,
) -> Smoothness:  # fmt: skip
    """Return lower bounds on the local Lipschitz constants of the network and its layers around every sample.

    Method: the largest ‖f(x1) − f(x2)‖ / ‖x1 − x2‖ over pairs in the threat's ball (default Linf, 8/255) that projected
    gradient ascent finds, both points moving `steps` times by a fifth of the radius; f is the network up to the layer,
    and each layer has its own search. Restarts 1, 3, … maximise the ratio, as in Croce et al.; restarts 2, 4, …
    maximise the numerator alone, which is better for pairs at full distance (for a linear f, this is the power method).
    `layers` names the modules to analyse (default: `default_layers`); the output is always analysed. Interval of the
    mean: basic bootstrap, keyed by the seed. Cost per layer, restart and step: two forwards, two backwards. Reference:
    Yang et al. 2020, A closer look at accuracy vs. robustness; Croce et al. 2021, appendix.

    >>> from brinell.testing.worlds import linear_world
    >>> world = linear_world(n=4)
    >>> found = smoothness(world.classifier, (world.x, world.y), Linf(0.1), layers=())
    >>> [l.name for l in found.layers], found.output.mean.n
    (['output'], 4)
    """
    model, data = coerce.as_classifier(classifier, device), coerce.as_problem(problem)
    wanted = Linf(EPS) if threat is None else coerce.as_threat(threat)
    _check(model, wanted, data, steps, restarts)
    top = NORMS[one_of("an output norm", output_norm, NORMS)]
    chosen = default_layers(model, next(data.chunks(2)).x) if layers is None else tuple(layers)
    search = _Search(top, angular, steps, restarts, seed)
    found = []
    with precisions.exact(model.device):
        for name in (*chosen, OUTPUT):
            with layer_function(model, name) as f:
                values = np.concatenate([search.largest(f, b, wanted, model) for b in _blocks(data, model)])
            found.append(Layer(name, _mean(values, seed), tuple(values.tolist())))
    return Smoothness(model.name, str(wanted), output_norm, angular, steps, restarts, tuple(found))


def _mean(values: Floats, seed: int) -> Interval:
    return bootstrap(lambda at: float(values[at].mean()), len(values), seed, "smoothness", 0.0)


def _check(model: Classifier, threat: Threat, data: Problem, steps: int, restarts: int) -> None:
    model_checks.check_train_mode(model)
    model_checks.require_gradients(model)
    threat.check(data.shape(), len(data))
    if threat.unlimited or threat.norm.name not in NORMS:
        raise InputError(
            expected=f"a threat with a radius in one of the norms {', '.join(NORMS)}",
            got=str(threat),
            remedy="Pass a radius, e.g. Linf('8/255').",
        )
    if min(steps, restarts) < 1:
        raise InputError(
            expected="at least 1 step and 1 restart",
            got=f"{steps} steps and {restarts} restarts",
            remedy=f"Omit `steps` and `restarts` for the defaults, {STEPS} and 2.",
        )


def _blocks(data: Problem, model: Classifier) -> Iterator[Chunk]:
    return data.chunks(default_block(model.device))


@dataclass(frozen=True)
class _Search:
    """A search for the pair of points in a ball with the largest output change per distance."""

    top: Norm
    angular: bool
    steps: int
    restarts: int
    seed: int

    def largest(self, f: Function, chunk: Chunk, threat: Threat, model: Classifier) -> Any:
        """Return the largest ratio of output change to distance found for every sample, in float64."""
        # Pad the last block: a row's output may depend on the batch shape.
        size, device = default_block(model.device), model.device
        index = torch.cat(
            [torch.arange(len(chunk), device="cpu"), torch.zeros(size - len(chunk), dtype=torch.long, device="cpu")]
        )
        x = chunk.x[index].to(device)
        ball = threat.ball(index + chunk.offset, device)
        key = rng.fold(rng.keys(self.seed, chunk.ids[index].to(device)), rng.digest("smoothness"))
        best = torch.zeros(size, dtype=torch.float64, device=device)
        for r in range(self.restarts):
            found = self._ascend(f, x, ball, rng.fold(key, r), ratio=r % 2 == 0)
            best = torch.maximum(best, found)
        return best[: len(chunk)].cpu().numpy()

    def _ascend(self, f: Function, x: Tensor, ball: Ball, key: Tensor, ratio: bool) -> Tensor:
        a, b = ball.inside(x, rng.fold(key, 1)), ball.inside(x, rng.fold(key, 2))
        best = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for t in range(self.steps + 1):
            slope, grad_a, grad_b = self._slope(f, a, b, ball, ratio, last=t == self.steps)
            best = torch.maximum(best, slope)
            if grad_a is not None and grad_b is not None:
                a, b = _step(x, a, grad_a, ball), _step(x, b, grad_b, ball)
        return best

    def _slope(
        self, f: Function, a: Tensor, b: Tensor, ball: Ball, ratio: bool, last: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return each pair's output change per distance (0 if too close) and, unless `last`, gradients at a and b."""
        with torch.set_grad_enabled(not last):
            p, q = (v.detach().requires_grad_(not last) for v in (a, b))
            up = self.top.size(self._outputs(f, p) - self._outputs(f, q))
            far = ball.norm.size(p - q)
            objective = (up + TINY).log() - (far + TINY).log() if ratio else up
        apart = ball.distance(b, a)
        slope = torch.where(apart > NEAREST * ball.eps.double(), up.detach().double() / apart, 0.0)
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        if last:
            return slope, None, None
        grad_p, grad_q = (g.nan_to_num(0.0, 0.0, 0.0) for g in torch.autograd.grad(objective.sum(), (p, q)))
        return slope, grad_p, grad_q

    def _outputs(self, f: Function, x: Tensor) -> Tensor:
        v = f(x).double()
        return v / v.norm(dim=1, keepdim=True).clamp(min=TINY) if self.angular else v


def _step(x: Tensor, point: Tensor, grad: Tensor, ball: Ball) -> Tensor:
    step = point + REL_STEP * rows(ball.eps, grad) * ball.steepest(grad)
    still = (flat(grad) == 0).all(1)
    return where(still, point, ball.project(x, step))
