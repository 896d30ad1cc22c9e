"""The choice between the plain engine and `brinell.engine.cuda`: execution mode, oracle and scheduler by device."""

from collections.abc import Callable
from functools import partial

import torch

from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.cuda.oracle import AcceleratedOracle
from brinell.engine.cuda.parallel_restarts import ParallelRestarts
from brinell.engine.cuda.scheduler import ConcurrentScheduler
from brinell.engine.cuda.speculative import SpeculativeScheduler
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.scheduler import Scheduler
from brinell.engine.slots import Samples
from brinell.errors import InputError, one_of

EXECUTIONS = ("auto", "eager", "graph", "compile")
"""Execution modes. "auto" is "graph" on CUDA, else "eager"; both give equal bits. "compile" is faster, but rounds
differently."""


def resolve_execution(execution: str, device: torch.device) -> str:
    """Return the execution mode to use on this device; "auto" becomes "graph" on CUDA and "eager" elsewhere.

    >>> resolve_execution("auto", torch.device("cpu"))
    'eager'
    """
    one_of("execution", execution, EXECUTIONS)
    if execution == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if execution == "graph" and device.type != "cuda":
        raise InputError(
            expected="a CUDA device for execution='graph'", got=str(device), remedy="Write execution='auto'."
        )
    return execution


def accelerated(oracle: Oracle, device: torch.device, fuse: bool = False) -> Oracle:
    """Return the oracle to use on a device: on CUDA, or with `fuse` (compiled), an `AcceleratedOracle`."""
    if device.type != "cuda" and not fuse:
        return oracle
    o = oracle
    shared = o.classifier, o.block, o.listener, o.shrunk, o.notes, o.precision
    return AcceleratedOracle(*shared, calls=o.calls, blocks=o.blocks, compiled=fuse)


def scheduler_for(oracle: Oracle, graph_cache: GraphCache | None = None) -> Callable[[Engine, Samples], Scheduler]:
    """Return the function that makes a scheduler: `Scheduler` on an uncompiled CPU, else `concurrent_scheduler`."""
    if oracle.classifier.device.type == "cpu" and not oracle.compiled and graph_cache is None:
        return Scheduler
    return partial(concurrent_scheduler, graph_cache)


def concurrent_scheduler(graph_cache: GraphCache | None, engine: Engine, samples: Samples) -> ConcurrentScheduler:
    """Return the scheduler for an accelerator.

    A captured micro-batch is a whole block, in which an empty slot costs as much as a full one. Therefore the scheduler
    lets empty slots run the next attempts or restarts of samples that are still under attack.
    """
    kind = ConcurrentScheduler
    if graph_cache is not None and len(engine.attempts) > 1 and not graph_cache.failed:
        kind = SpeculativeScheduler
    # Even if capturing fails: compiled, a parallel restart is not bit for bit the restart in the sample's own row.
    if graph_cache is not None and len(engine.attempts) == 1 and engine.attack.parallel_restarts:
        kind = ParallelRestarts
    return kind(engine, samples, graph_cache=graph_cache)
