"""An adaptive evaluation breaks what hides its gradients, down to the closed form of the linear network inside."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, Problem, Run, Stage
from brinell.attacks import APGD, PGD, HopSkipJump, OnGrid, Square
from brinell.attacks.search.on_grid import to_grid
from brinell.core.plan import Plan, Targets
from brinell.core.surrogate import Surrogate
from brinell.evaluation import run_stage
from brinell.evaluation.adaptive import plan as masking
from brinell.evaluation.adaptive.modules import misleading_modules
from brinell.evaluation.adaptive.networks import find_networks
from brinell.ops import rng
from brinell.verification.plans import _stage

N, SHAPE, EPS = 24, (1, 4, 4), 10 / 255
WEAK = Plan("weak", (Stage(PGD(steps=5)),))
WEIGHT = rng.normal(rng.keys(1, torch.arange(2)), (16,))
WEIGHT -= WEIGHT.mean(1, keepdim=True)  # a common brightness changes nothing


def linear() -> nn.Module:
    net = nn.Linear(16, 2, bias=False)
    net.weight = nn.Parameter(WEIGHT.clone(), requires_grad=False)
    return nn.Sequential(nn.Flatten(), net).eval()


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Points on the 8-bit grid, away from the edges of the box, about half of them within reach of the boundary."""
    x = (40 + 175 * rng.uniform(rng.keys(2, torch.arange(N)), SHAPE)).round() / 255
    return Problem(x, linear()(x).argmax(1))


def truth(problem: Problem) -> int:
    """The number of samples whose distance |(w₁ − w₀)·x| / ‖w₁ − w₀‖₁ exceeds eps."""
    w = WEIGHT[1] - WEIGHT[0]
    return int(((problem.x.flatten(1) @ w).abs() / w.abs().sum() > EPS).sum())


class Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Wrapped(nn.Module):
    """A function of the input, the linear network, a function of its logits."""

    def __init__(self, before: Callable[[Tensor], Tensor] | None, after: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.before = nn.Identity() if before is None else Layer(before)
        self.base = linear()
        self.after = after or (lambda z: z)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.base(self.before(x)))


def negated(x: Tensor) -> Tensor:
    return 2 * x.detach() - x


def noisy(x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn_like(x)


def hard(z: Tensor) -> Tensor:
    return 10 * nn.functional.one_hot(z.argmax(1), 2).float() + 0 * z


MASKS: dict[str, tuple[Any, Any]] = {
    "rounded": (lambda x: (x * 255).round() / 255 + 0 * x, None),
    "negated": (negated, None),
    "zero": (lambda x: x.detach() + 0 * x, None),
    "infinite": (lambda x: x + 1e-30 * (x.detach() - x).sqrt(), None),
    "hard labels": (None, hard),
    "rounded, hard labels": (lambda x: (x * 255).round() / 255 + 0 * x, hard),
    "no gradient": (lambda x: x.detach(), None),
}


def adaptive(net: nn.Module, problem: Problem, plan: Any = WEAK, **options: Any) -> Run:
    return brinell.evaluate(net, problem, Linf(EPS), plan, adaptive=True, progress=False, **options)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_reaches_the_closed_form(mask: Any, problem: Problem) -> None:
    net = Wrapped(*mask).eval()
    run = adaptive(net, problem)
    assert run.robust_accuracy.k == truth(problem)
    assert 0 < truth(problem) < N - 4
    if mask is not MASKS["no gradient"]:  # that one is refused otherwise
        assert brinell.evaluate(net, problem, Linf(EPS), WEAK, progress=False).robust_accuracy.k > truth(problem) + 3
    assert "surrogate wins" in [f.name for f in run.verdict.findings]


def test_sub_classes(problem: Problem) -> None:
    """Every class has two columns, the second a little lower; sharpened, the gradient of the largest vanishes."""

    class SubClasses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(16, 4)
            self.wide.weight = nn.Parameter(WEIGHT.repeat_interleave(2, 0), requires_grad=False)
            self.wide.bias = nn.Parameter(torch.tensor([0.0, -1.0, 0.0, -1.0]), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return 10 * (1000 * self.wide(x.flatten(1))).softmax(1).view(len(x), 2, 2).amax(2)

    run = adaptive(SubClasses().eval(), problem)
    assert run.identity.plan.stages[1].via == {"outputs": ["wide"], "columns": 2}
    assert run.robust_accuracy.k == truth(problem)


def test_the_run_says_what_was_done(problem: Problem) -> None:
    run = adaptive(Wrapped(*MASKS["negated"]).eval(), problem)
    (check,) = [c for c in run.checks if c["name"] == "adaptive"]
    assert check["level"] == "info"
    assert "the module before misleads" in check["message"]
    assert "the network base alone" in check["message"]
    stages = {stage.name: stage for stage in run.identity.plan.stages}
    assert run.identity.plan.name == "weak, adaptive"
    assert stages["apgd-ce via base"].via == {"networks": ["base"]}
    assert stages["pgd-ce"].via is None


def test_probes_name_the_module(problem: Problem) -> None:
    x, net = problem.x, brinell.wrap(Wrapped(negated, None).eval())
    nearby = (x + EPS * (2 * rng.uniform(rng.keys(3, torch.arange(N)), SHAPE) - 1)).clamp(0, 1)
    (probed,) = misleading_modules(net, x, nearby)
    assert probed.name == "before"
    assert probed.share == pytest.approx(-1, abs=1e-4)
    (found,) = [f for f in find_networks(net, x, nearby, net.forward(x).logits) if f.how.networks]
    assert (found.how, found.agreement) == (Surrogate(networks=("base",)), 1.0)


def test_sound_models_keep_plan_and_rows(problem: Problem, outcome: Callable[[pa.Table], pa.Table]) -> None:
    data = brinell.data.load("demo", n=12)
    plain, more = (
        brinell.evaluate("demo", data, Linf(0.1), "pgd20", adaptive=a, progress=False) for a in (False, True)
    )
    assert outcome(plain.rows()).equals(outcome(more.rows()))
    assert plain.identity.plan.raw == more.identity.plan.raw
    assert "found nothing to work around" in next(c["message"] for c in more.checks if c["name"] == "adaptive")


def test_noise_is_averaged_and_fresh_passes_judge(problem: Problem) -> None:
    run = adaptive(Wrapped(noisy, None).eval(), problem)
    assert run.identity.plan.draws == 5
    assert "draws noise" in next(c["message"] for c in run.checks if c["name"] == "adaptive")
    # Noise of 0.01 per pixel moves the margin by about a tenth of what eps allows: near the boundary either is right.
    assert abs(run.robust_accuracy.k - truth(problem)) <= 3
    assert run.verdict.level == "upper bound"


def test_black_box_where_nothing_else_is_left(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "Square", partial(Square, steps=300))
    monkeypatch.setattr(masking, "HopSkipJump", partial(HopSkipJump, steps=1000))

    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(WEIGHT.clone(), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return hard(x.detach().flatten(1) @ self.weight.T)

    run = adaptive(Opaque().eval(), problem[:6])  # its gradient attacks are left out
    assert run.attacks == ["square, all survivors", "hop-skip-jump, all survivors"]
    assert run.robust_accuracy.k == truth(problem[:6])


class Flat(nn.Module):
    """Shows large steps without a gradient off the 8-bit grid, the linear network on it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = linear()

    def forward(self, x: Tensor) -> Tensor:
        on = (255 * x - (255 * x).round()).abs().flatten(1).amax(1, keepdim=True) < 1e-2
        z = self.base(x)
        return torch.where(on, z, 3 * hard(z))


def test_points_on_the_grid(problem: Problem) -> None:
    run = adaptive(Flat().eval(), problem)
    assert "points are rounded" in next(c["message"] for c in run.checks if c["name"] == "adaptive")
    assert any("8-bit" in name for name in run.attacks)
    assert run.robust_accuracy.k == truth(problem)
    x, y = torch.full((3, 4), 51 / 255), rng.uniform(rng.keys(0, torch.arange(3)), (4,))
    levels = 255 * to_grid(x, y)
    assert float((levels - levels.round()).abs().max()) < 1e-4
    assert bool(((to_grid(x, y) - x).abs() <= (y - x).abs() + 1e-5).all())
    assert OnGrid(APGD(steps=3)).queries == APGD(steps=3).queries


class NearBy(nn.Module):
    """The linear network answers within half of eps of the images; elsewhere every image keeps its class."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.base, self.images = linear(), images.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        far, nearest = (x.flatten(1)[:, None] - self.images).abs().amax(2).min(1)
        z = self.base(x)
        return torch.where(far[:, None] < 0.51 * EPS, z, 3 * hard(self.base(self.images[nearest])) + 0 * z)


def test_a_model_that_is_weak_near_its_inputs(problem: Problem) -> None:
    """It reaches the closed form of the smaller ball, and the attacks of the plan do not."""
    net, w = NearBy(problem.x).eval(), WEIGHT[1] - WEIGHT[0]
    run = adaptive(net, problem)
    robust = (problem.x.flatten(1) @ w).abs() / w.abs().sum() > EPS / 2
    assert run.robust_accuracy.k == int(robust.sum())
    assert "apgd-ce, within 0.5" in run.attacks
    assert run.accuracy_after()[0][1].k > int(robust.sum()) + 3
    assert "of the radius" in next(c["message"] for c in run.checks if c["name"] == "adaptive")


class Crowd(Wrapped):
    """Alone an input gets the linear network's answer, in larger batches that of a far more confident one."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x)
        return z if len(x) < 3 else 3 * hard(z)


class Mixed(Wrapped):
    """The mean of the batch is part of every answer."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x)
        return z + (z - z.mean(0, keepdim=True))


@pytest.mark.parametrize("net", [Crowd(None, None), Mixed(None, None)], ids=["size", "neighbours"])
def test_batch_dependence(net: nn.Module, problem: Problem) -> None:
    """The model is asked row by row, the Run says so and can be verified, and its verdict is no better for it."""
    run = adaptive(net.eval(), problem)
    assert run.robust_accuracy.k == truth(problem)
    assert run.identity.raw["block"] == 1
    (check,) = [c for c in run.checks if c["name"] == "batch shape"]
    assert check["level"] == "warn" and "row by row" in check["message"]
    assert brinell.verify(run, net, problem, rerun=2).ok


def test_an_input_encoding_of_another_shape(problem: Problem) -> None:
    """A thermometer code of 8 bits, decoded by the first layer: its slopes lead to the linear network's closed form."""

    def code(x: Tensor) -> Tensor:
        return (x > (torch.arange(255).view(1, -1, 1, 1) + 0.5) / 255).float()

    class Thermometer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.net = Layer(code), linear()[1]

        def forward(self, x: Tensor) -> Tensor:
            return self.net((self.encode(x).sum(1) / 255).flatten(1)) + 0 * x.flatten(1)[:, :2]

    run = adaptive(Thermometer().eval(), problem)
    (_, width), *_ = run.identity.plan.stages[1].via["secants"]
    assert width == pytest.approx(EPS, rel=0.1)
    assert run.robust_accuracy.k == truth(problem)
    assert brinell.verify(run, Thermometer().eval(), problem, rerun=2).ok


VIA = Stage(APGD(steps=10), label="through", via=Surrogate(networks=("base",)))
TOWARDS = replace(Targets(APGD(steps=10, loss="minimum-margin"), 1), label="towards", via=VIA.via)


def test_only_the_model_judges(problem: Problem) -> None:
    """The surrogate's boundary is somewhere else: points that fool it alone do not count, and none is unverified."""

    class Shifted(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + torch.tensor([0.0, 100.0])

    net, data = Shifted(None, None).eval(), Problem(problem.x, torch.ones(N, dtype=torch.long))
    run = brinell.evaluate(net, data, Linf(EPS), Plan("via", (VIA,)), progress=False)
    assert run.robust_accuracy.k == N
    assert run.unverified.num_rows == 0


def test_passes_of_surrogate_and_model_are_counted(problem: Problem) -> None:
    calls = {"base": 0, "model": 0}

    class Counting(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            calls["model"] += 1
            return x.flatten(1) @ WEIGHT.T + 1000 * torch.tensor([1.0, 0.0])

    net = Counting(None, None).eval()
    net.base.register_forward_hook(lambda *_: calls.update(base=calls["base"] + 1))
    data = Problem(problem.x[:1], torch.zeros(1, dtype=torch.long))
    run = brinell.evaluate(net, data, Linf(EPS), Plan("via", (TOWARDS,)), progress=False)
    (row,) = run.rows().filter(pa.array(np.asarray(run.rows()["attack"]) == "towards")).to_pylist()
    queries = TOWARDS.attack.queries
    assert (row["forwards"], row["backwards"]) == (2 * queries + 1, queries)
    assert calls["base"] == queries + 1  # one ranks the targets


def test_rows_do_not_depend_on_their_neighbours(problem: Problem, outcome: Callable[[pa.Table], pa.Table]) -> None:
    net, plan = Wrapped(negated, hard).eval(), Plan("via", (VIA, TOWARDS))
    whole, half = (brinell.evaluate(net, p, Linf(EPS), plan, progress=False) for p in (problem, problem[8:16]))
    rows = outcome(whole.rows())
    keep = np.isin(np.asarray(rows["sample_id"]), np.arange(8, 16))
    ordered = [
        t.sort_by([("attack", "ascending"), ("sample_id", "ascending")]) for t in (rows.filter(keep), half.rows())
    ]
    assert ordered[0].equals(outcome(ordered[1]))


def test_goes_on_after_an_interruption(
    problem: Problem, tmp_path: Path, outcome: Callable[[pa.Table], pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Wrapped(*MASKS["rounded, hard labels"]).eval()
    whole = adaptive(net, problem, out=tmp_path / "whole")
    finish, left = run_stage._finish, [2]

    def interrupted(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return finish(*args)

    monkeypatch.setattr(run_stage, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adaptive(net, problem, out=tmp_path / "part")
    monkeypatch.undo()
    assert not Run.open(tmp_path / "part").finished
    part = adaptive(net, problem, out=tmp_path / "part", resume=True)
    order = [("attack", "ascending"), ("sample_id", "ascending")]
    assert outcome(part.rows()).sort_by(order).equals(outcome(whole.rows()).sort_by(order))


@pytest.mark.parametrize(
    "secants", [3, {"a": 0.1}, [["a"]], [["a", "b"]], [["a", -1.0]], [[1, 0.1]], [["a", float("inf")]]], ids=str
)
def test_stored_slopes_of_others_are_checked(secants: Any) -> None:
    stage = replace(VIA, via=Surrogate(secants=(("base", 0.1),))).to_json()
    assert _stage(stage, "through").via == Surrogate(secants=(("base", 0.1),))
    stage["via"]["secants"] = secants
    with pytest.raises(brinell.PlanError):
        _stage(stage, "through")


def test_refusals(problem: Problem) -> None:
    with pytest.raises(brinell.PlanError, match="via a surrogate"):
        Stage(Square(), via=VIA.via)
    with pytest.raises(brinell.ModelError, match="base"):
        brinell.evaluate(linear(), problem, Linf(EPS), Plan("via", (VIA,)), progress=False)
