"""The time of captured model calls, for estimates of the cost."""

import time
from contextlib import suppress
from dataclasses import replace

import torch

from brinell.core.attack import Requires
from brinell.engine.cuda.graphs import no_garbage_collection
from brinell.engine.cuda.oracle import AcceleratedOracle
from brinell.engine.oracle import Oracle
from brinell.ops import rng

# Calls per timing, and timings.
CALLS, TURNS = 4, 3


def replayed_seconds(oracle: Oracle, shape: tuple[int, ...], requires: Requires, micro_batches: int) -> float | None:
    """Return the seconds per captured model call, `micro_batches` calls at a time; None if the capture fails."""
    if oracle.classifier.device.type == "cuda":
        plain = replace(oracle, compiled=False) if isinstance(oracle, AcceleratedOracle) else oracle
        with suppress(RuntimeError):
            return _seconds(plain, shape, micro_batches, requires)
    return None


def _seconds(oracle: Oracle, shape: tuple[int, ...], count: int, requires: Requires) -> float:
    device = oracle.classifier.device
    key = rng.keys(0, torch.arange(oracle.block, device=device))
    x, y = rng.uniform(key, shape), torch.zeros_like(key)
    graphs, streams = [], [torch.cuda.Stream() for _ in range(count)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            oracle.query(x, y, y - 1, "margin", requires)
            graph = torch.cuda.CUDAGraph()
            with no_garbage_collection(), torch.cuda.graph(graph, stream=stream):
                for _ in range(CALLS):
                    oracle.query(x, y, y - 1, "margin", requires)
            graphs.append(graph)
    times = []
    for _ in range(TURNS + 1):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun)
    return min(times[1:]) / (count * CALLS)
