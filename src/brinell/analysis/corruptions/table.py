"""Measure accuracy for every pair of corruption and severity; an interrupted measurement can be resumed."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from brinell.analysis.corruptions.baselines import Baseline
from brinell.checks.model import require_known_labels
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import RunError, error_text
from brinell.results import Interval, wilson
from brinell.storage import make_folder, write_atomic
from brinell.untrusted import read_json

CELLS = "corruptions.json"
# Values read at a time, in whole blocks: corruptions need about 50 bytes per value.
VALUES = 1 << 22
Correct = npt.NDArray[np.bool_]
Source = Callable[[str, int], Problem]
"""Maps (corruption, severity) to the corrupted samples: for all pairs the same samples in the same order."""


@dataclass(frozen=True)
class MeanAccuracy(Interval):
    """The mean of several accuracies, all measured on the same n samples, with a 95 % interval.

    >>> print(MeanAccuracy(0.478, 0.447, 0.509, 1000))
    47.8 % [44.7, 50.9], n = 1,000
    """

    n: int = 0

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}], n = {self.n:,}"


def mean_accuracy(correct: Sequence[Correct]) -> MeanAccuracy:
    """Return the mean accuracy over several conditions; `correct` has one mask (n,) per condition, on the same samples.

    Method: a sample's mean lies between 0 and 1, so its variance is at most that of a binary outcome. Wilson's interval
    for n samples, not for all predictions, therefore covers at least as often as stated.

    >>> print(mean_accuracy([np.array([True, True]), np.array([True, False])]))
    75.0 % [9.5, 100.0], n = 2
    """
    n, right = len(correct[0]), sum(int(c.sum()) for c in correct) / len(correct)
    return MeanAccuracy(right / n, wilson(math.floor(right), n)[0], wilson(math.ceil(right), n)[1], n)


@dataclass(frozen=True)
class CorruptionTable:
    """A mask (cells, n) of the samples classified correctly; a cell is a pair of corruption and severity.

    >>> CorruptionTable((("fog", 1), ("fog", 2)), np.array([[True, True], [True, False]])).mean
    0.75
    """

    cells: tuple[tuple[str, int], ...]
    right: Correct

    @property
    def mean(self) -> float:
        """The mean accuracy over corruptions and severities."""
        return float(self.right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean; predictions on one sample are dependent, so they count as one observation."""
        mean = mean_accuracy(list(self.right))
        return mean.low, mean.high

    def mce(self, baseline: Baseline) -> float:
        """Return the mean corruption error (mCE): the model's error / the baseline's error, averaged over corruptions.

        >>> table = CorruptionTable((("fog", 1), ("fog", 2)), np.array([[True, True], [True, False]]))
        >>> table.mce(Baseline("half", {}, {("fog", 1): 0.5, ("fog", 2): 0.5}))
        0.5
        """
        errors: dict[str, list[float]] = {}
        severities: dict[str, list[int]] = {}
        for (name, severity), row in zip(self.cells, self.right, strict=True):
            errors.setdefault(name, []).append(1 - float(row.mean()))
            severities.setdefault(name, []).append(severity)
        relative = [sum(e) / len(e) / baseline.error(name, severities[name]) for name, e in errors.items()]
        return sum(relative) / len(relative)


def measure_table(
    classifier: Classifier, source: Source, identity: dict[str, Any], folder: Path, resume: bool,
    corruptions: tuple[str, ...] = COMMON,
) -> CorruptionTable:  # fmt: skip
    """Return which samples the model classifies correctly under each of `corruptions` at each severity.

    Each cell (corruption, severity) is stored in `folder` when it is measured; `resume` skips stored cells. `identity`
    describes the model and the data, and must equal the stored identity.
    """
    path = folder / CELLS
    done = _stored(path, identity, resume)
    cells = tuple((c, s) for c in corruptions for s in SEVERITIES)
    make_folder(folder)
    for corruption, severity in cells:
        key = f"{corruption}/{severity}"
        if key not in done:
            done[key] = "".join(_correct_bits(classifier, source(corruption, severity)))
            write_atomic(path, (json.dumps({"identity": identity, "right": done}) + "\n").encode())
    rows = [done[f"{c}/{s}"] for c, s in cells]
    if len({len(row) for row in rows}) != 1:
        raise RunError(
            expected="the same number of samples for every corruption and severity",
            got=f"{min(map(len, rows))} to {max(map(len, rows))} samples",
            remedy="Corrupt the same clean samples for every corruption and severity.",
        )
    return CorruptionTable(cells, np.array([[bit == "1" for bit in row] for row in rows]))


def _stored(path: Path, identity: dict[str, Any], resume: bool) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        stored = read_json(path)
        known, right = stored["identity"], {str(k): str(v) for k, v in stored["right"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            expected=f"a table of an earlier measurement in {path}",
            got=error_text(error),
            remedy="Restore the file from a copy, or measure again into another folder.",
        ) from error
    if not resume or known != identity:
        raise RunError(
            expected="a new folder, or resume=True with the same model and data",
            got=f"{path} of {'another model or other data' if resume else 'an earlier measurement'}",
            remedy="Pass resume=True (--resume) to continue the same measurement, or another folder for a new one.",
        )
    return right


def _correct_bits(classifier: Classifier, problem: Problem) -> Iterator[str]:
    for chunk in problem.chunks(chunk_size(classifier, problem)):
        yield "".join("1" if bit else "0" for bit in correct_predictions(classifier, chunk)[0].tolist())


def chunk_size(classifier: Classifier, problem: Problem) -> int:
    """Return how many samples to read at a time: whole blocks of at most VALUES input values, at least one block."""
    block = default_block(classifier.device)
    return block * max(1, VALUES // (block * math.prod(problem.shape())))


def correct_predictions(classifier: Classifier, chunk: Chunk) -> tuple[Correct, int]:
    """Return a mask of the correctly classified samples (float32, fixed batch shape), and the number of classes.

    A sample that a detector rejects counts as wrong, and so does a sample whose logits are not finite.
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
    """Return the number of correctly classified samples and the number of all samples."""
    bits = "".join(_correct_bits(classifier, problem))
    return bits.count("1"), len(bits)
