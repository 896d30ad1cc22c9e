from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from brinell.report.gate import check_gate
from brinell.results import ROWS, Run, Verdict, Writer, judge
from brinell.results.evidence import evidence
from brinell.results.verdict import RULES, VERDICT_LEVELS, missing_by_chance

pytestmark = pytest.mark.usefixtures("few")


def check(level: str) -> dict[str, str]:
    return {"name": "gradient", "level": level, "message": f"it is {level}"}


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ([], "reliable: No check found a problem."),
        ([check("ok")], "reliable: No check found a problem."),
        ([check("warn")], "suspicious: Check gradient warns: it is warn."),
        ([check("strange")], "suspicious: Check gradient warns: it is strange."),
        ([check("fail")], "invalid: Check gradient failed: it is fail."),
        (
            [check("warn"), check("ok"), check("fail")],
            "invalid: Check gradient failed: it is fail. Check gradient warns: it is warn.",
        ),
    ],
)
def test_the_worst_check_decides(tmp_path, world, checks, text: str) -> None:
    run = world.run(tmp_path, {0: "...", 1: "...", 2: "x"})
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.update(checks=checks)
    run = type(run).open(tmp_path)
    assert str(run.verdict) == text == str(judge(run))


@pytest.mark.parametrize(
    ("samples", "options", "text"),
    [
        ({0: ".u."}, {}, "1 adversarial did not pass verification and is not counted."),
        ({0: ".u.", 1: ".ux"}, {}, "2 adversarials did not pass verification and are not counted."),
        ({0: "..."}, {"data__n": 4}, "Rows of 3 of 4 samples are missing."),
        (
            {0: "...", 1: ".", 2: ". .", 3: ".x"},
            {},
            "Of the samples counted as robust, 2 lack a row of some attack of the plan.",
        ),
    ],
)
def test_the_rules_of_suspicion(tmp_path, world, samples, options, text: str) -> None:
    verdict = world.run(tmp_path, samples, **options).verdict
    assert (verdict.level, verdict.reasons) == ("suspicious", (text,))


WITHOUT = "without a strong ensemble that includes a black-box attack the robust accuracy is only an upper bound"


@pytest.mark.parametrize(
    ("options", "checks", "text"),
    [
        (
            {"finished": False},
            [],
            "The Run is not finished, so its robust accuracy is only an upper bound: continue with --resume.",
        ),
        ({"plan__strength": "weak"}, [], f"The plan pair is weak: {WITHOUT}; to settle it, run the plan fast."),
        (
            {"plan__strength": "weak", "plan__draws": 5},
            [],
            f"The plan pair is weak: {WITHOUT}; to settle it, run the plan autoattack-rand.",
        ),
        (
            {"plan__strength": "weak"},
            [{"name": "access", "level": "info", "message": "the model is a black box"}],
            "The model is a black box: only attacks by queries are possible, so the robust accuracy is only an upper "
            "bound. If its network is at hand, attack that with gradients.",
        ),
        (
            {"plan__strength": "weak", "threat__norm": "L0"},
            [],
            "The plan pair is weak: no strong ensemble is established for L0, so the robust accuracy is only an upper "
            "bound.",
        ),
        (
            {"plan__strength": "audited"},
            [],
            "The plan pair is shortened and was not audited, so it is unknown what it missed. To settle it, evaluate "
            "into another folder without audit=0 (--audit 0), or use the plan autoattack.",
        ),
    ],
)
def test_a_sound_quick_look_is_an_upper_bound(tmp_path, world, options, checks, text: str) -> None:
    run = world.run(tmp_path, {0: "..."}, **options)
    assert run.verdict.level == "upper bound" and run.verdict.findings[-1].level == "info"
    with Writer.resume(tmp_path, run.manifest) as writer:
        writer.update(checks=[check("ok"), *checks])
    verdict = Run.open(tmp_path).verdict
    assert (verdict.level, verdict.reasons) == ("upper bound", (text,))
    # A sign of trouble outweighs it, and is named first.
    with Writer.resume(tmp_path, run.manifest) as writer:
        writer.update(checks=[check("warn"), *checks])
    troubled = Run.open(tmp_path).verdict
    assert (troubled.level, troubled.reasons) == ("suspicious", ("Check gradient warns: it is warn.", text))


def test_levels_are_listed_from_the_best_to_the_worst_and_the_page_lists_every_rule() -> None:
    assert VERDICT_LEVELS == ("reliable", "upper bound", "suspicious", "invalid")
    levels = [VERDICT_LEVELS.index(level) for level, _, _ in RULES]
    assert levels == sorted(levels, reverse=True)
    page = (Path(__file__).parents[2] / "docs/verdict.md").read_text()
    for level, anchor, _ in RULES:
        assert any(row.startswith(f"| {level} | [") and f"(#{anchor})" in row for row in page.splitlines()), anchor


def test_a_finished_run_without_rows_is_invalid(tmp_path, world) -> None:
    verdict = world.run(tmp_path, {}).verdict
    assert (verdict.level, verdict.reasons) == ("invalid", ("The Run has no rows.",))


def probe(attack: str, **levels: str) -> dict:
    items = [
        {"name": name.replace("_", " "), "level": level, "sentence": "it is so", "mitigation": "Do this."}
        for name, level in levels.items()
    ]
    return {"attack": attack, "samples": 4, "items": items}


def with_probes(tmp_path, world, *probes):
    run = world.run(tmp_path, {0: "...", 1: "...", 2: "x"})
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.update(probes=list(probes))
    return type(run).open(tmp_path)


def test_probes_object_with_a_reason_and_a_place(tmp_path, world) -> None:
    run = with_probes(
        tmp_path, world, probe("a", unavailable_gradients="fail"), probe("b", unconstrained_failure="warn")
    )
    assert run.verdict.level == "suspicious"
    assert run.verdict.reasons == (
        "Probe of a, unavailable gradients: it is so. Do this.",
        "Probe of b, unconstrained failure: it is so. Do this.",
    )
    assert [finding.anchor for finding in run.verdict.findings] == [
        "verdict.md#probe-of-gradients",
        "verdict.md#probe-of-the-attack",
    ]


def test_probes_that_find_nothing_and_weakness_of_one_attack_among_several_change_nothing(tmp_path, world) -> None:
    run = with_probes(tmp_path, world, probe("a", unavailable_gradients="ok", black_box="fail"))
    assert len(run.attacks) > 1
    assert run.verdict == Verdict("reliable")


def answered(tmp_path, world, labels, answers, classes: int = 10, finished: bool = True) -> Run:
    """A Run of a model that gave these answers, whose right ones no attack could change."""
    rows = []
    for i, (label, answer) in enumerate(zip(labels, answers, strict=True)):
        wrong = bool(label != answer)
        said = {"label": int(label), "clean_pred": int(answer)}
        rows.append(world.record(i, "clean", broken=wrong, verified=True, distance=0.0, **said))
        rows += [] if wrong else [world.record(i, attack, **said) for attack in ("one", "two")]
    with Writer.create(tmp_path, world.manifest(model__classes=classes)) as writer:
        writer.append(pa.Table.from_pylist(rows, schema=ROWS), np.zeros(0, np.int64), np.zeros((0, 2, 2), np.float32))
        writer.update(finished=finished)
    return Run.open(tmp_path)


TEN = np.arange(200) % 10
RARE = np.arange(200) % 10 == 0  # two classes, nine to one


@pytest.mark.parametrize(
    ("labels", "answers", "classes", "chance", "guesses"),
    [
        (TEN, np.random.default_rng(0).integers(0, 10, 200), 10, 0.1, True),  # at random
        (TEN, np.full(200, 3), 10, 0.1, True),  # always the same
        (RARE, np.zeros(200), 2, 0.9, True),  # always the frequent class: right in 90 %
        (RARE, np.random.default_rng(0).permutation(RARE), 2, 0.82, True),  # often the frequent class, at random
        (TEN, np.where(np.arange(200) < 60, TEN, (TEN + 1) % 10), 10, 0.1, False),  # 30 %, thrice as good as chance
        (RARE, RARE, 2, 0.82, False),  # always right
        (np.zeros(200), np.zeros(200), 2, 0.5, False),  # samples of one class: answers cannot be uneven
        (np.zeros(3), np.zeros(3), 2, 0.5, True),  # all right, but three are too few to tell
        (np.zeros(4), np.zeros(4), 2, 0.5, False),
    ],
)  # fmt: skip
def test_a_model_that_guesses_has_nothing_to_break(
    tmp_path, world, labels, answers, classes: int, chance: float, guesses: bool
) -> None:
    run = answered(tmp_path, world, labels, answers, classes)
    assert run.chance_accuracy == pytest.approx(chance, abs=0.01)
    found = [f for f in run.verdict.findings if f.anchor == "verdict.md#guessing"]
    assert bool(found) is guesses
    if guesses:
        (finding,) = found
        assert finding.message.startswith(
            f"Nothing to break: the clean accuracy, {run.clean_accuracy}, is not clearly above"
        )


@pytest.mark.parametrize(
    ("labels", "classes", "missing", "warns"),
    [
        (TEN, 10, 0, False),
        (np.arange(200) % 9, 10, 1, True),  # 200 random samples miss a class once in 140 million draws
        (np.arange(40) % 9, 10, 1, False),  # 40 random samples miss one in 15 % of all draws
        (np.arange(40) % 5, 10, 5, True),  # but never five
        (np.zeros(10), 10, 9, True),  # ten samples of one class
        (np.zeros(50), 1000, 999, True),  # the first 50 files of ImageNet
        (np.arange(5000) // 50, 1000, 900, True),  # the first 5,000 files of ImageNet in sorted order
        (np.zeros(200), 2, 1, False),  # one class of two
        (np.arange(5000) % 997, 1000, 3, False),  # RobustBench's list
    ],
)
def test_classes_of_the_model_without_samples(tmp_path, world, labels, classes: int, missing: int, warns: bool) -> None:
    run = answered(tmp_path, world, labels, labels, classes)
    assert run.missing_classes == missing
    found = [f.message for f in run.verdict.findings if f.anchor == "verdict.md#missing-classes"]
    assert len(found) == warns and all(f"{missing:,} of the {classes:,} classes" in message for message in found)


def test_the_chance_of_missing_classes_bounds_the_exact_one() -> None:
    """Against the exact distribution of the number of classes drawn, by recursion over the samples."""
    for classes, n in ((10, 10), (10, 30), (10, 40), (25, 60), (100, 30)):
        exact = np.zeros(classes + 1)
        exact[0] = 1.0
        for _ in range(n):
            drawn = np.arange(classes + 1) / classes
            exact = exact * drawn + np.concatenate([[0.0], exact[:-1] * (1 - drawn[:-1])])
        for missing in range(classes):
            truth = exact[: classes - missing + 1].sum()
            bound = missing_by_chance(classes, n, missing)
            assert bound >= truth * (1 - 1e-9)
            assert missing == 0 or truth > 1e-6 or bound < 1e-3, (classes, n, missing)
    # A manifest may say anything: this takes no time.
    assert missing_by_chance(10**400, 5, 10**400) == 0.0 and missing_by_chance(-1, 5, -3) == 1.0


def test_of_an_unfinished_run_nothing_is_said_about_chance(tmp_path, world) -> None:
    run = answered(tmp_path, world, TEN, np.zeros(200), finished=False)
    assert [finding.anchor for finding in run.verdict.findings] == ["verdict.md#unfinished"]


def test_evidence_of_few_samples_is_in_the_singular(tmp_path, world) -> None:
    assert next(iter(evidence(world.run(tmp_path / "a", {0: "..."})))) == "0 of 1 correct sample is broken."
    none = world.run(tmp_path / "b", {0: "x"})
    assert list(evidence(none)) == ["No sample is classified correctly, so no sample was attacked."]
    assert "n = 1 sample of toys)" in none.sentence()


def test_of_an_unfinished_run_no_attack_is_blamed(tmp_path, world) -> None:
    """The black-box attack has no rows yet: that is because the Run is unfinished, not because the plan is weak."""
    stages = [{"name": name, "hash": name * 2, "requires": need} for name, need in (("one", "grad"), ("two", "logits"))]
    run = world.run(tmp_path, {0: "..", 1: ".x"}, finished=False, plan__stages=stages)
    assert [finding.anchor for finding in run.verdict.findings] == ["verdict.md#unfinished"]
    remedies = [finding.remedy for finding in check_gate(run, 45.0) if finding.name == "verdict"]
    assert remedies == ["Finish the Run first."]


@pytest.mark.parametrize(
    ("n", "rows", "level"), [(99, "...", "upper bound"), (100, "...", "reliable"), (99, "x", "reliable")]
)
def test_a_run_of_few_samples_is_not_reliable_unless_all_are_broken(
    tmp_path, world, monkeypatch: pytest.MonkeyPatch, n: int, rows: str, level: str
) -> None:
    monkeypatch.setattr("brinell.results.verdict.FEWEST", 100)
    verdict = world.run(tmp_path, dict.fromkeys(range(n), rows)).verdict
    found = [f for f in verdict.findings if f.anchor == "verdict.md#too-few-samples"]
    assert bool(found) == (level == "upper bound")
    assert not found or found[0].message.startswith("Too few samples to tell: 99 samples, of which 99 withstood")


def test_a_verdict_names_its_evidence_and_what_was_not_tested(tmp_path, world) -> None:
    world.run(tmp_path, {0: "...", 1: "..x", 2: "x"})
    checks = [
        {"name": "active test", "level": "ok", "message": "all found", "value": 0.9375, "threshold": 0.95},
        {"name": "reversed loss", "level": "ok", "message": "none of 16 broke", "value": 0.0},
        {"name": "finite differences", "level": "warn", "message": "they contradict", "value": 1.0},
    ]
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.update(checks=checks)
    verdict = Run.open(tmp_path).verdict
    text = " ".join(verdict.evidence)
    assert "1 of 2 correct samples is broken, by an adversarial that was verified" in text
    assert "Binarization test: the attack found the known adversarial of 94% of the samples." in verdict.evidence
    assert "Reversed loss: none of 16 broke." in verdict.evidence
    assert "contradict" not in text
    assert "Attacks with gradients broke" not in text, "the world does not say what its attacks require"
    assert not any("binarization" in item for item in verdict.untested)
    assert verdict.untested[-1] == "Attacks made for this model."


def test_a_test_that_was_not_made_is_named(tmp_path, world) -> None:
    world.run(tmp_path, {0: "..."})
    assert any("binarization test, --test" in item for item in Run.open(tmp_path).verdict.untested)
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.update(checks=[{"name": "active test", "level": "info", "message": "not made: it costs too much"}])
    assert any("not made: it costs too much." in item for item in Run.open(tmp_path).verdict.untested)
