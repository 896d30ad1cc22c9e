"""The eleven ways in which the reference's outcome depends on the batch or on leftover state, and that none holds here.

Numbered as in section 6 of the specification of AutoAttack.
"""

import inspect
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import L1, L2, Linf, ModelError, Plan, Problem, Targets, attacks
from brinell.compat import AutoAttack
from brinell.engine.exact_sizes import CANDIDATES
from brinell.ops import losses
from brinell.ops.losses import LOSSES, Loss

pytestmark = pytest.mark.usefixtures("unchecked")

EPS = Linf(0.018)
THREATS = [Linf(0.018), L2(0.12), L1(0.35)]
N = 16


@pytest.fixture(scope="module")
def net(tiny: Any) -> nn.Module:
    return tiny()


@pytest.fixture(scope="module")
def data(net: nn.Module, images: Any) -> Problem:
    return Problem(*images(net, N))


def of(table: pa.Table, attack: str, ids: list[int]) -> pa.Table:
    return table.filter(pc.and_(pc.equal(table["attack"], attack), pc.is_in(table["sample_id"], pa.array(ids))))


@pytest.mark.parametrize("threat", THREATS, ids=lambda t: t.norm.name)
def test_01_a_random_start_does_not_depend_on_the_position_or_on_who_is_left(
    threat: Any, net: nn.Module, data: Problem, quiet: Any, outcome: Any
) -> None:
    stages = [brinell.Restarts(attacks.APGD(steps=2), 3), Targets(attacks.APGD(steps=2, loss="dlr-targeted"), 3)]
    whole = outcome(quiet(net, data, threat, stages))
    for k in (0, 5, 14):
        alone = outcome(quiet(net, data[k : k + 1], threat, stages))
        assert alone.equals(whole.filter(pc.equal(whole["sample_id"], k)).combine_chunks())


@pytest.mark.parametrize("threat", THREATS, ids=lambda t: t.norm.name)
def test_02_squares_windows_and_signs_are_each_samples_own(
    threat: Any, net: nn.Module, data: Problem, quiet: Any, outcome: Any
) -> None:
    attack = attacks.Square(steps=20)
    whole = outcome(quiet(net, data, threat, attack))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    mixed = Problem(data.x[order], data.y[order], data.ids[order])
    assert outcome(quiet(net, mixed, threat, attack, slots=4)).equals(whole)
    alone = outcome(quiet(net, data[3:5], threat, attack))
    assert alone.equals(whole.filter(pc.is_in(whole["sample_id"], pa.array([3, 4]))).combine_chunks())
    # Different samples draw differently: equal images under different ids go different ways.
    same = Problem(data.x[:1].repeat(6, 1, 1, 1), data.y[:1].repeat(6))
    margins = quiet(net, same, threat, attack).rows()
    assert len(set(margins.filter(pc.equal(margins["attack"], "square"))["adv_margin"].to_pylist())) > 1


def test_03_what_happens_to_one_sample_or_in_an_earlier_attack_does_not_move_the_others(
    net: nn.Module, data: Problem, quiet: Any, outcome: Any
) -> None:
    one, two = attacks.APGD(steps=3), attacks.Square(steps=10)
    forth, back = (outcome(quiet(net, data, EPS, p)) for p in ([one, two], [two, one]))
    for name in ("apgd-ce", "square"):
        ids = [set(t.filter(pc.equal(t["attack"], name))["sample_id"].to_pylist()) for t in (forth, back)]
        both = sorted(ids[0] & ids[1])
        assert ids[0] != ids[1]
        assert of(forth, name, both).equals(of(back, name, both))
    # Another first image, which falls elsewhere in the chain.
    x = data.x.clone()
    x[0] = 1 - x[0]
    changed = outcome(quiet(net, Problem(x, data.y), EPS, [one, two]))
    others = pc.greater(forth["sample_id"], 0)
    assert changed.filter(pc.greater(changed["sample_id"], 0)).equals(forth.filter(others))


def test_04_the_default_seed_is_fixed(net: nn.Module, data: Problem, quiet: Any, outcome: Any) -> None:
    assert inspect.signature(brinell.evaluate).parameters["seed"].default == 0
    first, second = (quiet(net, data, EPS, attacks.PGD(steps=2)) for _ in range(2))
    assert outcome(first).equals(outcome(second))
    assert first.manifest["identity"]["seed"] == 0
    assert AutoAttack(net, verbose=False).get_seed() == 0
    other = quiet(net, data, EPS, attacks.PGD(steps=2), seed=1)
    assert not other.rows()["best_loss"].equals(first.rows()["best_loss"])
    # With one seed, two attacks still do not share their noise.
    a, b = (brinell.attack(net, data, EPS, attacks.APGD(steps=1, loss=l), early_exit=False) for l in ("ce", "margin"))
    assert not a["adv_margin"].equals(b["adv_margin"])


def test_05_the_model_is_asked_in_few_batch_shapes(net: nn.Module, data: Problem, quiet: Any, cut: Any) -> None:
    shapes: list[int] = []
    hook = net.register_forward_hook(lambda module, args, out: shapes.append(len(out)))
    try:
        run = quiet(net, data, EPS, cut("autoattack", steps=8), slots=5)
    finally:
        hook.remove()
    # One at a time, eight times on and eight times off the 8-bit grid: the check of exactly this. Fewer than 32 rows
    # only where they get the same bits.
    assert shapes.count(1) == 16 and set(shapes) <= {1, 32, *CANDIDATES}
    assert shapes.count(32) >= 1
    # So what FAB finds on the boundary holds when it is looked at again.
    fab = quiet(net, data, EPS, cut("fab-t", steps=20))
    assert fab.stages()[0].broken > 0
    assert not run.unverified.num_rows
    assert not fab.unverified.num_rows
    # The plan has fewer steps than its name says, which verify reports. No sample fails.
    assert not brinell.verify(fab, net, data).failures


class Ties(nn.Module):
    """The second logit comes up to the first and never passes it."""

    def forward(self, x: Tensor) -> Tensor:
        gap = (x[:, :1] - 0.6).clamp(max=0)
        return torch.cat([torch.zeros_like(gap), gap], 1)


@pytest.mark.parametrize("attack", [attacks.RandomSearch(steps=30), attacks.APGD(steps=10, loss="margin")])
def test_06_a_tie_is_no_success_for_anybody(attack: Any, quiet: Any) -> None:
    data = Problem(torch.full((6, 3), 0.55), torch.zeros(6, dtype=torch.long))
    run = quiet(Ties().eval(), data, Linf(0.1), attack)
    rows = [r for r in run.rows().to_pylist() if r["attack"] != "clean"]
    assert run.robust_accuracy.k == 6
    # The tie is reached, and the search goes on to its end.
    assert {r["adv_margin"] for r in rows} == {0.0}
    assert {r["forwards"] for r in rows} == {attack.queries}
    # Clean ties are decided as argmax does: the first class.
    tied = torch.full((2, 3), 0.7)
    assert quiet(Ties().eval(), Problem(tied, torch.tensor([0, 1])), Linf(0.1), attack).clean_accuracy.k == 1


def test_07_nothing_is_left_over_in_plans_and_objects(
    net: nn.Module, data: Problem, quiet: Any, outcome: Any, cut: Any
) -> None:
    chosen = cut("autoattack-plus")
    first, second = (outcome(quiet(net, data, L1(0.35), chosen)) for _ in range(2))
    assert first.equals(second)
    adversary = AutoAttack(net, eps=0.018, version="plus", verbose=False)
    for part, number in ((adversary.apgd, 3), (adversary.apgd_targeted, 3), (adversary.fab, 2)):
        part.n_iter = number
    adversary.square.n_queries = 5
    adversary.apgd.n_restarts = adversary.fab.n_restarts = 2
    settings = [vars(v).copy() for v in (adversary.apgd, adversary.apgd_targeted, adversary.fab, adversary.square)]
    names = list(adversary.attacks_to_run)
    first = adversary.run_standard_evaluation(data.x, data.y)
    rows = outcome(adversary.run)
    adversary.run_standard_evaluation_individual(data.x[:4], data.y[:4])
    assert torch.equal(adversary.run_standard_evaluation(data.x, data.y), first)
    assert outcome(adversary.run).equals(rows)
    assert adversary.attacks_to_run == names
    assert settings == [vars(v) for v in (adversary.apgd, adversary.apgd_targeted, adversary.fab, adversary.square)]


def test_07_autocast_and_deterministic_switches_of_the_caller(
    net: nn.Module, data: Problem, quiet: Any, outcome: Any
) -> None:
    attack = attacks.APGD(steps=3, loss="dlr")
    plain = outcome(quiet(net, data, EPS, attack))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert outcome(quiet(net, data, EPS, attack)).equals(plain)
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with torch.no_grad():
        assert outcome(quiet(net, data, EPS, attack)).equals(plain)
        assert not torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_07_matmul_precision_of_the_caller(demo: Problem, quiet: Any, outcome: Any) -> None:
    attack = attacks.APGD(steps=5, loss="dlr")
    plain = outcome(quiet("demo", demo[:16], Linf(0.1), attack))
    torch.set_float32_matmul_precision("medium")
    try:
        again = outcome(quiet("demo", demo[:16], Linf(0.1), attack))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert again.equals(plain)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_07_tf32_of_the_caller(net: nn.Module, data: Problem, quiet: Any, outcome: Any) -> None:
    attack, switches = attacks.APGD(steps=3, loss="dlr"), torch.backends.cuda.matmul
    plain = outcome(quiet(net, data, EPS, attack, device="cuda"))
    before = switches.fp32_precision
    switches.fp32_precision = "tf32"
    try:
        assert outcome(quiet(net, data, EPS, attack, device="cuda")).equals(plain)
        assert switches.fp32_precision == "tf32"
    finally:
        switches.fp32_precision = before
        net.to("cpu")


def test_08_global_generators_are_neither_read_nor_reseeded(
    net: nn.Module, data: Problem, quiet: Any, outcome: Any, cut: Any
) -> None:
    chosen, rows = cut("autoattack-plus"), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
        rows.append(outcome(quiet(net, data, EPS, chosen)))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert np.array_equal(np.random.get_state()[1], before[2])  # noqa: NPY002
    assert rows[0].equals(rows[1])


def test_08_a_noisy_model_keeps_its_own_stream(net: nn.Module, data: Problem, quiet: Any) -> None:
    """Its noise goes on through the attacks: no draw comes twice, as it would if every attack reseeded."""
    seen: list[float] = []

    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noise = torch.randn(())
            seen.append(float(noise))
            return net(x) + 1e-3 * noise

    torch.manual_seed(5)
    quiet(
        Noisy().eval(), data, EPS, [attacks.APGD(steps=3), attacks.APGD(steps=3, loss="dlr"), attacks.Square(steps=5)]
    )
    torch.manual_seed(5)
    assert seen == [float(torch.randn(())) for _ in seen]
    assert len(set(seen)) == len(seen)


def test_09_train_mode_is_refused(net: nn.Module, data: Problem, quiet: Any) -> None:
    mixing = nn.Sequential(nn.BatchNorm2d(1), net)
    mixing.train()
    net.eval()
    with pytest.raises(ModelError, match="train mode"):
        quiet(mixing, data, EPS, "fgsm")
    with pytest.raises(ModelError, match="train mode"):
        AutoAttack(mixing, verbose=False).run_standard_evaluation(data.x, data.y)
    assert quiet(mixing.eval(), data, EPS, "fgsm").finished


def test_10_slots_do_not_decide_what_the_checks_see(net: nn.Module, data: Problem, quiet: Any) -> None:
    class Quantised(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return net((x * 8).round() / 8)

    for model in (net, Quantised().eval()):
        seen = [quiet(model, data, EPS, attacks.APGD(steps=1), slots=s).checks for s in (1, 3, 250)]
        assert seen[0] == seen[1] == seen[2]
    runs = []
    for bs in (1, 250):
        adversary = AutoAttack(
            Quantised().eval(), eps=0.018, version="custom", attacks_to_run=["apgd-ce"], verbose=False
        )
        adversary.apgd.n_iter = adversary.apgd.n_restarts = 1
        adversary.run_standard_evaluation(data.x, data.y, bs=bs)
        runs.append(adversary.run)
    assert runs[0].checks == runs[1].checks


def _shifted(constant: float) -> Loss:
    """The margin in steps of 1/256, so that adding a whole number is exact in float32, with the margin's gradient."""

    def function(logits: Tensor, y: Tensor, t: Tensor) -> Tensor:
        m = losses.margin(logits, y)
        return (m.detach() * 256).round() / 256 + (m - m.detach()) + constant

    return Loss(function)


def test_11_a_constant_added_to_a_loss_changes_nothing(net: nn.Module, data: Problem, monkeypatch: Any) -> None:
    def moves(constant: float, quirks: str | None) -> tuple[list[float], list[Any]]:
        monkeypatch.setitem(LOSSES, "shifted", _shifted(constant))
        # A share of successful steps at which one comparison more or less decides.
        attack = attacks.APGD(steps=20, loss="shifted", quirks=quirks, rho=0.25)
        rows = brinell.attack(net, data, L2(2.0), attack, early_exit=False)
        return [v - constant for v in rows["best_loss"].to_pylist()], rows["adv_margin"].to_pylist()

    for constant in (-64.0, 64.0):
        assert moves(constant, None) == moves(0.0, None)
    # The reference's comparison with a loss of zero at the first checkpoint makes it depend on the sign.
    assert moves(64.0, "autoattack") != moves(-64.0, "autoattack")


def test_plans_are_values(cut: Any) -> None:
    """What every item above rests on: plans and attacks cannot change."""
    chosen: Plan = cut("autoattack")
    with pytest.raises(AttributeError):
        chosen.stages_for(Linf(0.1))[0].attack.steps = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        chosen.name = "other"  # type: ignore[misc]
    assert replace(chosen) == chosen
