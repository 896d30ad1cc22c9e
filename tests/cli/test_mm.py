"""Minimum-Margin on the command line: the ranking of targets, and the table of rescalings."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import brinell as package
from brinell import Linf, Run, Targets
from brinell.analysis.rescalings import RESCALINGS
from brinell.attacks import APGD, FGSM, PGD
from brinell.attacks.catalogue import by_name
from brinell.defences.catalogue import DEFENCES


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps: what is tested is what is printed."""
    module = import_module("brinell.analysis.rescalings")
    for name in ("FIXED_STEPS", "ADAPTIVE_STEPS"):
        monkeypatch.setattr(module, name, 3)


DEMO = ("--model", "demo", "--data", "demo", "--n", "8", "--eps", "0.1", "-q")


@pytest.mark.parametrize(
    ("arguments", "by", "radius"),
    [
        (("--rank-by", "fgsm"), FGSM(), None),
        (("--rank-by", "pgd20", "--rank-eps", "6/255"), PGD(steps=20), "6/255"),
        (("--rank-by", "malt"), "malt", None),
    ],
)
def test_ranked_targets(arguments: tuple[str, ...], by: Any, radius: Any, brinell: Any, here: Path) -> None:
    """The same rows as from Python."""
    code, out, _ = brinell("evaluate", *DEMO, "--plan", "mm3", *arguments, "--out", "run")
    assert code == 0
    assert "ranked by" in out
    part = Targets(APGD(20, "minimum-margin"), 3, ranked_by=by, radius=radius)
    mine = Run.open(here / "run").rows()
    theirs = package.evaluate("demo", package.data.load("demo", 8), Linf(0.1), part, progress=False).rows()
    drop = ["attack", "attack_hash", "seconds", "adv_shard", "adv_row"]
    assert mine.drop_columns(drop).equals(theirs.drop_columns(drop))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plan", "pgd20", "--rank-by", "fgsm"), "a plan with target classes"),
        (("--attacks", "apgd-ce", "--rank-by", "fgsm"), "a plan with target classes"),
        (("--plan", "mm3", "--rank-by", "pgd"), "Did you mean 'pgd20'"),
        (("--plan", "mm3", "--rank-by", "malt", "--rank-eps", "6/255"), "radius"),
        (("--plan", "mm3", "--rank-eps", "6/255"), "--rank-by"),
        (("--plan", "mm3", "--rank-by", "fgsm", "--rank-eps", "0"), "positive radius"),
        (("--plan", "mm3", "--rank-by", "fgsm", "--rank-eps", "6"), "255"),
    ],
)
def test_rankings_that_make_no_sense(arguments: tuple[str, ...], message: str, brinell: Any, here: Path) -> None:
    code, _, err = brinell("evaluate", *DEMO, *arguments, "--out", "run")
    assert code == 2
    assert message in err
    assert not (here / "run").exists()


CHANGED = [
    (("--plan", "mm9", "--targets", "3"), Targets(APGD(20, "minimum-margin"), 3), "mm9, 3 targets"),
    (("--plan", "mm3", "--steps", "7"), Targets(APGD(7, "minimum-margin"), 3), "mm3, 7 steps"),
    (
        ("--plan", "mm3-f20", "--targets", "1", "--steps", "5", "--rel-step", "0.5"),
        Targets(PGD(5, 0.5, "minimum-margin"), 1),
        "mm3-f20, 1 target, 5 steps of 0.5 eps",
    ),
    (("--plan", "pgd20", "--rel-step", "0.125"), PGD(20, 0.125), "pgd20, steps of 0.125 eps"),
]


@pytest.mark.parametrize(("arguments", "part", "name"), CHANGED, ids=[c[2] for c in CHANGED])
def test_targets_and_steps(arguments: tuple[str, ...], part: Any, name: str, brinell: Any, here: Path) -> None:
    """The rows of the attack written in Python; the plan's name tells the change, and its hash is another one."""
    assert brinell("evaluate", *DEMO, *arguments, "--out", "run")[0] == 0
    run = Run.open(here / "run")
    plan = by_name(arguments[1]).to_json()
    assert run.identity.plan.name == name
    assert run.identity.plan.stages[0].hash != plan["stages"][0]["hash"]
    theirs = package.evaluate("demo", package.data.load("demo", 8), Linf(0.1), part, progress=False).rows()
    drop = ["attack", "attack_hash", "seconds", "adv_shard", "adv_row"]
    assert run.rows().drop_columns(drop).equals(theirs.drop_columns(drop))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--plan", "pgd20", "--targets", "3"), "a plan with targets"),
        (("--plan", "mm3", "--targets", "0"), "at least 1 target, got 0 targets. Write e.g. --targets 3"),
        (("--plan", "autoattack", "--targets", "3"), "fixed ensembles"),
        (("--plan", "fast", "--steps", "5"), "fixed ensembles"),
        (("--plan", "fab-t", "--steps", "5"), "gradient attacks with steps"),
        (("--plan", "square", "--steps", "5"), "gradient attacks with steps"),
        (("--plan", "mm3", "--rel-step", "0.1"), "steps of fixed length"),
        (("--plan", "mm3", "--steps", "0"), "steps"),
        (("--plan", "pgd20", "--rel-step", "-1"), "rel_step"),
    ],
)
def test_targets_and_steps_that_make_no_sense(
    arguments: tuple[str, ...], message: str, brinell: Any, here: Path
) -> None:
    code, _, err = brinell("evaluate", *DEMO, *arguments, "--out", "run")
    assert code == 2
    assert message in err
    assert not (here / "run").exists()


def test_more_targets_than_wrong_classes_are_cut_with_a_note(brinell: Any, here: Path) -> None:
    assert brinell("evaluate", *DEMO, "--plan", "mm3-f10", "--targets", "12", "--steps", "1", "--out", "run")[0] == 0
    run = Run.open(here / "run")
    assert any("9 instead of 12 targets" in note for note in run.notes)
    assert run.identity.plan.name == "mm3-f10, 9 targets, 1 steps"


@pytest.mark.usefixtures("short")
def test_rescalings(brinell: Any, here: Path) -> None:
    code, out, err = brinell("rescalings", *DEMO, "--targets", "1", "--out", "runs")
    assert (code, err) == (0, "")
    for part in ("demo · Linf, eps = 0.1 · fixed steps · n = 8", "Natural logits", "Sigmoid", "ranking", "A∪B−A"):
        assert part in out
    table = package.rescalings("demo", package.data.load("demo", 8), Linf(0.1), targets=1, progress=False)
    for line, shown in zip(table.lines, [r for r in out.splitlines() if r.startswith(("│ A", "│ B"))], strict=True):
        cells = [c.strip() for c in shown.split("│")[1:-1]]
        assert cells[0] == line.rescaling.id
        assert cells[3:6] == [str(line.size), line.place, str(line.difference)]
        both = ["/", "/"] if line.rescaling.id == "A" else [str(len(line.only_here)), str(len(line.only_natural))]
        assert cells[6:] == both
    assert Run.open(here / "runs" / "fixed").finished


@pytest.mark.usefixtures("short")
def test_rescalings_as_json(brinell: Any, here: Path) -> None:
    code, out, _ = brinell("rescalings", *DEMO, "--targets", "1", "--steps", "both", "--json")
    fixed, adaptive = json.loads(out)
    assert code == 0
    assert (fixed["steps"], adaptive["steps"]) == ("fixed", "adaptive")
    for told in (fixed, adaptive):
        assert told["n"] == 8
        assert [v["id"] for v in told["lines"]] == ["A", "B1", "B2", "B3", "B4", "B5", "B6"]
        for v in told["lines"]:
            assert v["diff"] == len(v["only_here"]) - len(v["only_natural"])


def test_rescalings_with_unknown_steps(brinell: Any, here: Path) -> None:
    code, _, err = brinell("rescalings", *DEMO, "--steps", "few")
    assert code == 2
    assert "fixed, adaptive, both" in err


def test_the_rescalings_and_the_gallery_list_what_they_have(brinell: Any) -> None:
    code, out, _ = brinell("rescalings", "--list", width=200)
    assert code == 0 and all(r.name in out and r.loss in out for r in RESCALINGS)
    code, out, _ = brinell("gallery", "--list", width=200)
    assert code == 0 and all(d.name in out for d in DEFENCES) and "test says" not in out
