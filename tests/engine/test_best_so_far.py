"""Records of legs that ran apart, joined, are the record of the legs one after another."""

from dataclasses import replace

import pytest
import torch

from brinell.core.attack import Batch, Response
from brinell.core.criterion import Misclassified
from brinell.core.threat import Linf
from brinell.engine.attack_step import BestSoFar
from brinell.engine.best_so_far import at_next_attempt, blank, joined
from brinell.ops import rng
from brinell.ops.rowwise import same

N, ATTEMPTS, ANSWERS = 400, 3, 4


def answers(seed):
    """Points at a few distances, logits on a coarse grid: ties, successes out of reach or in doubt, NaN."""
    g = torch.Generator().manual_seed(seed)
    for attempt in range(ATTEMPTS):
        for _ in range(ANSWERS):
            x = 0.5 + torch.randint(0, 5, (N, 1), generator=g) * 0.05 * torch.ones(N, 2)
            z = torch.randint(-4, 3, (N, 3), generator=g).float()
            # So wide a spread that no margin is one to be sure of.
            z[torch.rand(N, generator=g) < 0.5, 2] = -1000.0
            z[torch.rand(N, generator=g) < 0.02] = torch.nan
            yield attempt, x, Response(z, z[:, 1] - z[:, 0]), torch.rand(N, generator=g) < 0.9


@pytest.mark.parametrize("slack", [0.0, 2.0**-7])
@pytest.mark.parametrize("nearest", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_joined(seed, nearest, slack):
    recorder = BestSoFar(Misclassified(), nearest, slack=slack)
    y = torch.zeros(N, dtype=torch.long)
    x0 = torch.full((N, 2), 0.5)
    rows = Batch(x0, y, rng.keys(0, torch.arange(N)), y - 1)
    ball = Linf(0.1).ball(torch.arange(N), torch.device("cpu"))

    def see(r, attempt, x, a, live):
        r = recorder.update(r, x, a, rows, ball, live, y + attempt)
        return replace(r, forwards=r.forwards + live, backwards=r.backwards + live)

    one_after_another, apart = blank(x0), [blank(x0) for _ in range(ATTEMPTS)]
    for k, (attempt, x, a, live) in enumerate(answers(seed)):
        if k % ANSWERS == 0:
            one_after_another = at_next_attempt(one_after_another)
        one_after_another, apart[attempt] = (
            see(one_after_another, attempt, x, a, live),
            see(apart[attempt], attempt, x, a, live),
        )
    together = apart[0]
    for r in apart[1:]:
        together = joined(together, r, nearest)
    assert same(together, one_after_another)
    assert set(together.attempt.tolist()) == set(range(ATTEMPTS)), "every leg has the last word on some row"
    assert {bool(v) for v in together.broken} == {True, False}
    assert bool(together.non_finite.any())
    assert set(together.longest.tolist()) >= {0, 1}
    # Apart they say less.
    assert not same(apart[0], one_after_another)


@pytest.mark.parametrize("nearest", [True, False])
def test_queries_without_a_change_are_counted_inside_the_ball(nearest):
    """Four rows: one moves, one rests inside, one rests on the surface, one rests, moves, and rests again."""
    margins = [[-1, -2, -1, -2, -1, -2], [-1] * 6, [-1] * 6, [-1, -1, -1, -2, -2, -2]]
    distances = torch.tensor([0.05, 0.05, 0.1, 0.05])
    x0, y = torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.long)
    rows = Batch(x0, y, rng.keys(0, torch.arange(4)), y - 1)
    ball = Linf(0.1).ball(torch.arange(4), torch.device("cpu"))
    best = blank(x0)
    for step in range(6):
        z = torch.tensor([[0.0, row[step], -9.0] for row in margins])
        live = torch.tensor([True, True, True, True])
        best = BestSoFar(Misclassified(), nearest).update(
            best, x0 + distances[:, None], Response(z, z[:, 1]), rows, ball, live, y
        )
    assert best.longest.tolist() == [0, 5, 5 if nearest else 0, 2]
    assert best.still.tolist() == best.longest.tolist()
