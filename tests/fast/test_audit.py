"""The audit's numbers against sets computed by hand, its bound against planted misses, and what follows from it."""

from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import brinell
from brinell import Plan, PlanError, Run
from brinell.attacks import FGSM, PGD
from brinell.attacks.catalogue import AGAIN_NEAR, AUDIT_SHARE, NEAR, SEARCH, by_name
from brinell.cli._shared.run_output import print_run
from brinell.evaluation.audit import in_audit
from brinell.evaluation.plan import adapt, audited
from brinell.ops import rng
from brinell.report.facts import facts
from brinell.results import Audit, Cost
from brinell.results.audit_bound import TOO_MUCH

pytestmark = pytest.mark.usefixtures("unchecked", "few")

FREE = Cost(0, 0, 0.0, 0)


# ------------------------------------------------------------------------------------------------------ who is audited


def test_the_choice_depends_on_seed_and_id_alone() -> None:
    ids = torch.arange(5000)
    whole = in_audit(3, ids, 0.2)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(in_audit(3, ids[order], 0.2), whole[order])
    some = order[:17]
    assert torch.equal(in_audit(3, ids[some], 0.2), whole[some])
    assert [bool(in_audit(3, ids[i : i + 1], 0.2)) for i in range(50)] == whole[:50].tolist()
    # Another seed is an independent choice: 4 % are in both.
    both = (whole & in_audit(4, ids, 0.2)).float().mean().item()
    assert both == pytest.approx(0.04, abs=4 * (0.04 * 0.96 / 5000) ** 0.5)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.125, 0.5, 0.9, 1.0])
def test_the_share_is_a_frequency(share: float) -> None:
    n = 40_000
    got = torch.cat([in_audit(seed, torch.arange(n // 4), share) for seed in range(4)]).float().mean().item()
    assert got == pytest.approx(share, abs=4 * (share * (1 - share) / n) ** 0.5 + 1e-12)


def test_a_larger_audit_contains_the_smaller_one() -> None:
    ids = torch.arange(2000)
    assert (in_audit(0, ids, 0.1) <= in_audit(0, ids, 0.3)).all()


@pytest.mark.parametrize("attack", ["pursuit", "apgd-ce", "square"])
def test_the_choice_has_nothing_to_do_with_the_attacks_noise(attack: str) -> None:
    """The key of an attack, folded or not, gives uniform numbers independent of the choice."""
    ids = torch.arange(20_000)
    chosen = in_audit(0, ids, 0.3)
    noise = rng.uniform(rng.fold(rng.keys(0, ids), rng.digest(attack)), (1,))[:, 0]
    for v in (noise, rng.uniform(rng.keys(0, ids), (1,))[:, 0]):
        gap = (v[chosen].mean() - v[~chosen].mean()).item()
        assert abs(gap) < 4 * (1 / 12 / 20_000 / 0.21) ** 0.5


# ----------------------------------------------------------------------------------------------------------- the bound


def simulated(missed: int, survivors: int = 500, seeds: int = 200) -> tuple[float, float, float]:
    """How often the bound and the lower bound hold when so many survivors are breakable, and the mean of the bound."""
    ids = torch.arange(survivors)
    held, not_above, bounds = 0, 0, []
    for seed in range(seeds):
        chosen = in_audit(seed, ids, 0.125)
        # Who is breakable is fixed before anybody is chosen.
        most, least = promised(survivors, int(chosen.sum()), int(chosen[:missed].sum()))
        bounds.append(most)
        held += most >= missed
        not_above += least <= missed
    return held / seeds, not_above / seeds, float(np.mean(bounds))


@cache
def promised(survivors: int, audited: int, found: int) -> tuple[int, int]:
    """The most and the least that an audit says were missed, those found included."""
    a = Audit(survivors, audited, found, 1000, survivors - audited, FREE)
    return a.found + a.missed, round(a.at_least * a.n)


@pytest.mark.parametrize("missed", [0, 1, 3, 10, 40])
def test_the_bound_holds_as_often_as_it_says(missed: int) -> None:
    held, not_above, mean = simulated(missed)
    assert held >= 0.93
    assert not_above >= 0.93
    # Nor does it say nothing: with every eighth audited, none found bounds 500 survivors by about 22.
    assert mean <= 2.2 * missed + 25


def test_the_numbers_of_an_audit_by_hand() -> None:
    """Four items of ten were drawn: 0 of 4 marked leaves c marked with chance C(10 − c, 4) / C(10, 4)."""
    # c = 4: 15/210 = 0.071 > 0.05; c = 5: 5/210 = 0.024.
    a = Audit(survivors=10, audited=4, found=0, n=20, rest=6, cost=FREE)
    assert (a.missed, a.bound, a.at_least, a.objects, a.complete) == (4, 0.2, 0.0, False, False)
    # 1 of 4: at least one for certain, which may happen to any attack.
    assert (replace(a, found=1).at_least, replace(a, found=1).objects) == (0.05, False)
    # 2 of 4 would come from two marked ones with chance C(8, 2) / 210 = 0.13: at least two, of 20 too many.
    b = replace(a, found=2)
    assert (b.at_least, b.objects) == (0.1, True)
    # Of a thousand times as many samples it is not.
    assert not replace(b, n=20_000).objects
    assert 2 / 20_000 < TOO_MUCH < 2 / 20
    # The rest was attacked too: nothing is left to bound, nobody objects.
    c = replace(b, rest=0)
    assert (c.missed, c.bound, c.objects, c.complete) == (0, 0.0, False, True)
    # Never more than there are left.
    assert Audit(10, 4, 4, 20, 2, FREE).missed == 2
    assert "2 broken; then it attacked all others" in str(c)
    assert (
        "4 of 10 survivors attacked by the full plan, 0 broken: it would break at most 4 more (20.0 points, 95 %)"
        in str(a)
    )
    # The interval of 10 of 20 is 20 points wide to each side, that of 1,000 of 2,000 only 2.2.
    assert str(replace(a, survivors=1_000, n=2_000, rest=996)).endswith(
        ": a spot check, which alone would leave at most 526 open (95 %)"
    )


def test_an_audit_of_nobody_says_nothing() -> None:
    a = Audit(survivors=30, audited=0, found=0, n=50, rest=30, cost=FREE)
    assert (a.missed, a.objects) == (30, False)
    assert str(a) == "none of 30 survivors drawn at random for the full plan"
    assert Audit(0, 0, 0, 5, 0, FREE).missed == 0


# -------------------------------------------------------------------------------------------------------- of a real Run


def sets(run: Run, share: float, seed: int) -> dict[str, set[int]]:
    """Who survived the short stage, was chosen, fell at full strength: from the rows, one by one."""
    rows = run.rows().to_pylist()
    fell = {(r["sample_id"], r["attack"]) for r in rows if r["broken"] and r["verified"]}
    everyone = {r["sample_id"] for r in rows}
    survivors = {i for i in everyone if (i, "clean") not in fell and (i, "short") not in fell}
    ids = torch.tensor(sorted(everyone))
    chosen = set(ids[in_audit(seed, ids, share)].tolist())
    full = {i for i, attack in fell if attack not in ("clean", "short")}
    return {"survivors": survivors, "audited": survivors & chosen, "full": full}


@pytest.fixture(scope="module")
def run(truth: Any, careless: Plan) -> Run:
    return truth.evaluate(careless, seed=0)


def test_the_audit_of_a_run_is_what_its_rows_say(run: Run, truth: Any) -> None:
    known, a = sets(run, 0.3, seed=0), run.audit
    assert a is not None
    assert len(known["survivors"] & truth.breakable) > 5
    assert len(truth.breakable - known["survivors"]) > 5
    assert a.survivors == len(known["survivors"])
    assert a.audited == len(known["audited"])
    # The truth is known: of the audited exactly the breakable ones fall.
    assert known["full"] == known["audited"] & truth.breakable
    assert a.found == len(known["full"])
    assert a.rest == len(known["survivors"] - known["audited"])
    assert a.n == run.clean_accuracy.n == len(truth.world.y)
    missed = known["survivors"] & truth.breakable
    assert a.found < len(missed) <= a.found + a.missed
    assert a.at_least <= len(missed) / a.n
    assert a.objects


def test_only_the_chosen_are_attacked_at_full_strength(run: Run) -> None:
    rows = [r for r in run.rows().to_pylist() if r["attack"] not in ("clean", "short")]
    known, a = sets(run, 0.3, seed=0), run.audit
    assert {r["sample_id"] for r in rows} == known["audited"]
    assert all(r["flags"] == ["audit"] for r in rows)
    assert all(r["flags"] == [] for r in run.rows().to_pylist() if r["attack"] in ("clean", "short"))
    assert a is not None
    assert a.cost.forwards == sum(r["forwards"] for r in rows)
    assert a.cost.backwards == sum(r["backwards"] for r in rows)
    assert 0 < a.cost.forwards < run.cost.forwards
    assert not len(run.skipped()), "who was not chosen lacks nothing"


def test_another_seed_chooses_others(run: Run, truth: Any, careless: Plan) -> None:
    other = truth.evaluate(careless, seed=6)
    assert sets(other, 0.3, seed=6)["audited"] == {
        r["sample_id"] for r in other.rows().to_pylist() if "audit" in r["flags"]
    }
    assert sets(other, 0.3, seed=6)["audited"] != sets(run, 0.3, seed=0)["audited"]


def test_parts_have_the_audit_of_the_whole(run: Run, truth: Any, careless: Plan, tmp_path: Path, outcome: Any) -> None:
    for name, part in (("a", slice(0, 41)), ("b", slice(41, None))):
        truth.evaluate(careless, part=part, seed=0, out=tmp_path / name)
    merged = Run.merge([tmp_path / "b", tmp_path / "a"], tmp_path / "merged")
    assert outcome(merged).equals(outcome(run))
    a, b = merged.audit, run.audit
    assert a is not None and b is not None
    assert replace(a, cost=FREE) == replace(b, cost=FREE)
    assert (a.cost.forwards, a.cost.backwards) == (b.cost.forwards, b.cost.backwards)
    assert [r for r in merged.verdict.reasons if "audit" in r] == [r for r in run.verdict.reasons if "audit" in r]


def test_plans_without_an_audit_have_none(truth: Any) -> None:
    assert truth.evaluate(brinell.plan([FGSM()])).audit is None


# --------------------------------------------------------------------------------------------------------- the verdict


def reasons(run: Run) -> str:
    return " ".join(run.verdict.reasons)


def test_who_is_not_audited_is_an_upper_bound(truth: Any, careful: Plan) -> None:
    run = truth.evaluate(audited(careful, 0))
    assert run.attacks == ["short"]
    assert run.audit is None
    assert run.verdict.level == "upper bound"
    assert "careful is shortened and was not audited" in reasons(run)


def test_an_audit_that_objects_tells_its_numbers(run: Run) -> None:
    a = run.audit
    assert a is not None
    assert run.verdict.level == "suspicious"
    assert f"The full plan broke {a.found} of {a.audited} audited survivors" in reasons(run)
    assert f"missed at least {100 * a.at_least:.1f} points" in reasons(run)
    assert "escalate" in reasons(run)


def test_a_small_audit_is_not_enough(truth: Any, careful: Plan) -> None:
    run = truth.evaluate(audited(careful, 0.05))
    a, accuracy = run.audit, run.robust_accuracy
    assert a is not None and a.found == 0
    assert a.bound > (accuracy.high - accuracy.low) / 2
    assert run.verdict.level == "upper bound"
    assert f"too small to confirm the plan careful: after {a.audited} samples" in reasons(run)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_sufficient_or_complete_audit_is_reliable(truth: Any, careful: Plan, share: float) -> None:
    run = truth.evaluate(audited(careful, share))
    a, accuracy = run.audit, run.robust_accuracy
    assert a is not None and a.complete == (share == 1.0)
    assert a.bound <= (accuracy.high - accuracy.low) / 2
    assert run.verdict.level == "reliable", run.verdict
    assert set(run.survivors().tolist()) == truth.everyone - truth.breakable


def test_a_complete_audit_need_not_agree(truth: Any, careless: Plan) -> None:
    """The short stage missed many, but the full plan has seen every survivor: the number is the full plan's."""
    run = truth.evaluate(audited(careless, 1.0))
    assert run.audit is not None and run.audit.found > 5
    assert run.verdict.level == "reliable", run.verdict
    assert set(run.survivors().tolist()) == truth.everyone - truth.breakable


# ------------------------------------------------------------------------------------------------------------- reports


def test_json_has_the_audit_and_its_cost_apart(run: Run) -> None:
    told, a = facts(run), run.audit
    assert a is not None
    assert told["audit"]["survivors"] == a.survivors
    assert (told["audit"]["audited"], told["audit"]["found"]) == (a.audited, a.found)
    assert told["audit"]["missed_at_most"] == a.missed
    assert told["audit"]["bound"] == a.missed / a.n
    assert told["audit"]["objects"] is True
    assert told["audit"]["cost"]["forwards"] == a.cost.forwards < told["cost"]["forwards"]
    assert told["audit"]["cost"]["backwards"] == a.cost.backwards


def test_json_without_an_audit(truth: Any) -> None:
    assert facts(truth.evaluate(brinell.plan([FGSM()])))["audit"] is None


def test_texts_have_the_audit_and_its_cost_apart(run: Run) -> None:
    a, console = run.audit, Console(file=StringIO(), width=100)
    print_run(run, console)
    screen = " ".join(console.file.getvalue().replace("│", " ").split())  # type: ignore[attr-defined]
    plain = " ".join(str(run).split())
    assert a is not None
    assert str(a) in plain and str(a) in screen
    stages = ", ".join(a.attacks)
    assert f"of this {stages} {a.cost.forwards} forwards, {a.cost.backwards} backwards" in plain
    assert f"of which {stages}: {a.cost.forwards:,} and {a.cost.backwards:,}" in screen
    assert plain.count(str(a)) == screen.count(str(a)) == 1


# --------------------------------------------------------------------------------------------------------------- plans


def test_the_plan_fast_is_pursuit_a_search_and_autoattack_on_few() -> None:
    fast, full = by_name("fast"), by_name("autoattack")
    assert fast.strength == "audited"
    for threat in (brinell.Linf(0.1), brinell.L1(1)):
        mine, theirs = fast.stages_for(threat), full.stages_for(threat)
        assert [s.name for s in mine[:3]] == ["pursuit", "search", "again"]
        assert [s.is_audit for s in mine] == [False, False, True, True, True, True, True]
        assert mine[1].attack.queries == SEARCH + 1
        assert [replace(s, share=None, near=None) for s in mine[3:]] == list(theirs)
        assert [(s.share, s.near) for s in mine[2:]] == [(AUDIT_SHARE, AGAIN_NEAR), *[(AUDIT_SHARE, NEAR)] * 4]


def test_the_full_plan_of_fast_draws_the_noise_of_autoattack() -> None:
    """Repeated attacks are numbered; the search has noise of its own, so that it does not count as one."""
    fast, full = (adapt(by_name(name), brinell.Linf(0.1), classes=10)[0] for name in ("fast", "autoattack"))
    both = ([(s.name, s.noise or s.attack.name, s.copy) for s in p.stages_for(brinell.Linf(0.1))] for p in (fast, full))
    assert set(next(both)[3:]) == set(next(both))


def test_changing_the_share() -> None:
    fast = by_name("fast")
    for share in (0.5, 1.0):
        changed = audited(fast, share)
        for threat in (brinell.Linf(0.1), brinell.L1(1)):
            assert [s.share for s in changed.stages_for(threat)] == [None, None, *[share] * 5]
    none = audited(fast, 0)
    for threat in (brinell.Linf(0.1), brinell.L1(1)):
        assert [s.name for s in none.stages_for(threat)] == ["pursuit"]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_shares_that_make_no_sense(share: float) -> None:
    with pytest.raises(PlanError, match="between 0 and 1"):
        audited(by_name("fast"), share)
    with pytest.raises(PlanError, match="above 0 and at most 1"):
        brinell.Stage(PGD(), share=share)


def test_a_plan_without_an_audit_has_no_share_to_change() -> None:
    with pytest.raises(PlanError, match="a plan with an audit, got autoattack"):
        audited(by_name("autoattack"), 0.5)


def test_the_share_is_part_of_the_identity(truth: Any, careless: Plan, tmp_path: Path) -> None:
    truth.evaluate(careless, part=slice(0, 8), out=tmp_path / "run")
    with pytest.raises(brinell.RunError, match="share"):
        truth.evaluate(audited(careless, 0.5), part=slice(0, 8), out=tmp_path / "run", resume=True)
