"""Accuracy under common corruptions: by corruption and severity, on average, and relative to a baseline."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brinell.analysis.corruptions.baselines import ALEXNET, Baseline, Setting, save_table
from brinell.analysis.corruptions.table import Correct, MeanAccuracy, chunk_size, correct_predictions, mean_accuracy
from brinell.analysis.intervals import interval_series
from brinell.arguments import DataLike, ModelLike
from brinell.checks.model import check_train_mode
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier
from brinell.data.corruptions import COMMON, SEVERITIES, corrupt
from brinell.data.corruptions.registry import check
from brinell.errors import InputError
from brinell.evaluation.coerce import as_classifier, as_problem
from brinell.results import Proportion, wilson
from brinell.results.analyses import AnalysisReport, Figure, Table

# Models with this many classes are compared with AlexNet, the standard baseline for ImageNet.
IMAGENET = 1000


@dataclass(frozen=True)
class CorruptionReport:
    """Masks of the samples that a model classifies correctly, one mask per corruption and severity.

    >>> import brinell
    >>> report = corruption_accuracy("demo", brinell.data.load("demo", n=20), ["contrast"], [1, 5])
    >>> report.accuracy["contrast", 5].n, report.names, round(report.mean.value + report.error, 6)
    (20, ('contrast',), 1.0)
    """

    model: str
    data: str
    correct: Mapping[Setting, Correct]
    clean: Proportion | None
    classes: int
    seed: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.correct))

    @property
    def severities(self) -> tuple[int, ...]:
        """The measured severities, ascending."""
        return tuple(sorted({severity for _, severity in self.correct}))

    @property
    def accuracy(self) -> dict[Setting, Proportion]:
        return {setting: Proportion.of(c) for setting, c in self.correct.items()}

    @property
    def mean(self) -> MeanAccuracy:
        """Mean accuracy over all corruptions and severities, with equal weights."""
        return mean_accuracy(list(self.correct.values()))

    @property
    def error(self) -> float:
        return 1 - self.mean.value

    def mean_of(self, name: str) -> MeanAccuracy:
        """Return the mean accuracy under the corruption `name` over its severities."""
        return mean_accuracy([c for (n, _), c in self.correct.items() if n == name])

    def mce(self, baseline: Baseline | None = None) -> float | None:
        """Return the mean corruption error (mCE): the model's error / the baseline's error, averaged over corruptions.

        The default baseline is AlexNet on ImageNet-C. Without `baseline`, return None unless the model has 1,000
        classes and common corruptions were measured at all five severities. Reference: Hendrycks & Dietterich 2019.
        """
        error = self.relative_error(baseline)
        return None if error is None else error.value

    def relative_error(self, baseline: Baseline | None = None) -> MeanAccuracy | None:
        """Return the mean corruption error (see `mce`) with its interval; the baseline's errors are taken as exact.

        Method: each sample contributes a weighted sum of its errors, from 0 to the sum of the weights. Wilson's
        interval for n samples is multiplied by the sum of the weights.
        """
        baseline = baseline or self._standard()
        return None if baseline is None else self._weighted(self._weights(baseline.error))

    def relative_mce(self, baseline: Baseline | None = None) -> MeanAccuracy | None:
        """Return the relative mCE: the model's rise in error / the baseline's rise in error, averaged over corruptions.

        The rise is the corrupted minus the clean error; the baseline's errors are taken as exact. Return None without
        a baseline (see `mce`), or if the clean error of the baseline or of this model is unknown. Interval: the
        intervals of corrupted and clean error are combined as for a difference of independent shares (Zou & Donner
        2008). Clean and corrupted errors are positively correlated, so the interval is conservative. Reference:
        Hendrycks & Dietterich 2019.
        """
        baseline = baseline or self._standard()
        if baseline is None or baseline.clean is None or self.clean is None:
            return None
        weights = self._weights(baseline.loss)
        all_, total, clean = self._weighted(weights), sum(weights.values()), self.clean
        wrong, least, most = (total * (1 - p) for p in (clean.value, clean.high, clean.low))
        value = all_.value - wrong
        low = value - math.hypot(all_.value - all_.low, most - wrong)
        high = value + math.hypot(all_.high - all_.value, wrong - least)
        return MeanAccuracy(value, low, high, min(all_.n, clean.n))

    def _weights(self, error: Callable[[str, list[int]], float]) -> dict[str, float]:
        """Return the weight of the model's error under each corruption: 1 / (number of corruptions · `error`)."""
        at = {name: [s for n, s in self.correct if n == name] for name in self.names}
        return {name: 1 / (len(self.names) * error(name, at[name])) for name in self.names}

    def _weighted(self, weight: Mapping[str, float]) -> MeanAccuracy:
        value = sum((1 - self.mean_of(name).value) * w for name, w in weight.items())
        most, n = sum(weight.values()), self.mean.n
        # The number of wrong samples that would give this mean.
        wrong = min(value / most, 1.0) * n
        low, high = wilson(math.floor(wrong + 1e-9), n)[0], wilson(math.ceil(wrong - 1e-9), n)[1]
        return MeanAccuracy(value, most * low, most * high, n)

    def _standard(self) -> Baseline | None:
        whole = {(name, s) for name in self.names for s in SEVERITIES} == set(self.correct)
        if self.classes != IMAGENET or not whole or not set(self.names) <= set(COMMON):
            return None
        return Baseline.named(ALEXNET)

    def save(self, path: "str | os.PathLike[str]") -> Path:
        """Write the model's row to a CSV table of accuracies, keep the rows of other models, and return the path."""
        return save_table(path, {self.model: {setting: p.value for setting, p in self.accuracy.items()}})

    def to_json(self, baseline: Baseline | None = None) -> dict[str, Any]:
        chosen, mce = baseline or self._standard(), self.relative_error(baseline)
        relative = self.relative_mce(baseline)
        return {
            "model": self.model, "data": self.data, "seed": self.seed,
            "clean": None if self.clean is None else _json(self.clean),
            "mean": _json(self.mean),
            "error": self.error,
            "mce": self.mce(baseline),
            "mce_interval": None if mce is None else [mce.low, mce.high],
            "relative_mce": None if relative is None else relative.value,
            "relative_mce_interval": None if relative is None else [relative.low, relative.high],
            "baseline": None if chosen is None else chosen.name,
            "baseline_clean_error": None if chosen is None else chosen.clean,
            "corruptions": {name: _json(self.mean_of(name)) for name in self.names},
            "settings": [
                {"corruption": name, "severity": severity, **_json(p)} for (name, severity), p in self.accuracy.items()
            ],
        }  # fmt: skip

    def summary(self, baseline: Baseline | None = None) -> str:
        """Return the mean accuracy and, with a baseline, the mean corruption errors, in one to three sentences."""
        chosen, mce = baseline or self._standard(), self.relative_error(baseline)
        relative = self.relative_mce(baseline)
        errors = "" if chosen is None or mce is None else f" Mean corruption error relative to {chosen.name}: {mce}."
        if chosen is not None and chosen.clean is not None and relative is not None:
            errors += f" Relative mCE (clean error of {chosen.name}: {100 * chosen.clean:.4g} %): {relative}."
        clean = "" if self.clean is None else f"; without corruption {self.clean}"
        kinds = self.names[0] if len(self.names) == 1 else f"{len(self.names)} corruptions"
        many = "severities" if len(self.severities) > 1 else "severity"
        settings = f"{kinds} at {many} {', '.join(map(str, self.severities))}"
        return f"Mean accuracy over {settings}: {self.mean}{clean}.{errors}"

    def findings(self, baseline: Baseline | None = None) -> AnalysisReport:
        """Return a table of accuracies by corruption and severity, and a figure of the mean accuracy per corruption."""
        accuracy, means = self.accuracy, [self.mean_of(name) for name in self.names]
        rows = tuple(
            (
                name, *(_percent(accuracy.get((name, s))) for s in self.severities),
                _percent(m), _percent(m.low), _percent(m.high), m.n,
            )
            for name, m in zip(self.names, means, strict=True)
        )  # fmt: skip
        columns = ("corruption", *(f"severity {s}" for s in self.severities), "mean", "low", "high", "n")
        bars = interval_series(self.model or "model", self.names, means)
        return AnalysisReport(
            "corruptions",
            "Common corruptions",
            self.summary(baseline),
            (Table("Accuracy (%) by corruption and severity", columns, rows),),
            (Figure("Accuracy by corruption", "bars", "corruption", "mean accuracy (%)", (bars,)),),
        )


def _json(p: Proportion | MeanAccuracy) -> dict[str, Any]:
    return {"value": p.value, "low": p.low, "high": p.high, "n": p.n}


def _percent(p: Proportion | MeanAccuracy | float | None) -> float | None:
    if p is None:
        return None
    return round(100 * (p if isinstance(p, float) else p.value), 2)


def corruption_accuracy(
    classifier: ModelLike, problem: DataLike, names: Iterable[str] = COMMON, severities: Iterable[int] = SEVERITIES,
    seed: int = 0,
    *, clean: DataLike | None = None, device: torch.device | str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CorruptionReport:  # fmt: skip
    """Measure the accuracy of a model on corrupted images.

    `problem` holds clean images, which are corrupted with `names` and `severities` on the model's device. Or it holds
    corrupted images, all of which are used: a mapping from (name, severity) to a problem, or an iterator of ((name,
    severity), problem); `clean` may then hold the clean images. `on_progress` is called with the number done and the
    total, of images or of corrupted problems. A sample that a detector rejects counts as wrong. Cost: one forward per
    image, corruption and severity, and one per clean image.
    """
    model = as_classifier(classifier, device)
    check_train_mode(model)
    if isinstance(problem, Mapping | Iterator):
        return _from_sets(model, problem, None if clean is None else as_problem(clean), on_progress)
    settings = [(name, severity) for name in names for severity in severities]
    for setting in settings:
        check(*setting)
    if not settings:
        raise InputError(
            expected="at least one corruption and one severity",
            got="none",
            remedy="Omit `names` and `severities` to measure all.",
        )
    return _from_clean(model, as_problem(problem), settings, seed, on_progress)


def _from_clean(
    model: Classifier,
    problem: Problem,
    settings: list[Setting],
    seed: int,
    on_progress: Callable[[int, int], None] | None,
) -> CorruptionReport:
    """Corrupt clean images in every setting (corruption, severity) and measure the accuracy; read each chunk once."""
    parts: dict[Setting | None, list[Correct]] = {None: [], **{setting: [] for setting in settings}}
    done, total, classes = 0, len(problem) * len(parts), 0
    for chunk in problem.chunks(chunk_size(model, problem)):
        x, ids = chunk.x.to(model.device), chunk.ids
        for setting, found in parts.items():
            inputs = x if setting is None else corrupt(x, *setting, ids, seed)
            right, classes = correct_predictions(model, Chunk(ids, inputs, chunk.y))
            found.append(right)
            done += len(right)
            if on_progress is not None:
                on_progress(done, total)
    whole = {setting: np.concatenate(found) for setting, found in parts.items()}
    before = whole.pop(None)
    correct = {setting: c for setting, c in whole.items() if setting is not None}
    return CorruptionReport(model.name, problem.name, correct, Proportion.of(before), classes, seed)


def _from_sets(
    model: Classifier, sets: Any, clean: Problem | None, on_progress: Callable[[int, int], None] | None
) -> CorruptionReport:
    correct: dict[Setting, Correct] = {}
    data, classes, before = "", 0, None
    total = len(sets) if isinstance(sets, Mapping) else 0
    if clean is not None:
        right, classes = _all_correct(model, clean)
        before, data = Proportion.of(right), clean.name
    for (name, severity), given in sets.items() if isinstance(sets, Mapping) else sets:
        problem = as_problem(given)
        correct[str(name), int(severity)], classes = _all_correct(model, problem)
        data = data or problem.name
        if on_progress is not None:
            on_progress(len(correct), max(total, len(correct)))
    sizes = {len(c) for c in correct.values()}
    if len(sizes) != 1:
        raise InputError(
            expected="the same samples under every corruption and severity",
            got=f"sets of {', '.join(map(str, sorted(sizes)))} samples" if sizes else "no sets",
            remedy="Cut every set to the same samples with problem[:n].",
        )
    return CorruptionReport(model.name, data, correct, before, classes, None)


def _all_correct(model: Classifier, problem: Problem) -> tuple[Correct, int]:
    parts = [correct_predictions(model, chunk) for chunk in problem.chunks(chunk_size(model, problem))]
    return np.concatenate([right for right, _ in parts]), parts[-1][1]
