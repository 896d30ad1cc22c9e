"""The gallery: published ideas that did not defend, rebuilt small, each with a flawed evaluation and a better one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from brinell.attacks import APGD, PGD
from brinell.core.threat import Linf, Threat
from brinell.errors import one_of
from brinell.evaluate.plan import Eot, Plan, Stage, plan
from brinell.gallery import parts
from brinell.gallery.networks import learnt, normalised, plain
from brinell.gallery.readouts import Squashed
from brinell.models.bpda import bpda
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops import rng

EPS = 0.1
# What the test should say of the original evaluation.
CAUGHT, MISSED = "caught", "missed"


@dataclass(frozen=True)
class Evaluation:
    """How a defence was attacked: the model with the gradients that were used, and the plan.

    `readout` and `layer` are those of the binarization test. With `predicted` the attack was told the model's own
    prediction instead of the true label.
    """

    how: str
    build: Callable[[], TorchClassifier]
    plan: Plan
    readout: Any = "linear"
    layer: Any = None
    predicted: bool = False


@dataclass(frozen=True)
class Defence:
    """A defence, what it imitates, its original and its stronger evaluation, and what the test should say of the first.

    `kappa` fixes the closeness of the test where it is not found by the stronger evaluation.
    """

    name: str
    imitates: str
    original: Evaluation
    stronger: Evaluation
    threat: Threat
    expected: str = CAUGHT
    inner: int = 199
    kappa: float | None = None
    why: str = ""

    def build(self) -> TorchClassifier:
        """The defended classifier, with the gradients of the stronger evaluation."""
        return self.stronger.build()


def _plan(name: str, attack: Any, draws: int = 1) -> Plan:
    return Plan(name, (attack if isinstance(attack, Stage) else Stage(attack),), draws=draws)


PGD20 = _plan("pgd-20", PGD(20))
PGD_MARGIN = _plan("pgd-100-margin", PGD(100, rel_step=0.05, loss="margin"))
APGD_MARGIN = _plan("apgd-100-margin", APGD(100, loss="margin"))


def _built(body: nn.Module, head: nn.Module, after: nn.Module | None, name: str) -> TorchClassifier:
    return wrap(parts.Defended(body, head, after).eval().requires_grad_(False), name=name)


def _before(name: str, module: nn.Module, seed: int = 0) -> TorchClassifier:
    body, head = parts.halves(plain(seed))
    return _built(nn.Sequential(module, body), head, None, name)


LEVELS = 16


def _thermometer(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    code = parts.Thermometer(LEVELS)
    encode = bpda(code, code.ramps if through else code.cliffs)
    layers = [encode, parts.spread(body[0], LEVELS), *body[1:]]
    return _built(nn.Sequential(*layers), head, None, "thermometer encoding")


def _winners(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    activation = parts.Winners(0.1)
    sparse = nn.Sequential(*(activation if isinstance(layer, nn.ReLU) else layer for layer in body))
    smooth = bpda(sparse, parts.Averaged(sparse, parts.Noise(EPS), 30)) if through else sparse
    return _built(smooth, head, None, "k-winners-take-all")


def _scaled() -> TorchClassifier:
    body, head = parts.halves(plain())
    return _built(body, head, parts.Scale(300.0), "logit scaling")


def _quantised(through: bool) -> TorchClassifier:
    step = parts.quantised(8)
    return _before("input quantisation", bpda(step) if through else parts.module(step))


def _jpeg(through: bool) -> TorchClassifier:
    compress = parts.Jpeg(0.06)
    return _before("block compression", bpda(compress) if through else compress)


COPIES = 16


def _noisy(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    many = parts.Averaged(body, parts.Noise(0.3), COPIES)
    return _built(many if through else bpda(many, parts.Averaged(body, parts.Noise(0.3), 1)), head, None, "random noise")


def _mixed(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    mixup = parts.Mixup(body, learnt()[0][:COPIES], share=0.5)
    return _built(mixup if through else bpda(mixup, body), head, None, "mixup inference")


def _ensemble(through: bool) -> TorchClassifier:
    halves = [parts.halves(plain(seed)) for seed in range(3)]
    net = parts.Vote([body for body, _ in halves], [head for _, head in halves], GAIN, through)
    return wrap(net.eval().requires_grad_(False), name="ensemble with a vote")


BITS, GAIN = 32, 20.0


@cache
def _code_head() -> tuple[nn.Linear, Tensor]:
    """Keyed codes of the classes, and the linear map from features to bits that fits them best."""
    body, _ = parts.halves(plain())
    x, y = learnt()
    codes = rng.signs(rng.keys(1, torch.arange(10)), (BITS,))
    f = torch.cat([body(x), torch.ones(len(x), 1)], 1).double()
    ridge = 1e-1 * torch.eye(f.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(f.T @ f + ridge, f.T @ codes[y].double()).float()
    head = nn.Linear(f.shape[1] - 1, BITS)
    head.weight = nn.Parameter(weights[:-1].T.contiguous(), requires_grad=False)
    head.bias = nn.Parameter(weights[-1].clone(), requires_grad=False)
    return head, codes


def _codes(through: bool) -> TorchClassifier:
    body, _ = parts.halves(plain())
    head, codes = _code_head()
    return _built(body, head, parts.Codes(codes, GAIN, through), "error-correcting codes")


def _prototypes() -> TorchClassifier:
    body, _ = parts.halves(plain())
    x, y = learnt()
    f = body(x)
    centres = torch.stack([f[y == c].mean(0) for c in range(10)])
    return _built(body, parts.Prototypes(centres, 100.0), None, "class prototypes")


def _rippled(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    ripple = parts.Ripple(0.2, 60.0)
    return _built(nn.Sequential(body, bpda(ripple) if through else ripple), head, None, "rippled features")


def _frozen(through: bool) -> TorchClassifier:
    body, head = parts.halves(normalised())
    own = nn.Sequential(*(parts.OwnStatistics(m) if isinstance(m, nn.BatchNorm2d) else m for m in body))
    return _built(body if through else bpda(body, own), head, None, "batch statistics")


def _bare() -> TorchClassifier:
    body, head = parts.halves(plain())
    return _built(body, head, None, "attack on the predicted label")


def _pair(build: Callable[[bool], TorchClassifier]) -> tuple[Callable[[], TorchClassifier], Callable[[], TorchClassifier]]:
    return (lambda: build(False)), (lambda: build(True))
