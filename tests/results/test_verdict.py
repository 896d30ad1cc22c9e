import pytest

from brinell.results import Verdict, Writer, judge


def check(level: str) -> dict[str, str]:
    return {"name": "gradient", "level": level, "message": f"it is {level}"}


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ([], "reliable: No rule of the verdict objects."),
        ([check("ok")], "reliable: No rule of the verdict objects."),
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
    run = world.run(tmp_path, {0: "...", 1: "x"})
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.update(checks=checks)
    run = type(run).open(tmp_path)
    assert str(run.verdict) == text == str(judge(run))


@pytest.mark.parametrize(
    ("samples", "options", "text"),
    [
        ({0: ".u."}, {}, "1 adversarial did not pass verification and is not counted."),
        ({0: ".u.", 1: ".ux"}, {}, "2 adversarials did not pass verification and are not counted."),
        ({0: "..."}, {"finished": False}, "The Run is not finished, so its robust accuracy is only an upper bound."),
        ({0: "..."}, {"data__n": 4}, "Rows of 3 of 4 samples are missing."),
        (
            {0: "...", 1: ".", 2: ". .", 3: ".x"},
            {},
            "Of the samples counted as robust, 2 lack a row of some attack of the plan.",
        ),
        (
            {0: "..."},
            {"plan__strength": "weak"},
            "The plan pair is weak: without a strong ensemble that includes a black-box attack the robust accuracy "
            "is only an upper bound; "
            "run the plan autoattack.",
        ),
    ],
)
def test_the_rules_of_suspicion(tmp_path, world, samples, options, text: str) -> None:
    assert world.run(tmp_path, samples, **options).verdict == Verdict("suspicious", (text,))


def test_a_finished_run_without_rows_is_invalid(tmp_path, world) -> None:
    assert world.run(tmp_path, {}).verdict == Verdict("invalid", ("The Run has no rows.",))
