"""The slot engine: what it asks, what it counts, when it stops, and that none of it changes an outcome."""

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell.attacks import APGD, FAB, FGSM, PGD, Pursuit, Square
from brinell.core.attack import Attack, Attempt, Requires
from brinell.core.criterion import Misclassified, Targeted
from brinell.core.threat import L2, Linf, threat
from brinell.engine.cuda import scheduler
from brinell.engine.cuda.scheduler import ConcurrentScheduler
from brinell.engine.loop import Engine
from brinell.engine.oracle import Oracle
from brinell.engine.scheduler import Scheduler
from brinell.engine.slots import Samples
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.rowwise import concat, same, take
from brinell.testing import linear_world

ONE_LEG = (Attempt(),)


def run(
    classifier,
    x,
    y,
    t,
    attack,
    *,
    attempts=ONE_LEG,
    targets=None,
    slots=64,
    block=8,
    criterion=None,
    start=None,
    **options,
):
    """The records of all samples in order, from the engine itself."""
    ball = t.ball(torch.arange(len(x)), torch.device("cpu"))
    targets = torch.full((len(y), len(attempts)), -1) if targets is None else targets
    oracle = Oracle(classifier, block)
    engine = Engine(oracle, attack, criterion or Misclassified(), ball, attempts, slots, **options)
    parts = list(engine.run(Samples.of(x, y, rng.keys(0, torch.arange(len(x))), ball.eps, targets, start)))
    assert sorted(torch.cat([at for at, _ in parts]).tolist()) == list(range(len(x))), "every sample exactly once"
    return take(concat([r for _, r in parts]), torch.cat([at for at, _ in parts]).argsort())


@dataclass(frozen=True)
class Walk(Attack[Any]):
    """Moves every row by a fixed amount along a fixed direction: it is known when each one crosses the boundary."""

    steps: int = 10
    size: float = 0.01
    loss: str = "margin"
    name = "walk"
    requires = Requires.GRAD
    minimum_norm = False

    @property
    def queries(self) -> int:
        return self.steps + 1

    def init(self, p, ball):
        return PGD().init(replace(p, start=p.x), ball)

    def step(self, s, a, p, ball):
        g = a.gradient
        return replace(s, t=s.t + 1, x=s.x + self.size * g / g.flatten(1).norm(dim=1)[:, None])


# ------------------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize(
    ("attack", "forwards", "backwards"),
    [(APGD(steps=9), 10, 10), (PGD(steps=9), 10, 10), (FGSM(), 2, 2), (Walk(), 11, 11)],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_without_early_exit_everyone_pays_the_whole_budget(counting, attack, forwards, backwards):
    world, net, eps = counting
    r = run(wrap(net), world.x, world.y, L2(eps), attack, block=1, early_exit=False)
    assert r.forwards.tolist() == [forwards] * 24 and r.backwards.tolist() == [backwards] * 24
    # With blocks of one row nothing is padded: the model must have been asked exactly what the records say.
    assert net.forwards == r.forwards.sum() and net.backwards == r.backwards.sum()


@pytest.mark.parametrize("attack", [APGD(steps=12, loss="margin"), PGD(steps=12), FAB(steps=8), FAB(6, True)], ids=repr)
@pytest.mark.parametrize("early_exit", [True, False])
def test_counts_are_what_the_model_saw(counting, attack, early_exit):
    world, net, eps = counting
    targets = world.distances("L2").argmin(1)[:, None]
    r = run(wrap(net), world.x, world.y, L2(eps), attack, targets=targets, block=1, early_exit=early_exit)
    assert net.forwards == r.forwards.sum() and net.backwards == r.backwards.sum()
    assert 5 < r.broken.sum() < 20
    assert early_exit == (len(r.forwards.unique()) > 1) or attack.minimum_norm


def test_square_asks_for_no_gradients(counting):
    world = linear_world(classes=3, shape=(1, 5, 5), n=12)
    net = type(counting[1])(world).eval()
    r = run(wrap(net), world.x, world.y, Linf(0.03), Square(steps=20), block=1)
    assert net.forwards == r.forwards.sum() and net.backwards == 0 and r.backwards.sum() == 0


def test_the_public_table_counts_the_same(counting):
    world, net, eps = counting
    ids = torch.arange(24) * 3 + 1
    rows = brinell.attack(net, brinell.Problem(world.x, world.y, ids), L2(eps), APGD(steps=15, loss="margin"))
    r = run(wrap(net), world.x, world.y, L2(eps), APGD(steps=15, loss="margin"), early_exit=True)
    assert rows["sample_id"].to_pylist() == ids.tolist()
    # Other keys, so other starts: but those out of reach take the whole budget either way.
    safe = (world.distance("L2") > 1.01 * eps).numpy()
    for name in ("forwards", "backwards"):
        assert (rows[name].to_numpy()[safe] == 16).all() and (getattr(r, name).numpy()[safe] == 16).all()
    assert (rows["forwards"].to_numpy() == rows["backwards"].to_numpy()).all()


# --------------------------------------------------------------------------------------------------------- early exit


def test_stops_exactly_at_the_first_broken_point():
    """Walking 0.01 per step towards the boundary at distance d breaks at step ⌈d / 0.01⌉."""
    world = linear_world(classes=2, n=40)
    d = world.distance("L2").numpy() / 0.01
    assert (np.abs(d - np.round(d)) > 1e-3).all(), "no sample sits on a step"
    first = np.ceil(d).astype(int)
    steps = int(np.median(first))
    r = run(world.classifier, world.x, world.y, L2(2.0), Walk(steps))
    broken = first <= steps
    assert 5 < broken.sum() < 35 and (r.broken.numpy() == broken).all()
    assert (r.first.numpy() == np.where(broken, first, -1)).all()
    assert (r.forwards.numpy() == np.where(broken, first + 1, steps + 1)).all()
    late = run(world.classifier, world.x, world.y, L2(2.0), Walk(steps), early_exit=False)
    assert (late.first == r.first).all() and (late.forwards == steps + 1).all()
    # Afterwards it goes on, so the largest margin is larger; the record keeps the point that had it.
    assert (late.adv_margin[r.broken] >= r.adv_margin[r.broken]).all()
    z = world.classifier.forward(late.x).logits
    assert torch.allclose(brinell.ops.losses.margin(z, world.y)[r.broken], late.adv_margin[r.broken], atol=1e-6)


def test_points_outside_the_ball_or_the_box_never_count():
    world = linear_world(classes=2, n=40)
    small = world.distance("L2") * 0.9
    r = run(world.classifier, world.x, world.y, L2(small), Walk(60))
    assert not r.broken.any() and not (r.adv_margin > 0).any() and (r.forwards == 61).all()
    # Nor do their margins and losses, except for attacks that minimise.
    assert (r.margin < 0).all() and (r.loss < 0).all()
    # Those points are adversarial, but too far: a record that minimises takes them.
    nearest = run(world.classifier, world.x, world.y, L2(small), Minimising(60))
    inside = (nearest.x >= 0).flatten(1).all(1) & (nearest.x <= 1).flatten(1).all(1)
    assert nearest.found.all() and not nearest.broken.any() and inside.all()
    assert (nearest.margin > 0).all() and (nearest.loss > 0).all()


@dataclass(frozen=True)
class Minimising(Walk):
    """The same, but asks for the nearest adversarial to be kept."""

    minimum_norm = True


def test_a_minimising_attack_keeps_the_nearest():
    world = linear_world(classes=2, n=40)
    d = world.distance("L2").numpy()
    r = run(world.classifier, world.x, world.y, L2(2.0), Minimising(40), early_exit=False)
    reached = d < 0.395
    assert reached.all()
    np.testing.assert_allclose(r.distance.numpy(), np.ceil(d / 0.01) * 0.01, atol=1e-5)
    far = run(world.classifier, world.x, world.y, L2(2.0), Walk(40), early_exit=False)
    assert (far.distance > r.distance + 0.005).float().mean() > 0.9, "otherwise the largest margin is kept"


# -------------------------------------------------------------------------------------------------------------- refill


def test_slots_are_refilled():
    """Nine samples in ten break at once. Asking all slots until the last one is done would cost n × steps rows."""
    world = linear_world(classes=2, n=100)
    hard = torch.arange(100) % 10 == 0
    eps = world.distance("L2") * torch.where(hard, 0.5, 20.0).double()
    net = Batch(world.classifier.module).eval()
    r = run(wrap(net), world.x, world.y, L2(eps.clamp(max=2)), APGD(steps=40, loss="margin"), slots=16, block=4)
    assert torch.equal(~r.broken, hard)
    needed = int(r.forwards.sum())
    assert net.rows < 0.25 * 100 * 41
    # No more than the last blocks' worth of empty slots is wasted.
    assert needed <= net.rows <= 1.5 * needed


class Batch(torch.nn.Module):
    """Counts rows."""

    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net, self.rows, self.sizes = net, 0, set()

    def forward(self, x):
        self.rows += len(x)
        self.sizes.add(len(x))
        return self.net(x)


@pytest.mark.parametrize(("n", "slots", "block"), [(24, 64, 8), (24, 7, 8), (5, 64, 8), (6, 1, 1), (23, 10, 4)])
def test_the_batch_shape_never_changes(counting, n, slots, block):
    world, net, eps = counting
    run(wrap(net), world.x[:n], world.y[:n], L2(eps), APGD(steps=10, loss="margin"), slots=slots, block=block)
    assert net.shapes == {block}


@pytest.mark.parametrize("slots", [1, 7, 23, 24, 1000])
def test_slots_change_nothing(counting, slots):
    world, net, eps = counting
    attempts = (Attempt(2, 0), Attempt(2, 1), Attempt(3, 0))
    order = world.distances("L2").argsort(1)[:, [0, 0, 1]]
    args = (wrap(net), world.x, world.y, L2(eps), APGD(steps=4, loss="minimum-margin"))
    one, other = (run(*args, attempts=attempts, targets=order, slots=s) for s in (24, slots))
    for name, value in vars(one).items():
        assert torch.equal(value, getattr(other, name)), name


# ---------------------------------------------------------------------------------------------------------------- legs


def test_legs_follow_one_another_until_the_sample_breaks():
    world = linear_world(classes=4, n=30)
    d, order = world.distances("L2").sort(1)
    # Between the first and second rank's distance only the first target can work: aim at the others first.
    eps = (d[:, 0] + d[:, 1]) / 2
    attempts = (Attempt(4), Attempt(3), Attempt(2))
    r = run(
        world.classifier,
        world.x,
        world.y,
        L2(eps),
        Aim(20),
        attempts=attempts,
        targets=order[:, [2, 1, 0]],
        criterion=Targeted(),
    )
    assert r.broken.all() and (r.attempt == 2).all()
    assert (r.adv_pred == order[:, 0]).all()
    assert ((r.forwards > 2 * 21) & (r.forwards <= 3 * 21)).all() and torch.equal(r.forwards - 1, r.first)
    quick = run(
        world.classifier,
        world.x,
        world.y,
        L2(eps),
        Aim(20),
        attempts=attempts[::-1],
        targets=order[:, :3],
        criterion=Targeted(),
    )
    assert (quick.attempt == 0).all() and (quick.forwards <= 21).all()


@dataclass(frozen=True)
class Aim(PGD):
    """PGD towards the target, from the clean point."""

    loss: str = "minimum-margin"
    random_start: bool = False


def test_legs_have_their_own_noise_and_restarts_their_own_number():
    world = linear_world(classes=2, n=6)
    seen = []

    @dataclass(frozen=True)
    class Spy(PGD):
        def init(self, p, ball):
            seen.append((p.key.clone(), p.restart.clone(), p.target.clone()))
            return super().init(p, ball)

    attempts = (Attempt(2, 0), Attempt(2, 1), Attempt(3, 0))
    t = world.distance("L2") / 2
    run(
        world.classifier,
        world.x,
        world.y,
        L2(t),
        Spy(2),
        attempts=attempts,
        targets=torch.tensor([[1, 1, 0]] * 6),
        block=6,
        slots=6,
    )
    assert len(seen) == 3
    keys = torch.stack([k for k, _, _ in seen])
    assert len(keys.unique()) == keys.numel()
    assert [r[0].item() for _, r, _ in seen] == [0, 1, 0] and [t[0].item() for _, _, t in seen] == [1, 1, 0]


# -------------------------------------------------------------------------------------------------------------- starts


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
@pytest.mark.parametrize(
    "attack", [APGD(steps=3), APGD(steps=3, quirks="autoattack"), PGD(steps=3), FGSM(), FAB(steps=2)], ids=repr
)
def test_explicit_starts_are_asked_first(norm, attack, noise):
    world = linear_world(classes=3, n=10)
    t = threat(norm, 0.2)
    ball = t.ball(torch.arange(10), torch.device("cpu"))
    start = ball.project(world.x, world.x + 0.02 * noise(10, (24,)))
    asked = []

    class Listening(torch.nn.Module):
        def forward(self, x):
            asked.append(x.detach().clone())
            return world.classifier.module(x)

    run(wrap(Listening().eval()), world.x, world.y, t, attack, block=10, slots=10, start=start)
    assert torch.allclose(asked[0], start, atol=1e-6)


def test_starts_outside_the_ball_are_brought_in(noise):
    world = linear_world(classes=3, n=10)
    start = world.x + noise(10, (24,))
    rows = brinell.attack(world.classifier, (world.x, world.y), L2(0.02), APGD(steps=3), start=start)
    assert not any(rows["broken"].to_pylist())


def test_starts_belong_to_samples_whatever_the_slots(noise):
    world = linear_world(classes=3, n=20)
    start, eps = world.x + 0.01 * noise(20, (24,)), world.distance("L2").median().item()
    one, two = (
        brinell.attack(world.classifier, (world.x, world.y), L2(eps), PGD(3), start=start, slots=s).drop_columns(
            "seconds"
        )
        for s in (3, 20)
    )
    assert one.equals(two)


@pytest.mark.parametrize("bad", [torch.zeros(3, 24), torch.zeros(4, 5), torch.full((4, 24), torch.nan)])
def test_bad_starts(bad):
    world = linear_world(n=4)
    with pytest.raises(brinell.InputError, match=r"start points of shape \(4, 24\)"):
        brinell.attack(world.classifier, (world.x, world.y), L2(0.1), PGD(3), start=bad)


# ---------------------------------------------------------------------------------------------------- ending before all


def started(world, net, eps, **options):
    """An engine at work on the samples of a world, and a weak reference to these."""
    ball = L2(eps).ball(torch.arange(len(world.x)), world.x.device)
    engine = Engine(Oracle(wrap(net), 8), PGD(6, loss="margin"), Misclassified(), ball, (Attempt(),), 8, **options)
    keys, targets = rng.keys(0, torch.arange(len(world.x))), torch.full((len(world.x), 1), -1)
    samples = Samples.of(world.x, world.y, keys, ball.eps, targets)
    return engine.run(samples), weakref.ref(samples)


def test_who_stops_listening_asks_nothing_more_and_frees_the_memory(counting):
    world, net, eps = counting
    observed = []
    results, samples = started(world, net, eps, observe=lambda slots, response: observed.append(len(response.loss)))
    assert net.calls == 0, "nothing is asked before somebody listens"
    at, best = next(results)
    assert len(at) == len(best.x) > 0
    calls = net.calls
    assert observed == [8] * calls
    results.close()
    assert net.calls == calls and samples() is None, "no step in vain, no sample held"


@pytest.mark.parametrize("most", [1, 4, 9])
def test_a_tick_ends_the_run_and_what_has_finished_is_given(counting, most):
    world, net, eps = counting
    ticks, everything = [], {}
    for at, best in started(world, net, eps)[0]:
        everything |= dict(zip(at.tolist(), best.forwards.tolist(), strict=True))
    net.calls = 0
    results, samples = started(world, net, eps, tick=lambda made: ticks.append(made) or len(ticks) >= most)
    finished = {}
    for at, best in results:
        finished |= dict(zip(at.tolist(), best.forwards.tolist(), strict=True))
    assert ticks == [1] * most and net.calls == most
    assert finished.items() <= everything.items() and len(finished) < len(everything) == len(world.x)
    del results
    assert samples() is None


# ------------------------------------------------------------------------------------------------ as on an accelerator


@pytest.mark.parametrize("attack", [APGD(steps=7, loss="margin"), PGD(4), FAB(2, True), FGSM()], ids=lambda a: a.name)
@pytest.mark.parametrize("early_exit", [True, False])
def test_looking_less_often_changes_nothing(counting, monkeypatch, attack, early_exit):
    """Elsewhere than on a CPU the host looks at finished rows every few iterations only; they run on unwatched."""
    world, net, eps = counting
    order = world.distances("L2").argsort(1)[:, [0, 0, 1]]
    attempts, args = (Attempt(2, 0), Attempt(2, 1), Attempt(3, 0)), (wrap(net), world.x, world.y, L2(eps), attack)
    often = run(*args, attempts=attempts, targets=order, slots=10, early_exit=early_exit)
    monkeypatch.setitem(scheduler.INTERVAL, "cpu", 5)
    options = {"early_exit": early_exit, "scheduler": ConcurrentScheduler}
    seldom = run(*args, attempts=attempts, targets=order, slots=10, **options)
    for name, value in vars(often).items():
        assert torch.equal(value, getattr(seldom, name)), name


@pytest.mark.parametrize(
    ("attack", "every", "each"),
    [(APGD(50), 10, 1), (Square(5000), 10, 1), (FAB(100, targeted=True), 10, 2), (Pursuit(), 4, 4)],
    ids=lambda v: getattr(v, "name", v),
)
def test_looks_come_in_whole_cycles(attack, every, each):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert (scheduler.sync_interval(attack, gpu), scheduler.iterations_per_step(attack, gpu)) == (every, each)
    assert (
        scheduler.sync_interval(attack, cpu) == scheduler.iterations_per_step(attack, cpu) == len(attack.query_pattern)
    )


@pytest.mark.parametrize(
    ("attack", "asked"), [(APGD(steps=22, loss="margin"), 23), (PGD(19), 20), (FAB(6, targeted=True), 12)], ids=str
)
def test_nobody_is_asked_about_rows_whose_budget_is_over(counting, monkeypatch, attack, asked):
    """A look comes where budgets end, however seldom the others are."""
    world, net, _ = counting
    monkeypatch.setitem(scheduler.INTERVAL, "cpu", 10)
    attempts = (Attempt(2, 0), Attempt(3, 0)) if attack.name == "fab-t" else (Attempt(), Attempt(0, 1))
    order = world.distances("Linf").argsort(1)[:, :2] if attack.name == "fab-t" else None
    n = len(world.x)
    run(
        wrap(net),
        world.x,
        world.y,
        Linf(1e-6),
        attack,
        attempts=attempts,
        targets=order,
        slots=n,
        block=n,
        early_exit=False,
        scheduler=ConcurrentScheduler,
    )
    assert net.calls == 2 * asked


@pytest.mark.parametrize("attack", [FAB(steps=12, targeted=True), APGD(steps=24, loss="minimum-margin")], ids=repr)
@pytest.mark.parametrize("early_exit", [False, True])
def test_attempts_at_the_same_time_give_the_bits_of_one_after_another(
    attack: Any, early_exit: bool, shapes_checked: Any
) -> None:
    """Later attempts of a sample run beside earlier ones; those after a success are dropped and not counted."""
    world = linear_world(classes=3, n=24)
    attempts = tuple(Attempt(rank, restart) for rank in (2, 1) for restart in range(2))
    targets = ((world.y[:, None] + torch.tensor([a.rank for a in attempts])) % 3).long()
    most = attack.queries * len(attempts)

    def records(scheduler: Any, slots: int) -> Any:
        more = {"attempts": attempts, "targets": targets, "early_exit": early_exit, "slots": slots}
        with shapes_checked(False):
            return run(world.classifier, world.x, world.y, Linf(0.02), attack, scheduler=scheduler, **more)

    in_turn = records(lambda engine, samples: Scheduler(engine, samples), 64)
    assert 4 < int(in_turn.broken.sum()) < 20
    assert (in_turn.forwards == most).all() != early_exit and in_turn.forwards.max() == most
    for slots in (3, 10, 64):
        assert same(records(Scheduler, slots), in_turn)
