"""The number of micro-batches to run at once: measured once per model and device, and stored."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from brinell.core.attack import Requires
from brinell.engine.cuda.graphs import no_garbage_collection
from brinell.engine.cuda.oracle import AcceleratedOracle
from brinell.engine.oracle import Oracle
from brinell.ops import rng
from brinell.paths import home
from brinell.storage import write_atomic
from brinell.untrusted import read_json

FILE = "lanes.json"
LEAST, MOST = 4, 8
# Twice as many concurrent calls must be this much faster, and leave as much memory free as they take.
GAIN = 1.04
# Calls per timing, and timings.
CALLS, TURNS = 4, 3


class Measured(NamedTuple):
    """A measured speed in rows per second, and the device memory taken and still free, in bytes."""

    rate: float
    taken: int
    free: int


def choose(measure: Callable[[int], Measured], most: int = MOST) -> int:
    """Return the best number of micro-batches: start with 1, double it while this is faster and memory suffices.

    Up to `LEAST` the number is doubled even if this is not faster: the device works on some micro-batches while the
    host reads another one, and more samples start early.

    >>> choose(lambda micro_batches: Measured(rate=min(float(micro_batches), 3.0), taken=1, free=9))
    4
    """
    best, chosen = 0.0, 1
    while chosen * 2 <= most:
        try:
            measured = measure(chosen * 2)
        except torch.OutOfMemoryError:
            break
        if chosen * 2 > LEAST and measured.rate < best * GAIN:
            break
        best, chosen = max(best, measured.rate), chosen * 2
        if measured.free < measured.taken:
            break
    return chosen


def micro_batches_for(oracle: Oracle, shape: tuple[int, ...], fingerprint: str) -> int:
    """Return the number of micro-batches to run at once for this model, from an earlier evaluation or measured now."""
    c = oracle.classifier
    if c.device.type != "cuda":
        return 1
    facts = (fingerprint, torch.cuda.get_device_name(c.device), torch.__version__, oracle.block, oracle.precision)
    key = "|".join(map(str, (*facts, shape, LEAST)))
    # The best number hardly depends on compiling, which takes far longer than measuring.
    plain = _uncompiled(oracle)
    try:
        return remembered(home() / FILE, key, lambda: choose(lambda count: _measure(plain, shape, count)))
    except RuntimeError:  # a model that needs the host cannot be captured; the attack reports that
        return 1


def remembered(file: Path, key: str, measure: Callable[[], int]) -> int:
    """Return the number that `file` stores under `key`; if it stores none, call `measure` and store the result."""
    try:
        stored = read_json(file)
    except (OSError, ValueError):
        stored = {}
    stored = stored if isinstance(stored, dict) else {}
    known = stored.get(key)
    if isinstance(known, int) and known >= 1:
        return known
    number = measure()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps({**stored, key: number}, indent=1).encode())
    return number


def replayed_seconds(oracle: Oracle, shape: tuple[int, ...], requires: Requires, micro_batches: int) -> float | None:
    """Return the seconds per captured model call, `micro_batches` calls at a time; None if the capture fails."""
    if oracle.classifier.device.type == "cuda":
        with suppress(RuntimeError):
            return oracle.block / _measure(_uncompiled(oracle), shape, micro_batches, requires).rate
    return None


def _uncompiled(oracle: Oracle) -> Oracle:
    return replace(oracle, compiled=False) if isinstance(oracle, AcceleratedOracle) else oracle


def _measure(oracle: Oracle, shape: tuple[int, ...], count: int, requires: Requires = Requires.GRAD) -> Measured:
    device = oracle.classifier.device
    before = torch.cuda.mem_get_info(device)[0]
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
    free = torch.cuda.mem_get_info(device)[0]
    return Measured(count * CALLS * oracle.block / min(times[1:]), before - free, free)
