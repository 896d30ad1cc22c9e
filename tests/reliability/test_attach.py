"""The binarization test of a Run's own plan, and what the verdict makes of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import brinell
from brinell.attacks import APGD, FAB, PGD, Square
from brinell.cli.main import app
from brinell.models.demo import demo_net
from brinell.ops import rng
from brinell.results.verdict import PAGE, RULES

pytestmark = pytest.mark.usefixtures("unchecked", "few")
DOCS = Path(__file__).resolve().parents[2] / "docs"
# Complementary attacks with few steps; the strength of AutoAttack is not needed to see that nothing objects.
SOUND = brinell.plan(
    [APGD(steps=20), brinell.Targets(FAB(steps=6, targeted=True), 1), Square(steps=100)],
    name="sound",
    strength="standard",
)
THREAT = brinell.Linf(0.1)


class Scaled(nn.Module):
    """Logits so large that cross-entropy has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1e4 * self.net(x)


def judged(net: Any, data: Any, plan: Any, tmp_path: Path, threat: Any = THREAT) -> Any:
    run = brinell.evaluate(net, data, threat, plan, progress=False, out=tmp_path / "run")
    return brinell.reliability.test_run(run, net, data, threat, plan, n=16, inner=49, progress=False)


def test_a_plan_that_fails_makes_the_run_suspicious_and_the_reason_says_so(tmp_path: Path) -> None:
    blind = brinell.plan([PGD(5)], name="blind", strength="standard")
    run = judged(brinell.wrap(Scaled().eval()), brinell.data.load("demo", 8), blind, tmp_path)
    (check,) = [c for c in run.checks if c["name"] == "active test"]
    assert check["level"] == "warn"
    assert run.verdict.level == "suspicious"
    (finding,) = [f for f in run.verdict.findings if "active test" in f.message]
    assert finding.anchor == "verdict.md#check-that-warns"
    assert "Verdict: failed." in finding.message


def test_a_second_test_replaces_the_first(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    run = judged("demo", data, SOUND, tmp_path)
    rows = run.rows()
    again = brinell.reliability.test_run(run, "demo", data, THREAT, SOUND, n=4, inner=49, progress=False)
    assert [c["name"] for c in again.checks].count("active test") == 1
    assert again.rows().equals(rows)


def test_a_test_of_too_few_samples_vouches_for_nothing(tmp_path: Path) -> None:
    run = judged("demo", brinell.data.load("demo", 4), SOUND, tmp_path)
    check = run.checks[-1]
    assert (check["name"], check["level"]) == ("active test", "info")
    assert "Verdict: inconclusive. Too few samples" in check["message"]


def test_another_plan_than_the_runs_is_refused(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    run = brinell.evaluate("demo", data, THREAT, "fgsm", progress=False, out=tmp_path / "run")
    with pytest.raises(brinell.RunError, match="fgsm"):
        brinell.reliability.test_run(run, "demo", data, THREAT, "pgd20", progress=False)


def probed(net: Any, data: Any, plan: Any, tmp_path: Path, threat: Any = THREAT) -> Any:
    run = brinell.evaluate(net, data, threat, plan, progress=False, out=tmp_path / "run")
    options = {"neighbours": 10, "queries": 50, "progress": False}
    return brinell.reliability.probe_run(run, net, data, threat, plan, **options)


def test_a_probe_that_finds_no_gradient_makes_the_run_suspicious_and_says_what_to_do(tmp_path: Path) -> None:
    blind = brinell.plan([PGD(5), Square(20)], name="blind", strength="standard")
    run = probed(brinell.wrap(Scaled().eval()), brinell.data.load("demo", 8), blind, tmp_path)
    (finding,) = [f for f in run.verdict.findings if "unavailable gradients" in f.message]
    assert finding.anchor == "verdict.md#probe-of-gradients"
    assert finding.message.startswith("Probe of pgd-ce, unavailable gradients: ")
    (item,) = [i for i in run.probes[0]["items"] if i["name"] == "unavailable gradients"]
    assert item["level"] != "ok"
    assert item["mitigation"] in finding.message
    assert run.verdict.level == "suspicious"


def test_what_one_attack_lacks_in_strength_counts_only_where_it_is_alone(tmp_path: Path) -> None:
    short = PGD(steps=3, rel_step=0.02)
    data = brinell.data.load("demo", 12)
    alone = probed("demo", data, brinell.plan([short], name="alone", strength="standard"), tmp_path / "a")
    several = brinell.plan([short, APGD(20), Square(100)], name="several", strength="standard")
    beside = probed("demo", data, several, tmp_path / "b")
    for run in (alone, beside):
        (item,) = [i for i in run.probes[0]["items"] if i["name"] == "incomplete optimisation"]
        assert item["level"] != "ok"
    (finding,) = [f for f in alone.verdict.findings if "incomplete optimisation" in f.message]
    assert finding.anchor == "verdict.md#probe-of-strength"
    assert not [r for r in beside.verdict.reasons if "incomplete optimisation" in r]


def test_a_second_probe_replaces_the_first_of_the_same_attack_alone(tmp_path: Path) -> None:
    data, plan = brinell.data.load("demo", 4), brinell.plan([PGD(2), PGD(2, loss="margin")], name="two")
    run = probed("demo", data, plan, tmp_path)
    rows = run.rows()
    options = {"neighbours": 4, "queries": 10, "progress": False}
    run = brinell.reliability.probe_run(run, "demo", data, THREAT, plan, **options)
    run = brinell.reliability.probe_run(run, "demo", data, THREAT, plan, stage=run.attacks[1], **options)
    assert [p["attack"] for p in run.probes] == run.attacks
    assert run.rows().equals(rows)


def test_probes_raise_no_false_alarm(tmp_path: Path) -> None:
    run = probed("demo", brinell.data.load("demo", 16), SOUND, tmp_path)
    assert run.verdict.level == "reliable", str(run.verdict)


def test_a_probe_of_another_plan_is_refused(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    run = brinell.evaluate("demo", data, THREAT, "fgsm", progress=False, out=tmp_path / "run")
    with pytest.raises(brinell.RunError, match="fgsm"):
        brinell.reliability.probe_run(run, "demo", data, THREAT, "pgd20", progress=False)


def test_an_evaluation_may_be_examined_at_once(tmp_path: Path) -> None:
    """The same as evaluating and examining one after the other."""
    data = brinell.data.load("demo", 4)
    also = [brinell.reliability.WithTest(3, inner=9), brinell.reliability.WithProbe(None, 3, 4, 10)]
    once = brinell.evaluate("demo", data, THREAT, "fgsm", out=tmp_path / "a", progress=False, also=also)
    run = brinell.evaluate("demo", data, THREAT, "fgsm", out=tmp_path / "b", progress=False)
    run = brinell.reliability.test_run(run, "demo", data, THREAT, "fgsm", n=3, inner=9, progress=False)
    options = {"n": 3, "neighbours": 4, "queries": 10, "progress": False}
    run = brinell.reliability.probe_run(run, "demo", data, THREAT, "fgsm", **options)
    assert once.checks == run.checks
    assert once.probes == run.probes != []
    assert once.verdict == run.verdict


def test_both_tests_of_a_detector_are_one_check(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 200)
    net = brinell.wrap(demo_net(), detector=lambda x: x[..., ::2].mean((1, 2, 3)) - x[..., 1::2].mean((1, 2, 3)))
    guarded = brinell.calibrated(net, data[100:], rate=0.05)
    run = judged(guarded, data[:8], brinell.plan([PGD(10)], name="blind", strength="standard"), tmp_path)
    (check,) = [c for c in run.checks if c["name"] == "active test"]
    assert check["level"] == "warn"
    assert "Inverted binarization test" in check["message"]
    assert "Regular binarization test" in check["message"]


def test_the_program_probes_after_the_evaluation() -> None:
    common = ["evaluate", "--model", "demo", "--data", "demo", "--n", "6", "--eps", "0.1", "--quiet", "--json"]
    done = CliRunner().invoke(app, [*common, "--plan", "fgsm", "--probe"])
    assert done.exit_code == 0, done.output
    places = json.loads(done.stdout)["verdict"]["docs"]
    assert "verdict.md#probe-of-strength" in places
    done = CliRunner().invoke(app, [*common, "--plan", "rand", "--probe"])
    assert done.exit_code != 0


def test_every_rule_has_its_place_on_the_page() -> None:
    headings = re.findall(r"^## (.+)$", (DOCS / PAGE).read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert {anchor for _, anchor, _ in RULES} <= anchors


def world(classes: int, width: int) -> tuple[Any, brinell.Problem]:
    """A smooth network with keyed weights on the demo images, which it labels itself: nothing about it is unsound."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, classes))
    for i, p in enumerate(net.parameters()):
        noise = rng.normal(rng.keys(7, torch.tensor([i])), tuple(p.shape))[0]
        p.data.copy_(noise / (p.shape[-1] ** 0.5 if p.ndim > 1 else 10))
    x = brinell.data.load("demo", 16).x
    return brinell.wrap(net.eval().requires_grad_(False)), brinell.Problem(x, net(x).argmax(1))


@pytest.mark.parametrize(
    ("classes", "width"),
    [(10, 32), (10, 512), (2, 64), (100, 128)],
    ids=["small", "large", "two classes", "many classes"],
)
def test_no_false_alarm(classes: int, width: int, tmp_path: Path) -> None:
    net, data = world(classes, width)
    run = judged(net, data, SOUND, tmp_path, brinell.Linf(0.02))
    assert run.checks[-1]["level"] == "ok", run.checks[-1]["message"]
    # A network that labels its own samples does not use all its classes.
    assert {finding.anchor for finding in run.verdict.findings} <= {"verdict.md#missing-classes"}, str(run.verdict)


def test_no_false_alarm_on_the_adversarially_trained_demo_model(tmp_path: Path) -> None:
    run = judged("demo", brinell.data.load("demo", 8), SOUND, tmp_path)
    assert run.verdict.level == "reliable", str(run.verdict)


def test_no_false_alarm_on_a_plain_network(tmp_path: Path) -> None:
    net = brinell.wrap(brinell.defences.base_networks.plain_network())
    run = judged(net, brinell.defences.base_networks.held_out_images(8), SOUND, tmp_path, brinell.Linf(0.03))
    assert run.verdict.level == "reliable", str(run.verdict)


def test_attacks_other_than_the_runs_are_refused_under_the_same_name(tmp_path: Path) -> None:
    """A sound attack must not vouch for a Run of a crippled one: plans of one's own are all called "custom"."""
    data = brinell.data.load("demo", 4)
    run = brinell.evaluate("demo", data, THREAT, PGD(1), progress=False, out=tmp_path / "run")
    for examine in (brinell.reliability.test_run, brinell.reliability.probe_run):
        with pytest.raises(brinell.RunError, match="other attacks"):
            examine(run, "demo", data, THREAT, PGD(20), progress=False)
    assert run.manifest == brinell.Run.open(run.path).manifest


@pytest.mark.parametrize("change", ["input", "label", "id"])
def test_samples_other_than_the_runs_are_refused(tmp_path: Path, change: str) -> None:
    data = brinell.data.load("demo", 4)
    run = brinell.evaluate("demo", data, THREAT, "fgsm", progress=False, out=tmp_path / "run")
    x, y = data.x.clone(), data.y.clone()
    if change == "input":
        x[1] = 1 - x[1]
    if change == "label":
        y[1] = (y[1] + 1) % 10
    ids = data.ids + (100 if change == "id" else 0)
    with pytest.raises(brinell.RunError, match="samples of the Run"):
        brinell.reliability.test_run(run, "demo", brinell.Problem(x, y, ids=ids), THREAT, "fgsm", progress=False)


def test_an_examination_that_does_not_suit_costs_no_evaluation(tmp_path: Path) -> None:
    """Neither a layer that is missing nor the lack of a correct sample raises after hours of attacks."""
    data = brinell.data.load("demo", 4)
    problem = brinell.Problem(data.x, (demo_net()(data.x).argmax(1) + 1) % 10)
    also = [brinell.reliability.WithTest(3, inner=9, layer="heat"), brinell.reliability.WithProbe(None, 3, 4, 10)]
    run = brinell.evaluate("demo", problem, THREAT, "fgsm", also=also, progress=False, out=tmp_path / "a")
    notes = {c["name"]: (c["level"], c["message"]) for c in run.checks if "not made: " in c["message"]}
    assert set(notes) == {"active test", "probe"}
    assert all(level == "info" for level, _ in notes.values())
    assert "expected a layer among" in notes["active test"][1]
    assert "classifies correctly" in notes["probe"][1]
    assert not any("not made" in r for r in run.verdict.reasons)


def test_on_the_command_line_the_result_is_shown_and_the_lack_of_a_test_is_told(tmp_path: Path) -> None:
    command = ["evaluate", "--model", "demo", "--data", "demo", "--n", "4", "--norm", "L0", "--eps", "5"]
    done = CliRunner().invoke(
        app, [*command, "--plan", "minimal-quick", "--quiet", "--test", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "active test not made: expected a threat in Linf, L2 or L1" in done.output
    assert "accuracy" in done.output


def test_a_radius_written_as_a_fraction_is_the_same_radius(tmp_path: Path) -> None:
    """`--eps 8/255`, as every example has it."""
    command = ["evaluate", "--model", "demo", "--data", "demo", "--n", "3", "--eps", "26/255", "--plan", "fgsm"]
    done = CliRunner().invoke(app, [*command, "--quiet", "--test", "--probe", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    run = brinell.Run.open(tmp_path / "run")
    assert "active test" in [c["name"] for c in run.checks] and len(run.probes) == 1
    assert "Linf(eps=26/255)" in next(c["message"] for c in run.checks if c["name"] == "active test")


def test_a_threat_of_another_mask_is_refused_and_radii_go_with_their_samples(tmp_path: Path) -> None:
    data, radii = brinell.data.load("demo", 4), torch.tensor([0.05, 0.1, 0.1, 0.2])
    mask = torch.zeros(1, 28, 28, dtype=torch.bool)
    mask[:, :, :14] = True
    threat = brinell.Linf(radii, mask=mask)
    run = brinell.evaluate("demo", data, threat, "fgsm", progress=False, out=tmp_path / "run")
    for other in (brinell.Linf(radii), brinell.Linf(radii + 0.01, mask=mask)):
        with pytest.raises(brinell.RunError, match="threat of the Run"):
            brinell.reliability.test_run(run, "demo", data, other, "fgsm", progress=False)
    tested = brinell.reliability.test_run(run, "demo", data, threat, "fgsm", n=3, inner=9, progress=False)
    assert tested.checks[-1]["name"] == "active test"


def test_an_evaluation_that_would_be_reliable_is_tested_by_itself(tmp_path: Path) -> None:
    data, plan = brinell.data.load("demo", 100), brinell.plan([APGD(20), Square(200)], strength="standard")
    run = brinell.evaluate("demo", data, THREAT, plan, progress=False, out=tmp_path / "a")
    (check,) = [c for c in run.checks if c["name"] == "active test"]
    assert (check["level"], check["value"]) == ("ok", 1.0), check
    assert "Binarization test: the attack found the known adversarial of 100% of the samples." in run.verdict.evidence
    again = brinell.evaluate("demo", data, THREAT, plan, progress=False, out=tmp_path / "a", resume=True)
    assert again.checks == run.checks
    bare = brinell.evaluate("demo", data, THREAT, plan, progress=False, out=tmp_path / "b", test=False)
    assert "active test" not in [c["name"] for c in bare.checks]
    assert bare.rows().column("adv_margin").equals(run.rows().column("adv_margin"))


def test_a_plan_that_only_looks_strong_is_found_out_by_the_small_test(tmp_path: Path) -> None:
    """Steps that lead nowhere, at a radius where nothing breaks anyway: no other rule objects."""
    lame = brinell.plan([Square(100), PGD(40, rel_step=1e-4)], name="lame", strength="standard")
    data, tiny = brinell.data.load("demo", 120), brinell.Linf(0.002)
    bare = brinell.evaluate("demo", data, tiny, lame, progress=False, out=tmp_path / "a", test=False)
    # An alarm of its own would hide what the small test adds.
    assert bare.verdict.level == "reliable", str(bare.verdict)
    checked = brinell.verify(bare, demo_net(), data, hidden=120, seed=0)
    assert not checked.ok and "the binarization test fails here" in checked.objections[0]
    run = brinell.reliability.attach.small_test_run(bare, brinell.wrap(demo_net()), data, tiny, lame)
    assert run.verdict.level == "suspicious" and "active test" in str(run.verdict)


def test_the_size_of_the_small_test_follows_the_cost_of_the_run() -> None:
    from brinell.reliability.attach import COST_SHARE, SIZES, _affordable

    assert [_affordable(passes) for passes in (10**7, 3 * 10**5, 5 * 10**4, 2 * 10**4, 11_000)] == list(SIZES)
    assert _affordable(10**3) is None and COST_SHARE == 0.05
