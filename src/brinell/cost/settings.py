"""What a GPU computes with: rows per model call, precision and execution mode, chosen to end soonest.

Everything is chosen from what can be counted (samples, plan, operations and memory of the model, kernels compiled
before), not from timings: the same evaluation gets the same settings every time on the same machine. They are stored in
the Run and taken over on resume. The constants were measured on one H200 (docs/design/speed.md).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from brinell.core.attack import Requires
from brinell.core.execution import Blocks
from brinell.core.model import Classifier
from brinell.core.plan import Stage, Stages
from brinell.core.threat import Threat
from brinell.cost.budget import backwards_per_query, duration, usual_queries
from brinell.cost.model_cost import ModelCost
from brinell.cost.precision import PrecisionChoice
from brinell.engine.cuda.compile import kernel_name
from brinell.engine.oracle import KINDS, default_blocks
from brinell.engine.precision import AUTO, FLOAT32, PRECISIONS

TF32, BFLOAT16 = PRECISIONS[1:]
# A call takes as long as its operations and this many more (44 thousand million).
FIXED = 44e9
# The samples under attack at a time, as a share of all: in one run, and in the kinds of calls of `KINDS`. With several
# attempts, later ones fill the calls; attacks that give up early leave few samples.
SHARES = {"": 0.6, "legs": 2.4, "few": 0.0125, "branches": 0.16, "claims": 0.05, "again": 0.001}
LEAST_ROWS, MOST_ROWS = 8, 512
# Micro-batches on the device at a time, the share of its memory for them, the memory of a pass over what it keeps.
MICRO_BATCHES, MEMORY, TRANSIENT = 4, 0.5, 1.5
# Operations per second in TF32 with captured calls; processors of the device on which it was measured.
PACE, PROCESSORS = 131e12, 132
# The time of passes, relative to this.
FACTOR = {
    (FLOAT32, False): 5.0, (FLOAT32, True): 4.5, (TF32, False): 1.0, (TF32, True): 0.58, (BFLOAT16, False): 0.68,
    (BFLOAT16, True): 0.34,
}  # fmt: skip
# Of the passes that a plan can make, this share is made on average.
MADE = 0.5
# Seconds to compile one layer, and to load its kernels if they were compiled before.
COMPILE, LOAD = 0.45, 0.08
# Shorter runs are not worth a choice: their precision is TF32. A trial takes at most this share of a run.
SHORT, TRIAL = 20.0, 0.05


@dataclass(frozen=True)
class Device:
    """What the choice reads of a GPU: memory in bytes, number of processors, and whether it has TF32 and bfloat16."""

    memory: float = math.inf
    processors: int = PROCESSORS
    lower: bool = True
    compiles: bool = True

    @classmethod
    def of(cls, device: torch.device) -> "Device":
        """Return the facts of a CUDA device."""
        found = torch.cuda.get_device_properties(device)
        lower = found.major >= 8
        return cls(found.total_memory, found.multi_processor_count, lower, lower and find_spec("triton") is not None)


@dataclass(frozen=True)
class GpuSettings:
    """The settings of an evaluation on a GPU; `why` says in one line which and why, "" if the user or a Run gave them.

    `trial` is the trial of lower precision, if one was made.
    """

    precision: str
    compiled: bool
    blocks: Blocks
    why: str = ""
    trial: PrecisionChoice | None = None

    @classmethod
    def read(cls, identity: Mapping[str, Any]) -> "GpuSettings | None":
        """Return the settings that the identity of a Run stores; None if it stores no blocks."""
        blocks, precision = Blocks.read(identity), identity.get("precision") or FLOAT32
        if blocks is None or precision not in PRECISIONS:
            return None
        return cls(precision, identity.get("execution") == "compile", blocks)


def choose_blocks(n: int, cost: ModelCost, memory: float = math.inf) -> Blocks:
    """Return the rows per model call for n samples and a model of this cost.

    Method: a call takes the time of its rows, and a fixed time. Of several calls the last is half empty on average.
    With m samples under attack, calls of sqrt(2 · m · FIXED / operations) rows lose least by both; the nearest power of
    two is taken, as far as `memory` (bytes of the device) allows several calls with their backward passes.

    >>> choose_blocks(1000, ModelCost(operations=1.1e9)).to_json()["block"]  # a ResNet-18 on CIFAR-10
    256
    >>> choose_blocks(128, ModelCost(operations=8.2e9)).to_json()["block"]  # a ResNet-50 at 224 x 224
    32
    """
    if cost.operations is None:
        return default_blocks(torch.device("cuda"))
    most = MOST_ROWS
    if cost.memory:
        most = int(min(MOST_ROWS, MEMORY * memory / (MICRO_BATCHES * TRANSIENT * cost.memory)))
    rows = {kind: _rows(share * n, cost.operations, most) for kind, share in SHARES.items()}
    return Blocks(rows[""], {kind: rows[kind] for kind in KINDS})


def _rows(samples: float, operations: float, most: int) -> int:
    best = math.sqrt(2 * max(samples, 1.0) * FIXED / operations)
    rows = 2 ** round(math.log2(min(max(best, LEAST_ROWS), MOST_ROWS)))
    while rows > 1 and rows > most:
        rows //= 2
    return rows


@dataclass(frozen=True)
class Workload:
    """An evaluation as the choice sees it: samples, stages, threat, cost of the model, device.

    `kernel` names the compiled network for a precision and a number of rows, `known` are the names of those compiled
    before.
    """

    n: int
    stages: Stages
    threat: Threat
    cost: ModelCost
    device: Device
    kernel: Callable[[str, int], str] = lambda precision, rows: ""
    known: Iterable[str] = ()

    def seconds(self, precision: str = TF32, compiled: bool = False) -> float:
        """Return the expected seconds of the attacks; infinity if the cost of the model is not known."""
        if self.cost.operations is None:
            return math.inf
        pace = PACE * self.device.processors / PROCESSORS
        passes = sum(self._passes(s) * FACTOR[self._precision(s, precision), compiled] for s in self.stages)
        return MADE * self.n * self.cost.operations * passes / pace

    def startup(self, precision: str, blocks: Blocks) -> float:
        """Return the expected seconds until the network is compiled for all stages."""
        kinds = {(self._precision(s, precision), rows_of(s, blocks)) for s in self.stages}
        known = set(self.known)
        return self.cost.layers * sum(LOAD if self.kernel(*kind) in known else COMPILE for kind in kinds)

    def _precision(self, stage: Stage, precision: str) -> str:
        """Return the precision of a stage (`brinell.evaluation.run_stage.stage_oracle`)."""
        if self.threat.norm.sparse and stage.attack.requires is not Requires.LOGITS:
            return FLOAT32
        finest = TF32 if stage.attack.needs_float32 else precision
        return min(precision, finest, key=PRECISIONS.index)

    def _passes(self, stage: Stage) -> float:
        """Return the passes per sample in forward passes; a backward pass takes twice as long as a forward pass."""
        weight = 1 + 2 * backwards_per_query(stage, 10)
        return usual_queries(stage) * stage.eot * weight * stage.usual_share


def rows_of(stage: Stage, blocks: Blocks) -> int:
    """Return the rows of a call of a stage."""
    if stage.attack.abandons_early:
        return blocks.of("branches" if stage.attack.parallel_restarts else "few")
    return blocks.of("legs") if len(stage.attempts()) > 1 else blocks.usual


def kernels_of(classifier: Classifier, shape: tuple[int, ...]) -> Callable[[str, int], str]:
    """Return the function that names the compiled network of this classifier for a precision and a number of rows."""
    return lambda precision, rows: kernel_name(classifier, shape, precision, rows)


def compiled_blocks(blocks: Blocks) -> Blocks:
    """Return the blocks of a compiled evaluation: one size where two differ little, for every size is compiled."""
    return replace(blocks, others={**blocks.others, "legs": blocks.usual})


Trial = Callable[[float], PrecisionChoice]
"""Tries the precisions for at most so many seconds and returns the choice."""


def choose_settings(work: Workload, blocks: Blocks, precision: str, mode: str, trial: Trial) -> GpuSettings:
    """Choose precision and execution mode, where the user left them open ("auto"), so that the evaluation ends soonest.

    Method: TF32 is what other tools use, so nothing slower is chosen. Where bfloat16 or compiling saves more seconds
    than it takes to start, it is taken; bfloat16 only if a trial of at most `TRIAL` of the run shows that it finds what
    float32 finds. Runs shorter than `SHORT` are not worth a trial. float32 is chosen only if the trial shows that TF32
    changes outcomes.
    """
    if not work.device.lower and precision == AUTO:
        why = "Precision float32: the GPU has neither TF32 nor bfloat16."
        return GpuSettings(FLOAT32, mode == "compile", blocks, why)
    whole = work.seconds()
    open_to = _open(work, precision, mode, whole)
    best = _soonest(work, blocks, open_to)
    tried = None
    if precision == AUTO and best[0] == BFLOAT16:
        tried = trial(TRIAL * whole)
        best = _soonest(
            work, blocks, [way for way in open_to if way[0] == tried.precision] or [(tried.precision, False)]
        )
    chosen, compiled = best
    sizes = compiled_blocks(blocks) if compiled else blocks
    open_ended = precision == AUTO or (mode == AUTO and compiled)
    why = _why(work, chosen, compiled, whole, tried) if open_ended else ""
    return GpuSettings(chosen, compiled, sizes, why, tried)


def _open(work: Workload, precision: str, mode: str, whole: float) -> list[tuple[str, bool]]:
    """Return the pairs of precision and compiling that are open, the one to prefer first."""
    short = whole < SHORT or math.isinf(whole)
    precisions = [precision] if precision != AUTO else [TF32] if short else [TF32, BFLOAT16]
    may = work.device.compiles and not short and precision != FLOAT32
    compiling = [mode == "compile"] if mode != AUTO else [False, True] if may else [False]
    return [(p, c) for c in compiling for p in precisions]


def _soonest(work: Workload, blocks: Blocks, ways: list[tuple[str, bool]]) -> tuple[str, bool]:
    def seconds(way: tuple[str, bool]) -> float:
        precision, compiled = way
        return work.seconds(*way) + (work.startup(precision, compiled_blocks(blocks)) if compiled else 0.0)

    return min(ways, key=seconds)


def _why(work: Workload, precision: str, compiled: bool, whole: float, tried: PrecisionChoice | None) -> str:
    how = f"Precision {precision}, {'compiled' if compiled else 'not compiled'}"
    if math.isinf(whole):
        return f"{how}: the cost of the model is not known."
    if whole < SHORT:
        return f"{how}: the attacks take about {duration(whole)}, too short to try or compile anything faster."
    took = duration(work.seconds(precision, compiled))
    seen = "" if tried is None else f" {tried}"
    return f"{how}: soonest with start-up counted, about {took} of attacks instead of {duration(whole)} in tf32.{seen}"
