"""Compute the logits that rank target classes: those of the clean input, or those where a reference attack ends."""

from dataclasses import replace

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Batch, Requires
from brinell.core.plan import Stage
from brinell.core.threat import Ball
from brinell.engine.oracle import Oracle
from brinell.evaluation.context import StageContext
from brinell.ops import rng
from brinell.ops.rowwise import take


def ranking_logits(context: StageContext, stage: Stage, p: Batch, clean: Tensor, positions: Tensor) -> Tensor:
    """Return the logits that rank the targets of these samples.

    `p` holds the samples with their sample keys, `clean` their clean logits, `positions` their places in the problem.
    """
    attack = stage.ranking.attack
    if attack is None:
        return clean
    # The key does not depend on the stage: every stage and plan with this reference attack ranks alike.
    p = replace(p, key=rng.fold(p.key, rng.digest(f"ranking {attack.name}")))
    ball = stage.ranking.threat(context.threat).ball(positions, p.x.device)
    logits = last_logits(context.oracle, attack, p, ball, context.slots, stage.eot)
    # Logits that are not finite have no order: the clean logits rank instead.
    return torch.where(logits.isfinite().all(1, keepdim=True), logits, clean)


def last_logits(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, slots: int, draws: int = 1) -> Tensor:
    """Return the logits at the attack's last iterate; a row depends on nothing but itself.

    Cost: `attack.queries` forwards and one backward less, times `draws`: the last point needs no gradient.
    """
    block = oracle.block
    # Whole blocks, as in the engine: reductions over a single row round differently.
    index = torch.arange(-(-len(p.x) // block) * block, device=p.x.device).clamp(max=len(p.x) - 1)
    pieces = index.split(-(-slots // block) * block)
    parts = [_piece(oracle, attack, take(p, i), ball.subset(i), draws) for i in pieces]
    return torch.cat(parts)[: len(p.x)]


def _piece(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, draws: int) -> Tensor:
    s = attack.init(p, ball)
    for _ in range(attack.queries - 1):
        s = attack.step(s, oracle.query(s.x, p.y, p.target, attack.loss, attack.requires, draws, p.id), p, ball)
    return oracle.query(s.x, p.y, p.target, attack.loss, Requires.LOGITS, draws, p.id).logits
