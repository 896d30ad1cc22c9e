"""How often the host synchronises with the device to see which rows have finished."""

import torch

from brinell.core.attack import AnyAttack

# Iterations between two host syncs; a sync makes the device wait.
INTERVAL = {"cpu": 1}
DEFAULT_INTERVAL, EARLY_INTERVAL = 10, 4


def sync_interval(attack: AnyAttack, device: torch.device) -> int:
    """Return the iterations between two host syncs, in whole query patterns; fewer where a budget ends before."""
    turns = len(attack.query_pattern)
    usual = EARLY_INTERVAL if attack.abandons_early else DEFAULT_INTERVAL
    return -(-INTERVAL.get(device.type, usual) // turns) * turns


def iterations_per_step(attack: AnyAttack, device: torch.device) -> int:
    """Return the iterations that run, and are captured, as one: a query pattern of the attack.

    If most rows use a small part of their budgets, their ends are unknown: then it is all up to the next host sync.
    """
    return sync_interval(attack, device) if attack.abandons_early else len(attack.query_pattern)
