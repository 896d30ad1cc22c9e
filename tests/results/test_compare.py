import pytest

from brinell.errors import RunError
from brinell.results import Proportion, Run, compare, mcnemar, paired_difference


def test_common_samples_are_compared(tmp_path, world) -> None:
    a = world.run(tmp_path / "a", {0: "...", 1: "...", 2: "..x", 3: "x", 4: "...", 9: "..."})
    b = world.run(tmp_path / "b", {0: "...", 1: "..x", 2: "...", 3: "x", 4: ".x", 8: "x"}, seed=1, finished=False)
    result = compare(a, b)
    assert (result.both, result.only_a, result.only_b, result.neither, result.n) == (1, 2, 1, 1, 5)
    assert (result.ids_only_a, result.ids_only_b) == ((1, 4), (2,))
    assert (result.robust_a, result.robust_b) == (Proportion(3, 5), Proportion(2, 5))
    assert result.agreement == Proportion(2, 5)
    assert result.p_value == mcnemar(2, 1) == 1.0
    assert result.difference == paired_difference(1, 2, 1, 1)
    assert str(result) == (
        f"A is net ({tmp_path / 'a'}), B is net ({tmp_path / 'b'}); they have 5 samples in common.\n"
        f"Robust accuracy of A: {Proportion(3, 5)}. Robust accuracy of B: {Proportion(2, 5)}.\n"
        f"Verdict on A: {a.verdict.level}. Verdict on B: {b.verdict.level}.\n"
        "A is robust on 2 samples where B is not, B on 1 sample where A is not.\n"
        f"Both are robust on 1, neither on 1; they agree on {Proportion(2, 5)}.\n"
        f"The difference A - B is {result.difference} (95 %, Newcombe's paired score interval).\n"
        "Exact McNemar test: p = 1, so at the 5 % level A and B cannot be distinguished.\n"
        "The evaluations differ in: seed.\n"
        "The verdict on A and B is not reliable: the true accuracy may be lower, and so may differ from this.\n"
        "B is unfinished."
    )


def test_a_clear_difference_is_called_one(tmp_path, world) -> None:
    a = world.run(tmp_path / "a", dict.fromkeys(range(10), "..."), model__name=None)
    b = world.run(tmp_path / "b", dict.fromkeys(range(10), "..x"), model__name=None)
    assert "A and B differ" in str(compare(a, b))
    assert str(compare(a, b)).startswith(f"A is {tmp_path / 'a'}, B is")


def test_a_run_agrees_with_itself(golden: Run) -> None:
    result = compare(golden, golden)
    assert result.agreement.value == 1 and result.difference.value == 0
    assert [note[:31] for note in result.notes] == ["The verdict on A and B is not r"]


def test_disjoint_runs_are_refused(tmp_path, world) -> None:
    a, b = world.run(tmp_path / "a", {0: "..."}), world.run(tmp_path / "b", {1: "..."})
    with pytest.raises(RunError, match="no sample id in both"):
        compare(a, b)


def test_other_inputs_under_the_same_ids_are_refused(golden: Run, tmp_path, world) -> None:
    with pytest.raises(RunError, match=r"2 samples that differ between .* the first with id 1\."):
        compare(golden, world.run(tmp_path, {1: "...", 2: "...", 77: "..."}))
