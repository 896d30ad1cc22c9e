"""Runs that do not depend on one another are made side by side, and nothing that comes out is another."""

from dataclasses import replace

import pytest
import torch
from tests.engine.fixed import Counting, Fixed, images, run

from brinell.attacks import Pursuit
from brinell.core.threat import L1, L2, Linf
from brinell.engine.cuda import parallel_restarts
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.ops.rowwise import same

pytestmark = pytest.mark.usefixtures("unchecked")

ATTACK = Pursuit(steps=5, targets=2, again=8)
NORMS = {"Linf": (Linf, 1), "L2": (L2, 2), "L1": (L1, torch.inf)}


@pytest.fixture
def begun(monkeypatch):
    """The branches that are begun, counted from 0."""
    seen = []
    begin = parallel_restarts.begin_restarts

    def noting(engine, entry):
        seen.extend(entry.which[entry.which >= 0].tolist())
        return begin(engine, entry)

    monkeypatch.setattr(parallel_restarts, "begin_restarts", noting)
    return seen


def near_misses(norm):
    """Samples of a linear world and radii just below the distance of the plane between its two classes.

    The gap of a run is (distance − eps) / eps: 0.2, 0.06, 0.03, 0.015 and 0.005 ask for 0, 2, 4, 6 and 8 repetitions.
    """
    torch_rng = torch.Generator().manual_seed(1)
    net = torch.nn.Linear(12, 2).eval()
    with torch.no_grad():
        net.weight[1] = torch.randn(12, generator=torch_rng) * 0.1 + 0.5
        net.weight[0] = 0
        net.bias.copy_(torch.tensor([0.0, 0.6 - 0.5 * float(net.weight[1].sum())]))
    x = 0.4 + 0.2 * torch.rand(10, 12, generator=torch_rng)
    kind, dual = NORMS[norm]
    with torch.no_grad():
        distance = net(x)[:, 1] / torch.linalg.vector_norm(net.weight[1], dual)
        gaps = torch.tensor([0.2, 0.06, 0.03, 0.015, 0.005]).repeat(2)
    return (wrap(net), x, torch.ones(10, dtype=torch.long), kind(distance / (1 + gaps)), ATTACK)


@pytest.mark.parametrize("slots", [3, 8, 40])
@pytest.mark.parametrize("norm", NORMS)
def test_every_sample_gets_its_branches(norm, slots, begun):
    world = near_misses(norm)
    expected = run(*world)
    assert not expected.broken.any()
    assert same(run(*world, GraphCache(make=Fixed), slots=slots), expected)
    # In L1 no coordinate can move by more than is left to the border: gaps are wider than the linear world's.
    counts = {k: begun.count(k) for k in range(8)}
    assert norm == "L1" or counts == {0: 8, 1: 8, 2: 6, 3: 6, 4: 4, 5: 4, 6: 2, 7: 2}


@pytest.mark.parametrize("early_exit", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_side_by_side_is_one_after_another(precision, early_exit, begun):
    """A curved world, where some repetitions succeed and make others needless."""
    world = (*images(32), Linf(0.045), ATTACK)
    args = {"oracle": Oracle(world[0], 8, precision=precision), "early_exit": early_exit}
    expected = run(*world, **args)
    graph_cache = GraphCache(make=Fixed)
    assert same(run(*world, graph_cache, **args), expected)
    assert max(begun) >= 3, "the case has samples with several branches"
    assert early_exit or graph_cache.unneeded_forwards == 0, "without an early exit everything is needed"
    assert 0 < int(expected.broken.sum()) < 32, "the case shows both outcomes"


def test_order_changes_nothing():
    world = near_misses("Linf")
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    assert same(run(*world, GraphCache(make=Fixed), order=order), run(*world))


def test_recording_that_fails_changes_nothing(begun):
    def refuse(*args):
        raise RuntimeError("cannot record")

    graph_cache, world = GraphCache(make=refuse), near_misses("Linf")
    assert same(run(*world, graph_cache), run(*world))
    assert graph_cache.failed and begun


def test_the_longest_sample_takes_fewer_calls():
    """By itself: eight repetitions, which would follow one another in its row, fit into one block side by side."""
    classifier, x, y, t, attack = near_misses("Linf")
    one = (classifier, x[4:5], y[4:5], Linf(float(t.eps[4])), attack)
    alone = run(*one)
    Counting.made = 0
    assert same(run(*one, GraphCache(make=Counting), slots=8), alone)
    one_after_another, side_by_side = int(alone.forwards), int(alone.forwards) - 7 * (attack.steps + 1)
    # The last lane goes on while the host looks: a look later at the end of either part.
    assert Counting.made == side_by_side + 2 < one_after_another / 2


def test_ticks_count_what_was_made():
    """Also where the last lane goes on before the host has looked."""
    classifier, x, y, t, attack = near_misses("Linf")
    told = []
    engine_run = Engine.run

    def run_told(engine, work):
        return engine_run(replace(engine, tick=lambda made: told.append(made)), work)

    Counting.made = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "run", run_told)
        run(classifier, x[4:5], y[4:5], Linf(float(t.eps[4])), attack, GraphCache(make=Counting), slots=8)
    # The last lane is left with one look pending.
    assert sum(told) in (Counting.made, Counting.made - 1)
