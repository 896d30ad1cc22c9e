"""Lower precision only steers: what counts is decided in float32, and rows say what found them."""

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.core.attack import Requires
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.precision import exact
from brinell.evaluation import run_stage
from brinell.models.demo import demo_net
from brinell.results import counted
from brinell.testing import duel

CPU = torch.device("cpu")


def test_questions_are_in_bfloat16_and_decisions_in_float32():
    clf = brinell.wrap(demo_net())
    x = brinell.data.load("demo", 8)
    none = torch.full_like(x.y, -1)
    with exact(CPU):
        plain, coarse = (Oracle(clf, 8, precision=p) for p in ("float32", "bfloat16"))
        assert torch.equal(plain.output(x.x).logits, coarse.output(x.x).logits)
        a, b = (o.query(x.x, x.y, none, "margin", Requires.GRAD) for o in (plain, coarse))
    assert b.logits.dtype == b.gradient.dtype == torch.float32
    assert not torch.equal(a.logits, b.logits)
    # Eight bits of mantissa: a few parts in a thousand of the largest logit.
    assert (a.logits - b.logits).abs().max() < 0.02 * a.logits.abs().max()
    assert torch.cosine_similarity(a.gradient.flatten(1), b.gradient.flatten(1)).min() > 0.99


class Hasty(nn.Module):
    """Wrong about everything in bfloat16, a linear model in float32."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        z = self.net(x)
        return z.flip(1) if torch.is_autocast_enabled("cpu") else z


def test_a_success_in_bfloat16_that_is_none_is_tried_again_in_float32():
    """The world breaks at its closed-form distance whatever the hasty answers say."""
    world = duel(classes=2, n=12)
    clf = brinell.wrap(Hasty(world.classifier.module).eval())
    near = world.distance("Linf") * torch.where(torch.arange(12) % 2 == 0, 1.05, 0.95)
    run = brinell.evaluate(
        clf, (world.x, world.y), brinell.Linf(near), brinell.attacks.APGD(30, "margin"), precision="bfloat16",
        progress=False,
    )  # fmt: skip
    assert run.survivors().tolist() == list(range(1, 12, 2))
    rows = run.rows()
    attacked = np.asarray(rows["attack"].to_pylist()) != "clean"
    assert set(np.asarray(rows["precision"].to_pylist())[attacked]) == {"float32"}
    # One hasty answer, then the whole second try.
    forwards = np.asarray(rows["forwards"])[attacked]
    assert (forwards[1::2] == 1 + 31).all()
    assert brinell.verify(run, clf, (world.x, world.y)).ok


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_what_bfloat16_breaks_is_verified_and_named(norm):
    data = brinell.data.load("demo", 96)
    threat = {"Linf": brinell.Linf(0.1), "L2": brinell.L2(1.5)}[norm]
    attack = brinell.attacks.APGD(15, "margin")
    runs = [
        brinell.evaluate("demo", data, threat, attack, precision="bfloat16", slots=slots, progress=False)
        for slots in (7, 96)
    ]
    run = runs[0]
    assert run.unverified.num_rows == 0
    assert run.robust_accuracy.k < run.clean_accuracy.k
    rows = run.rows()
    names, kinds = np.asarray(rows["attack"].to_pylist()), np.asarray(rows["precision"].to_pylist())
    assert set(kinds[names == "clean"]) == {"float32"}
    assert (kinds[(names != "clean") & ~counted(rows)] != "").all()
    assert "bfloat16" in kinds
    again = brinell.verify(run, "demo", data, rerun=len(run.survivors()))
    assert again.ok and again.again.alike == again.again.ran == len(run.survivors()), again.findings
    columns = ("sample_id", "attack", "broken", "forwards", "precision", "adv_margin")
    assert [rows[c].to_pylist() for c in columns] == [runs[1].rows()[c].to_pylist() for c in columns]


# In L1 the order of nearly equal gradients decides, which bfloat16 blurs.
@pytest.mark.parametrize(("norm", "most"), [("Linf", 1.01), ("L2", 1.01), ("L1", 1.03)])
def test_smallest_distances_found_in_bfloat16_are_those_of_float32(norm, most):
    """A margin that bfloat16 can be sure of lies some per cent too far out: float32 has the last word."""
    world = duel(classes=4, n=16)
    found = brinell.curve(
        world.classifier, (world.x, world.y), norm, brinell.attacks.FMN(150), precision="bfloat16", progress=False
    )
    ratio = torch.from_numpy(found.distances) / world.distance(norm)
    assert (ratio >= 1 - 1e-5).all() and (ratio <= most).all(), ratio.tolist()
    run = brinell.Run.open(found.path)
    assert run.unverified.num_rows == 0 and brinell.verify(run, world.classifier, (world.x, world.y)).ok


@pytest.mark.parametrize(
    ("eps", "draws", "precision", "expected"),
    [
        (None, 1, "bfloat16", True),
        (None, 1, "float32", False),
        (2.0, 1, "bfloat16", False),
        (2.0, 3, "bfloat16", False),  # the vote of a randomised model would throw out what is found by a hair
    ],
)
def test_unsure_points_are_kept_only_where_float32_settles_them(eps, draws, precision, expected, monkeypatch):
    seen = []

    def engine(*given, **more):
        made = Engine(*given, **more)
        seen.append(made.refined)
        return made

    monkeypatch.setattr(run_stage, "Engine", engine)
    plan = brinell.Plan("one", (brinell.Stage(brinell.attacks.FMN(3)),), draws=draws)
    threat = brinell.L2() if eps is None else brinell.L2(eps)
    brinell.evaluate("demo", brinell.data.load("demo", 4), threat, plan, precision=precision, progress=False)
    # A second try is in float32, where nothing is unsure.
    assert seen[0] == expected and not any(seen[1:])


def test_distances_that_bfloat16_only_dreams_of_are_searched_again():
    world = duel(classes=2, n=8)
    clf = brinell.wrap(Hasty(world.classifier.module).eval())
    found = brinell.curve(
        clf, (world.x, world.y), "Linf", brinell.attacks.FMN(150), precision="bfloat16", progress=False
    )  # fmt: skip
    ratio = torch.from_numpy(found.distances) / world.distance("Linf")
    assert (ratio >= 1 - 1e-5).all() and (ratio <= 1.01).all(), ratio.tolist()


def test_the_precision_is_part_of_what_a_run_is(tmp_path):
    data = brinell.data.load("demo", 8)
    brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", out=tmp_path / "r", precision="bfloat16", progress=False)
    again = {"out": tmp_path / "r", "resume": True, "progress": False}
    with pytest.raises(brinell.RunError, match="precision"):
        brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", precision="float32", **again)
    assert brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", **again).identity.precision == "bfloat16"
    with pytest.raises(brinell.PlanError, match="tf32"):
        brinell.evaluate("demo", data, brinell.Linf(0.1), "fgsm", precision="float16", progress=False)
