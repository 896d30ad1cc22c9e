"""CSV tables of accuracy by corruption and severity, and baselines for the mean corruption error."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from brinell.errors import InputError, error_text
from brinell.storage import write_output
from brinell.untrusted import csv_cells, read_plain

Setting = tuple[str, int]
ALEXNET, ALEXNET_ROBUSTBENCH = "alexnet", "alexnet-robustbench"
# AlexNet's error on clean ImageNet (Hendrycks & Dietterich 2019, table 1).
ALEXNET_CLEAN = 0.435
FIVE = (1, 2, 3, 4, 5)
# Errors from reading a file that is not such a table.
# The largest table that is read.
LARGEST = 1 << 26
UNREADABLE = (OSError, ValueError, IndexError, KeyError, TypeError, csv.Error)
# The first cells of the two header rows of a table by severity, and the header of a table of mean errors.
HEADER_CELLS, MEANS = ("corruption", "severity"), ("corruption", "error")


@dataclass(frozen=True)
class Baseline:
    """The errors of a reference model: per corruption and severity (`single`), or mean errors per corruption (`means`).

    >>> alexnet = Baseline.named("alexnet")
    >>> round(alexnet.error("fog", FIVE), 3), len(alexnet.means), alexnet.clean
    (0.819, 15, 0.435)
    """

    name: str
    means: Mapping[str, float]
    single: Mapping[Setting, float]
    clean: float | None = None
    """The error on clean images, if known; the relative mCE needs it."""

    @classmethod
    def named(
        cls, source: "str | os.PathLike[str]", row: str | None = None, clean_error: float | None = None
    ) -> "Baseline":
        """Return a built-in baseline, or a baseline from a CSV file; `row` is the name of the model in the file.

        "alexnet" has AlexNet's errors on ImageNet-C from Hendrycks & Dietterich 2019. "alexnet-robustbench" has the
        errors of AlexNet that RobustBench measured on its 5,000 pictures of ImageNet-C and ImageNet-3DCC. A file has
        the columns `corruption` and `error` (in per cent), or is a table of accuracies written by `save_table`.
        `clean_error` is the reference model's error on clean images (a share), which no file holds.
        """
        if clean_error is not None and not 0 <= clean_error <= 1:
            raise InputError(
                expected="a baseline's clean error between 0 and 1 (on the command line 0 to 100 per cent)",
                got=f"{clean_error:g}",
                remedy="Pass the error on clean images, e.g. 0.435 for AlexNet (--clean-error 43.5).",
            )
        baseline = cls._read(source, row)
        return baseline if clean_error is None else replace(baseline, clean=clean_error)

    @classmethod
    def _read(cls, source: "str | os.PathLike[str]", row: str | None) -> "Baseline":
        if str(source) == ALEXNET:
            text = (files("brinell.analysis") / "files" / "alexnet_imagenet_c.csv").read_text()
            return cls("AlexNet", _means(text.splitlines()), {}, ALEXNET_CLEAN)
        if str(source) == ALEXNET_ROBUSTBENCH:
            lines = (files("brinell.analysis") / "files" / "alexnet_robustbench.csv").read_text().splitlines()
            return cls("AlexNet", {}, {setting: 1 - value for setting, value in _table(lines)["AlexNet"].items()})
        path = Path(source)
        try:
            lines = read_plain(path, LARGEST).decode().splitlines()
            if lines and tuple(next(csv.reader(lines[:1]))) == MEANS:
                return cls(path.stem, _means(lines), {})
            table = _table(lines)
        except UNREADABLE as error:
            raise _unreadable(path, error) from error
        name = _chosen(path, list(table), row)
        return cls(name, {}, {setting: 1 - accuracy for setting, accuracy in table[name].items()})

    def error(self, name: str, severities: Sequence[int]) -> float:
        """Return the baseline's mean error under the corruption `name` over these severities."""
        at = [self.single[name, s] for s in severities if (name, s) in self.single]
        if len(at) == len(severities):
            error = sum(at) / len(at)
        elif name in self.means and tuple(sorted(severities)) == FIVE:
            error = self.means[name]
        else:
            raise InputError(
                expected=f"errors of {self.name} under {name} at severities {', '.join(map(str, severities))}",
                got="a baseline without these errors",
                remedy="Measure at all five severities, or pass a baseline that has errors at these severities.",
            )
        if error <= 0:
            raise InputError(
                expected="a baseline that makes errors",
                got=f"{self.name} without errors under {name}",
                remedy="Pass another baseline: the model's error is divided by the baseline's error.",
            )
        return error

    def loss(self, name: str, severities: Sequence[int]) -> float:
        """Return the baseline's rise in error: mean error under `name` at these severities, minus clean error."""
        assert self.clean is not None, "the baseline has a clean error"
        more = self.error(name, severities) - self.clean
        if more <= 0:
            raise InputError(
                expected=f"a baseline with a larger error under {name} than on clean images ({100 * self.clean:.4g} %)",
                got=f"{100 * (more + self.clean):.4g} % for {self.name} under {name}",
                remedy="Pass the true clean error of the baseline (`clean_error`), or another baseline.",
            )
        return more


def _means(lines: list[str]) -> dict[str, float]:
    return {row["corruption"]: _share(float(row["error"]) / 100) for row in csv.DictReader(lines)}


def _share(value: float) -> float:
    """Return the value if it is between 0 and 1; raise a ValueError otherwise, since it may be a percentage."""
    if not 0 <= value <= 1:
        raise ValueError(f"the share {value:g} is not between 0 and 1")
    return value


def _table(lines: list[str]) -> dict[str, dict[Setting, float]]:
    names, severities, *rows = csv.reader(lines)
    if (names[0], severities[0]) != HEADER_CELLS or len(names) != len(severities):
        raise ValueError(f"a table whose two header rows begin with {names[0]!r} and {severities[0]!r}")
    settings = [(name, int(s)) for name, s in zip(names[1:], severities[1:], strict=True)]
    return {
        row[0].removeprefix("'"): dict(zip(settings, (_share(float(v)) for v in row[1:]), strict=True))
        for row in rows
        if row
    }


def _chosen(path: Path, names: list[str], row: str | None) -> str:
    if row is None and len(names) == 1:
        return names[0]
    if row is None or row not in names:
        raise InputError(
            expected=f"the name of a row in {path.name}: {', '.join(names)}",
            got="no name" if row is None else repr(row),
            remedy="Pass row=NAME, or --baseline FILE.csv:NAME.",
        )
    return row


def save_table(path: "str | os.PathLike[str]", rows: Mapping[str, Mapping[Setting, float]]) -> Path:
    """Write a CSV table of accuracies by corruption and severity, one row per model, and return its path.

    Rows of other models in the file are kept; a row of the same model is replaced. All rows must have the same
    corruptions and severities.
    """
    path, old = Path(path), {}
    if path.exists():
        try:
            old = _table(read_plain(path, LARGEST).decode().splitlines())
        except UNREADABLE as error:
            raise _unreadable(path, error) from error
    merged = {**old, **rows}
    settings = list(next(iter(rows.values())))
    if any(set(row) != set(settings) for row in merged.values()):
        raise InputError(
            expected=f"a table in {path} with the {len(settings)} pairs of corruption and severity of this result",
            got="a table with other pairs",
            remedy="Write the result to a new file: one table holds models measured on the same pairs.",
        )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(csv_cells([HEADER_CELLS[0], *(name for name, _ in settings)]))
    writer.writerow([HEADER_CELLS[1], *(severity for _, severity in settings)])
    for name, row in merged.items():
        writer.writerow([*csv_cells([name]), *(row[setting] for setting in settings)])
    write_output(path, out.getvalue())
    return path


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        expected=f"a table of corruption errors or accuracies in {path}",
        got=error_text(error),
        remedy="Write columns corruption,error; or header rows corruption and severity above rows of accuracies.",
    )
