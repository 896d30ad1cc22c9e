"""The binarization test as users see it: sound attacks pass, broken ones do not, and nothing depends on the batch."""

import json
import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.reliability.conftest import NETS, fixed, samples
from torch import nn
from typer.testing import CliRunner

import brinell
from brinell import test_attack  # by name: pytest must not take it for a test
from brinell.attacks import APGD, FGSM, PGD
from brinell.cli.main import app
from brinell.models.bpda import bpda
from brinell.models.demo import demo_net
from brinell.reliability import EnsembleReadout
from brinell.reliability.binarization.result import EASY, PASS, BinarizationTest, KappaLevel
from brinell.reliability.binarization.test import KAPPAS
from brinell.results import Proportion

LINF = brinell.Linf(0.1)
IDS = torch.arange(9) * 5 + 2


@dataclass(frozen=True)
class Towards(PGD):
    """PGD that was given the wrong label: it makes the sample safer."""

    def step(self, s, a, p, ball):
        return super().step(s, replace(a, grad=-a.gradient), p, ball)


@dataclass(frozen=True)
class Detached(PGD):
    """PGD whose gradient got lost on the way."""

    def step(self, s, a, p, ball):
        return super().step(s, replace(a, grad=torch.zeros_like(a.gradient)), p, ball)


class Loud(nn.Module):
    """Logits so large that cross-entropy is exactly zero and has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x):
        return 1000 * self.net(x)


CRIPPLED = {
    "one step": ("demo", PGD(steps=1)),
    "tiny steps": ("demo", PGD(rel_step=0.001)),
    "wrong labels": ("demo", Towards()),
    "no gradient": ("demo", Detached()),
    "saturated softmax": (Loud().eval(), PGD(loss="ce")),
}


def small(attack, data=None, net="mlp", t=LINF, **options):
    """A quick test of an attack on a small network."""
    options = {"inner": 30, "kappa": 0.99, "reference": APGD(steps=10, loss="margin"), "progress": False, **options}
    data = brinell.Problem(*samples(9), ids=IDS) if data is None else data
    return test_attack(fixed(NETS[net]()), data, t, attack, **options)


# ------------------------------------------------------------------------------------------------------------- verdicts


@pytest.fixture(scope="module")
def images():
    return brinell.data.load("demo", 16)


@pytest.mark.parametrize("attack", ["apgd", PGD()], ids=["apgd", "pgd20"])
def test_a_sound_attack_passes_and_chance_does_not(images, attack):
    r = test_attack("demo", images, LINF, attack, inner=199, progress=False)
    assert r.passed and r.score == 1.0 and r.rasr <= 0.25 and r.n == 16 and r.kappa == KAPPAS[0]
    assert "Verdict: passed." in str(r) and "100.0 % [80.6, 100.0], n = 16" in str(r)


def test_four_perfect_samples_are_no_pass(images):
    r = test_attack("demo", images[:4], LINF, "apgd", inner=99, progress=False)
    assert r.score == 1.0 and r.n == 4 and r.verdict == "inconclusive" and not r.passed
    assert (
        "Too few samples: with n = 4 the interval of the score begins at 51.0 %, below 80 %. Test at least 16" in str(r)
    )


@pytest.mark.parametrize("way", CRIPPLED)
def test_a_crippled_pgd_fails(images, way):
    model, attack = CRIPPLED[way]
    other = replace(brinell.plan([APGD(steps=15, loss="margin")]), name="apgd-margin")
    r = test_attack(model, images[:8], LINF, attack, inner=199, kappa=0.999, reference=other, progress=False)
    assert r.verdict == "failed" and not r.passed and r.score <= 0.5
    # It is the attack that fails: another one finds an adversarial example for every sample.
    assert (
        r.level.reference.value == 1.0
        and "apgd-margin reaches 100.0 % [67.6, 100.0] on the same classifiers: try" in str(r)
    )
    if way == "saturated softmax":
        assert any("zero gradient (ce)" in w for w in r.warnings) and "zero gradient (ce)" in str(r)


def test_a_model_without_gradients_is_refused_at_the_door(images):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = demo_net()

        def forward(self, x):
            return self.net(x.detach())

    with pytest.raises(brinell.ModelError, match="gradients"):
        test_attack(Cut().eval(), images, LINF, "pgd20", inner=9, progress=False)


@pytest.mark.slow
def test_a_masked_gradient_fails_for_every_gradient_attack(images):
    """Rounding leaves no gradient but that of a detour; the straight-through gradient finds everything again."""

    class Rounded(nn.Module):
        def __init__(self, way):
            super().__init__()
            self.net, self.way = demo_net(), way

        def forward(self, x):
            return self.net(self.way(x))

    def rounded(x):
        return (x * 64).round() / 64

    masked = test_attack(Rounded(rounded).eval(), images, LINF, "pgd20", inner=99, progress=False)
    through = test_attack(Rounded(bpda(rounded)).eval(), images, LINF, "pgd20", inner=99, progress=False)
    assert masked.verdict == "failed" and masked.score < 0.5 and through.passed
    assert "apgd reaches only" in str(masked) and "brinell.models.bpda" in str(masked)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["apgd", "autoattack", "pgd20", "mm3"])
def test_sound_plans_pass_on_many_images(plan):
    r = test_attack("demo", brinell.data.load("demo", 40), LINF, plan, inner=499, progress=False)
    assert r.passed and r.score == 1.0 and r.rasr <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("way", CRIPPLED)
def test_crippled_attacks_fail_on_many_images(way):
    model, attack = CRIPPLED[way]
    r = test_attack(model, brinell.data.load("demo", 40), LINF, attack, inner=499, progress=False)
    assert r.verdict == "failed" and r.high < PASS and r.level.reference.value >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("t", [brinell.Linf(0.05), brinell.L2(1.5), brinell.L1(15)], ids=str)
def test_other_threats(t):
    r = test_attack("demo", brinell.data.load("demo", 24), t, "apgd", inner=499, progress=False)
    assert r.n > 12 and r.passed
    assert list(r.level.random) == (["corners", "surface"] if t.norm.corners else ["surface"])


# ------------------------------------------------------------------------------------------------------------- hardness


def test_random_points_succeed_less_the_closer_the_boundary():
    r = small(PGD(steps=5), kappa=None, curve=True, random_queries=16)
    assert [level.kappa for level in r.curve] == list(KAPPAS)
    chance = [level.rasr.k for level in r.curve]
    assert all(a <= b for a, b in pairwise(chance)) and chance[0] < chance[-1]
    assert r.level is next(level for level in r.curve if max(level.score.value, level.reference.value) >= 0.99)


def test_the_search_ends_at_the_first_level_the_reference_solves():
    r = small(PGD(steps=1, rel_step=0.01), kappa=None)
    assert [level.kappa for level in r.curve] == list(KAPPAS[: len(r.curve)]) and r.level is r.curve[-1]
    assert all(level.reference.value < 0.99 for level in r.curve[:-1]) and r.level.reference.value >= 0.99
    assert r.verdict == "failed" and r.kappa == r.level.kappa


def test_without_a_level_anybody_solves_the_best_one_counts():
    weak = PGD(steps=1, rel_step=1e-4, random_start=False)
    r = small(weak, kappa=None, reference=weak, random_queries=1, data=brinell.Problem(*samples(2)))
    assert len(r.curve) == len(KAPPAS) and r.level.score.k == max(level.score.k for level in r.curve)
    assert r.level.reference == r.level.score and not r.passed


def level(k, n, chance, reference=None):
    other = None if reference is None else Proportion(reference, n)
    return KappaLevel(
        0.999, Proportion(k, n), other, {"corners": Proportion(chance, n), "surface": Proportion(0, n)}, 21
    )


def outcome(found: KappaLevel, skipped: int = 0) -> BinarizationTest:
    return BinarizationTest(
        "pgd20", "apgd", "net", "Linf(eps=8/255)", "linear", "head", 999, 1, "corners", found, (found,),
        torch.arange(found.score.n), torch.arange(found.score.n) < found.score.k, torch.zeros(found.score.n, 3),
        brinell.results.ROWS.empty_table(), {1000 + i: "its two classes cannot be separated" for i in range(skipped)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("k", "chance", "reference", "verdict", "said"),
    [
        (200, 4, None, "passed", "necessary, not sufficient"),
        (190, 4, None, "passed", "The interval extends below 0.95: test more samples"),
        (189, 4, 200, "failed", "apgd reaches 100.0 % [98.1, 100.0] on the same classifiers: try that next"),
        (189, 4, 150, "failed", "apgd reaches only 75.0 % [68.6, 80.5] too"),
        (189, 120, 200, "failed", "which says little where random points reach 60.0 % [53.1, 66.5]"),
        (10, 20, None, "failed", "no better than random points"),
        (200, 101, None, "inconclusive", "inner=9999"),
        (
            200,
            100,
            None,
            "passed",
            "R-ASR, 21 random points each: 50.0 % [43.1, 56.9] (corners), 0.0 % [0.0, 1.9] (surface)",
        ),
    ],
)
def test_verdicts_and_what_to_try_next(k, chance, reference, verdict, said):
    r = outcome(level(k, 200, chance, reference), skipped=3)
    assert r.verdict == verdict and r.passed == (verdict == "passed") and said in str(r)
    assert r.rasr == chance / 200 and r.too_easy == (chance / 200 > EASY) and "3 of 203 samples skipped" in str(r)
    assert (r.low, r.high) == (Proportion(k, 200).low, Proportion(k, 200).high)
    stored = json.loads(json.dumps(r.to_json()))
    assert (stored["score"], stored["verdict"], stored["skipped"], stored["n"]) == (k / 200, verdict, 3, 200)
    assert stored["text"] == str(r) and stored["curve"][0]["random"]["corners"]["k"] == chance


@pytest.mark.parametrize(
    ("k", "n", "chance", "skipped", "verdict", "said"),
    [
        (16, 16, 8, 16, "passed", "necessary, not sufficient"),
        (15, 15, 0, 0, "inconclusive", "Too few samples: with n = 15"),
        (19, 20, 0, 0, "inconclusive", "Too few samples: with n = 20"),
        (24, 25, 0, 0, "passed", "The interval extends below 0.95"),
        (16, 16, 0, 17, "inconclusive", "More than half of the samples were skipped (mostly: its two classes"),
        (16, 16, 9, 0, "inconclusive", "so a high score means little"),
        (3, 4, 4, 9, "failed", "Do not trust"),
        (0, 0, 0, 2, "inconclusive", "No sample could be used"),
    ],
)
def test_a_pass_takes_enough_samples_few_skipped_and_chance_that_fails(k, n, chance, skipped, verdict, said):
    """By Wilson's formula n of n begin at n / (n + 3.84): 0.8 takes 16."""
    r = outcome(level(k, n, chance), skipped)
    assert r.verdict == verdict and said in str(r) and r.passed == (verdict == "passed")


def test_every_reason_for_doubt_is_said_at_once():
    r = outcome(level(4, 4, 3), 5)
    assert all(said in str(r) for said in ("Too few samples", "More than half", "Random points succeed"))
    assert r.too_few and r.too_many_skipped and r.too_easy


# ----------------------------------------------------------------------------------------------------------- invariance

ATTACKS = [PGD(steps=4, rel_step=0.02), APGD(steps=5, loss="margin")]


def facts(r: BinarizationTest) -> dict[int, tuple]:
    """Everything that is known of every sample, to the bit."""
    rows = {row["sample_id"]: row for row in r.rows.drop_columns(["seconds"]).to_pylist()}
    return {
        i: (bool(f), w.numpy().tobytes(), repr(rows[i]))
        for i, f, w in zip(r.ids.tolist(), r.found, r.witnesses, strict=True)
    }


@pytest.mark.parametrize(
    ("t", "net", "readout", "attack"),
    [
        (LINF, "mlp", "linear", ATTACKS[0]),
        (brinell.L2(0.7), "conv", "neighbours", ATTACKS[1]),
        pytest.param(brinell.L1(4), "conv", "linear", ATTACKS[0], marks=pytest.mark.slow),
        pytest.param(LINF, "conv", "ensemble", ATTACKS[1], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_outcomes_do_not_depend_on_order_slots_or_company(t, net, readout, attack):
    x, y = samples(9)
    options = {"t": t, "net": net, "readout": readout, "random_queries": 6, "reference": ATTACKS[0]}
    whole = small(attack, brinell.Problem(x, y, IDS), **options)
    order = torch.tensor([7, 2, 0, 5, 1, 3, 8, 4, 6])
    shuffled = small(attack, brinell.Problem(x[order], y[order], IDS[order]), slots=3, **options)
    part = small(attack, brinell.Problem(x[3:4], y[3:4], IDS[3:4]), **options)
    assert whole.n > 0 and whole.level == shuffled.level and whole.reasons == shuffled.reasons
    assert facts(whole) == facts(shuffled)
    assert facts(part) == {i: f for i, f in facts(whole).items() if i == IDS[3]}


def test_another_seed_is_another_test():
    a, b = small(ATTACKS[0]), small(ATTACKS[0], seed=1)
    assert not torch.equal(a.witnesses, b.witnesses)


def test_eps_per_sample():
    """Skipping samples must not shift the radii of the others."""
    eps = torch.linspace(0.01, 0.2, 9)
    r = small("pgd20", t=brinell.Linf(eps), net="mlp")
    x, ids = samples(9)[0], IDS.tolist()
    assert r.n > 0
    for i, w in zip(r.ids.tolist(), r.witnesses, strict=True):
        k = ids.index(i)
        assert float((w - x[k]).abs().max()) == pytest.approx(float(eps[k]), rel=1e-5)


# -------------------------------------------------------------------------------------------------------------- details


def test_the_plan_adapts_to_two_classes_and_says_so():
    r = small("autoattack", data=brinell.Problem(*samples(3)), random_queries=5)
    assert any("2 classes" in note for note in r.notes) and r.score == 1.0
    fast = small("fast", data=brinell.Problem(*samples(3)), random_queries=5)
    assert "fast: tested without its audit." in fast.notes


def test_random_points_match_the_queries_the_attack_may_make():
    """Whether it needs them or not, up to the paper's number; beyond that as many as it did make."""
    slow = {"rel_step": 1e-5, "random_start": False}
    data = brinell.Problem(*samples(4))
    assert small(PGD(steps=7, **slow), data).queries == 8
    both = brinell.plan([PGD(steps=7, **slow), brinell.Restarts(PGD(steps=3, loss="margin", **slow), 2)])
    assert small(both, data).queries == 8 + 2 * 4
    quick = small(PGD(steps=50), data)
    assert quick.score == 1.0 and max(quick.rows["forwards"].to_pylist()) < quick.queries == 51
    assert small(PGD(steps=1000), data).queries == 400
    assert small(PGD(steps=450, **slow), data).queries == 451
    assert small(PGD(steps=50), data, random_queries=3).queries == 3


def test_ensembles_of_layers_and_own_fits():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(36, 50), nn.Linear(36, 40)
            self.a, self.b = nn.Linear(50, 3), nn.Linear(40, 3)

        def forward(self, x):
            x = x.flatten(1)
            return (self.a(self.one(x).relu()) + self.b(self.two(x).relu())) / 2

    net, data = fixed(Heads()), brinell.Problem(*samples(6))
    options = {"inner": 30, "kappa": 0.9, "progress": False}
    r = test_attack(net, data, LINF, "pgd20", layer=["a", "b"], readout=EnsembleReadout(2), **options)
    assert r.n > 0 and r.layer == "a, b" and r.readout == "ensemble of 2" and r.score > 0.9

    def nearest_mean(inner, boundary):
        means = torch.stack([inner.mean(0), boundary.mean(0)]).float()
        return lambda f: -(f - means).square().sum(1)[None]

    own = test_attack(net, data, LINF, "pgd20", layer="a", readout=nearest_mean, **options)
    assert own.readout == "own fit" and own.n > 0 and own.score > 0.9


def test_randomised_models_are_judged_by_majority():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = fixed(NETS["mlp"]())

        def forward(self, x):
            return self.net(x + 1e-3 * torch.randn_like(x))

    plan = replace(brinell.plan([brinell.Eot(APGD(steps=10), 4)]), draws=5)
    r = test_attack(Noisy().eval(), samples(5), LINF, plan, inner=30, kappa=0.5, random_queries=4, progress=False)
    assert r.n + r.skipped == 5 and r.n > 0
    assert all(len(v) == 5 for v in r.rows["judged"].to_pylist())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kappa": 1.0}, brinell.InputError, "kappa above 0 and below 1"),
        ({"inner": -1}, brinell.InputError, "at least 0 inner points"),
        ({"gap": 0.0}, brinell.InputError, "gap between 0 and 1"),
        ({"readout": "tree"}, brinell.PlanError, "a readout among linear"),
        ({"readout": 3}, brinell.InputError, "a function fit"),
        ({"layer": "nowhere"}, brinell.PlanError, "a layer among"),
        ({"corners": True, "t": brinell.L2(0.5)}, brinell.ThreatError, "corners"),
        ({"t": brinell.L2()}, brinell.ThreatError, "with a finite radius"),
        ({"t": brinell.L0(5)}, brinell.ThreatError, "Linf, L2 or L1"),
        ({"random_queries": 0}, brinell.InputError, "at least 1 random point per sample"),
    ],
)
def test_mistakes_are_told_with_a_remedy(options, error, text):
    with pytest.raises(error, match=text):
        small(FGSM(), **options)


def test_pytest_does_not_take_it_for_a_test(request):
    """This file imports it by name."""
    assert "test_attack" in globals() and "test_attack" not in {item.name for item in request.session.items}


# --------------------------------------------------------------------------------------------------------- command line


def run(*args: str, model: str = "demo"):
    common = {"--model": model, "--data": "demo", "--eps": "0.1", "--n": "6", "--inner": "49"}
    return CliRunner().invoke(app, ["test-attack", "--quiet", *(v for pair in common.items() for v in pair), *args])


def test_the_program_prints_levels_and_a_paragraph():
    done = run("--plan", "pgd20", "--kappa", "0.99", "--n", "16")
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert (
        "kappa" in text and "random," in text and "corners" in text and "Verdict: passed." in text and "n = 16" in text
    )
    # Every percentage of the table has its interval, and the column beside them n.
    table = done.output[: done.output.index("Binarization")]
    assert len(re.findall(r"\d\.\d\s+\[", table)) == len(re.findall(r"\d\.\d\]", table)) == 3 and " 16 " in table
    few = run("--plan", "pgd20", "--kappa", "0.99")
    assert few.exit_code == 1 and "Too few samples: with n = 6" in " ".join(few.output.split())


def test_the_program_writes_json_and_fails_for_a_failing_attack(tmp_path):
    done = run("--attacks", "pgd-ce", "--kappa", "0.99", "--json", "--surface", "--random-queries", "9")
    found = json.loads(done.output)
    assert done.exit_code == (0 if found["passed"] else 1) and found["surface"] == "surface" and found["queries"] == 9
    assert {"score", "low", "high", "rasr", "skipped", "verdict", "curve", "text"} <= set(found)
    file = tmp_path / "loud.py"
    file.write_text(
        "from torch import nn\nfrom brinell.models.demo import demo_net\n"
        "class Loud(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.net = demo_net()\n"
        "    def forward(self, x):\n        return 1000 * self.net(x)\n"
        "def make():\n    return Loud().eval()\n"
    )
    weak = run("--plan", "pgd20", "--kappa", "0.999", "--json", model=f"{file}:make")
    found = json.loads(weak.output)
    assert weak.exit_code == 1 and found["verdict"] == "failed" and found["warnings"]
    assert np.isfinite(found["score"])
