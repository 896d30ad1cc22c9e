"""How many model calls to keep under way at once: measured once per model and device, and remembered."""

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from brinell.core.attack import Requires
from brinell.engine.micro_batch import undisturbed
from brinell.engine.oracle import Oracle
from brinell.ops import rng
from brinell.paths import home

FILE = "lanes.json"
LEAST, MOST = 4, 8
# Twice as many calls side by side must be this much faster, and leave as much memory free as they take.
GAIN = 1.04
# Calls in a row whose time is taken, and how often.
CALLS, TURNS = 4, 3


@dataclass(frozen=True)
class Measured:
    """Rows per second, the bytes that were taken and those that are left."""

    rate: float
    taken: int
    free: int


def choose(measure: Callable[[int], Measured], most: int = MOST) -> int:
    """As many lanes as pay: doubled while that is faster and there is memory; what runs out of memory does not count.

    Up to `LEAST` there only has to be memory: the device works on some while the host looks at another, and samples
    that find no place would be the last ones to end.

    >>> choose(lambda lanes: Measured(rate=min(float(lanes), 3.0), taken=1, free=9))
    4
    """
    best, chosen, lanes = 0.0, 1, 2
    while lanes <= most:
        try:
            found = measure(lanes)
        except torch.OutOfMemoryError:
            break
        if lanes > LEAST and found.rate < best * GAIN:
            break
        best, chosen = max(best, found.rate), lanes
        if found.free < found.taken:
            break
        lanes *= 2
    return chosen


def micro_batches_for(oracle: Oracle, shape: tuple[int, ...], fingerprint: str) -> int:
    """The number of lanes for the model of this fingerprint, from an earlier evaluation or measured now."""
    c = oracle.classifier
    if c.device.type != "cuda":
        return 1
    facts = (fingerprint, torch.cuda.get_device_name(c.device), torch.__version__, oracle.block, oracle.precision)
    key = "|".join(map(str, (*facts, shape, LEAST)))
    # How many calls side by side pay hardly depends on compiling, which takes far longer than measuring.
    plain = replace(oracle, compiled=False)
    try:
        return remembered(home() / FILE, key, lambda: choose(lambda lanes: _measure(plain, shape, lanes)))
    except RuntimeError:  # a model that needs the host cannot be recorded, and this is not the place to say so
        return 1


def remembered(file: Path, key: str, measure: Callable[[], int]) -> int:
    """The number stored under a key, else a new one, which is stored; a file that cannot be read or written is none."""
    try:
        stored = json.loads(file.read_text())
    except (OSError, ValueError):
        stored = {}
    known = stored.get(key) if isinstance(stored, dict) else None
    if isinstance(known, int) and known >= 1:
        return known
    found = measure()
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps({**(stored if isinstance(stored, dict) else {}), key: found}, indent=1))
        os.replace(temporary, file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return found


def replayed_seconds(oracle: Oracle, shape: tuple[int, ...], requires: Requires, lanes: int) -> float | None:
    """Seconds of one block's recorded model call where so many are under way; None where they cannot be recorded."""
    if oracle.classifier.device.type != "cuda":
        return None
    try:
        return oracle.block / _measure(replace(oracle, compiled=False), shape, lanes, requires).rate
    except RuntimeError:
        return None


def _measure(oracle: Oracle, shape: tuple[int, ...], lanes: int, requires: Requires = Requires.GRAD) -> Measured:
    """So many recorded model calls side by side."""
    device = oracle.classifier.device
    before = torch.cuda.mem_get_info(device)[0]
    key = rng.keys(0, torch.arange(oracle.block, device=device))
    x, y = rng.uniform(key, shape), torch.zeros_like(key)
    graphs, streams = [], [torch.cuda.Stream() for _ in range(lanes)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            oracle.query(x, y, y - 1, "margin", requires)
            graph = torch.cuda.CUDAGraph()
            with undisturbed(), torch.cuda.graph(graph, stream=stream):
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
    return Measured(lanes * CALLS * oracle.block / min(times[1:]), before - free, free)
