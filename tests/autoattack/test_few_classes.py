"""Every plan works with two, three, four and ten classes; the plan adapts and the Run says how."""

from typing import Any

import pytest

import brinell
from brinell import L1, L2, Linf
from brinell.attacks.catalogue import by_name
from brinell.ops.losses import LOSSES

pytestmark = pytest.mark.usefixtures("unchecked")

THREATS = {"Linf": Linf(0.02), "L2": L2(0.15), "L1": L1(0.5)}


def stages_of(name: str, norm: str) -> tuple[brinell.Stage, ...]:
    return by_name(name).stages_for(THREATS[norm])


# With four classes or more nothing is replaced, and a loss is replaced in every plan alike: the chains that hold every
# attack stand for the rest, which have two or three classes in turn.
CHAINS = ("autoattack", "autoattack-plus", "autoattack-rand")
CASES = [
    pytest.param(
        name, k, marks=() if (k == 2 + i % 2 and name != "minimal-full") or name in CHAINS else pytest.mark.slow
    )
    for i, name in enumerate(brinell.plans())
    if name not in ("detector", "exact")  # which need a model with a detector, and Linf
    for k in (2, 3, 4, 10)
]


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_every_plan(name: str, classes: int, tiny: Any, images: Any, quiet: Any, cut: Any) -> None:
    norm = list(THREATS)[classes % 3]
    net = tiny(classes)
    run = quiet(net, images(net, 5), THREATS[norm], cut(name, steps=2, queries=4, targets=9, restarts=1))
    assert run.finished
    assert run.clean_accuracy.k == 4
    assert not run.unverified.num_rows
    notes = "\n".join(run.manifest["notes"])
    stored = run.manifest["identity"]["plan"]["stages"]
    for stage, after in zip(stages_of(name, norm), stored, strict=True):
        assert len(after["ranks"]) == min(len(stage.ranks), classes - 1)
        assert after["ranks"] == list(stage.ranks)[: classes - 1]
        if len(stage.ranks) > classes - 1:
            assert f"{stage.name}: {classes - 1} instead of {len(stage.ranks)} targets" in notes
        loss = LOSSES[stage.attack.loss]
        if classes < loss.classes:
            assert f"{stage.name}: the {stage.attack.loss} loss needs {loss.classes} classes" in notes
            numbers = after["attack"]
            while "loss" not in numbers:  # an attack around another
                numbers = numbers["inner" if "inner" in numbers else "attack"]
            assert numbers["loss"] == loss.instead
    if classes == 10:
        assert notes == ""


@pytest.mark.parametrize("classes", [2, 3, 4, 12])
def test_as_many_targets_as_there_are_other_classes(classes: int) -> None:
    from brinell.evaluation.plan import adapt

    fitted, _ = adapt(by_name("autoattack"), THREATS["Linf"], classes=classes)
    assert [len(s.ranks) for s in fitted.stages] == [0, min(9, classes - 1), min(9, classes - 1), 0]
    fitted, _ = adapt(by_name("autoattack"), THREATS["L1"], classes=classes)
    assert [len(s.ranks) for s in fitted.stages] == [0, min(5, classes - 1), min(9, classes - 1), 0]


def test_two_classes_fall_as_they_must(tiny: Any, images: Any, quiet: Any, cut: Any) -> None:
    """One target, and losses that grow together: the versions of APGD break the same samples."""
    net = tiny(2)
    data = images(net, 24)
    run = quiet(net, data, Linf(0.03), cut("autoattack-plus", steps=10, queries=10), individual=True)
    apgd = {s.attack: s.broken for s in run.stages() if s.attack.startswith("apgd")}
    assert min(apgd.values()) > 0
    assert max(apgd.values()) - min(apgd.values()) <= 1
