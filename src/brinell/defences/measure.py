"""Measure the original and the stronger evaluation of each defence: binarization test and robust accuracy."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from brinell.core.dataset import Problem
from brinell.defences.base_networks import held_out_images
from brinell.defences.catalogue import CAUGHT, DEFENCES, Defence, Evaluation, find
from brinell.evaluation.evaluate import evaluate
from brinell.ops.defaults import standard_defaults
from brinell.reliability.binarization.result import FAILED, INVERTED, REGULAR, BinarizationTest, worse_of
from brinell.reliability.binarization.test import test_attack
from brinell.results import Proportion

# Default samples per defence: the whole catalogue takes minutes on one core; half as many suffice to pass a test.
SAMPLES = 32


@dataclass(frozen=True)
class EvaluationResult:
    """The outcome of one evaluation of a defence: its binarization test, and the robust accuracy that it reports.

    For a defence with a detector, `test` is the worse of two tests; `tests` has both tests by kind.
    """

    plan: str
    robust: Proportion
    test: BinarizationTest

    @property
    def score(self) -> Proportion:
        """The score of the binarization test: the share of samples on which the attack found an adversarial."""
        return self.test.level.score

    @property
    def tests(self) -> dict[str, BinarizationTest]:
        made = (self.test,) if self.test.other is None else (self.test, self.test.other)
        return {t.kind: t for t in sorted(made, key=lambda t: t.kind, reverse=True)}

    def to_json(self) -> dict[str, Any]:
        return {"plan": self.plan, "robust_accuracy": _numbers(self.robust), "test": _short(self.test.to_json())}


UNUSED = ("curve", "reasons", "notes", "text")


def _short(test: dict[str, Any]) -> dict[str, Any]:
    short = {k: v for k, v in test.items() if k not in UNUSED}
    return short if short["other"] is None else {**short, "other": _short(short["other"])}


def _numbers(p: Proportion) -> dict[str, Any]:
    return {"value": p.value, "k": p.k, "n": p.n, "low": p.low, "high": p.high}


@dataclass(frozen=True)
class DefenceResult:
    """A defence with its two evaluations measured on the same samples."""

    defence: Defence
    clean: Proportion
    original: EvaluationResult
    stronger: EvaluationResult
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether the original evaluation fails the binarization test."""
        return self.original.test.verdict == FAILED

    @property
    def as_expected(self) -> bool:
        """Whether the outcome, caught or missed, is the outcome that the catalogue expects."""
        return self.caught == (self.defence.expected == CAUGHT)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.defence.name,
            "imitates": self.defence.imitates,
            "threat": str(self.defence.threat),
            "expected": self.defence.expected,
            "caught": self.caught,
            "clean_accuracy": _numbers(self.clean),
            "original": self.original.to_json(),
            "stronger": self.stronger.to_json(),
            "seconds": self.seconds,
        }


@standard_defaults()
def measure(
    only: Iterable[str] | None = None,
    n: int = SAMPLES,
    seed: int = 0,
    on_start: Callable[[str], None] = lambda name: None,
) -> list[DefenceResult]:
    """Measure the original and the stronger evaluation of every defence (or those in `only`) on n held-out demo images.

    Method: each evaluation gets a robust accuracy and a binarization test. The closeness κ of the test is the hardest
    at which the stronger evaluation breaks almost all samples, unless the defence fixes κ; the original evaluation is
    tested at the same κ. For a defence with a detector, the regular and the inverted test are run. `on_start` is called
    with the name of each defence before it is measured. Cost: for 32 samples about ten seconds per defence on one core,
    with a detector up to a few minutes. Reference: Zimmermann et al. 2022, Figures 2 and 4.

    >>> (row,) = measure(["logit-scaling"], n=4)
    >>> row.caught, row.stronger.robust.k <= row.original.robust.k
    (True, True)
    """
    rows = []
    for d in DEFENCES if only is None else [find(name) for name in only]:
        on_start(d.name)
        rows.append(_row(d, held_out_images(n), seed))
    return rows


def _row(d: Defence, data: Problem, seed: int) -> DefenceResult:
    started = time.perf_counter()
    kinds = (None,) if d.build().detector is None else (REGULAR, INVERTED)
    hard = [_test(d, d.stronger, data, seed, d.kappa, kind) for kind in kinds]
    weak = [_test(d, d.original, data, seed, t.kappa, kind) for t, kind in zip(hard, kinds, strict=True)]
    clean, before = _robust(d, d.original, data, seed)
    _, after = _robust(d, d.stronger, data, seed)
    return DefenceResult(
        d,
        clean,
        EvaluationResult(d.original.plan.name, before, worse_of(weak)),
        EvaluationResult(d.stronger.plan.name, after, worse_of(hard)),
        time.perf_counter() - started,
    )


def _test(
    d: Defence, e: Evaluation, data: Problem, seed: int, kappa: float | None, kind: str | None
) -> BinarizationTest:
    options = {"inner": d.inner, "kappa": kappa, "readout": e.readout, "layer": e.layer, "reference": e.plan}
    return test_attack(e.build(), data, d.threat, e.plan, kind=kind, seed=seed, progress=False, **options)


def _robust(d: Defence, e: Evaluation, data: Problem, seed: int) -> tuple[Proportion, Proportion]:
    """Return the clean and the robust accuracy as this evaluation reports them."""
    model = e.build()
    if not e.predicted:
        run = evaluate(model, data, d.threat, e.plan, seed=seed, progress=False)
        return run.clean_accuracy, run.robust_accuracy
    with torch.no_grad():
        predicted = model.forward(data.x).logits.argmax(1)
    run = evaluate(model, Problem(data.x, predicted, name=data.name), d.threat, e.plan, seed=seed, progress=False)
    # Evaluate the attack's points against the true labels: it may have corrected mistakes of the model.
    found, final = run.adversarials(), data.x.clone()
    if len(found.ids):
        final[torch.from_numpy(found.ids)] = torch.from_numpy(found.x)
    with torch.no_grad():
        right = model.forward(final).logits.argmax(1) == data.y
    return Proportion(int((predicted == data.y).sum()), len(data)), Proportion(int(right.sum()), len(data))
