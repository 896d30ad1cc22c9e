"""Accuracy under common corruptions: by kind and severity, on average, and beside a baseline."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brinell.analysis.corruptions.baselines import ALEXNET, Baseline, Setting, save_table
from brinell.analysis.corruptions.table import Average, Correct, average, chunk_size, correct_predictions
from brinell.checks.model import check_train_mode
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier
from brinell.data.corruptions import COMMON, SEVERITIES, corrupt
from brinell.data.corruptions.registry import check
from brinell.errors import InputError
from brinell.evaluation.coerce import as_classifier, as_problem
from brinell.results import Proportion, wilson
from brinell.results.analyses import AnalysisReport, Figure, Series, Table

# Models of this many classes are taken as ImageNet's, whose standard baseline is AlexNet.
IMAGENET = 1000


@dataclass(frozen=True)
class CorruptionReport:
    """For every corruption and severity, which of the same samples a model got right.

    >>> import brinell
    >>> found = corruption_accuracy("demo", brinell.data.load("demo", n=20), ["contrast"], [1, 5])
    >>> found.accuracy["contrast", 5].n, found.names, round(found.mean.value + found.error, 6)
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
        """The corruptions, in order."""
        return tuple(dict.fromkeys(name for name, _ in self.correct))

    @property
    def severities(self) -> tuple[int, ...]:
        """All severities that were measured, ascending."""
        return tuple(sorted({severity for _, severity in self.correct}))

    @property
    def accuracy(self) -> dict[Setting, Proportion]:
        """By corruption and severity."""
        return {setting: Proportion(int(c.sum()), len(c)) for setting, c in self.correct.items()}

    @property
    def mean(self) -> Average:
        """Over all corruptions and severities, each with the same weight."""
        return average(list(self.correct.values()))

    @property
    def error(self) -> float:
        """One minus the mean accuracy."""
        return 1 - self.mean.value

    def mean_of(self, name: str) -> Average:
        """Over the severities of one corruption."""
        return average([c for (n, _), c in self.correct.items() if n == name])

    def mce(self, baseline: Baseline | None = None) -> float | None:
        """The mean corruption error: each corruption's error as a share of the baseline's, then the mean over them.

        Without a baseline AlexNet's is taken for models of 1,000 classes if it knows all that was measured; else None.
        Reference: Hendrycks & Dietterich 2019.
        """
        found = self.relative_error(baseline)
        return None if found is None else found.value

    def relative_error(self, baseline: Baseline | None = None) -> Average | None:
        """The mean corruption error with its interval, the baseline's errors taken as exact.

        Method: it is the mean over samples of a weighted share of wrong answers, which lies between 0 and the sum of
        the weights: Wilson's interval for n samples, stretched by that sum.
        """
        baseline = baseline or self._standard()
        return None if baseline is None else self._weighted(self._weights(baseline.error))

    def relative_mce(self, baseline: Baseline | None = None) -> Average | None:
        """The relative mean corruption error: what a corruption adds to the clean error, as a share of the baseline's.

        The mean over corruptions, with its interval, the baseline taken as exact; None without a baseline, its clean
        error or the model's own. Method of the interval: those of both errors, joined as for a difference of
        independent shares (Zou & Donner 2008). A sample that is wrong without corruption is rather wrong with it too,
        so that it is wider than needed. Reference: Hendrycks & Dietterich 2019.
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
        return Average(value, low, high, min(all_.n, clean.n))

    def _weights(self, error: Callable[[str, list[int]], float]) -> dict[str, float]:
        """What the error under each corruption counts for beside a baseline's."""
        at = {name: [s for n, s in self.correct if n == name] for name in self.names}
        return {name: 1 / (len(self.names) * error(name, at[name])) for name in self.names}

    def _weighted(self, weight: Mapping[str, float]) -> Average:
        """The sum over corruptions of the mean error times its weight."""
        value = sum((1 - self.mean_of(name).value) * w for name, w in weight.items())
        most, n = sum(weight.values()), self.mean.n
        # As many samples wrong altogether as would give this mean.
        wrong = min(value / most, 1.0) * n
        low, high = wilson(math.floor(wrong + 1e-9), n)[0], wilson(math.ceil(wrong - 1e-9), n)[1]
        return Average(value, most * low, most * high, n)

    def _standard(self) -> Baseline | None:
        whole = {(name, s) for name in self.names for s in SEVERITIES} == set(self.correct)
        if self.classes != IMAGENET or not whole or not set(self.names) <= set(COMMON):
            return None
        return Baseline.named(ALEXNET)

    def save(self, path: "str | os.PathLike[str]") -> Path:
        """The model's row in a CSV table of accuracies by corruption and severity; other models' rows stay."""
        return save_table(path, {self.model: {setting: p.value for setting, p in self.accuracy.items()}})

    def to_json(self, baseline: Baseline | None = None) -> dict[str, Any]:
        """For scripts."""
        told, beside = baseline or self._standard(), self.relative_error(baseline)
        lost = self.relative_mce(baseline)
        return {
            "model": self.model, "data": self.data, "seed": self.seed,
            "clean": None if self.clean is None else _json(self.clean),
            "mean": _json(self.mean),
            "error": self.error,
            "mce": self.mce(baseline),
            "mce_interval": None if beside is None else [beside.low, beside.high],
            "relative_mce": None if lost is None else lost.value,
            "relative_mce_interval": None if lost is None else [lost.low, lost.high],
            "baseline": None if told is None else told.name,
            "baseline_clean_error": None if told is None else told.clean,
            "corruptions": {name: _json(self.mean_of(name)) for name in self.names},
            "settings": [
                {"corruption": name, "severity": severity, **_json(p)} for (name, severity), p in self.accuracy.items()
            ],
        }  # fmt: skip

    def summary(self, baseline: Baseline | None = None) -> str:
        """In two or three sentences."""
        told, mce, lost = baseline or self._standard(), self.relative_error(baseline), self.relative_mce(baseline)
        beside = "" if told is None or mce is None else f" Mean corruption error beside {told.name}: {mce}."
        if told is not None and told.clean is not None and lost is not None:
            beside += f" Relative to the clean errors (of {told.name} {100 * told.clean:.4g} %): {lost}."
        clean = "" if self.clean is None else f"; without corruption {self.clean}"
        kinds = self.names[0] if len(self.names) == 1 else f"{len(self.names)} corruptions"
        many = "severities" if len(self.severities) > 1 else "severity"
        settings = f"{kinds} at {many} {', '.join(map(str, self.severities))}"
        return f"Mean accuracy over {settings}: {self.mean}{clean}.{beside}"

    def findings(self, baseline: Baseline | None = None) -> AnalysisReport:
        """As a table by corruption and severity, and a figure of the means by corruption."""
        found, means = self.accuracy, [self.mean_of(name) for name in self.names]
        rows = tuple(
            (
                name, *(_percent(found.get((name, s))) for s in self.severities),
                _percent(m), _percent(m.low), _percent(m.high), m.n,
            )
            for name, m in zip(self.names, means, strict=True)
        )  # fmt: skip
        columns = ("corruption", *(f"severity {s}" for s in self.severities), "mean", "low", "high", "n")
        bars = Series(
            self.model or "model",
            self.names,
            *(tuple(100 * getattr(m, v) for m in means) for v in ("value", "low", "high")),
        )
        return AnalysisReport(
            "corruptions",
            "Common corruptions",
            self.summary(baseline),
            (Table("Accuracy (%) by corruption and severity", columns, rows),),
            (Figure("Accuracy by corruption", "bars", "corruption", "mean accuracy (%)", (bars,)),),
        )


def _json(p: Proportion | Average) -> dict[str, Any]:
    return {"value": p.value, "low": p.low, "high": p.high, "n": p.n}


def _percent(p: Proportion | Average | float | None) -> float | None:
    if p is None:
        return None
    return round(100 * (p if isinstance(p, float) else p.value), 2)


def corruption_accuracy(
    classifier: Any,
    problem: Any,
    names: Iterable[str] = COMMON,
    severities: Iterable[int] = SEVERITIES,
    seed: int = 0,
    *,
    clean: Any = None,
    device: torch.device | str | None = None,
    told: Callable[[int, int], None] | None = None,
) -> CorruptionReport:
    """How a model fares on corrupted images.

    `problem` are clean images, which are corrupted where the model is; or ready-made sets, all of which are taken: a
    mapping from (name, severity) to a problem, or an iterator of such pairs. `clean` may then give the images without
    corruption. `told` hears how much is done, and of how much. What a detector rejects counts as wrong.
    Cost: one forward per image, corruption and severity, and one per clean image.
    """
    model = as_classifier(classifier, device)
    check_train_mode(model)
    if isinstance(problem, Mapping | Iterator):
        return _ready_made(model, problem, None if clean is None else as_problem(clean), told)
    settings = [(name, severity) for name in names for severity in severities]
    for setting in settings:
        check(*setting)
    if not settings:
        raise InputError(expected="a corruption and a severity", got="none", remedy="Leave them out for all.")
    return _measured(model, as_problem(problem), settings, seed, told)


def _measured(
    model: Classifier, problem: Problem, settings: list[Setting], seed: int, told: Callable[[int, int], None] | None
) -> CorruptionReport:
    """Every chunk of clean images is read once and corrupted in all ways."""
    parts: dict[Setting | None, list[Correct]] = {None: [], **{setting: [] for setting in settings}}
    done, total, classes = 0, len(problem) * len(parts), 0
    for chunk in problem.chunks(chunk_size(model, problem)):
        x, ids = chunk.x.to(model.device), chunk.ids
        for setting, found in parts.items():
            inputs = x if setting is None else corrupt(x, *setting, ids, seed)
            right, classes = correct_predictions(model, Chunk(ids, inputs, chunk.y))
            found.append(right)
            done += len(right)
            if told is not None:
                told(done, total)
    whole = {setting: np.concatenate(found) for setting, found in parts.items()}
    before = whole.pop(None)
    correct = {setting: c for setting, c in whole.items() if setting is not None}
    return CorruptionReport(
        model.name, problem.name, correct, Proportion(int(before.sum()), len(before)), classes, seed
    )


def _ready_made(
    model: Classifier, sets: Any, clean: Problem | None, told: Callable[[int, int], None] | None
) -> CorruptionReport:
    correct: dict[Setting, Correct] = {}
    data, classes, before = "", 0, None
    total = len(sets) if isinstance(sets, Mapping) else 0
    if clean is not None:
        right, classes = _all_right(model, clean)
        before, data = Proportion(int(right.sum()), len(right)), clean.name
    for (name, severity), given in sets.items() if isinstance(sets, Mapping) else sets:
        problem = as_problem(given)
        correct[str(name), int(severity)], classes = _all_right(model, problem)
        data = data or problem.name
        if told is not None:
            told(len(correct), max(total, len(correct)))
    sizes = {len(c) for c in correct.values()}
    if len(sizes) != 1:
        raise InputError(
            expected="the same samples under every corruption and severity",
            got=f"sets of {', '.join(map(str, sorted(sizes)))} samples" if sizes else "no sets",
            remedy="Cut them to the same samples: problem[:n].",
        )
    return CorruptionReport(model.name, data, correct, before, classes, None)


def _all_right(model: Classifier, problem: Problem) -> tuple[Correct, int]:
    parts = [correct_predictions(model, chunk) for chunk in problem.chunks(chunk_size(model, problem))]
    return np.concatenate([right for right, _ in parts]), parts[-1][1]
