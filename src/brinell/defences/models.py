"""Build the defended classifiers; with `stronger` they have the gradients of the stronger evaluation."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.dataset import Problem
from brinell.defences import detectors, layers
from brinell.defences.base_networks import (
    batch_norm_network,
    calibration_images,
    interpolation_network,
    plain_network,
    separated_network,
    tanh_network,
    training_data,
)
from brinell.evaluation.calibrate_detector import calibrated
from brinell.models.bpda import bpda
from brinell.models.wrap import TorchClassifier, wrap
from brinell.ops import rng

# Levels of the thermometer; copies of an input that are averaged; bits per class code; gain of the saturation.
LEVELS, COPIES, BITS, GAIN = 16, 16, 32, 20.0


def _built(body: nn.Module, head: nn.Module, after: nn.Module | None, name: str) -> TorchClassifier:
    return wrap(layers.Defended(body, head, after).eval().requires_grad_(False), name=name)


def _before(name: str, module: nn.Module) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    return _built(nn.Sequential(module, body), head, None, name)


def thermometer(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    code = layers.Thermometer(LEVELS)
    encode = bpda(code, code.ramps if stronger else code.cliffs)
    sequence = [encode, layers.spread(body[0], LEVELS), *body[1:]]
    return _built(nn.Sequential(*sequence), head, None, "thermometer encoding")


def winners(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    activation = layers.Winners(0.05)
    sparse = nn.Sequential(*(activation if isinstance(layer, nn.ReLU) else layer for layer in body))
    smooth = bpda(sparse, layers.Averaged(sparse, layers.Noise(0.03), 10)) if stronger else sparse
    return _built(smooth, head, None, "k-winners-take-all")


def scaled() -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    return _built(body, head, layers.ScaledLogits(300.0), "logit scaling")


def quantised(stronger: bool) -> TorchClassifier:
    step = layers.quantised(8)
    return _before("input quantisation", bpda(step) if stronger else layers.module(step))


def jpeg(stronger: bool) -> TorchClassifier:
    compress = layers.Jpeg(0.06)
    return _before("block compression", bpda(compress) if stronger else compress)


def noisy(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    many = layers.Averaged(body, layers.Noise(0.3), COPIES)
    once = layers.Averaged(body, layers.Noise(0.3), 1)
    return _built(many if stronger else bpda(many, once), head, None, "random noise")


def mixed(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    mixup = layers.Mixup(body, training_data()[0][:COPIES], share=0.5)
    return _built(mixup if stronger else bpda(mixup, body), head, None, "mixup inference")


def ensemble(stronger: bool) -> TorchClassifier:
    split_head = [layers.split_head(plain_network(seed)) for seed in range(3)]
    net = layers.Vote([body for body, _ in split_head], [head for _, head in split_head], GAIN, stronger)
    return wrap(net.eval().requires_grad_(False), name="ensemble with a vote")


@cache
def _code_head() -> tuple[nn.Linear, Tensor]:
    """Return a linear layer from features to the bits of class codes, fitted by least squares, and the random codes."""
    body, _ = layers.split_head(plain_network())
    x, y = training_data()
    codes = rng.signs(rng.keys(1, torch.arange(10)), (BITS,))
    f = torch.cat([body(x), torch.ones(len(x), 1)], 1).double()
    ridge = 1e-1 * torch.eye(f.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(f.T @ f + ridge, f.T @ codes[y].double()).float()
    head = nn.Linear(f.shape[1] - 1, BITS)
    head.weight = nn.Parameter(weights[:-1].T.contiguous(), requires_grad=False)
    head.bias = nn.Parameter(weights[-1].clone(), requires_grad=False)
    return head, codes


def codes(stronger: bool) -> TorchClassifier:
    body, _ = layers.split_head(plain_network())
    head, codes = _code_head()
    return _built(body, head, layers.Codes(codes, GAIN, stronger), "error-correcting codes")


def prototypes() -> TorchClassifier:
    body, _ = layers.split_head(plain_network())
    x, y = training_data()
    f = body(x)
    centres = torch.stack([f[y == c].mean(0) for c in range(10)])
    return _built(body, layers.Prototypes(centres, 100.0), None, "class prototypes")


def rippled(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    ripple = layers.Ripple(0.3, 60.0)
    return _built(nn.Sequential(body, bpda(ripple) if stronger else ripple), head, None, "rippled features")


def separated() -> TorchClassifier:
    body, head = layers.split_head(separated_network())
    return _built(body, head, None, "separated features")


def interpolation() -> TorchClassifier:
    body, head = layers.split_head(interpolation_network())
    return _built(body, head, None, "adversarial interpolation")


def frozen(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(batch_norm_network())
    own = nn.Sequential(*(layers.OwnStatistics(m) if isinstance(m, nn.BatchNorm2d) else m for m in body))
    return _built(body if stronger else bpda(body, own), head, None, "batch statistics")


def bare() -> TorchClassifier:
    body, head = layers.split_head(plain_network())
    return _built(body, head, None, "no defence")


def saturated(stronger: bool) -> TorchClassifier:
    body, head = layers.split_head(tanh_network())
    flat = layers.squash(200.0, stronger)
    return _built(nn.Sequential(*body[:-1], flat), head, None, "saturated activations")


def _with_detector(net: Any, detector: nn.Module, name: str, data: Problem) -> TorchClassifier:
    """Return the network with the detector, calibrated to reject at most 5 % of the clean images `data`."""
    body, head = layers.split_head(net)
    module = layers.Defended(body, head).eval().requires_grad_(False)
    return calibrated(wrap(module, detector=detector.eval().requires_grad_(False), name=name), data, rate=0.05)


@cache
def shaken() -> TorchClassifier:
    return _with_detector(
        plain_network(), detectors.Shaken(plain_network(), 0.15), "statistical test", Problem(*training_data())
    )


@cache
def left_out() -> TorchClassifier:
    return _with_detector(*detectors.left_out(), "leave-one-out attribution", calibration_images())


@cache
def trapdoor() -> TorchClassifier:
    return _with_detector(*detectors.trapdoor(), "trapdoors", calibration_images())
