"""Attack a training batch: all rows at once, each for the attack's full number of steps, without recording results."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from brinell.core.attack import AnyAttack, AttackState, Batch, Requires, Response
from brinell.core.model import Classifier
from brinell.core.threat import Ball
from brinell.engine.oracle import LossFunction, forward_backward, named_loss, network_of
from brinell.engine.precision import FLOAT32
from brinell.errors import PlanError, one_of
from brinell.ops.losses import LOGITS
from brinell.ops.rowwise import where
from brinell.ops.types import Points

KEEP = ("last", "best")


def check_trainable(attack: AnyAttack) -> None:
    """Refuse an attack that training cannot use: it minimises the distance or needs the gradient of every logit."""
    if attack.minimum_norm or attack.requires is Requires.JACOBIAN:
        raise PlanError(
            expected="an attack that stays in the ball and follows one loss",
            got=f"{attack.name}, which minimises the distance or needs the gradient of every logit",
            remedy="Train with PGD, APGD or FGSM.",
        )


def attack_batch(
    classifier: Classifier, attack: AnyAttack, p: Batch, ball: Ball,
    loss: LossFunction | None = None, keep: str = "last",
) -> Points:  # fmt: skip
    """Return the attack's last iterate for every row, or with `keep="best"` the iterate with the largest loss.

    Method: query all rows at once, `attack.queries − 1` times. The last iterate is not queried, since no step would use
    the response. No row stops early and the host never waits for the device. `loss` replaces the attack's own loss. The
    caller sets the model's mode (`frozen_eval`). Cost: `queries − 1` forward passes, and as many backward passes if
    the attack follows gradients; "best" takes one more forward pass.
    """
    check_trainable(attack)
    one_of("keep", keep, KEEP)
    network, ids = network_of(classifier, p.id)
    loss_function = named_loss(attack.loss) if loss is None else loss

    def query(requires: Requires, state: AttackState) -> Response:
        target = p.target if state.aim is None else state.aim
        return forward_backward(network, loss_function, requires, LOGITS, FLOAT32, state.x, p.y, target, *ids)

    state = attack.init(p, ball)
    best, top = state.x, torch.full_like(ball.eps, -torch.inf)
    for _ in range(attack.queries - 1):
        response = query(attack.requires, state)
        if keep == "best":
            best, top = _better(state, response, best, top)
        state = attack.step(state, response, p, ball)
    if keep == "best":
        best, _ = _better(state, query(Requires.LOGITS, state), best, top)
    x: Tensor = best if keep == "best" else state.x
    return x.detach()


def _better(state: AttackState, a: Response, best: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Return, per row, the point with the largest loss so far and this loss; exploring points do not count."""
    exploring, x = state.exploring, state.x
    higher = a.loss > top if exploring is None else (a.loss > top) & ~exploring
    return where(higher, x, best), torch.where(higher, a.loss, top)


@contextmanager
def frozen_eval(module: nn.Module) -> Iterator[None]:
    """Set the module to evaluation mode and freeze its parameters inside the context; restore both afterwards."""
    modes = [m for m in module.modules() if m.training]
    wanted = [w for w in module.parameters() if w.requires_grad]
    module.eval()
    for w in wanted:
        w.requires_grad_(False)
    try:
        yield
    finally:
        for w in wanted:
            w.requires_grad_(True)
        for m in modes:
            m.training = True
