"""Adversarial points for training: a whole batch at once, every row to the end of its budget, nothing recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from brinell.core.attack import AnyAttack, AttackState, Batch, Requires, Response
from brinell.core.model import Classifier
from brinell.core.threat import Ball
from brinell.engine.oracle import LossFunction, named_loss, network, question, responder
from brinell.errors import PlanError, one_of
from brinell.ops.rowwise import where
from brinell.ops.types import Points

KEEP = ("last", "best")


def check_trainable(attack: AnyAttack) -> None:
    """Refuse an attack that cannot be used in training: one that leaves the ball, or wants all classes' gradients."""
    if attack.minimum_norm or attack.requires is Requires.JACOBIAN:
        raise PlanError(
            expected="an attack that stays in the ball and follows one loss",
            got=f"{attack.name}, which looks for the nearest adversarial",
            remedy="Train with PGD, APGD or FGSM.",
        )


def attack_batch(
    classifier: Classifier,
    attack: AnyAttack,
    p: Batch,
    ball: Ball,
    loss: LossFunction | None = None,
    keep: str = "last",
) -> Points:
    """The attack's last iterate for every row, or (`keep="best"`) the iterate with the largest loss.

    Method: `attack.queries − 1` answers about all rows in one call each; the last iterate is returned without an
    answer, since no step would use it. No row stops early and the host never waits for the device. `loss` replaces the
    attack's named loss. The caller decides the model's mode (`frozen_eval`). Cost: `queries − 1` forwards, and as many
    backwards where the attack follows gradients; "best" takes one forward more.
    """
    check_trainable(attack)
    one_of("keep", keep, KEEP)
    respond = responder(network(classifier), named_loss(attack.loss) if loss is None else loss)
    state = attack.init(p, ball)
    best, top = state.x, torch.full_like(ball.eps, -torch.inf)
    for _ in range(attack.queries - 1):
        a = question(respond, attack.requires, state.x, p.y, _aimed(state, p), id=p.id)
        if keep == "best":
            best, top = _better(state, a, best, top)
        state = attack.step(state, a, p, ball)
    if keep == "best":
        last = question(respond, Requires.LOGITS, state.x, p.y, _aimed(state, p), id=p.id)
        best, _ = _better(state, last, best, top)
    x: Tensor = best if keep == "best" else state.x
    return x.detach()


def _aimed(state: AttackState, p: Batch) -> Tensor:
    """The targets the attack chose itself, where it does."""
    return p.target if state.aim is None else state.aim


def _better(state: AttackState, a: Response, best: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """The best point so far and its loss; points that only serve to find the way do not count."""
    exploring, x = state.exploring, state.x
    higher = a.loss > top if exploring is None else (a.loss > top) & ~exploring
    return where(higher, x, best), torch.where(higher, a.loss, top)


@contextmanager
def frozen_eval(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and parameters that want no gradients; afterwards every part is as it was."""
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
