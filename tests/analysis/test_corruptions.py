"""Accuracy under corruptions: counted right, averaged right, and read back from its own tables."""

import math
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.analysis.corruptions import CorruptionReport, corruption_accuracy
from brinell.analysis.corruptions.baselines import Baseline, save_table
from brinell.analysis.corruptions.table import MeanAccuracy, mean_accuracy
from brinell.core.dataset import Problem
from brinell.data.corruptions import COMMON, SEVERITIES, corrupted
from brinell.engine.oracle import default_block
from brinell.errors import InputError, ModelError, PlanError
from brinell.results import Proportion, wilson
from brinell.results.analyses import AnalysisReport

pytestmark = pytest.mark.usefixtures("unchecked")


class Bright(nn.Module):
    """Says 1 where the mean is above a half."""

    def __init__(self, classes=2):
        super().__init__()
        self.classes = classes

    def forward(self, x):
        score = x.mean((1, 2, 3)) - 0.5
        rest = torch.full((len(x), self.classes - 2), -9.0)
        return torch.cat([torch.stack([-score, score], 1), rest], 1)


def flat(*values):
    return torch.tensor(values)[:, None, None, None].expand(-1, 3, 32, 32).contiguous()


def bright(classes=2):
    return brinell.wrap(Bright(classes).eval(), name="bright")


@pytest.fixture
def problem():
    # Brightness adds 0.05, 0.1, 0.15, 0.2, 0.3.
    return Problem(flat(0.22, 0.37, 0.42, 0.1), torch.zeros(4, dtype=torch.long), ids=[5, 6, 7, 8], name="flat")


def test_accuracies_are_those_of_the_definition(problem):
    found = corruption_accuracy(bright(), problem, ["brightness"])
    assert [found.accuracy["brightness", s] for s in SEVERITIES] == [
        Proportion(k, 4) for k in (4, 3, 2, 2, 1)
    ]  # fmt: skip
    assert found.clean == Proportion(4, 4) and found.names == ("brightness",) and found.severities == SEVERITIES
    assert found.mean.value == pytest.approx(12 / 20) and found.error == pytest.approx(8 / 20)
    assert (found.model, found.data, found.seed, found.classes) == ("bright", "flat", 0, 2)


def test_images_and_ready_made_sets_give_the_same(problem):
    direct = corruption_accuracy(bright(), problem, ["fog", "snow"], [2, 5], seed=3)
    sets = {(name, s): corrupted(problem, name, s, seed=3) for name in ("fog", "snow") for s in (2, 5)}
    for given in (sets, iter(sets.items())):
        made = corruption_accuracy(bright(), given, clean=problem)
        assert made.clean == direct.clean and made.accuracy == direct.accuracy and made.seed is None
        assert all(np.array_equal(made.correct[s], direct.correct[s]) for s in sets)


def test_the_number_of_samples_at_a_time_changes_nothing(monkeypatch):
    images = brinell.data.load("demo", n=70)
    whole = corruption_accuracy("demo", images, ["gaussian_noise", "glass_blur"], [1, 5])
    monkeypatch.setattr(sys.modules["brinell.analysis.corruptions.table"], "VALUES", 1)
    apart = corruption_accuracy("demo", images, ["gaussian_noise", "glass_blur"], [1, 5])
    assert all(np.array_equal(whole.correct[s], apart.correct[s]) for s in whole.correct)


def test_the_model_is_asked_in_whole_blocks_and_true_float32(problem):
    """A row's answer must not depend on how many samples there are, nor on the caller's settings of arithmetic."""
    seen = set()

    class Watched(nn.Module):
        def forward(self, x):
            seen.add((len(x), torch.get_float32_matmul_precision()))
            return x.flatten(1)[:, :2]

    torch.set_float32_matmul_precision("medium")
    try:
        corruption_accuracy(brinell.wrap(Watched().eval()), problem, ["contrast"], [1])
        corruption_accuracy(brinell.wrap(Watched().eval()), {("fog", 1): problem})
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == {(default_block(torch.device("cpu")), "highest")}


def test_labels_the_model_does_not_know(problem):
    strange = brinell.Problem(problem.x, problem.y + 7)
    with pytest.raises(InputError, match="the model has 2 classes"):
        corruption_accuracy(bright(), strange, ["contrast"], [1])


def test_the_work_is_told(problem):
    heard = []
    corruption_accuracy(
        bright(), problem, ["contrast"], [1, 2], on_progress=lambda done, total: heard.append((done, total))
    )
    assert heard == [(4, 12), (8, 12), (12, 12)]


def test_what_a_detector_rejects_is_wrong(problem):
    watched = brinell.wrap(Bright().eval(), detector=lambda x: x.mean((1, 2, 3)) - 0.3)
    found = corruption_accuracy(watched, problem, ["brightness"], [1])
    assert found.clean == Proportion(2, 4) and found.accuracy["brightness", 1] == Proportion(2, 4)


def test_mean_interval_is_that_of_the_samples():
    """Ten conditions that agree tell no more than one."""
    once = np.arange(100) < 60
    share = Proportion(60, 100)
    assert mean_accuracy([once] * 10) == MeanAccuracy(share.value, share.low, share.high, 100)


def test_mean_interval_covers():
    """Shares of samples drawn at random: the true mean lies within in at least 95 % of the draws."""
    source = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        own = source.beta(0.5, 0.5, 60)
        found = mean_accuracy([source.random(60) < own for _ in range(5)])
        hits += found.low <= 0.5 <= found.high
    assert hits >= 285


# ------------------------------------------------------------------------------------------------------------ baselines


def report(errors, n=1000, classes=1000):
    correct = {
        (name, s): np.arange(n) >= round(share * n) for name, share in errors.items() for s in SEVERITIES
    }  # fmt: skip
    return CorruptionReport("mine", "imagenet", correct, None, classes, None)


def test_alexnet_beside_itself_has_an_error_of_one():
    alexnet = Baseline.named("alexnet")
    assert tuple(alexnet.means) == COMMON and np.mean(list(alexnet.means.values())) == pytest.approx(0.78914, abs=3e-3)
    found = report(dict(alexnet.means))
    assert found.mce() == pytest.approx(1, abs=1e-9) and found.mce(alexnet) == found.mce()
    half = report({name: share / 2 for name, share in alexnet.means.items()}, n=100_000)
    assert half.mce() == pytest.approx(0.5, abs=1e-4)


def test_mce_is_a_mean_of_shares_not_a_share_of_means():
    baseline = Baseline("b", {}, {("fog", 1): 0.5, ("fog", 2): 0.7, ("snow", 1): 0.1})
    correct = {("fog", 1): np.arange(10) >= 3, ("fog", 2): np.arange(10) >= 9, ("snow", 1): np.arange(10) >= 2}
    found = CorruptionReport("m", "d", correct, None, 10, 0)
    assert found.mce(baseline) == pytest.approx((0.6 / 0.6 + 0.2 / 0.1) / 2)


def test_the_interval_of_the_mce():
    """Beside a baseline that is as wrong everywhere it is that of the plain error, stretched; else it still covers."""
    wrong = np.arange(100) < 30
    found = CorruptionReport("m", "d", {("fog", 1): ~wrong, ("snow", 1): ~wrong}, None, 10, 0)
    even = found.relative_error(Baseline("even", {}, {("fog", 1): 0.5, ("snow", 1): 0.5}))
    assert astuple(even) == pytest.approx((0.6, 2 * Proportion(30, 100).low, 2 * Proportion(30, 100).high, 100))
    assert f"Mean corruption error relative to even: {even}." in found.summary(
        Baseline("even", {}, {("fog", 1): 0.5, ("snow", 1): 0.5})
    )
    uneven, hits, source = Baseline("uneven", {}, {("fog", 1): 0.8, ("snow", 1): 0.1}), 0, np.random.default_rng(0)
    for _ in range(300):
        draw = {("fog", 1): source.random(80) >= 0.4, ("snow", 1): source.random(80) >= 0.2}
        about = CorruptionReport("m", "d", draw, None, 10, 0).relative_error(uneven)
        hits += about.low <= (0.4 / 0.8 + 0.2 / 0.1) / 2 <= about.high
    assert hits >= 285


def test_the_relative_mce_by_hand():
    """Ours: 60 % and 30 % wrong, 20 % clean. The baseline: 80 % and 50 %, 40 or 10 % clean."""
    correct = {("fog", 1): np.arange(10) >= 5, ("fog", 2): np.arange(10) >= 7, ("snow", 1): np.arange(10) >= 3}
    found = CorruptionReport("m", "d", correct, Proportion(8, 10), 10, 0)
    single = {("fog", 1): 0.7, ("fog", 2): 0.9, ("snow", 1): 0.5}
    told = found.relative_mce(Baseline("b", {}, single, clean=0.4))
    assert told.value == pytest.approx((0.4 / 0.4 + 0.1 / 0.1) / 2) and told.n == 10
    other = found.relative_mce(Baseline("b", {}, single, clean=0.1))
    assert other.value == pytest.approx((0.4 / 0.7 + 0.1 / 0.4) / 2)
    # Weights are 1 / (2 · 0.7) and 1 / (2 · 0.4); both errors bring Wilson's interval, joined by their squares.
    a, b = 1 / 1.4, 1 / 0.8
    wrong = a * 0.6 + b * 0.3
    share = wrong / (a + b) * 10
    low, high = wilson(math.floor(share), 10)[0] * (a + b), wilson(math.ceil(share), 10)[1] * (a + b)
    clean, (c_low, c_high) = 0.2, wilson(2, 10)
    assert other.low == pytest.approx(other.value - math.hypot(wrong - low, (a + b) * (c_high - clean)))
    assert other.high == pytest.approx(other.value + math.hypot(high - wrong, (a + b) * (clean - c_low)))
    assert f"Relative mCE (clean error of b: 10 %): {other}." in found.summary(Baseline("b", {}, single, clean=0.1))
    assert found.to_json(Baseline("b", {}, single, clean=0.4))["relative_mce"] == pytest.approx(1)


def test_the_relative_mce_of_alexnet_beside_itself_is_one():
    alexnet = Baseline.named("alexnet")
    found = replace(report(dict(alexnet.means)), clean=Proportion(565, 1000))
    assert found.relative_mce().value == pytest.approx(1, abs=1e-9)
    assert found.relative_mce(Baseline.named("alexnet", clean_error=0.3)).value < 1
    assert replace(found, clean=None).relative_mce() is None
    assert found.relative_mce(Baseline("b", dict(alexnet.means), {})) is None, "its clean error is not known"


def test_the_interval_of_the_relative_mce_covers():
    source, hits = np.random.default_rng(1), 0
    beside = Baseline("b", {}, {("fog", 1): 0.8, ("snow", 1): 0.5}, clean=0.3)
    for _ in range(300):
        plain, extra = source.random(80), source.random((2, 80))
        draw = {("fog", 1): (plain >= 0.2) & (extra[0] >= 0.5), ("snow", 1): (plain >= 0.2) & (extra[1] >= 0.25)}
        seen = CorruptionReport("m", "d", draw, Proportion(int((plain >= 0.2).sum()), 80), 10, 0).relative_mce(beside)
        hits += seen.low <= (0.4 / 0.5 + 0.2 / 0.2) / 2 <= seen.high
    assert hits >= 285


def test_a_relative_error_needs_a_baseline_that_loses():
    found = CorruptionReport("m", "d", {("fog", 1): np.arange(10) >= 5}, Proportion(8, 10), 10, 0)
    with pytest.raises(InputError, match="a larger error under fog than on clean images"):
        found.relative_mce(Baseline("b", {}, {("fog", 1): 0.3}, clean=0.3))
    with pytest.raises(InputError, match="between 0 and 1"):
        Baseline.named("alexnet", clean_error=43.5)


def test_without_a_standard_baseline_there_is_only_the_error(problem):
    found = corruption_accuracy(bright(), problem, ["contrast"])
    assert found.mce() is None and found.to_json()["mce"] is None and "Mean corruption error" not in found.summary()
    assert corruption_accuracy(bright(1000), problem, ["contrast"]).mce() is not None
    assert corruption_accuracy(bright(1000), problem, ["contrast"], [1]).mce() is None
    assert corruption_accuracy(bright(1000), problem, ["speckle_noise"]).mce() is None


def test_a_baseline_must_know_what_was_measured(problem):
    found = corruption_accuracy(bright(), problem, ["contrast"], [1, 2])
    with pytest.raises(InputError, match="severities 1, 2"):
        found.mce(Baseline.named("alexnet"))
    with pytest.raises(InputError, match="makes errors"):
        found.mce(Baseline("best", {}, {("contrast", 1): 0.0, ("contrast", 2): 0.0}))


def test_tables_are_written_added_to_and_read_back(problem, tmp_path):
    file = tmp_path / "all.csv"
    found = corruption_accuracy(bright(), problem, ["brightness"])
    found.save(file)
    save_table(file, {"other, one": {("brightness", s): 0.5 for s in SEVERITIES}})
    assert file.read_text().splitlines() == [
        "corruption,brightness,brightness,brightness,brightness,brightness",
        "severity,1,2,3,4,5",
        "bright,1.0,0.75,0.5,0.5,0.25",
        '"other, one",0.5,0.5,0.5,0.5,0.5',
    ]
    found.save(file)
    assert len(file.read_text().splitlines()) == 4
    assert found.mce(Baseline.named(file, "bright")) == pytest.approx(1)
    assert found.mce(Baseline.named(file, "other, one")) == pytest.approx(0.4 / 0.5)
    with pytest.raises(InputError, match="no name"):
        Baseline.named(file)
    with pytest.raises(InputError, match="the 1 pairs of corruption and severity"):
        save_table(file, {"third": {("fog", 1): 0.5}})


def test_a_file_of_mean_errors_is_a_baseline(tmp_path):
    file = tmp_path / "net.csv"
    file.write_text("corruption,error\nfog,20\n")
    assert Baseline.named(file).error("fog", SEVERITIES) == 0.2 and Baseline.named(file).name == "net"


@pytest.mark.parametrize(
    "text",
    [
        "", "a,b\n1,2\n", "corruption,fog\nseverity,1\nnet,high\n", "corruption,error\nfog,x\n",
        "corruption,error\nfog\n", "corruption,error\nfog,nan\n", "corruption,fog\nseverity,1\nnet,81.5\n",
        "corruption,error\n" + 200_000 * "x" + ",1\n",
    ],
)  # fmt: skip
def test_damaged_tables_are_refused(text, tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(InputError, match="a table of corruption errors or accuracies"):
        Baseline.named(file)


# -------------------------------------------------------------------------------------------------------------- results


def test_findings_hold_every_number(problem):
    found = corruption_accuracy(bright(), problem, ["brightness", "contrast"], [1, 5])
    made = found.findings()
    assert AnalysisReport.from_dict(made.to_dict()) == made and made.kind == "corruptions"
    (table,), (figure,) = made.tables, made.figures
    assert table.columns == ("corruption", "severity 1", "severity 5", "mean", "low", "high", "n")
    assert table.rows[0][:4] == ("brightness", 100.0, 25.0, 62.5) and table.rows[0][-1] == 4
    assert figure.series[0].x == ("brightness", "contrast") and figure.series[0].y == (62.5, 100.0)


def test_averages_tell_their_interval():
    assert str(MeanAccuracy(0.5, 0.25, 0.75, 8)) == "50.0 % [25.0, 75.0], n = 8"


@pytest.mark.parametrize(
    ("names", "severities", "error"),
    [(["fogg"], [1], PlanError), (["fog"], [0], PlanError), ([], [1], InputError), (["fog"], [], InputError)],
)
def test_wrong_settings_are_refused(names, severities, error, problem):
    with pytest.raises(error):
        corruption_accuracy(bright(), problem, names, severities)


def test_sets_of_different_sizes_and_train_mode_are_refused(problem):
    with pytest.raises(InputError, match="2, 4"):
        corruption_accuracy(bright(), {("fog", 1): problem, ("fog", 2): problem[:2]})
    with pytest.raises(InputError, match="no sets"):
        corruption_accuracy(bright(), {})
    with pytest.raises(ModelError, match="train mode"):
        corruption_accuracy(Bright().train(), problem)
