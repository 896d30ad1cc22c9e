"""Linear classifiers with linear detectors: what can evade both is a polyhedron, and a linear program decides."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

import brinell
from brinell.ops import rng
from brinell.testing import LinearWorld, linear_world


@dataclass(frozen=True, eq=False)
class Guarded:
    """A linear world and a detector that rejects where slope · x exceeds a level."""

    world: LinearWorld
    slope: Tensor
    level: float

    @property
    def classifier(self):
        return replace(
            self.world.classifier, detector=brinell.models.detector.as_detector(Score(self.slope, self.level))
        )

    @property
    def problem(self) -> brinell.Problem:
        return brinell.Problem(self.world.x, self.world.y)

    @cache  # noqa: B019
    def distance(self, norm: str) -> Tensor:
        """The smallest radius at which both aims can be met inside the box, per sample, in float64; inf: none is.

        For each rival class j the program is: minimise e subject to z_j ≥ z_y, score ≤ 0, ‖d‖ ≤ e, x in the box. An
        input is misclassified as soon as one rival beats the true class.
        """
        n = len(self.world.x)
        return torch.tensor([min(self._least(norm, i, j) for j in self._rivals(i)) for i in range(n)]).double()

    def _rivals(self, i: int) -> list[int]:
        return [j for j in range(len(self.world.bias)) if j != int(self.world.y[i])]

    def _least(self, norm: str, i: int, j: int) -> float:
        w, b = self.world.weight.double().numpy(), self.world.bias.double().numpy()
        x, y = self.world.x[i].flatten().double().numpy(), int(self.world.y[i])
        g, n = self.slope.double().numpy(), x.size
        # Unknowns: d⁺ and d⁻, whose difference is the step, and the radius e.
        up, zero = w[j] - w[y], np.zeros((n, n))
        lines = [np.hstack([-up, up, 0])[None], np.hstack([g, -g, 0])[None]]
        limits = [np.array([up @ x + b[j] - b[y]]), np.array([self.level - g @ x])]
        if norm == "L1":
            lines.append(np.hstack([np.ones(2 * n), -1])[None])
            limits.append(np.zeros(1))
        else:
            for eye in (np.hstack([np.eye(n), zero]), np.hstack([zero, np.eye(n)])):
                lines.append(np.hstack([eye, -np.ones((n, 1))]))
                limits.append(np.zeros(n))
        bounds = [(0, 1 - v) for v in x] + [(0, v) for v in x] + [(0, None)]
        cost = np.zeros(2 * n + 1)
        cost[-1] = 1
        found = linprog(cost, np.vstack(lines), np.concatenate(limits), bounds=bounds)
        return float(found.fun) if found.status == 0 else np.inf


class Score(nn.Module):
    def __init__(self, slope: Tensor, level: float) -> None:
        super().__init__()
        self.register_buffer("slope", slope)
        self.register_buffer("level", torch.tensor(level))
        self.eval()

    def forward(self, x):
        return x.flatten(1) @ self.slope - self.level


@cache
def make(norm: str, classes: int = 3, shape: tuple[int, ...] = (12,), n: int = 16, seed: int = 0) -> Guarded:
    """Samples that the detector accepts, and for whom it matters: with it the way out is at least a tenth longer.

    The detector's score grows on the way from class 0 to any other; all samples are of class 0.
    """
    world = linear_world(classes, shape, 8 * n, seed)
    noise = rng.normal(rng.keys(seed, torch.arange(1)), (world.weight.shape[1],))[0]
    slope = noise + (world.weight - world.weight[0]).sum(0)
    slope = slope / slope.norm()
    scores = world.x.flatten(1) @ slope
    whole = Guarded(world, slope, float(scores[world.y == 0].quantile(0.5)))
    e = whole.distance(norm)
    longer = (scores < whole.level - 1e-3) & (e > 1.1 * world.distance(norm)) & (e < 3 * world.distance(norm))
    keep = longer.nonzero()[:n, 0]
    assert len(keep) == n, f"only {len(keep)} samples fit"
    return replace(whole, world=replace(world, x=world.x[keep], y=world.y[keep]))


@pytest.fixture(scope="session")
def guarded():
    """Makes such worlds; each is made once."""
    return make


@pytest.fixture(scope="session")
def score():
    """A linear detector."""
    return Score
