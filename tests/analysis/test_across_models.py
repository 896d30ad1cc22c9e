"""One analysis over many models: specifications that stand for many, failures, robust accuracies and figures."""

import math
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell import analysis
from brinell.analysis.across_models import (
    ModelResult,
    ModelResults,
    across_models,
    across_runs,
    distinct,
    model_folder,
    model_folders,
    rank_correlation,
    rank_p_value,
)
from brinell.analysis.plot import plot
from brinell.errors import ModelError
from brinell.models import zoo
from brinell.models.by_name import expand
from brinell.results import Run
from brinell.results.analyses import Measure


def linear(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).eval()


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in the user's network")


@pytest.fixture(scope="module")
def data() -> brinell.Problem:
    return brinell.data.load("demo", 60)


@pytest.fixture(scope="module")
def runs(data: brinell.Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Runs in one folder: the demo and a linear model."""
    folder = tmp_path_factory.mktemp("runs")
    for name, model in (("a", brinell.wrap(linear(0), name="linear")), ("b", "demo")):
        brinell.evaluate(model, data, brinell.Linf(0.05), "fgsm", out=folder / name, progress=False)
    return folder


def test_specifications_stand_for_many(tmp_path: Path, runs: Path) -> None:
    found = expand(["zoo:cifar10/L2/*"])
    assert set(found) == {c.name for c in zoo.cards().values() if c.loadable and c.name.startswith("cifar10/L2/")}
    assert len(found) > 5
    (tmp_path / "list.txt").write_text("demo  # the small one\n\n# none\nnet.py:make\n")
    assert expand([str(tmp_path / "list.txt"), "demo", "other"]) == ["demo", "net.py:make", "other"]
    assert expand([str(runs)]) == ["linear", "demo"]
    with pytest.raises(ModelError, match=r"zoo list"):
        expand(["zoo:cifar10/L7/*"])


def test_each_model_has_the_result_it_has_alone(data: brinell.Problem, runs: Path) -> None:
    models = [brinell.wrap(linear(0), name="linear"), "demo"]
    found = across_models(models, lambda m, r: analysis.calibration(m, data, r), runs=[runs])
    assert [m.model for m in found.measured] == ["linear", "demo"]
    for m, model, folder in zip(found.measured, models, ("a", "b"), strict=True):
        assert m.result is not None
        assert m.result.findings() == analysis.calibration(model, data, runs / folder).findings()
        title = "robust accuracy, % (Linf, eps = 0.05, plan fgsm, demo, n = 60)"
        assert m.robust == Measure.percent(title, Run.open(runs / folder).robust_accuracy)
    report = found.findings()
    assert [row[0] for row in report.tables[0].rows] == ["linear", "demo"]
    ece = report.figures[0]
    assert [(s.x[0], s.y[0]) for s in ece.series] == [
        (100 * Run.open(runs / f).robust_accuracy.value, 100 * m.result.clean.ece.value)
        for f, m in zip(("a", "b"), found.measured, strict=True)
    ]


def test_a_model_that_fails_does_not_stop_the_others(data: brinell.Problem) -> None:
    models = ["no.py:net", brinell.wrap(Fails(), name="broken"), "demo"]
    found = across_models(models, lambda m, _: analysis.detection(m, data))
    assert [m.model for m in found.measured] == ["demo"] and len(found.failed) == 2
    assert "no.py:net" in found.findings().summary
    with pytest.raises(ModelError, match=r"no\.py"):
        across_models(["no.py:net"], lambda m, _: analysis.detection(m, data))
    with pytest.raises(ModelError, match=r"2 models with errors.*\(1\) no\.py:net: .*\(2\) other\.py:net: "):
        across_models(["no.py:net", "other.py:net"], lambda m, _: analysis.detection(m, data))


def test_the_robust_accuracy_of_a_zoo_model_is_the_published_one() -> None:
    from brinell.analysis.across_models import _robust

    card = zoo.cards()["cifar10/Linf/Rice2020Overfitting"]
    found = _robust(None, None, card.name)
    assert found is not None and found.name == "published robust accuracy, % (cifar10, Linf, eps = 8/255)"
    assert found.value == 100 * (card.best_known or card.robust_accuracy or 0)
    assert _robust(None, None, "mine") is None


@pytest.fixture(scope="module")
def odd_run(data: brinell.Problem, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A Run of the demo in another norm."""
    folder = tmp_path_factory.mktemp("odd") / "run"
    return brinell.evaluate("demo", data, brinell.L2(0.5), "fgsm", out=folder, progress=False)


def test_runs_of_another_threat_plan_or_data_are_left_out_with_a_note(
    data: brinell.Problem, runs: Path, odd_run: Run, tmp_path: Path
) -> None:
    """Two models have Linf Runs, so Runs of another threat, plan or data must not stand in the same column."""
    plan = brinell.evaluate("demo", data, brinell.Linf(0.05), "pgd20", out=tmp_path / "plan", progress=False)
    part = brinell.evaluate("demo", data[:30], brinell.Linf(0.05), "fgsm", out=tmp_path / "part", progress=False)
    seen = []
    found = across_models(
        ["demo", brinell.wrap(linear(0), name="linear")],
        lambda m, run: seen.append(run) or analysis.calibration(m, data),
        runs=[odd_run, plan, part, runs],
    )
    assert [run.path for run in seen] == [runs / "b", runs / "a"]
    report = found.findings()
    assert report.tables[0].columns[1] == "robust accuracy, % (Linf, eps = 0.05, plan fgsm, demo, n = 60)"
    assert len(found.notes) == 3 and all(note in report.summary for note in found.notes)
    for run, text in ((odd_run, "(L2, eps = 0.5,"), (plan, "plan pgd20"), (part, "n = 30)")):
        assert any(str(run.path) in note and text in note for note in found.notes)


def test_columns_and_figures_keep_settings_apart(runs: Path, odd_run: Run) -> None:
    report = across_runs([odd_run, runs], analysis.fairness).findings()
    first, second = report.tables[0].columns[1:3]
    assert "(L2, eps = 0.5, plan fgsm" in first and "(Linf, eps = 0.05, plan fgsm" in second
    assert [(bool(row[1]), bool(row[2])) for row in report.tables[0].rows] == [(True, False), *[(False, True)] * 2]
    # Fairness of the linear model is not defined: no sample of it is robust.
    assert [(figure.x, [s.name for s in figure.series]) for figure in report.figures] == [(second, ["demo (2)"])]
    assert "leave out demo, since" in report.summary


def test_published_values_have_their_own_column() -> None:
    def model(name: str, title: str, value: float) -> ModelResult:
        return ModelResult(name, Number(value), robust=Measure(title, value))

    entries = (model("a", "robust accuracy, % (Linf)", 1.0), model("b", "published robust accuracy, % (Linf)", 2.0))
    report = ModelResults(entries).findings()
    assert report.tables[0].rows == (("a", "1", "", "1"), ("b", "", "2", "2"))
    assert report.figures[0].x == "robust accuracy, % (Linf)" and [s.name for s in report.figures[0].series] == ["a"]


@dataclass
class Number:
    value: float

    def measures(self) -> tuple[Measure, ...]:
        return (Measure("number", self.value),)


def test_fairness_over_a_folder_of_runs(runs: Path) -> None:
    found = across_runs([runs], analysis.fairness)
    assert [m.model for m in found.measured] == ["linear", "demo"]
    assert found.measured[1].result == analysis.fairness(runs / "b")


def test_privacy_is_drawn_against_the_generalisation_gap(data: brinell.Problem) -> None:
    found = across_models(["demo", "b=demo"], lambda m, _: analysis.privacy(m, data[:30], data[30:]))
    (figure,) = found.findings().figures  # the others need a robust accuracy
    side = found.measured[0].result.clean  # type: ignore[union-attr]
    assert figure.x == "generalisation gap, points" and figure.series[0].x == (100 * side.gap.value,)
    assert [s.name for s in figure.series] == ["demo", "b"]


def test_shift_measures_robust_accuracy_on_every_data_set(data: brinell.Problem, tmp_path: Path) -> None:
    dark = brinell.Problem(data.x / 2, data.y, data.ids)
    threat = brinell.Linf(0.05)
    found = analysis.shift(
        "demo", data, {"dark images": dark}, threat=threat, plan="fgsm", out=tmp_path, progress=False
    )
    alone = [brinell.evaluate("demo", d, threat, "fgsm", progress=False).robust_accuracy for d in (data, dark)]
    assert [found.robust_accuracy, found.sets[0].robust] == alone and alone[0] != alone[1]
    assert Run.open(tmp_path / "dark-images").robust_accuracy == alone[1]
    assert found.sets[0].accuracy == analysis.shift("demo", data, {"dark images": dark}).sets[0].accuracy
    again = analysis.shift(
        "demo", data, {"dark images": dark}, threat=threat, plan="fgsm", out=tmp_path, resume=True, progress=False
    )
    assert again == found
    assert [m.name for m in found.measures()] == ["accuracy on dark images, %", "robust accuracy on dark images, %"]
    assert "robust accuracy %, Linf(eps=0.05)" in found.findings().tables[0].columns


def test_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.permutation(9).astype(float), rng.permutation(9).astype(float)
    # Without ties: 1 - 6 Σ d² / (n (n² - 1)), Spearman's own formula.
    assert rank_correlation(x, y) == pytest.approx(1 - 6 * ((x - y) ** 2).sum() / (9 * 80))
    assert rank_correlation(np.exp(x), y) == pytest.approx(rank_correlation(x, y))
    # With ties: Pearson's correlation of the mean ranks.
    assert rank_correlation(np.array([1.0, 1, 2]), np.array([3.0, 4, 5])) == pytest.approx(
        np.corrcoef([1.5, 1.5, 3], [1, 2, 3])[0, 1]
    )
    assert np.isnan(rank_correlation(np.ones(3), x[:3]))


def test_names_and_folders_are_distinct(tmp_path: Path) -> None:
    assert distinct("a", ["a", "b"]) == "a (2)" and distinct("c", ["a"]) == "c"
    first, second = (brinell.wrap(linear(i), name="my/net") for i in (0, 1))
    folders = {model_folder(tmp_path, m) for m in (first, second)}
    assert len(folders) == 2 and all(f and f.parent == tmp_path for f in folders)
    assert model_folder(None, first) is None
    folder = model_folders(tmp_path)
    given = [folder(m) for m in (first, second, first)]
    assert given == [model_folder(tmp_path, first), model_folder(tmp_path, second), tmp_path / f"{given[0].name}-2"]


def test_names_stand_beside_the_points(data: brinell.Problem, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = across_models(["one=demo", "two=demo"], lambda m, r: analysis.calibration(m, data), runs=[runs])
    assert plot(found.findings(), tmp_path / "a.svg").stat().st_size > 1000


def test_a_corruption_of_a_named_data_set_is_data() -> None:
    from brinell.data.corruptions import corrupted

    named = brinell.data.load("demo", 5, corruption="fog", severity=3)
    made = corrupted(brinell.data.load("demo", 5), "fog", 3)
    assert named.fingerprint() == made.fingerprint() and named.name == "demo, fog 3"
    with pytest.raises(brinell.PlanError, match=r"severity"):
        brinell.data.load("demo", 5, corruption="fog")


def test_the_p_value_counts_orders_at_least_as_extreme() -> None:
    x = np.arange(5.0)
    # Of the 5! orders only the rising and the falling one have a correlation of ±1.
    assert rank_p_value(x, x**3) == pytest.approx(2 / 120)
    y = np.array([2.0, 1.0, 4.0, 4.0, 3.0])
    seen = abs(rank_correlation(x, y)) - 1e-12
    orders = [abs(rank_correlation(x, np.array(order))) >= seen for order in permutations(y)]
    assert rank_p_value(x, y) == pytest.approx(sum(orders) / 120) == rank_p_value(x, -y)
    assert math.isnan(rank_p_value(x, np.zeros(5)))


def test_the_p_value_of_many_points_is_uniform_under_chance() -> None:
    draws = np.random.default_rng(0)
    found = np.array([rank_p_value(draws.normal(size=12), draws.normal(size=12)) for _ in range(2000)])
    assert 0.03 < (found < 0.05).mean() < 0.07
