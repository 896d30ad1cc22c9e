"""Individual mode: one Run with the numbers of a separate evaluation of every attack."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from brinell import L1, L2, Linf, Plan

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("threat", [Linf(0.018), L2(0.12), L1(0.35)], ids=lambda t: t.norm.name)
def test_columns_are_those_of_separate_evaluations(
    threat: Any, tiny: Any, images: Any, quiet: Any, cut: Any, outcome: Any
) -> None:
    net, whole = tiny(), cut("autoattack-plus")
    data = images(net, 16)
    together = quiet(net, data, threat, whole, individual=True)
    standing = set(range(16))
    for stage, numbers in zip(whole.stages_for(threat), together.stages(), strict=True):
        alone = quiet(net, data, threat, Plan("alone", (stage,)))
        assert numbers == alone.stages()[0]
        assert numbers.attacked == together.clean_accuracy.k
        mine = outcome(together).filter(pc.equal(outcome(together)["attack"], stage.name))
        theirs = outcome(alone).filter(pc.equal(outcome(alone)["attack"], stage.name))
        assert mine.equals(theirs)
        standing &= set(alone.survivors().tolist())
    assert together.survivors().tolist() == sorted(standing)
    assert len({s.broken for s in together.stages()}) > 1


def test_the_chain_breaks_the_same_samples(tiny: Any, images: Any, quiet: Any, cut: Any) -> None:
    """Whether every attack sees every sample or only those left over does not change who survives."""
    net, whole = tiny(), cut("autoattack-plus")
    data = images(net, 16)
    chain, together = (quiet(net, data, Linf(0.018), whole, individual=i) for i in (False, True))
    assert np.array_equal(chain.survivors(), together.survivors())
    assert [a.k for _, a in chain.accuracy_after()] == [a.k for _, a in together.accuracy_after()]
    assert chain.cost.forwards < together.cost.forwards
