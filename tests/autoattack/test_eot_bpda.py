"""Randomised models: attacked in expectation, judged on repeated passes. Parts without gradients: a stand-in."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Eot, Linf, attacks, plan, wrap
from brinell.core.attack import Requires
from brinell.engine.oracle import Oracle
from brinell.models import bpda

pytestmark = pytest.mark.usefixtures("unchecked")

LEVELS = 5


def quantised(x: Tensor) -> Tensor:
    return (x * LEVELS).round() / LEVELS


class Noisy(nn.Module):
    """Gaussian noise on the input."""

    def __init__(self, net: nn.Module, sigma: float) -> None:
        super().__init__()
        self.net, self.sigma = net, sigma

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.sigma * torch.randn_like(x))


class NoisyLinear(nn.Module):
    """Logits of a linear model whose weights are drawn anew for every row: W + sigma N."""

    def __init__(self, classes: int, inputs: int, sigma: float) -> None:
        super().__init__()
        weight = torch.randn(classes, inputs, generator=torch.Generator().manual_seed(0))
        self.weight, self.sigma = nn.Parameter(weight, requires_grad=False), sigma

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.weight + self.sigma * torch.randn(len(x), *self.weight.shape)
        return (drawn @ x[:, :, None])[:, :, 0]


class Careless(nn.Module):
    """A constant answer that is right, except that every now and then, whatever the input, another one comes out."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        slip = (torch.rand(len(x)) < self.share).float()
        # A little of x, so that there is a gradient.
        return torch.stack([1 - 2 * slip, torch.zeros_like(slip)], 1) + 1e-3 * x[:, :2]


# ------------------------------------------------------------------------------------------------------------ BPDA


def test_bpda_is_exact_on_the_way_in() -> None:
    x = torch.rand(4, 3, 5, 5)
    assert torch.equal(bpda(quantised)(x), quantised(x))
    assert torch.equal(bpda(quantised, torch.tanh)(x), quantised(x))


def test_bpda_with_the_identity() -> None:
    x = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(4, 6, dtype=torch.float64)
    (weight * bpda(quantised)(x)).sum().backward()
    assert torch.equal(x.grad, weight)


@pytest.mark.parametrize("stand_in", [torch.tanh, lambda x: x.pow(3).flip(1), lambda x: x.softmax(1)])
def test_bpda_has_the_gradient_of_its_stand_in(stand_in: Any) -> None:
    """Where forward and stand-in are the same, it is an ordinary differentiable function."""
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bpda(stand_in, stand_in), (x,))
    weight = torch.rand(3, 4, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((weight * stand_in(x)).sum(), x)
    (got,) = torch.autograd.grad((weight * bpda(quantised, stand_in)(x)).sum(), x)
    assert torch.equal(got, wanted)


def test_bpda_may_change_the_shape() -> None:
    coarse = bpda(lambda x: x.flatten(1)[:, :3].round(), lambda x: x.flatten(1)[:, :3] * 2)
    x = torch.rand(2, 1, 2, 2, requires_grad=True)
    coarse(x).sum().backward()
    assert x.grad.flatten(1).tolist() == [[2, 2, 2, 0]] * 2


def test_bpda_without_gradients_and_in_a_graph_that_is_kept(tiny: Any) -> None:
    net = nn.Sequential(bpda(quantised), tiny()).eval()
    with torch.no_grad():
        assert not net(torch.rand(2, 1, 8, 8)).requires_grad
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    z = net(x).sum(0)
    first = torch.autograd.grad(z[0], x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(z[0], x)[0], first)


def test_a_module_inside_bpda_belongs_to_the_model() -> None:
    inner = nn.Linear(3, 3)
    net = nn.Sequential(bpda(inner, torch.tanh)).eval()
    assert not inner.training
    assert {id(p) for p in net.parameters()} == {id(p) for p in inner.parameters()}
    before = wrap(net).fingerprint
    with torch.no_grad():
        inner.weight += 1
    assert wrap(net).fingerprint != before


def test_apgd_breaks_a_quantised_network_through_bpda_only(net: nn.Module, demo: Any, quiet: Any, level: Any) -> None:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(quantised(x))

    attack, threat, data = attacks.APGD(steps=15), Linf(0.15), demo[:32]
    masked = quiet(Quantised().eval(), data, threat, attack)
    through = quiet(nn.Sequential(bpda(quantised), net).eval(), data, threat, attack)
    assert masked.clean_accuracy == through.clean_accuracy
    assert masked.robust_accuracy.k >= masked.clean_accuracy.k - 3
    assert through.robust_accuracy.k <= through.clean_accuracy.k // 3
    assert level(masked, "zero gradient") == "warn"
    assert level(through, "zero gradient") == "ok"
    # What was found through the stand-in holds on the quantised network itself.
    assert brinell.verify(through, nn.Sequential(bpda(quantised), net).eval(), data).ok
    x = torch.from_numpy(through.adversarials().x)
    y = data.y[through.adversarials().ids.tolist()]
    assert bool((Quantised().eval()(x).argmax(1) != y).all())


# ------------------------------------------------------------------------------------------------------------- EoT


@pytest.mark.parametrize("loss", ["minimum-margin", "margin"])
def test_the_mean_gradient_is_the_expected_one(loss: str) -> None:
    torch.manual_seed(0)
    sigma, draws, classes, inputs = 0.5, 400, 2, 12
    net = NoisyLinear(classes, inputs, sigma).eval()
    x = torch.rand(5, inputs)
    y, t = torch.zeros(5, dtype=torch.long), torch.ones(5, dtype=torch.long)
    answer = Oracle(wrap(net), 32).query(x, y, t, loss, Requires.GRAD, draws)
    wanted = net.weight[1] - net.weight[0]
    error = sigma * (2 / draws) ** 0.5
    assert float((answer.gradient - wanted).abs().max()) < 5 * error
    # One draw is not enough for that.
    single = Oracle(wrap(net), 32).query(x, y, t, loss, Requires.GRAD)
    assert float((single.gradient - wanted).abs().max()) > 5 * error
    logits = x @ net.weight.T
    assert float((answer.logits - logits).abs().max()) < 5 * sigma * float(x.norm(dim=1).max()) / draws**0.5
    assert torch.allclose(answer.loss, answer.logits[:, 1] - answer.logits[:, 0], atol=1e-4)


def test_every_draw_is_another_one() -> None:
    net = NoisyLinear(2, 4, 1.0).eval()
    seen: list[Tensor] = []
    net.register_forward_hook(lambda module, args, out: seen.append(out[:1].clone()))
    zero = torch.zeros(1, dtype=torch.long)
    Oracle(wrap(net), 4).query(torch.rand(1, 4), zero, zero, "ce", Requires.GRAD, 7)
    assert len(seen) == 7
    assert len({tuple(s[0].tolist()) for s in seen}) == 7


@pytest.mark.parametrize(
    ("attack", "backwards"), [(attacks.APGD(steps=3), 4), (attacks.Square(steps=5), 0), (attacks.FAB(steps=2), None)]
)
def test_draws_are_counted(attack: Any, backwards: int | None, tiny: Any, images: Any, quiet: Any) -> None:
    net, draws = tiny(), 5
    data = images(net, 6)
    once = quiet(net, data, Linf(1e-4), attack).rows().to_pylist()
    often = quiet(net, data, Linf(1e-4), Eot(attack, draws)).rows().to_pylist()
    for a, b in zip(once, often, strict=True):
        factor = 1 if a["attack"] == "clean" else draws
        assert b["forwards"] == factor * a["forwards"]
        assert b["backwards"] == factor * a["backwards"]
        if a["attack"] != "clean" and backwards is not None:
            assert b["backwards"] == draws * backwards
            assert b["forwards"] == draws * attack.queries


def expectation(run: Any) -> dict[str, str]:
    (found,) = [c for c in run.checks if c["name"] == "expectation"]
    return found


def test_draws_that_do_not_suffice_are_reported(net: nn.Module, demo: Any, quiet: Any) -> None:
    torch.manual_seed(0)
    attack = attacks.APGD(steps=1)
    mild = quiet(Noisy(net, 0.05).eval(), demo[:16], Linf(0.1), Eot(attack, 20))
    assert expectation(mild)["level"] == "ok"
    wild = quiet(Noisy(net, 0.6).eval(), demo[:16], Linf(0.1), Eot(attack, 4))
    found = expectation(wild)
    assert found["level"] == "warn"
    assert "two averages of 4 gradients differ" in found["message"]
    assert re.search(r"average over about \d+ draws", found["message"])
    assert "two averages of 4 gradients differ" in str(wild)


def test_the_suggested_number_of_draws_is_right(quiet: Any) -> None:
    """For a linear model with Gaussian weights the cosine is known: s / (s + v / n)."""
    torch.manual_seed(0)
    net = NoisyLinear(2, 100, 3.0).eval()
    data = (torch.rand(16, 100), torch.zeros(16, dtype=torch.long))
    attack = attacks.APGD(steps=1, loss="margin")
    found = expectation(quiet(net, data, Linf(0.1), Eot(attack, 20)))
    assert found["level"] == "warn"
    suggested = int(found["message"].split("about ")[1].split()[0])
    strength = float((net.weight[1] - net.weight[0]).square().mean())
    exact = 2 * 3.0**2 / strength * 9  # cosine 0.9 where the noise of the mean is a ninth of the signal
    assert 0.7 * exact < suggested < 1.4 * exact
    again = expectation(quiet(net, data, Linf(0.1), Eot(attack, 2 * suggested)))
    assert again["level"] == "ok"


def test_a_fixed_model_needs_no_expectation(tiny: Any, images: Any, quiet: Any) -> None:
    net = tiny()
    run = quiet(net, images(net, 8), Linf(0.05), Eot(attacks.APGD(steps=1), 3))
    assert expectation(run)["level"] == "ok"
    assert "cosine 1.00" in expectation(run)["message"]
    run = quiet(net, images(net, 8), Linf(0.05), attacks.APGD(steps=1))
    assert not [c for c in run.checks if c["name"] == "expectation"]


# ------------------------------------------------------------------------------------------------- autoattack-rand


def test_autoattack_rand_judges_on_five_passes(net: nn.Module, demo: Any, quiet: Any, cut: Any) -> None:
    torch.manual_seed(0)
    chosen = cut("autoattack-rand", steps=6, queries=15, eot=4)
    run = quiet(Noisy(net, 0.1).eval(), demo[:32], Linf(0.15), chosen)
    rows = run.rows().to_pylist()
    assert {r["attack"] for r in rows} == {"clean", "apgd-ce", "apgd-dlr", "square"}
    for r in rows:
        assert len(r["judged"]) == 5
        fooled = sum(r["judged"]) >= 3 and (r["attack"] == "clean" or r["chosen"] >= 3)
        assert r["broken"] == fooled
        assert (r["verified"] is True) == fooled
    assert 0 < run.robust_accuracy.k < run.clean_accuracy.k
    assert not run.unverified.num_rows
    assert any(0 < sum(r["judged"]) < 5 for r in rows)
    # Every broken sample has an adversarial in the ball.
    found = run.adversarials()
    assert len(found.ids) == run.clean_accuracy.k - run.robust_accuracy.k
    assert float(abs(found.x - demo.x.numpy()[found.ids]).max()) <= 0.15 * (1 + 1e-6)


class Skewed(nn.Module):
    """Right by 3 below x_0 = 1/2; above, wrong by 1 in four passes of five and right by 19 in the fifth."""

    def forward(self, x: Tensor) -> Tensor:
        above = torch.where(torch.rand(len(x)) < 0.8, -1.0, 19.0)
        right = torch.where(x[:, 0] < 0.5, 4.0, above) - 1e-3 * x[:, 0]
        return torch.stack([right, torch.zeros_like(right)], 1)


def test_a_mean_that_looks_right_may_be_wrong_most_of_the_time(quiet: Any, cut: Any) -> None:
    """The attack never sees a success, the judging passes do."""
    torch.manual_seed(0)
    data = (torch.full((24, 3), 0.45), torch.zeros(24, dtype=torch.long))
    run = quiet(Skewed().eval(), data, Linf(0.1), cut("autoattack-rand", steps=2, queries=4, eot=20))
    assert run.clean_accuracy.k == 24
    assert run.robust_accuracy.k < 12
    fell = [r for r in run.rows().to_pylist() if r["broken"]]
    assert any(r["adv_margin"] < 0 for r in fell)


def test_without_a_first_success_there_is_no_step_of_it(quiet: Any, cut: Any) -> None:
    torch.manual_seed(0)
    data = (torch.full((24, 3), 0.45), torch.zeros(24, dtype=torch.long))
    run = quiet(Skewed().eval(), data, Linf(0.1), cut("autoattack-rand", steps=2, queries=4, eot=20))
    fell = [r for r in run.rows().to_pylist() if r["broken"]]
    assert all(r["first_broken_at"] is None or r["first_broken_at"] >= 0 for r in fell)


def test_lucky_draws_break_nothing(quiet: Any, cut: Any) -> None:
    """A model that errs once in twenty passes, whatever the input, is not broken; one pass would say otherwise."""
    torch.manual_seed(0)
    net, data = Careless(0.05).eval(), (torch.rand(24, 3), torch.zeros(24, dtype=torch.long))
    single = quiet(net, data, Linf(0.1), plan([attacks.APGD(steps=20), attacks.RandomSearch(steps=20)]))
    fooled = sum(
        b for b, a in zip(*(single.rows()[c].to_pylist() for c in ("broken", "attack")), strict=True) if a != "clean"
    )
    assert fooled >= 10
    run = quiet(net, data, Linf(0.1), cut("autoattack-rand", steps=20, queries=20, eot=4))
    assert run.clean_accuracy.k == 24
    assert run.robust_accuracy.k == 24


def test_a_model_that_errs_most_of_the_time_is_wrong_to_begin_with(quiet: Any, cut: Any) -> None:
    torch.manual_seed(0)
    net, data = Careless(0.9).eval(), (torch.rand(16, 3), torch.zeros(16, dtype=torch.long))
    assert quiet(net, data, Linf(0.1), cut("autoattack-rand")).clean_accuracy.k == 0


def test_rand_on_a_fixed_model_is_the_plain_ensemble(tiny: Any, images: Any, quiet: Any, cut: Any) -> None:
    """Without noise all passes agree, and the same samples fall as with a single pass and a single draw."""
    net = tiny()
    data, chosen = images(net, 16), cut("autoattack-rand", eot=2)
    run = quiet(net, data, Linf(0.018), chosen)
    plain = replace(chosen, draws=1, stages=tuple(replace(s, eot=1) for s in chosen.stages_for(Linf(0.018))))
    assert all(sum(j) in (0, 5) for j in run.rows()["judged"].to_pylist())
    assert run.survivors().tolist() == quiet(net, data, Linf(0.018), plain).survivors().tolist()
    assert run.repeats.robust.mean == pytest.approx(run.robust_accuracy.value)
    assert run.repeats.robust.deviation == 0


def test_a_run_on_a_noisy_model_shows_its_single_passes(net: nn.Module, demo: Any, quiet: Any, cut: Any) -> None:
    torch.manual_seed(0)
    run = quiet(Noisy(net, 0.2).eval(), demo[:16], Linf(0.15), cut("autoattack-rand"))
    assert run.repeats is not None
    assert run.repeats.clean.passes == run.repeats.robust.passes == 5
    assert run.repeats.robust.n == 16
    assert run.repeats.robust.mean <= run.repeats.clean.mean
    assert f"robust {run.repeats.robust}" in str(run)
