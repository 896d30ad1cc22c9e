"""What runs at the other end: a worker with its own copy of the model, one unit at a time."""

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.core.plan import Plan
from brinell.engine import precision as precisions
from brinell.engine.cuda.autotune import lanes_for
from brinell.engine.events import Event, Shrunk
from brinell.engine.micro_batch import Recordings
from brinell.environment import environment
from brinell.errors import ModelError, first_line
from brinell.evaluation.backend import Unit, attack_unit
from brinell.evaluation.run_plan import Part
from brinell.evaluation.run_stage import StageContext


@dataclass(frozen=True)
class Report:
    """Rows as they come, and the sizes to which the worker had to cut its questions to the model."""

    part: Part | None
    shrunk: tuple[int, ...] = ()


class Worker:
    """Holds setup and plan, built once from bytes that were shipped once per machine.

    `device` None leaves the model where it was; `threads` are those of the driver, because on a processor their number
    decides how sums are rounded.
    """

    def __init__(self, packed: bytes, device: str | None, threads: int) -> None:
        self._packed, self._device, self._threads = packed, device, threads
        self._shrunk: list[int] = []
        self._dropped: dict[int, set[int]] = {}

    def hello(self) -> dict[str, Any]:
        """Build the model and say where it is: process, versions, hardware."""
        torch.set_num_threads(self._threads)
        self._setup, self._plan = _unpack(self._packed)
        self._packed = b""
        oracle = self._setup.oracle
        device = oracle.classifier.device if self._device is None else torch.device(self._device)
        own = replace(oracle, classifier=oracle.classifier.to(device), listener=self._hear, shrunk=[])
        self._setup = replace(self._setup, oracle=own, listener=self._hear)
        if self._setup.recordable and device.type == "cuda":
            slots = self._setup.slots
            if self._setup.shape is not None:
                slots = own.block * lanes_for(own, self._setup.shape, own.classifier.fingerprint)
            self._setup = replace(self._setup, slots=slots, recordings=Recordings(self._hear))
        return {"pid": os.getpid(), **environment(device)}

    def work(self, unit: Unit, number: int) -> Iterator[Report]:
        """Do a unit and report part by part; `number` is that of the unit among this worker's."""
        # Both belong to the thread that works, which need not be the one that said hello.
        torch.set_num_threads(self._threads)
        dropped = self._dropped.setdefault(number, set())
        with precisions.exact(self._setup.oracle.classifier.device):
            for part in attack_unit(self._setup, self._plan, unit, dropped):
                yield self._report(part)
        if self._shrunk:
            yield self._report(None)

    def drop(self, number: int, ids: list[int]) -> None:
        """Somebody else does these samples of that unit; called while `work` runs, and harmless at any other time."""
        self._dropped.setdefault(number, set()).update(ids)

    def _report(self, part: Part | None) -> Report:
        shrunk, self._shrunk = tuple(self._shrunk), []
        return Report(part, shrunk)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Shrunk):
            self._shrunk.append(event.block)


def _unpack(packed: bytes) -> tuple[StageContext, Plan]:
    try:
        setup, plan = pickle.loads(packed)
    except Exception as error:  # whatever the user's classes raise
        raise ModelError(
            expected="a model that every worker can build",
            got=f"{type(error).__name__} on one: {first_line(error)}",
            remedy="Install the package the model comes from on every machine, or define it in the script itself.",
        ) from None
    return setup, plan
