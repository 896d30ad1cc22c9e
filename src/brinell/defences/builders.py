"""The defended networks of the gallery: `through` gives the gradients that the better evaluation follows."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.dataset import Problem
from brinell.defences import detectors, parts
from brinell.defences.networks import bounded, judged, learnt, normalised, plain
from brinell.evaluation.calibrate_detector import calibrated
from brinell.models.bpda import bpda
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops import rng

# Of the thermometer code; copies of an input that are averaged; bits of a class's code; how steeply they saturate.
LEVELS, COPIES, BITS, GAIN = 16, 16, 32, 20.0


def _built(body: nn.Module, head: nn.Module, after: nn.Module | None, name: str) -> TorchClassifier:
    return wrap(parts.Defended(body, head, after).eval().requires_grad_(False), name=name)


def _before(name: str, module: nn.Module) -> TorchClassifier:
    body, head = parts.halves(plain())
    return _built(nn.Sequential(module, body), head, None, name)


def thermometer(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    code = parts.Thermometer(LEVELS)
    encode = bpda(code, code.ramps if through else code.cliffs)
    layers = [encode, parts.spread(body[0], LEVELS), *body[1:]]
    return _built(nn.Sequential(*layers), head, None, "thermometer encoding")


def winners(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    activation = parts.Winners(0.05)
    sparse = nn.Sequential(*(activation if isinstance(layer, nn.ReLU) else layer for layer in body))
    smooth = bpda(sparse, parts.Averaged(sparse, parts.Noise(0.03), 10)) if through else sparse
    return _built(smooth, head, None, "k-winners-take-all")


def scaled() -> TorchClassifier:
    body, head = parts.halves(plain())
    return _built(body, head, parts.Scale(300.0), "logit scaling")


def quantised(through: bool) -> TorchClassifier:
    step = parts.quantised(8)
    return _before("input quantisation", bpda(step) if through else parts.module(step))


def jpeg(through: bool) -> TorchClassifier:
    compress = parts.Jpeg(0.06)
    return _before("block compression", bpda(compress) if through else compress)


def noisy(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    many = parts.Averaged(body, parts.Noise(0.3), COPIES)
    once = parts.Averaged(body, parts.Noise(0.3), 1)
    return _built(many if through else bpda(many, once), head, None, "random noise")


def mixed(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    mixup = parts.Mixup(body, learnt()[0][:COPIES], share=0.5)
    return _built(mixup if through else bpda(mixup, body), head, None, "mixup inference")


def ensemble(through: bool) -> TorchClassifier:
    halves = [parts.halves(plain(seed)) for seed in range(3)]
    net = parts.Vote([body for body, _ in halves], [head for _, head in halves], GAIN, through)
    return wrap(net.eval().requires_grad_(False), name="ensemble with a vote")


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


def codes(through: bool) -> TorchClassifier:
    body, _ = parts.halves(plain())
    head, codes = _code_head()
    return _built(body, head, parts.Codes(codes, GAIN, through), "error-correcting codes")


def prototypes() -> TorchClassifier:
    body, _ = parts.halves(plain())
    x, y = learnt()
    f = body(x)
    centres = torch.stack([f[y == c].mean(0) for c in range(10)])
    return _built(body, parts.Prototypes(centres, 100.0), None, "class prototypes")


def rippled(through: bool) -> TorchClassifier:
    body, head = parts.halves(plain())
    ripple = parts.Ripple(0.3, 60.0)
    return _built(nn.Sequential(body, bpda(ripple) if through else ripple), head, None, "rippled features")


def frozen(through: bool) -> TorchClassifier:
    body, head = parts.halves(normalised())
    own = nn.Sequential(*(parts.OwnStatistics(m) if isinstance(m, nn.BatchNorm2d) else m for m in body))
    return _built(body if through else bpda(body, own), head, None, "batch statistics")


def bare() -> TorchClassifier:
    body, head = parts.halves(plain())
    return _built(body, head, None, "no defence")


def saturated(through: bool) -> TorchClassifier:
    body, head = parts.halves(bounded())
    flat = parts.squash(200.0, through)
    return _built(nn.Sequential(*body[:-1], flat), head, None, "saturated activations")


def _guarded(net: Any, detector: nn.Module, name: str, data: Problem) -> TorchClassifier:
    """A network whose detector rejects at most 5 % of these clean images."""
    body, head = parts.halves(net)
    module = parts.Defended(body, head).eval().requires_grad_(False)
    return calibrated(wrap(module, detector=detector.eval().requires_grad_(False), name=name), data, rate=0.05)


@cache
def shaken() -> TorchClassifier:
    return _guarded(plain(), detectors.Shaken(plain(), 0.15), "statistical test", Problem(*learnt()))


@cache
def left_out() -> TorchClassifier:
    return _guarded(*detectors.left_out(), "leave-one-out attribution", judged())


@cache
def trapdoor() -> TorchClassifier:
    return _guarded(*detectors.trapdoor(), "trapdoors", judged())
