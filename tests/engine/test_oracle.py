"""The only model call: blocks, padding, memory that runs out, answers that are not numbers."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._functorch import config as functorch_config

import brinell
from brinell.attacks import APGD
from brinell.core.attack import Attempt, Requires
from brinell.core.criterion import Misclassified
from brinell.core.execution import Blocks
from brinell.core.threat import L2
from brinell.engine.accelerate import accelerated
from brinell.engine.events import Shrunk
from brinell.engine.loop import Engine
from brinell.engine.oracle import KINDS, Oracle, default_blocks
from brinell.engine.slots import Samples
from brinell.errors import ModelError
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops import rng
from brinell.ops.rowwise import concat, take
from brinell.testing import linear_world


class Small(nn.Module):
    """Runs out of memory when asked about more than k rows."""

    def __init__(
        self, net: nn.Module, k: int, error: type[RuntimeError] = torch.OutOfMemoryError, text: str = ""
    ) -> None:
        super().__init__()
        self.net, self.k, self.error, self.text = net, k, error, text or "out of memory"

    def forward(self, x):
        if len(x) > self.k:
            raise self.error(self.text)
        return self.net(x)


class Ill(nn.Module):
    """Answers NaN (or has a NaN gradient) for rows whose first coordinate exceeds a bound."""

    def __init__(self, net: nn.Module, bound: float, gradient: bool) -> None:
        super().__init__()
        self.net, self.bound, self.gradient = net, bound, gradient

    def forward(self, x):
        z, first = self.net(x), x.flatten(1)[:, :1]
        ill = first > self.bound
        if not self.gradient:
            return z.masked_fill(ill, torch.nan)
        # √0 times zero is zero, with a gradient of ∞ · 0.
        return z + 0 * torch.where(ill, first - first.detach(), 1.0).sqrt()


@pytest.fixture
def world():
    return linear_world(classes=3, n=40)


def query(oracle: Oracle, world, requires: Requires = Requires.GRAD):
    return oracle.query(world.x, world.y, torch.full((len(world.y),), -1), "margin", requires)


# -------------------------------------------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("block", [1, 7, 40, 64])
def test_answers_are_right_for_any_block(world, block):
    a = query(Oracle(world.classifier, block), world)
    z = world.x @ world.weight.T + world.bias
    assert torch.allclose(a.logits, z, atol=1e-5)
    rival = z.scatter(1, world.y[:, None], -torch.inf).argmax(1)
    assert torch.allclose(a.gradient, world.weight[rival] - world.weight[world.y], atol=1e-6)
    assert torch.allclose(a.loss, z.gather(1, rival[:, None])[:, 0] - z.gather(1, world.y[:, None])[:, 0], atol=1e-5)
    assert a.backwards == 1 and not a.logits.requires_grad


def test_jacobian_and_logits_only(world):
    a = query(Oracle(world.classifier, 16), world, Requires.JACOBIAN)
    assert torch.allclose(a.jacobian, world.weight[None].expand(40, -1, -1)) and a.backwards == 3 and a.grad is None
    b = query(Oracle(world.classifier, 16), world, Requires.LOGITS)
    assert b.grad is None and b.jacobian is None and b.backwards == 0 and torch.equal(a.logits, b.logits)


# ------------------------------------------------------------------------------------------------------------ detectors


class Guarded(TorchClassifier):
    """A linear classifier with a linear detector and its own inputs as features."""

    def forward(self, x):
        return replace(super().forward(x), reject=x.flatten(1) @ slope() - 1, features=2 * x.flatten(1))


def slope(n: int = 24) -> torch.Tensor:
    return torch.linspace(-1, 2, n)


@pytest.mark.parametrize("block", [7, 64])
def test_both_gradients_for_two_backwards(world, block):
    a = query(Oracle(Guarded(world.classifier.module), block), world, Requires.DETECTOR)
    plain = query(Oracle(world.classifier, block), world)
    assert torch.equal(a.gradient, plain.gradient) and torch.equal(a.logits, plain.logits)
    assert torch.allclose(a.score, world.x @ slope() - 1, atol=1e-5)
    assert torch.allclose(a.score_gradient, slope().expand(40, -1)) and a.backwards == 2
    assert not a.score.requires_grad


def test_the_score_comes_with_every_answer(world):
    for requires, backwards in ((Requires.LOGITS, 0), (Requires.GRAD, 1), (Requires.JACOBIAN, 3)):
        a = query(Oracle(Guarded(world.classifier.module), 16), world, requires)
        assert a.reject is not None and a.reject_grad is None and a.backwards == backwards
    assert query(Oracle(world.classifier, 16), world).reject is None


def test_values_to_match(world):
    """The loss is minus half the squared distance, of the logits or of the features, which are twice the inputs."""
    oracle = Oracle(Guarded(world.classifier.module), 16)
    z = world.x @ world.weight.T + world.bias
    a = oracle.query(world.x, world.y, z.flip(0), "match-logits", Requires.GRAD)
    assert torch.allclose(a.loss, -(z - z.flip(0)).square().sum(1) / 2, atol=1e-5)
    assert torch.allclose(a.gradient, (z.flip(0) - z) @ world.weight, atol=1e-4)
    b = oracle.query(world.x, world.y, torch.zeros_like(world.x), "match-features", Requires.GRAD)
    assert torch.allclose(b.gradient, -4 * world.x, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "requires", "why"),
    [("margin", Requires.DETECTOR, "a detector"), ("match-features", Requires.GRAD, "features")],
)
def test_what_the_model_lacks_is_said(world, loss, requires, why):
    with pytest.raises(ModelError, match=f"a model with {why}"):
        Oracle(world.classifier, 16).query(world.x, world.y, torch.full((40,), -1), loss, requires)


def test_the_observer_sees_every_point_once_and_changes_nothing(world):
    ball, eps = L2(0.3).ball(torch.arange(40), torch.device("cpu")), torch.full((40,), 0.3)
    work = Samples.of(world.x, world.y, rng.keys(0, torch.arange(40)), eps, torch.full((40, 2), -1))
    seen = []

    def look(s, a):
        seen.extend(
            (int(s.at[i]), int(s.attempt[i]), int(s.state.t[i]), float(a.loss[i])) for i in s.live.nonzero()[:, 0]
        )

    def run(observe):
        attempts = (Attempt(0, 0), Attempt(0, 1))
        engine = Engine(
            Oracle(world.classifier, 8), APGD(3, "margin"), Misclassified(), ball, attempts,
            16, early_exit=False, observe=observe,
        )  # fmt: skip
        parts = list(engine.run(work))
        return take(concat([r for _, r in parts]), torch.cat([p for p, _ in parts]).argsort())

    quiet, watched = run(None), run(look)
    assert all(torch.equal(getattr(quiet, f), getattr(watched, f)) for f in ("x", "broken", "loss", "forwards"))
    assert sorted(v[:3] for v in seen) == [(i, g, t) for i in range(40) for g in range(2) for t in range(4)]
    best = [max(v[3] for v in seen if v[0] == i) for i in range(40)]
    assert best == quiet.loss.tolist()


# -------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("error", "text"), [(torch.OutOfMemoryError, ""), (RuntimeError, "CUDA error: out of memory")])
@pytest.mark.parametrize("k", [1, 5, 8])
def test_blocks_are_halved_until_they_fit(world, k, error, text):
    heard = []
    oracle = Oracle(wrap(Small(world.classifier.module, k, error, text).eval()), 32, heard.append)
    a, b = query(oracle, world), query(Oracle(world.classifier, 32), world)
    fits = 1 << (k.bit_length() - 1)
    assert oracle.block == fits and oracle.shrunk == [v for v in (16, 8, 4, 2, 1) if v >= fits]
    assert heard == [Shrunk(v) for v in oracle.shrunk]
    assert torch.allclose(a.logits, b.logits, atol=1e-6) and torch.allclose(a.gradient, b.gradient, atol=1e-6)


def test_not_even_one_row_fits(world):
    with pytest.raises(ModelError, match="the model on one sample"):
        query(Oracle(wrap(Small(world.classifier.module, 0).eval()), 32), world)


def test_other_errors_pass_through(world):
    with pytest.raises(RuntimeError, match="shape mismatch"):
        query(Oracle(wrap(Small(world.classifier.module, 0, RuntimeError, "shape mismatch").eval()), 32), world)


def test_running_out_of_memory_changes_no_outcome_and_is_noted(world, tmp_path):
    """Weights and inputs are multiples of 1/64, so that sums are exact in any order and any block."""
    net = world.classifier.module
    net.weight.data = (net.weight * 64).round() / 64
    data = ((world.x * 64).round() / 64, world.y)
    eps = world.distance("L2").median().item()
    whole, small = (
        brinell.evaluate(m, data, L2(eps), APGD(steps=8, loss="margin"), out=tmp_path / str(i), progress=False)
        for i, m in enumerate((net, Small(net, 8).eval()))
    )
    drop = ["seconds", "adv_shard", "adv_row"]
    assert 0 < whole.robust_accuracy.value < 1
    for name in set(whole.rows().column_names) - set(drop):
        a, b = whole.rows()[name].to_pylist(), small.rows()[name].to_pylist()
        if name in ("distance", "adv_margin", "best_loss", "clean_margin"):
            assert [v is None for v in a] == [v is None for v in b]
            assert [v for v in a if v is not None] == pytest.approx([v for v in b if v is not None], rel=1e-4, abs=1e-6)
        else:
            assert a == b, name
    assert any("out of memory" in note and "8 rows" in note for note in small.manifest["notes"])
    assert not any("out of memory" in note for note in whole.manifest["notes"])


# ----------------------------------------------------------------------------------------------------------------- NaN


@pytest.mark.parametrize("gradient", [False, True])
def test_ill_rows_do_not_poison_the_others(world, gradient):
    """Rows far below the bound cannot reach it; their answers must be those of the healthy model."""
    eps = world.distance("L2").median().item()
    bound = 0.5
    healthy = (world.x[:, 0] < bound - eps - 0.01).numpy()
    assert 10 < healthy.sum() < 35
    attack = APGD(steps=8, loss="margin")
    want, got = (
        brinell.attack(m, (world.x, world.y), L2(eps), attack).drop_columns("seconds")
        for m in (world.classifier, Ill(world.classifier.module, bound, gradient).eval())
    )
    assert got.filter(healthy).equals(want.filter(healthy))
    flagged = [bool(f) for f in got["flags"].to_pylist()]
    assert any(flagged) != gradient
    assert not any(f for f, h in zip(flagged, healthy, strict=True) if h)
    # A NaN is no success.
    for row in got.to_pylist():
        assert not row["broken"] or row["verified"]


def test_gradients_that_are_not_finite_are_zero(world):
    a = query(Oracle(wrap(Ill(world.classifier.module, -1.0, True).eval()), 16), world)
    assert (a.gradient[:, 0] == 0).all() and (a.gradient[:, 1:] != 0).any(1).all() and a.logits.isfinite().all()


def test_clean_samples_without_an_answer_are_not_robust(world):
    model = Ill(world.classifier.module, 0.5, gradient=False).eval()
    run = brinell.evaluate(model, (world.x, world.y), L2(1e-4), "fgsm", progress=False)
    assert run.robust_accuracy.value == pytest.approx(float((world.x[:, 0] <= 0.5).float().mean()))


def test_the_model_always_sees_whole_blocks(world):
    """Other batch shapes make numerical libraries choose other kernels, and so other last bits."""
    sizes = set()

    class Seeing(nn.Module):
        def forward(self, x):
            sizes.add(len(x))
            return world.classifier.module(x)

    oracle = Oracle(wrap(Seeing().eval()), 16)
    for n in (1, 5, 16, 17, 40):
        x, y = world.x[:n], world.y[:n]
        a = oracle.query(x, y, torch.full((n,), -1), "margin", Requires.GRAD)
        assert len(a.logits) == len(a.gradient) == len(a.loss) == len(oracle.output(x).logits) == n
    assert sizes == {16}


class Watched(nn.Module):
    """Notes on every way back whether the compiler may hand buffers on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 3).requires_grad_(False), []

    def forward(self, x):
        z = self.linear(x)
        if z.requires_grad:
            z.register_hook(lambda g: self.seen.append(functorch_config.donated_buffer))
        return z


@pytest.mark.parametrize("compiled", [False, True])
def test_ways_back_through_compiled_networks_leave_buffers_for_the_next(compiled, monkeypatch):
    """The compiler looks at this setting when the way back is gone, and refuses a second one otherwise."""
    monkeypatch.setattr(torch, "compile", lambda f, **options: f)
    net = Watched().eval()
    oracle, y = accelerated(Oracle(wrap(net), 4), torch.device("cpu"), compiled), torch.zeros(4).long()
    before = functorch_config.donated_buffer
    a = oracle.query(torch.rand(4, 4), y, y - 1, "margin", Requires.JACOBIAN)
    assert a.jacobian.shape == (4, 3, 4)
    assert net.seen == [before and not compiled] * 3 and functorch_config.donated_buffer == before


def test_sizes_of_calls_are_one_model_and_shrink_with_it():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert set(default_blocks(gpu).others) <= set(KINDS) and set(default_blocks(cpu).to_json()) == {"block"}
    blocks = Blocks(32, {"few": 8, "legs": 64})
    usual = accelerated(Oracle(wrap(torch.nn.Linear(4, 3).eval()), 32, blocks=blocks), cpu, fuse=True)
    small = usual.sized("few")
    assert small.block == 8 and usual.sized("few") is small and small.networks is usual.networks
    assert usual.sized("claims") is usual and usual.sized("legs").block == 64
    usual.block = 16  # as after memory ran out
    assert usual.sized("legs") is usual
