"""What an evaluation works with: the settings of all stages (`StageContext`), the samples, and the Run's identity."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.checks import model as model_checks
from brinell.core.attack import Response
from brinell.core.criterion import Criterion, Misclassified
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Output
from brinell.core.plan import Plan, Stages
from brinell.core.threat import Threat
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.events import Listener, silent
from brinell.engine.oracle import Oracle, default_blocks
from brinell.engine.slots import Slots
from brinell.errors import InputError
from brinell.evaluation.rows import Clean, clean
from brinell.finding import Finding

# Samples held in memory at a time: at most this many, and at most this many bytes of inputs.
CHUNK, CHUNK_BYTES = 16384, 1 << 28
# On the CPU few samples are attacked at a time, so that fewer need to be held: at most this many bytes of inputs.
CPU_BYTES = 1 << 25


def _hash(x: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(x.shape)).encode())
    digest.update(np.ascontiguousarray(x.numpy()).data)
    return digest.hexdigest()


def _part(output: Output, start: int, end: int) -> Output:
    reject, features = (None if rows is None else rows[start:end] for rows in (output.reject, output.features))
    return Output(output.logits[start:end], reject, features)


def chunk_size(problem: Problem) -> int:
    """Return how many samples of the problem are held in memory at a time."""
    size = 4 * int(np.prod(problem.shape()))
    return max(1, min(CHUNK, CHUNK_BYTES // size))


def attack_chunk_size(problem: Problem, device: torch.device) -> int:
    """Return how many samples are attacked before the next samples are read; it divides nothing but the work."""
    size, whole = 4 * int(np.prod(problem.shape())), chunk_size(problem)
    return max(1, min(whole, CPU_BYTES // size)) if device.type == "cpu" else whole


@dataclass(frozen=True)
class StageContext:
    """The model, the threat and the settings that all stages of an evaluation share."""

    oracle: Oracle
    threat: Threat
    seed: int
    slots: int
    precision: str = "float32"
    early_exit: bool = True
    criterion: Criterion = field(default_factory=Misclassified)
    listener: Listener = silent
    draws: int = 1
    graph_cache: GraphCache | None = None
    capturable: bool = False
    shape: tuple[int, ...] | None = None
    """The shape of a sample if the number of slots was measured, None if the user gave it."""
    keep_best: bool = False
    """Whether the best point of every sample is returned with its row, also where it does not break the sample."""
    observe: "Callable[[Slots, Response], None] | None" = None


@dataclass
class PreparedEvaluation:
    """An evaluation that is checked and ready to run; nothing is written yet."""

    context: StageContext
    plan: Plan
    problem: Problem
    first: Chunk
    first_output: Output
    checks: list[Finding]
    notes: list[str]
    device: torch.device
    individual: bool = False
    pace: float = 0.0
    """Seconds per row of the clean forward pass."""
    precision_choice: dict[str, Any] | None = None
    """How the precision was chosen, for the manifest."""
    fingerprint: str | None = None
    """The model's fingerprint if it was computed already (that reads all weights), else None."""
    expected_seconds: float | None = None
    """The seconds that the attacks are expected to take on a GPU, by the operations of the model; None if not known."""
    open_settings: tuple[str, ...] = ()
    """The fields of the identity that were chosen here, not by the user: another Run may have others."""
    name: str | None = None
    """A name for the model instead of its own."""
    first_hashes: dict[int, str] | None = None
    """Hashes of the inputs of the first chunk by position, if they are no longer in memory."""

    @property
    def stages(self) -> Stages:
        return self.plan.stages_for(self.context.threat)

    @property
    def oracle(self) -> Oracle:
        return self.context.oracle

    @property
    def first_logits(self) -> Tensor:
        return self.first_output.logits

    @property
    def warned(self) -> bool:
        """Whether a check warns or fails, so that the result is in doubt."""
        return any(c.level in ("warn", "fail") for c in self.checks)

    def first_clean(self) -> Clean:
        """Return the clean predictions of the first chunk, without the hashes of its inputs."""
        return replace(clean(replace(self.first, x=self.first.x[:0]), [self.first_output]), chunk=self.first)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the problem; raise an InputError for an unknown label or changed inputs."""
        for chunk in self.problem.chunks(attack_chunk_size(self.problem, self.device)):
            model_checks.require_known_labels(chunk, self.first_logits.shape[1])
            if not self._as_before(chunk):
                raise InputError(
                    expected="inputs that are the same every time they are read",
                    got="different inputs the second time",
                    remedy="Remove random augmentation from the data set.",
                )
            yield chunk
            del chunk  # free before the next one is read

    def release_first(self) -> None:
        """Free the inputs of the first chunk, if they are read from a stream; a hash stays to recognise them."""
        if self.problem.streamed and self.first_hashes is None:
            size = attack_chunk_size(self.problem, self.device)
            self.first_hashes = {k * size: _hash(x) for k, x in enumerate(self.first.x.split(size))}
            self.first = replace(self.first, x=self.first.x[:0].clone())

    def first_chunk(self) -> Chunk:
        """Return the first chunk with its inputs; they are read again if they were released."""
        return self.first if self.first_hashes is None else next(self.problem.chunks(chunk_size(self.problem)))

    def _as_before(self, chunk: Chunk) -> bool:
        """Return whether the inputs are those that the checks read, as far as these read them."""
        if self.first_hashes is None:
            known = self.first.x[chunk.offset : chunk.offset + len(chunk)]
            return torch.equal(chunk.x[: len(known)], known)
        # Where the first chunk ends within this one, its last piece is shorter.
        size = min(len(chunk), max(0, len(self.first) - chunk.offset))
        return not size or _hash(chunk.x[:size]) == self.first_hashes[chunk.offset]

    def clean(self, chunk: Chunk) -> Clean:
        """Return the clean predictions of a chunk; for samples of the first chunk, reuse the pass of the checks."""
        x = chunk.x.to(self.oracle.classifier.device)
        end = chunk.offset + len(chunk)
        known = [_part(self.first_output, chunk.offset, end)] if end <= len(self.first) else []
        more = [self.oracle.output(x, named=chunk.ids) for _ in range(self.plan.draws - len(known))]
        return clean(chunk, known + more)

    def identity(self) -> dict[str, Any]:
        """Return the identity for the manifest: evaluations with equal identities give equal rows."""
        c = self.oracle.classifier
        fingerprint = c.fingerprint if self.fingerprint is None else self.fingerprint
        return {
            "brinell_format": 1,
            "threat": self.context.threat.to_json(),
            "goal": self.context.criterion.name,
            "plan": self.plan.to_json(),
            "individual": self.individual,
            "model": {"fingerprint": fingerprint, "name": self.name or c.name, "classes": self.first_logits.shape[1]},
            "data": {"fingerprint": self.problem.fingerprint(), "n": len(self.problem), "name": self.problem.name},
            "seed": self.context.seed,
            "precision": self.context.precision,
            **(self.oracle.blocks or default_blocks(self.device)).to_json(),
            **({"execution": "compile"} if self.oracle.compiled else {}),
        }
