"""Imitation of a natural input of another class, by its logits or its features."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import _parameters as _check
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import Attack, AttackState, Batch, Response
from brinell.core.references import References
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops import rng
from brinell.ops.types import Doubles, Labels, Points

OF = ("logits", "features")


@dataclass(frozen=True)
class State(AttackState):
    """The Auto-PGD run, and the values it is to match."""

    t: Labels
    run: Any
    target: Doubles

    @property
    def x(self) -> Points:
        """The run's next point."""
        point: Points = self.run.x
        return point

    @property
    def aim(self) -> Doubles:
        """What the run in progress aims at."""
        return self.target


@dataclass(frozen=True)
class Matching(Attack[State]):
    """Auto-PGD towards the logits or features of a natural, accepted input of another class, which no detector minds.

    Method: minimises the squared distance to one of the `references`, of the target class if there is one, else of any
    class but the true one, drawn by the key. A calibrated classifier (`brinell.calibrated`) has references, and
    `evaluate` fills them in. The detector itself is not asked. Cost per step: one forward, one backward; one more of
    each for the start. Reference: Sabour et al. 2016, Adversarial manipulation of deep representations (features);
    Tramèr et al. 2020, On adaptive attacks to adversarial example defenses (logits).
    Limits: needs natural inputs whose features the detector accepts; a detector that reads other layers is not
    imitated.

    >>> Matching(steps=50).name, Matching(steps=50, of="features").queries
    ('match-logits', 51)
    """

    steps: int = 100
    of: str = "logits"
    references: References | None = None

    def __post_init__(self) -> None:
        _check.positive(steps=self.steps)
        one_of("of", self.of, OF)
        if self.of == "features" and self.references is not None and self.references.features is None:
            raise PlanError(
                expected="references with features",
                got="logits only",
                remedy="Name the layer before calibrating: brinell.wrap(net, detector=…, features='layers.5').",
            )

    @property
    def name(self) -> str:
        """What is matched."""
        return f"match-{self.of}"

    @property
    def loss(self) -> str:
        """The distance to the reference."""
        return f"match-{self.of}"

    @property
    def lacks_references(self) -> bool:
        """Whether no references are given yet."""
        return self.references is None

    def with_references(self, references: References) -> "Matching":
        """Return the attack that imitates these references."""
        return replace(self, references=references)

    @property
    def _inner(self) -> APGD:
        return APGD(self.steps)

    def init(self, p: Batch, ball: Ball) -> State:
        """Draw what to match; start as Auto-PGD does."""
        run = self._inner.init(p, ball)
        return State(run.t, run, self._drawn(p))

    def step(self, s: State, a: Response, p: Batch, ball: Ball) -> State:
        """A step of Auto-PGD."""
        run = self._inner.step(replace(s.run, t=s.t), a, p, ball)
        return State(run.t, run, s.target)

    def _drawn(self, p: Batch) -> Tensor:
        if self.references is None:
            raise PlanError(
                expected="references to match",
                got="none",
                remedy="Calibrate the detector, brinell.calibrated(model, data), and evaluate; or give references=….",
            )
        values = self.references.logits if self.of == "logits" else self.references.features
        assert values is not None
        classes = self.references.y.to(p.y.device)
        aimed = p.target[:, None] == classes
        fits = torch.where(aimed.any(1, keepdim=True), aimed, classes != p.y[:, None])
        if self.references.ids is not None:
            assert p.id is not None, "references of samples are for rows that know theirs"
            fits = fits & (self.references.ids.to(p.y.device) == p.id[:, None])
        draw = rng.uniform(rng.fold(p.key, rng.digest("reference")), (len(classes),))
        return values.to(p.x.device)[torch.where(fits, draw, -1.0).argmax(1)]
