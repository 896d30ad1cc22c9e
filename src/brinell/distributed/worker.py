"""The worker process: hold a copy of the model and attack one unit at a time."""

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from brinell.core.plan import Plan
from brinell.engine import precision as precisions
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Event, Shrunk
from brinell.environment import environment
from brinell.errors import ModelError, reported_as
from brinell.evaluation.backend import WorkUnit, run_unit
from brinell.evaluation.context import StageContext
from brinell.evaluation.rows import FinishedRows


@dataclass(frozen=True)
class WorkerReport:
    """New rows of a worker (`part`), and the smaller block sizes that it had to use for lack of memory (`shrunk`)."""

    part: FinishedRows | None
    shrunk: tuple[int, ...] = ()


class Worker:
    """A worker that attacks units with its own copy of the model, built once from the pickled stage context and plan.

    `device=None` leaves the model on its device. `threads` must be the number of threads of the driver, because on a
    CPU this number determines how sums are rounded.
    """

    def __init__(self, packed: bytes, device: str | None, threads: int) -> None:
        self._packed, self._device, self._threads = packed, device, threads
        self._shrunk: list[int] = []
        self._dropped: dict[int, set[int]] = {}

    def build_model(self) -> dict[str, Any]:
        """Build the model and return the environment: process id, versions, hardware."""
        torch.set_num_threads(self._threads)
        self._setup, self._plan = _unpack(self._packed)
        self._packed = b""
        oracle = self._setup.oracle
        device = oracle.classifier.device if self._device is None else torch.device(self._device)
        on_device = replace(oracle, classifier=oracle.classifier.to(device), listener=self._on_event, shrunk=[])
        self._setup = replace(self._setup, oracle=on_device, listener=self._on_event)
        if self._setup.capturable and device.type == "cuda":
            self._setup = replace(self._setup, graph_cache=GraphCache(self._on_event))
        return {"pid": os.getpid(), **environment(device)}

    def work(self, unit: WorkUnit, number: int) -> Iterator[WorkerReport]:
        """Attack a unit and yield reports with its rows as samples finish; `number` counts the units of this worker."""
        # Threads and precision are settings of the current thread, which may differ from that of `build_model`.
        torch.set_num_threads(self._threads)
        dropped = self._dropped.setdefault(number, set())
        with precisions.exact(self._setup.oracle.classifier.device):
            for part in run_unit(self._setup, self._plan, unit, dropped):
                yield self._report(part)
        if self._shrunk:
            yield self._report(None)

    def drop(self, number: int, ids: list[int]) -> None:
        """Skip samples of unit `number` that another worker took over, if `work` runs on this unit now."""
        self._dropped.setdefault(number, set()).update(ids)

    def _report(self, part: FinishedRows | None) -> WorkerReport:
        shrunk, self._shrunk = tuple(self._shrunk), []
        return WorkerReport(part, shrunk)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Shrunk):
            self._shrunk.append(event.block)


def _unpack(packed: bytes) -> tuple[StageContext, Plan]:
    remedy = "Install the package of the model on every machine, or define the model in your script."
    # The user's classes may raise anything.
    with reported_as(ModelError, Exception, expected="a model that every worker can build", remedy=remedy):
        context, plan = pickle.loads(packed)
    return context, plan
