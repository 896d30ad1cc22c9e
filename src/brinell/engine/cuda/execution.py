"""Execution modes: eager calls, CUDA graphs, or CUDA graphs of compiled functions."""

import torch

from brinell.errors import InputError, one_of

EXECUTIONS = ("auto", "eager", "graph", "compile")
"""auto: graph on CUDA devices, else eager. Both give the same bits; compile is faster and rounds differently."""


def resolve_execution(execution: str, device: torch.device) -> str:
    """Return the execution mode to use on this device.

    >>> resolve_execution("auto", torch.device("cpu"))
    'eager'
    """
    one_of("execution", execution, EXECUTIONS)
    if execution == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if execution == "graph" and device.type != "cuda":
        raise InputError(
            expected="a CUDA device for execution graph", got=str(device), remedy="Leave it out for the default."
        )
    return execution
