"""The training curve: one row of numbers per epoch."""

import csv
import io
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from brinell.results import Proportion


@dataclass(frozen=True)
class Epoch:
    """One row of the training curve: an epoch (from 1) with learning rate, loss, validation counts and cost.

    `lr` is the last learning rate, `loss` the mean loss. `clean` and `robust` are the numbers of validation samples out
    of `n` that the averaged weights classify correctly without and under attack, None without validation;
    `clean_accuracy` and `robust_accuracy` add the intervals. Passes and seconds are those of training alone.

    >>> print(Epoch(1, 0.1, 1.5, 80, 40, 100, 5000, 4000, 12.0).robust_accuracy)
    40.0 % [30.9, 49.8], n = 100
    """

    epoch: int
    lr: float
    loss: float
    clean: int | None
    robust: int | None
    n: int
    forwards: int
    backwards: int
    seconds: float

    @property
    def clean_accuracy(self) -> Proportion | None:
        return None if self.clean is None else Proportion(self.clean, self.n)

    @property
    def robust_accuracy(self) -> Proportion | None:
        return None if self.robust is None else Proportion(self.robust, self.n)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict, as stored in the checkpoint."""
        return asdict(self)


def best_epoch(curve: list[Epoch]) -> Epoch:
    """Return the first epoch of highest robust, then clean, validation accuracy; without validation, the last epoch."""
    if curve[-1].robust is None:
        return curve[-1]
    return max(curve, key=lambda row: (row.robust or 0, row.clean or 0, -row.epoch))


def as_csv(curve: list[Epoch]) -> bytes:
    """Return the curve as CSV: a header, then one line per epoch; without validation, `clean` and `robust` are empty.

    >>> as_csv([Epoch(1, 0.1, 1.5, None, None, 0, 50, 40, 0.5)]).decode().splitlines()[1]
    '1,0.1,1.5,,,0,50,40,0.5'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(f.name for f in fields(Epoch))
    writer.writerows(astuple(row) for row in curve)
    return text.getvalue().encode()
