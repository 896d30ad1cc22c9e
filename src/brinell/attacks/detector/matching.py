"""Imitation of a natural input of another class: matching its logits or its features."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks._common import RunState
from brinell.attacks._parameters import check_whole
from brinell.attacks.gradient.apgd import APGD
from brinell.core.attack import Attack, Batch, Response
from brinell.core.references import References
from brinell.core.threat import Ball
from brinell.errors import PlanError, one_of
from brinell.ops import rng
from brinell.ops.types import Doubles

OF = ("logits", "features")


@dataclass(frozen=True)
class MatchingState(RunState):
    """State of `Matching`: the state of its Auto-PGD run, and the logits or features to match."""

    target: Doubles

    @property
    def aim(self) -> Doubles:
        return self.target


@dataclass(frozen=True)
class Matching(Attack[MatchingState]):
    """Auto-PGD towards the logits or features of a natural input of another class that the detector accepts.

    Method: minimises the squared distance to one of the `references`. The noise key draws this reference from the
    target class if there is one, else from all classes but the true one. A calibrated classifier (`brinell.calibrated`)
    has references, and `evaluate` fills them in. The detector itself is not queried. Cost per step: one forward and one
    backward pass; one more of each for the start. Reference: Sabour et al. 2016, Adversarial manipulation of deep
    representations (features); Tramèr et al. 2020, On adaptive attacks to adversarial example defenses (logits).
    Limits: needs natural inputs that the detector accepts. A detector that reads other layers is not deceived.

    >>> Matching(steps=50).name, Matching(steps=50, of="features").queries
    ('match-logits', 51)
    """

    steps: int = 100
    of: str = "logits"
    references: References | None = None

    def __post_init__(self) -> None:
        check_whole(steps=self.steps)
        one_of("of", self.of, OF)
        if self.of == "features" and self.references is not None and self.references.features is None:
            raise PlanError(
                expected="reference inputs with features",
                got="reference inputs with logits only",
                remedy="Use brinell.calibrated(brinell.wrap(net, detector=…, features='layers.5'), data).",
            )

    @property
    def name(self) -> str:
        return f"match-{self.of}"

    loss = name

    @property
    def lacks_references(self) -> bool:
        return self.references is None

    def with_references(self, references: References) -> "Matching":
        return replace(self, references=references)

    @property
    def _inner(self) -> APGD:
        return APGD(self.steps)

    def init(self, p: Batch, ball: Ball) -> MatchingState:
        run = self._inner.init(p, ball)
        return MatchingState(run.t, run, self._draw_reference(p))

    def step(self, s: MatchingState, a: Response, p: Batch, ball: Ball) -> MatchingState:
        run = self._inner.step(replace(s.run, t=s.t), a, p, ball)
        return MatchingState(run.t, run, s.target)

    def _draw_reference(self, p: Batch) -> Tensor:
        if self.references is None:
            raise PlanError(
                expected="references to match",
                got="none",
                remedy="Evaluate the calibrated model, brinell.calibrated(model, data), or pass references=….",
            )
        values = self.references.logits if self.of == "logits" else self.references.features
        assert values is not None
        classes = self.references.y.to(p.y.device)
        aimed = p.target[:, None] == classes
        fits = torch.where(aimed.any(1, keepdim=True), aimed, classes != p.y[:, None])
        if self.references.ids is not None:
            assert p.id is not None, "references of single samples need a batch with sample ids"
            fits = fits & (self.references.ids.to(p.y.device) == p.id[:, None])
        draw = rng.uniform(rng.fold(p.key, rng.digest("reference")), (len(classes),))
        return values.to(p.x.device)[torch.where(fits, draw, -1.0).argmax(1)]
