"""Find gradients that vanish because the logits are large, and attack a model with its logits divided by numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from brinell.arguments import DataLike, ModelLike
from brinell.attacks import PGD
from brinell.core.attack import AnyAttack, Requires
from brinell.core.dataset import Problem
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.attack import attack as run_attack
from brinell.ops.rowwise import flat
from brinell.ops.types import Labels, Points
from brinell.reliability.traces.trace import require_correct, require_untargeted
from brinell.results import Proportion
from brinell.results.analyses import AnalysisReport, Figure, Series, Table

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Croce & Hein 2020, fig. 2.
SCALES = (1.0, 10.0, 100.0, 1000.0)
ATTACK = PGD(steps=100)


@dataclass(frozen=True)
class DividedLogits(DelegatingClassifier):
    """A classifier with all logits divided by `scale`: decisions stay the same, cross-entropy gradients change."""

    classifier: Classifier
    scale: float

    @property
    def base(self) -> Classifier:
        return self.classifier

    @property
    def fingerprint(self) -> str:
        return f"{self.base.fingerprint}/{self.scale}"

    def forward(self, x: Points) -> Output:
        out = self.base.forward(x)
        return Output(out.logits / self.scale, out.reject, out.features)

    def forward_of(self, x: Points, id: Labels) -> Output:
        out = self.base.forward_of(x, id)
        return Output(out.logits / self.scale, out.reject, out.features)

    def to(self, device: torch.device) -> Classifier:
        return DividedLogits(self.base.to(device), self.scale)


@dataclass(frozen=True)
class LogitScale:
    """The outcome with logits divided by `scale`: shares of zero gradients, and the robust accuracy.

    `zeros` is the share of gradient coordinates that are exactly 0, as a mean over correctly classified samples.
    `vanished` counts the samples whose gradient is 0 in every coordinate.
    """

    scale: float
    zeros: float
    vanished: Proportion
    robust: Proportion


@dataclass(frozen=True)
class LogitScales:
    """The outcomes of one attack on one network, with the logits divided by each of several numbers."""

    model: str
    threat: str
    attack: str
    loss: str
    clean: Proportion
    scales: tuple[LogitScale, ...]

    def findings(self) -> AnalysisReport:
        """Return a table with one row per scale, and a figure of zero gradient coordinates and robust accuracy."""
        columns = (
            "logits divided by",
            "zeros in the gradient in %",
            "samples without gradient in %",
            "robust acc. in %",
        )
        rows = tuple(
            (s.scale, float(f"{100 * s.zeros:.4g}"), _percent(s.vanished), _percent(s.robust)) for s in self.scales
        )
        title = f"{self.attack} at each scale of the logits, {self.threat}, n = {self.clean.n:,}"
        x = tuple(f"{s.scale:g}" for s in self.scales)
        zeros = Series("zeros in the gradient", x, tuple(100 * s.zeros for s in self.scales))
        robust = Series(
            "robust accuracy",
            x,
            *(tuple(100 * getattr(s.robust, k) for s in self.scales) for k in ("value", "low", "high")),
        )
        figure = Figure("Zero gradients and robust accuracy", "bars", "logits divided by", "%", (zeros, robust))
        summary = f"Clean accuracy: {self.clean}. All scales give the same decisions, {self._summary()}."
        return AnalysisReport("logit-scale", "Scale of the logits", summary, (Table(title, columns, rows),), (figure,))

    def _summary(self) -> str:
        low, high = (f(s.robust.k for s in self.scales) for f in (min, max))
        ends = [[s for s in self.scales if s.robust.k == k] for k in (low, high)]
        if low == high:
            count = f"all {len(self.scales)} scales" if len(self.scales) > 1 else "the only scale"
            return f"and {self.attack} leaves {ends[0][0].robust} at {count}"
        texts = [f"{e[0].robust} (divided by {' or '.join(f'{s.scale:g}' for s in e)})" for e in ends]
        return f"but {self.attack} leaves between {texts[0]} and {texts[1]}"

    def to_csv(self) -> str:
        """Return CSV text with one line per scale."""
        lines = ["scale,zeros,vanished,robust,n"]
        lines += [f"{s.scale:g},{s.zeros:.6g},{s.vanished.k},{s.robust.k},{s.robust.n}" for s in self.scales]
        return "\n".join(lines) + "\n"


def _percent(p: Proportion) -> str:
    return f"{100 * p.value:.1f} [{100 * p.low:.1f}, {100 * p.high:.1f}]" if p.n else ""


def logit_scales(
    classifier: ModelLike, problem: DataLike, threat: Threat, scales: Sequence[int | float] = SCALES,
    *, attack: AnyAttack = ATTACK, progress: bool | None = False, **options: "Unpack[ComputeOptions]",
) -> LogitScales:  # fmt: skip
    """Return the share of zero gradient coordinates, and the robust accuracy, with the logits divided by each scale.

    Method: dividing all logits by a positive number changes no decision. Large logits saturate the cross-entropy: its
    gradient rounds to 0, and the attack cannot move. A scale below 1 enlarges the logits. The gradients of the attack's
    loss, which must be untargeted, are taken at correctly classified samples, in float32. `options` are `seed`, `slots`
    and `device`. Cost: one attack on every sample per scale. Reference: Croce & Hein 2020, fig. 2.

    >>> import brinell
    >>> found = logit_scales("demo", brinell.data.load("demo", 8), brinell.Linf(0.1), [1, 0.001], attack=PGD(3))
    >>> [s.scale for s in found.scales], found.scales[0].zeros < found.scales[1].zeros
    ([1.0, 0.001], True)
    """
    if not scales or not all(0 < s < float("inf") for s in scales):
        raise InputError(
            expected="positive numbers to divide the logits by",
            got=f"{list(scales)}",
            remedy="Pass e.g. scales=[1, 10, 100].",
        )
    require_untargeted(attack.loss)
    execution = Execution.from_options(options, ComputeOptions)
    model, data = coerce.as_classifier(classifier, execution.device), coerce.as_problem(problem)
    found = [_at_scale(DividedLogits(model, float(s)), data, threat, attack, progress, options) for s in scales]
    name = attack.name if attack.step_count is None else f"{attack.name} ({attack.step_count} steps)"
    return LogitScales(model.name, str(threat), name, attack.loss, found[0][0], tuple(s for _, s in found))


def _at_scale(
    model: DividedLogits, data: Problem, threat: Threat, attack: AnyAttack, progress: bool | None, options: Any
) -> tuple[Proportion, LogitScale]:
    rows = run_attack(model, data, threat, attack, progress=progress, **options)
    correct = np.asarray(rows["clean_pred"]) == np.asarray(rows["label"])
    require_correct(Proportion.of(correct))
    robust = correct & ~np.asarray(rows["broken"], dtype=bool)
    zeros, vanished = _zero_gradients(model, data, attack.loss, torch.from_numpy(correct))
    return Proportion.of(correct), LogitScale(model.scale, float(zeros.mean()), vanished, Proportion.of(robust))


def _zero_gradients(
    model: Classifier, data: Problem, loss: str, correct: torch.Tensor
) -> tuple[torch.Tensor, Proportion]:
    """Return the share of zero gradient coordinates per correctly classified sample, and how many have only zeros."""
    oracle, shares = Oracle(model, default_block(model.device)), []
    with precisions.exact(model.device):
        for chunk in data.chunks(default_block(model.device)):
            x, y = chunk.x.to(model.device), chunk.y.to(model.device)
            ids = chunk.ids.to(model.device)
            g = oracle.query(x, y, torch.full_like(y, -1), loss, Requires.GRAD, id=ids).gradient
            shares.append((flat(g) == 0).double().mean(1).cpu())
    own = torch.cat(shares)[correct]
    return own, Proportion.of(own == 1)
