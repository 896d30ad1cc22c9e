"""The oracle of an attack through a surrogate: the surrogate steers, the model itself decides."""

from dataclasses import dataclass, field, replace

from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.model import Classifier
from brinell.engine.oracle import Ids, Oracle


@dataclass(eq=False)
class SurrogateOracle(Oracle):
    """An oracle of a surrogate whose logits come from `judge`, the oracle of the model under evaluation.

    Loss and gradient are the surrogate's. So an attack follows the surrogate, and a point counts as adversarial only
    where the model itself is fooled. Cost: each query takes one forward pass of either.
    """

    judge: Oracle = field(kw_only=True)

    @classmethod
    def through(cls, classifier: Classifier, judge: Oracle) -> "SurrogateOracle":
        """Return the oracle that attacks `classifier` in the place of the classifier of `judge`."""
        return cls(
            classifier,
            judge.block,
            judge.listener,
            judge.shrunk,
            judge.notes,
            judge.precision,
            calls=judge.calls,
            blocks=judge.blocks,
            judge=judge,
        )

    def query(
        self, x: Tensor, y: Tensor, target: Tensor, loss: str, requires: Requires, draws: int = 1, id: Ids = None
    ) -> Response:
        """Return the surrogate's loss and gradients at every row, and the model's logits."""
        steers = super().query(x, y, target, loss, requires, draws, id)
        judged = self.judge.query(x, y, target, loss, Requires.LOGITS, draws, id)
        return replace(steers, logits=judged.logits, reject=judged.reject, tolerance=judged.tolerance)
