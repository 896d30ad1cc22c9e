"""Accuracy on corrupted inputs, cell by cell of the table of corruptions and severities."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from brinell.checks.model import require_known_labels
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import RunError
from brinell.results import wilson
from brinell.results.format.files import write_atomic

CELLS = "corruptions.json"
# Values read at a time, as far as whole blocks allow: what a corruption computes in between takes about 50 bytes each.
VALUES = 1 << 22
Correct = npt.NDArray[np.bool_]
Source = Callable[[str, int], Problem]
"""Corruption and severity to the corrupted samples, the same ones in the same order for all."""


class Average(NamedTuple):
    """A mean of accuracies over the same n samples, with a 95 % interval.

    >>> print(Average(0.478, 0.447, 0.509, 1000))
    47.8 % [44.7, 50.9], n = 1,000
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}], n = {self.n:,}"


def average(correct: Sequence[Correct]) -> Average:
    """The mean accuracy over several conditions that the same samples were seen in.

    Method: a sample's mean lies between 0 and 1, so that it varies at most as one that is right or wrong: Wilson's
    interval for n samples, not for all answers, covers at least as often as it says.

    >>> print(average([np.array([True, True]), np.array([True, False])]))
    75.0 % [9.5, 100.0], n = 2
    """
    n, right = len(correct[0]), sum(int(c.sum()) for c in correct) / len(correct)
    return Average(right / n, wilson(math.floor(right), n)[0], wilson(math.ceil(right), n)[1], n)


@dataclass(frozen=True)
class CorruptionTable:
    """Which samples the model gets right: bits of shape (cells, n), a cell being a corruption at a severity.

    >>> CorruptionTable((("fog", 1), ("fog", 2)), np.array([[True, True], [True, False]])).mean
    0.75
    """

    cells: tuple[tuple[str, int], ...]
    right: Correct

    @property
    def mean(self) -> float:
        """The plain mean over corruptions and severities."""
        return float(self.right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the mean over samples; a sample's cells stand or fall together, so they count as one."""
        found = average(list(self.right))
        return found.low, found.high


def measure_table(
    classifier: Classifier,
    source: Source,
    identity: dict[str, Any],
    folder: Path,
    resume: bool,
    corruptions: tuple[str, ...] = COMMON,
) -> CorruptionTable:
    """Ask the model about every cell; each is stored when it is done, and with `resume` not asked for again."""
    path = folder / CELLS
    done = _stored(path, identity, resume)
    cells = tuple((c, s) for c in corruptions for s in SEVERITIES)
    folder.mkdir(parents=True, exist_ok=True)
    for corruption, severity in cells:
        key = f"{corruption}/{severity}"
        if key not in done:
            done[key] = "".join(_right(classifier, source(corruption, severity)))
            write_atomic(path, (json.dumps({"identity": identity, "right": done}) + "\n").encode())
    rows = [done[f"{c}/{s}"] for c, s in cells]
    if len({len(row) for row in rows}) != 1:
        raise RunError(
            expected="as many samples for every corruption and severity",
            got=f"{min(map(len, rows))} to {max(map(len, rows))}",
            remedy="Check the corrupted data.",
        )
    return CorruptionTable(cells, np.array([[bit == "1" for bit in row] for row in rows]))


def _stored(path: Path, identity: dict[str, Any], resume: bool) -> dict[str, str]:
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    if not resume or stored["identity"] != identity:
        raise RunError(
            expected="a new folder, or resume with the model and data it was begun with",
            got=f"{path}, begun {'with others' if resume else 'before'}",
            remedy="Pass resume=True (--resume) to go on with it, or choose another folder.",
        )
    return dict(stored["right"])


def _right(classifier: Classifier, problem: Problem) -> Iterator[str]:
    for chunk in problem.chunks(chunk_size(classifier, problem)):
        yield "".join("1" if bit else "0" for bit in correct_predictions(classifier, chunk)[0].tolist())


def chunk_size(classifier: Classifier, problem: Problem) -> int:
    """How many samples to read at a time: whole blocks of the model's, as many as memory is well used for."""
    block = default_block(classifier.device)
    return block * max(1, VALUES // (block * math.prod(problem.shape())))


def correct_predictions(classifier: Classifier, chunk: Chunk) -> tuple[Correct, int]:
    """Which samples the model gets right, in float32 and always in the same batch shape; and how many classes it has.

    What a detector rejects is wrong, and so is an answer that is not finite.
    """
    device = classifier.device
    with exact(device):
        out = Oracle(classifier, default_block(device)).output(chunk.x.to(device), chunk.ids.to(device))
    classes = out.logits.shape[1]
    require_known_labels(chunk, classes)
    right = (out.logits.argmax(1) == chunk.y.to(device)) & out.logits.isfinite().all(1)
    if out.reject is not None:
        right = right & (out.reject <= 0)
    return np.asarray(right.cpu().numpy()), classes


def count_correct(classifier: Classifier, problem: Problem) -> tuple[int, int]:
    """How many samples the model gets right, and of how many."""
    bits = "".join(_right(classifier, problem))
    return bits.count("1"), len(bits)
