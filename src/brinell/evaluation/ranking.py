"""What the model says where a reference attack ends: the order in which targets are tried."""

import torch
from torch import Tensor

from brinell.core.attack import AnyAttack, Batch, Requires
from brinell.core.threat import Ball
from brinell.engine.oracle import Oracle
from brinell.ops.rowwise import take


def last_logits(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, slots: int, draws: int = 1) -> Tensor:
    """Logits at the attack's last iterate, one row per sample; a row depends on nothing but itself.

    Cost: `attack.queries` forwards and one backward less, times `draws`: the last point is only looked at.
    """
    block = oracle.block
    # Whole blocks, as in the engine: reductions over a lone row would round differently.
    index = torch.arange(-(-len(p.x) // block) * block, device=p.x.device).clamp(max=len(p.x) - 1)
    pieces = index.split(-(-slots // block) * block)
    parts = [_piece(oracle, attack, take(p, i), ball.subset(i), draws) for i in pieces]
    return torch.cat(parts)[: len(p.x)]


def _piece(oracle: Oracle, attack: AnyAttack, p: Batch, ball: Ball, draws: int) -> Tensor:
    s = attack.init(p, ball)
    for _ in range(attack.queries - 1):
        s = attack.step(s, oracle.query(s.x, p.y, p.target, attack.loss, attack.requires, draws, p.id), p, ball)
    return oracle.query(s.x, p.y, p.target, attack.loss, Requires.LOGITS, draws, p.id).logits
