"""Accuracy on corrupted inputs, cell by cell of the table of corruptions and severities."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brinell.core.classifier import Classifier
from brinell.core.problem import Problem
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import RunError
from brinell.results.files import write_atomic

CELLS = "corruptions.json"
Source = Callable[[str, int], Problem]
"""Corruption and severity to the corrupted samples, the same ones in the same order for all."""


@dataclass(frozen=True)
class Table:
    """Which samples the model gets right: bits of shape (cells, n), a cell being a corruption at a severity.

    >>> Table((("fog", 1), ("fog", 2)), np.array([[True, True, False, True], [True, False, False, False]])).mean
    0.5
    """

    cells: tuple[tuple[str, int], ...]
    right: "np.ndarray[Any, np.dtype[np.bool_]]"

    @property
    def mean(self) -> float:
        """The plain mean over corruptions and severities."""
        return float(self.right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the mean over samples; a sample's cells stand or fall together, so they count as one."""
        each = self.right.mean(0)
        half = 1.96 * float(each.std(ddof=1)) / len(each) ** 0.5 if len(each) > 1 else 1.0
        return max(0.0, self.mean - half), min(1.0, self.mean + half)


def measure(
    classifier: Classifier,
    source: Source,
    identity: dict[str, Any],
    folder: Path,
    resume: bool,
    corruptions: tuple[str, ...] = COMMON,
) -> Table:
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
    return Table(cells, np.array([[bit == "1" for bit in row] for row in rows]))


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
    oracle = Oracle(classifier, default_block(classifier.device))
    with exact(classifier.device):
        for chunk in problem.chunks(4096):
            logits = oracle.output(chunk.x.to(classifier.device)).logits
            right = (logits.argmax(1).cpu() == chunk.y) & logits.isfinite().all(1).cpu()
            yield "".join("1" if bit else "0" for bit in right.tolist())


def accuracy(classifier: Classifier, problem: Problem) -> tuple[int, int]:
    """How many samples the model gets right, and of how many."""
    bits = "".join(_right(classifier, problem))
    return bits.count("1"), len(bits)
