"""Detectors of models: what they are given, how thresholds are set, what a Run says about them."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, Alternating, Joint, Matching
from brinell.cli import main
from brinell.errors import ModelError, PlanError
from brinell.evaluation.calibrate_detector import threshold_at
from brinell.testing import check_classifier, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")
WORLD = linear_world(3, n=40)
NET = WORLD.classifier.module
PROBLEM = brinell.Problem(WORLD.x, WORLD.y)


class Reads(nn.Module):
    """Sums whatever it is given."""

    def forward(self, x, logits, features):
        return x.sum(1) + 10 * logits[:, 0] + 100 * features[:, 0]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(24, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.hidden(x).relu())


def spread(x):
    return x.var(1)


def test_a_detector_gets_what_its_arguments_are_named_after():
    net = Net().eval()
    model = brinell.wrap(net, detector=Reads().eval(), features="hidden")
    out, h = model.forward(WORLD.x), net.hidden(WORLD.x)
    assert torch.allclose(out.features, h)
    assert torch.allclose(out.reject, WORLD.x.sum(1) + 10 * out.logits[:, 0] + 100 * h[:, 0], atol=1e-3)
    check_classifier(model, WORLD.x)


def test_the_fingerprint_knows_the_detector(score):
    plain = brinell.wrap(NET)
    a = brinell.wrap(NET, detector=score(torch.ones(24), 12.0))
    b = brinell.wrap(NET, detector=score(torch.ones(24), 12.5))
    c = replace(a, detector=replace(a.detector, threshold=0.1))
    assert len({m.fingerprint for m in (plain, a, b, c, brinell.models.inverted(a))}) == 5
    assert plain.fingerprint == WORLD.classifier.fingerprint


@pytest.mark.parametrize(
    ("detector", "features", "why"),
    [
        (lambda x: x, "", "one score per input"),
        (3, "", "scores inputs"),
        (Reads().eval(), "", "provides features"),
        (spread, "nowhere", "name of a layer"),
    ],
)
def test_what_cannot_detect_is_refused(detector, features, why):
    with pytest.raises(ModelError, match=why):
        brinell.wrap(NET, detector=detector, features=features).forward(WORLD.x)


def test_a_detector_in_train_mode_is_refused(score):
    model = brinell.wrap(NET, detector=score(torch.ones(24), 12.0).train())
    with pytest.raises(ModelError, match="train mode"):
        brinell.evaluate(model, PROBLEM, brinell.L2(0.1), "fgsm", progress=False)


# --------------------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.49, 0.975])
def test_at_most_the_rate_is_rejected_and_no_smaller_threshold_would_do(rate):
    scores = torch.randn(40, generator=torch.Generator().manual_seed(1))
    t = threshold_at(scores, rate)
    assert int((scores > t).sum()) == int(rate * 40 + 1e-9)
    below = scores[scores < t]
    assert not len(below) or (scores > below.max()).float().mean() > rate


def test_calibrated():
    model = brinell.calibrated(brinell.wrap(NET, detector=spread), PROBLEM, rate=0.1)
    out = model.forward(WORLD.x)
    assert int((out.reject > 0).sum()) == 4
    assert "10 % of 40" in model.detector.describe()
    # Comparable units: the spread of the scores is the usual margin.
    ranked = out.reject.sort().values
    margins = WORLD.classifier.forward(WORLD.x).logits.topk(2, 1).values
    usual = (margins[:, 0] - margins[:, 1])[out.reject <= 0].median()
    assert float(ranked[37] - ranked[1]) == pytest.approx(float(usual), rel=1e-4)
    kept = model.detector.references
    assert kept is not None and set(kept.y.tolist()) == {0, 1, 2} and torch.equal(kept.logits.argmax(1), kept.y)
    with pytest.raises(ModelError, match="with a detector"):
        brinell.calibrated(brinell.wrap(NET), PROBLEM)


# ----------------------------------------------------------------------------------------------------------------- Runs


@pytest.fixture(scope="module")
def model():
    return brinell.calibrated(brinell.wrap(NET, detector=spread, name="guarded"), PROBLEM, rate=0.1)


def test_a_run_counts_what_is_wrong_and_accepted(model, tmp_path):
    run = brinell.evaluate(
        model, PROBLEM, brinell.L2(0.15), [APGD(20, "margin"), Alternating(20)], out=tmp_path / "run", progress=False
    )
    assert run.manifest["identity"]["goal"] == "evade" and run.clean_accuracy.k == 36
    assert sum("rejected" in f for f in run.rows()["flags"].to_pylist()) == 4
    found = run.adversarials()
    out = model.forward(torch.from_numpy(found.x))
    labels = PROBLEM.y[torch.from_numpy(found.ids)]
    assert len(found.ids) > 3 and (out.logits.argmax(1) != labels).all() and (out.reject <= 0).all()
    assert brinell.verify(run, model, PROBLEM).ok
    assert "accepted" in run.sentence() and "criterion" in str(run)
    json.dumps(run.manifest)
    # Under a detector that rejects everything, none of them holds; without one, the Run's goal has no meaning.
    strict = replace(model, detector=replace(model.detector, threshold=-1.0))
    why = brinell.verify(run, strict, PROBLEM).failures
    assert {why[i] for i in found.ids.tolist()} == {"not misclassified, or rejected"}
    standing = "the clean input is misclassified or rejected, and the Run counts it as right"
    assert {why[i] for i in run.survivors().tolist()} == {standing}


def test_margins_are_the_smaller_of_both_halves(model):
    table = brinell.attack(model, PROBLEM, brinell.L2(0.15), Alternating(5), early_exit=False)
    broken = np.array(table["broken"].to_pylist())
    margins = np.array(table["adv_margin"].to_pylist())
    assert broken.any() and (margins[broken] > 0).all() and (margins[~broken] <= 0).all()


def test_a_plan_that_ignores_the_detector_says_so(model):
    run = brinell.evaluate(model, PROBLEM[:8], brinell.L2(0.1), "fgsm", progress=False)
    assert "detector ignored" in str(run.verdict)
    looked = brinell.evaluate(model, PROBLEM[:8], brinell.L2(0.1), Alternating(3), progress=False)
    assert "detector ignored" not in str(looked.verdict)


def test_models_without_a_detector_cannot_be_attacked_through_it():
    for attack in (Alternating(3), Joint(APGD(3, "margin")), Joint(brinell.attacks.Square(3))):
        with pytest.raises(PlanError, match="a model with a detector"):
            brinell.attack(NET, PROBLEM, brinell.L2(0.1), attack)


def test_references_are_filled_in_or_the_stage_is_left_out(model):
    plan = brinell.plan([Alternating(3), Matching(3), Matching(3, "features")])
    run = brinell.evaluate(model, PROBLEM[:8], brinell.L2(0.01), plan, progress=False)
    assert run.attacks == ["alternating-margin", "match-logits"]
    assert any("match-features: left out" in note for note in run.manifest["notes"])
    assert run.manifest["identity"]["plan"]["stages"][1]["attack"]["references"]["n"] == 12
    with pytest.raises(PlanError, match="natural inputs"):
        brinell.attack(NET, PROBLEM, brinell.L2(0.1), Matching(3))


def test_a_detector_without_gradients_warns(model):
    steps = brinell.wrap(NET, detector=lambda x: (x.sum(1) * 10).round() - 1000)
    run = brinell.evaluate(steps, PROBLEM[:8], brinell.L2(0.01), Alternating(3), progress=False)
    assert "zero gradient (detector)" in str(run.verdict)


def test_matching_reaches_what_it_matches():
    """In a linear world with room the logits of the reference can be reached exactly; their class is then predicted."""
    kept = brinell.calibrated(brinell.wrap(NET, detector=spread), PROBLEM, rate=0.1).detector.references
    table = brinell.attack(NET, PROBLEM, brinell.L2(2.0), Matching(200, references=kept), early_exit=False)
    assert np.mean(table["broken"].to_pylist()) == 1
    assert max(table["best_loss"].to_pylist()) <= 0 and np.median(table["best_loss"].to_pylist()) > -1e-3


def test_the_program_shows_the_goal(tmp_path, monkeypatch, capsys):

    (tmp_path / "net.py").write_text(
        "import brinell\nfrom brinell.models.demo import demo_net\n"
        "def make():\n    return brinell.wrap(demo_net(), detector=lambda x: x.mean((1, 2, 3)) - 0.9)\n"
    )
    monkeypatch.chdir(tmp_path)
    line = "brinell evaluate --model net.py:make --data demo --n 4 --eps 0.1 --plan fgsm --quiet --out run"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "accepted by the detector" in capsys.readouterr().out
