"""How often the host looks at what the device has finished."""

import torch

from brinell.core.attack import AnyAttack

# How many iterations pass between two looks of the host at the set of finished rows; looking costs a synchronisation.
LOOK = {"cpu": 1}
LOOK_ELSEWHERE, LOOK_UNEVEN = 10, 4


def sync_interval(attack: AnyAttack, device: torch.device) -> int:
    """Iterations between two looks, in whole cycles of the attack; fewer where the first budget of a lane ends."""
    turns = len(attack.query_pattern)
    usual = LOOK_UNEVEN if attack.abandons_early else LOOK_ELSEWHERE
    return -(-LOOK.get(device.type, usual) // turns) * turns


def stride(attack: AnyAttack, device: torch.device) -> int:
    """Iterations that are made, and recorded, as one: a cycle of the attack.

    Where most rows use a small part of their budgets, nothing is known of their ends: all of them to the next look.
    """
    return sync_interval(attack, device) if attack.abandons_early else len(attack.query_pattern)
