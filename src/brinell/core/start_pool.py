"""Starting points for attacks: a fixed pool of perturbations that broke other samples, and a search with a budget."""

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from brinell.core.threat import Threat
from brinell.errors import InputError, PlanError

if TYPE_CHECKING:
    from brinell.core.dataset import Problem
    from brinell.results import Run

# Enough to meet every class of a small data set, few enough to store in memory for large images.
LIMIT = 64


@dataclass(frozen=True, eq=False)
class StartPool:
    """Perturbations `d` of other samples as multiples of their eps, and the true classes `y` of those samples.

    The pool is fixed before an evaluation, so that no sample's outcome depends on another sample of it. Its digest is
    part of the stage's hash. Two pools are equal if all their values are equal.

    >>> StartPool(torch.tensor([0, 1]), torch.tensor([[1.0, -1.0], [0.5, 1.0]]))
    StartPool(n=2, sha256=96fd6308)
    """

    y: Tensor
    d: Tensor

    def __post_init__(self) -> None:
        if not len(self.y) or len(self.y) != len(self.d):
            raise InputError(
                expected="at least one perturbation, and one class for each",
                got=f"{len(self.d)} perturbations and {len(self.y)} classes",
                remedy="Draw the pool from a Run that broke samples: a larger eps or more samples in the pilot.",
            )

    @classmethod
    def from_run(cls, run: "Run", problem: "Problem", threat: Threat, limit: int = LIMIT) -> "StartPool":
        """Return the pool of the adversarials of a pilot Run, those with the smallest sample ids."""
        stored = run.adversarials()
        place = {i: k for k, i in enumerate(problem.ids.tolist())}
        unknown = [i for i in stored.ids.tolist() if i not in place]
        if unknown:
            raise InputError(
                expected="the data of the pilot Run",
                got=f"data without its sample {unknown[0]}",
                remedy="Pass the problem, or a larger one with the same ids, on which the pilot was run.",
            )
        rows = torch.tensor([place[i] for i in stored.ids.tolist()[:limit]], dtype=torch.long, device="cpu")
        d = torch.from_numpy(stored.x[:limit]) - problem.x[rows].float()
        eps = threat.ball(rows, d.device).eps_like(d)
        return cls(problem.y[rows], d / eps)

    @property
    def digest(self) -> str:
        """The SHA-256 of all classes and perturbations."""
        h = hashlib.sha256()
        for part in (self.y, self.d):
            h.update(part.detach().cpu().numpy().tobytes())
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StartPool) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"StartPool(n={len(self.y)}, sha256={self.digest[:8]})"

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest of a Run stores about the pool."""
        return {"n": len(self.y), "sha256": self.digest}


@dataclass(frozen=True)
class ActivationSearch:
    """Search before the attack of a stage: its points are where the attack starts, and the engine verifies them.

    Branch and bound on the ReLUs of the network visits `batches` batches of subproblems per sample. The minimiser of
    each bound is improved by `steps` gradient steps. Work is counted in batches, never in seconds.

    >>> ActivationSearch(batches=10)
    ActivationSearch(batches=10, steps=100)
    """

    batches: int = 40
    steps: int = 100

    def __post_init__(self) -> None:
        if self.batches < 1 or self.steps < 0:
            raise PlanError(
                expected="at least 1 batch and 0 steps",
                got=f"batches = {self.batches}, steps = {self.steps}",
                remedy="Write e.g. ActivationSearch(batches=40, steps=100).",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the budget's entry in the manifest of a Run."""
        return asdict(self)
