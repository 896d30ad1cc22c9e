"""Networks of others, and the networks of the golden numbers, by name: `--model benchmarks/published.py:wk17a`.

Their weights lie in the folder that BRINELL_SHARED names.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn

import brinell
from brinell.core.model import Classifier
from brinell.defences.layers import Noise

sys.path.insert(0, str(Path(__file__).resolve().parent))
from networks import load_fashion, load_preact18

SHARED = Path(os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
FOLDER = SHARED / "models" / "published"
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "conv": nn.Conv2d, "linear": nn.Linear, "relu": nn.ReLU, "flatten": nn.Flatten, "maxpool": nn.MaxPool2d,
}  # fmt: skip


def published(name: str) -> Classifier:
    """One of the networks in networks.json, with its normalisation."""
    stored: dict[str, Any] = json.loads((FOLDER / "networks.json").read_text())[name]
    net = nn.Sequential(*(LAYERS[kind](*numbers) for kind, *numbers in stored["layers"]))
    weights = load_file(FOLDER / f"{name}.safetensors")
    layers = [layer for layer in net if isinstance(layer, nn.Conv2d | nn.Linear)]
    for k, layer in enumerate(layers):
        layer.load_state_dict({p: weights[f"{k}.{p}"] for p in ("weight", "bias")})
    mean, std = stored["normalise"] or (None, None)
    return brinell.wrap(net.eval().requires_grad_(False), mean=mean, std=std, name=name)


def par18() -> Classifier:
    """The PreAct-ResNet-18 for CIFAR-10, adversarially trained in Linf with 8/255."""
    net = load_preact18(str(SHARED / "models" / "cifar10_par18_linf_at.pt"))
    return brinell.wrap(net, name="PreAct-ResNet-18")


def fashion() -> Classifier:
    """The small Fashion-MNIST network of the golden numbers."""
    return brinell.wrap(load_fashion(str(SHARED / "golden" / "fashion_net.npz")), name="fashion")


def noisy_fashion() -> Classifier:
    """The same network behind Gaussian noise of deviation 0.1 on the input: a randomised defence."""
    net = load_fashion(str(SHARED / "golden" / "fashion_net.npz"))
    return brinell.wrap(nn.Sequential(Noise(0.1), net).eval(), name="fashion behind noise 0.1")


wk17a, rsl18a, kw_mnist, kw_fashion, sdp_mnist_a_adv, sdp_a_adv, sdp_a_mix = (
    partial(published, name)
    for name in ("wk17a", "rsl18a", "kw_mnist", "kw_fashion", "sdp_mnist_a_adv", "sdp_a_adv", "sdp_a_mix")
)
marabou_small, madry_tiny, atzmon_madry0_3, oval_madry8, oval_mnist_wide_kw = (
    partial(published, name)
    for name in ("marabou_small", "madry_tiny", "atzmon_madry0_3", "oval_madry8", "oval_mnist_wide_kw")
)
