"""Plans hold one list of stages per norm, and `stages_for` is the way to it."""

import pickle

import pytest

import brinell
from brinell import L0, L1, L2, Linf, Plan, PlanError, Stage
from brinell.attacks import APGD, DDN, FGSM, PGD, Square
from brinell.attacks.catalogue import PLANS
from brinell.core.ranking import AttackRanking, LogitRanking

FAST, SLOW = Stage(FGSM()), Stage(PGD(steps=50))
THREATS = (Linf(0.1), L2(0.5), L1(5), L0(3))


def test_a_plain_list_is_for_every_norm() -> None:
    mine = Plan("mine", (FAST, SLOW))
    assert all(mine.stages_for(threat) == (FAST, SLOW) for threat in THREATS)
    assert brinell.plan([FGSM(), PGD(steps=50)], name="mine") == mine


def test_norms_that_are_not_named_get_the_first_list() -> None:
    mine = Plan("mine", {"Linf": (FAST,), "L2": (FAST, SLOW)})
    assert [len(mine.stages_for(threat)) for threat in THREATS] == [1, 2, 1, 1]
    assert mine.to_json()["stages"] == [FAST.to_json()]
    assert pickle.loads(pickle.dumps(mine)) == mine and hash(mine) == hash(Plan("mine", (FAST,)))


def test_changes_reach_every_norm() -> None:
    mine = Plan("mine", {"Linf": (FAST,), "L2": (FAST, SLOW)})
    twice = mine.with_stages(lambda stages: tuple(brinell.Restarts(s, 2) for s in stages))
    assert all(s.restarts == 2 for threat in THREATS for s in twice.stages_for(threat))
    assert [len(twice.stages_for(threat)) for threat in THREATS] == [1, 2, 1, 1]


@pytest.mark.parametrize(
    "stages", [(), (FAST, FAST), {"Linf": (FAST,), "L2": ()}, {"Linf": (FAST,), "L2": (SLOW, SLOW)}]
)
def test_every_list_has_stages_with_names_of_their_own(stages: brinell.core.plan.Stages) -> None:
    with pytest.raises(PlanError, match="each with its own name"):
        Plan("mine", stages)


def test_an_audit_is_a_stage_with_a_share() -> None:
    audit = Stage(APGD(), share=0.25)
    assert audit.is_audit and audit.sampled_share == 0.25
    assert not FAST.is_audit and FAST.sampled_share == 1
    assert Plan("mine", (FAST, audit)).has_audit and not Plan("mine", (FAST,)).has_audit
    assert [name for name, plan in PLANS.items() if plan.has_audit] == ["fast"]


def test_gradients_are_needed_by_attacks_and_by_rankings() -> None:
    assert not PLANS["blackbox"].needs_gradients and not brinell.plan([Square()]).needs_gradients
    assert brinell.plan([DDN()]).needs_gradients


def test_stages_describe_their_ranking() -> None:
    targeted = APGD(loss="minimum-margin")
    assert Stage(targeted, ranks=(2,)).ranking == LogitRanking()
    ranked = brinell.Eot(brinell.Targets(targeted, k=3, ranked_by=FGSM(), radius=0.2), 2)
    assert ranked.ranking == AttackRanking(FGSM(), 0.2) and ranked.ranking_passes == (4, 2)
    assert ranked.ranking.threat(Linf(0.1)).eps == 0.2 and LogitRanking().threat(Linf(0.1)) == Linf(0.1)
