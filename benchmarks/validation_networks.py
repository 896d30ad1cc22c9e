"""Small networks of many kinds for validating plans, trained here and kept as safetensors, and the published networks.

Usage: python benchmarks/validation_networks.py train       train what NETWORKS lists and is not there yet
       python benchmarks/validation_networks.py list        name, threat, samples and clean accuracy
       python benchmarks/validation_networks.py reference   `autoattack` on 200 samples of each, as Runs in RUNS

BRINELL_NETWORKS names the folder of the weights, BRINELL_SHARED the folder with MNIST (test set), CIFAR-10 and the
published networks, BRINELL_FASHION that of Fashion-MNIST, BRINELL_MNIST that of MNIST with its training set.
`load(name, n)` returns a network with samples it was not trained on: the MNIST images from 7,000 on, Fashion-MNIST and
CIFAR-10 test images from 3,000 on.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from fast_trajectories import World, fashion, prototypes
from fast_validation import calibrate, gelu, pooled
from published import FOLDER, SHARED, par18, published
from published import fashion as load_golden
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import brinell
from brinell.attacks import FGSM
from brinell.core.threat import Threat, threat
from brinell.data.matlab import read_mat
from brinell.evaluation.coerce import as_classifier
from brinell.train import METHODS, Method, Recipe, fit

NETWORKS_FOLDER = Path(os.environ.get("BRINELL_NETWORKS", "networks"))
MNIST = Path(os.environ.get("BRINELL_MNIST", "mnist"))
FASHION = Path(os.environ.get("BRINELL_FASHION", "/usr/share/datasets/fashion-mnist"))
MNIST_TRAIN = 7000  # of the 10,000 test images
HELD_OUT = 3000  # test images before this one served to design `fast`
N = 200


def conv(classes: int = 10, act: Callable[[], nn.Module] = nn.ReLU, width: int = 8, channels: int = 1) -> nn.Module:
    """Two convolutions with stride 2 and two linear layers."""
    size = 8 if channels == 3 else 7
    return nn.Sequential(
        nn.Conv2d(channels, width, 4, 2, 1), act(), nn.Conv2d(width, 2 * width, 4, 2, 1), act(), nn.Flatten(),
        nn.Linear(2 * width * size**2, 64), act(), nn.Linear(64, classes),
    )  # fmt: skip


def wong() -> nn.Module:
    """The MNIST network of Wong et al. 2020."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 100),
        nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def train_wong(net: nn.Module, x: Tensor, y: Tensor, eps: float, epochs: int, batch: int = 100) -> nn.Module:
    """One step of 1.25 eps from a uniform start that may leave the box, Adam, a cyclic rate (Wong et al. 2020)."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters())
    steps = epochs * (len(x) // batch)
    for k in range(steps):
        share = k / steps
        optimiser.param_groups[0]["lr"] = 5e-3 * min(share / 0.4, (1 - share) / 0.6)
        rows = torch.randint(len(x), (batch,), generator=generator)
        a, b = x[rows], y[rows]
        noise = (eps * (2 * torch.rand(a.shape, generator=generator) - 1)).requires_grad_()
        (grad,) = torch.autograd.grad(cross_entropy(net(a + noise), b), noise)
        noise = (noise.detach() + 1.25 * eps * grad.sign()).clamp(-eps, eps)
        optimiser.zero_grad()
        cross_entropy(net((a + noise).clamp(0, 1)), b).backward()
        optimiser.step()
    return net


def perceptron(width: int = 64, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@dataclass(frozen=True)
class Trained:
    """How a network is made: architecture, data, training method and threat. eps 0: half of the samples survive."""

    make: Callable[[], nn.Module]
    data: str
    method: str
    norm: str
    eps: float
    epochs: int = 12


NETWORKS: dict[str, Trained] = {
    # One step at a large radius (Wong et al. 2020): gradients mislead, and Square finds what they do not.
    "mnist_fgsm_rs": Trained(wong, "mnist60k", "wong", "Linf", 0.3, 10),
    # The same on the 7,000 images that the others are trained on.
    "mnist_fgsm_7k": Trained(wong, "mnist", "wong", "Linf", 0.3, 40),
    "mnist_fgsm_pooled": Trained(lambda: pooled(10, 28), "mnist", "fgsm", "Linf", 0.2, 6),
    "fashion_fgsm": Trained(conv, "fashion", "fgsm", "Linf", 0.1, 3),
    "mnist_pgd": Trained(conv, "mnist", "pgd", "Linf", 0.3, 20),
    "mnist_trades": Trained(conv, "mnist", "trades", "Linf", 0.2),
    "mnist_l2": Trained(conv, "mnist", "pgd", "L2", 1.5),
    "mnist_l1": Trained(conv, "mnist", "pgd", "L1", 8.0),
    "mnist_tanh": Trained(lambda: conv(act=nn.Tanh), "mnist", "pgd", "Linf", 0.1),
    "mnist_perceptron": Trained(perceptron, "mnist", "pgd", "Linf", 0.1),
    "mnist_linear": Trained(linear, "mnist", "standard", "Linf", 0.0),
    "mnist_pair": Trained(lambda: conv(2), "mnist38", "pgd", "Linf", 0.2),
    "fashion_gelu": Trained(lambda: gelu(10), "fashion", "standard", "L2", 0.0, 3),
    "fashion_pooled": Trained(lambda: pooled(10, 28), "fashion", "pgd", "Linf", 0.1, 1),
    "fashion_l1": Trained(conv, "fashion", "standard", "L1", 3.0, 2),
    "many50": Trained(lambda: pooled(50, 20), "prototypes50", "pgd", "Linf", 0.04, 2),
    "many100": Trained(lambda: pooled(100, 20), "prototypes100", "standard", "Linf", 0.0, 3),
    "cifar_cnn": Trained(lambda: conv(width=16, channels=3), "cifar", "fgsm-rs", "Linf", 4 / 255, 4),
}
SMALL_PUBLISHED = (
    "rsl18a", "wk17a", "kw_mnist", "kw_fashion", "madry_tiny", "sdp_mnist_a_adv", "oval_mnist_wide_kw", "sdp_a_adv",
    "sdp_a_mix", "marabou_small", "oval_madry8", "atzmon_madry0_3",
)  # fmt: skip
"""The published networks, smallest first."""
GOLDEN = "golden_fashion"
"""The small Fashion-MNIST network of the golden numbers in L2, on which Square and FAB find what Auto-PGD does not."""
RECORDED: dict[str, tuple[str, Threat]] = {
    "golden_linf": ("Linf_standard_seed0", threat("Linf", 0.1)),
    "golden_l2": ("L2_standard_seed0", threat("L2", 1.5)),
    "golden_l1": ("L1_eps5_standard_seed0", threat("L1", 5.0)),
    "golden_l1_12": ("L1_standard_seed0", threat("L1", 12.0)),
    "cifar_par18": ("", threat("Linf", 8 / 255)),
}
"""Networks whose outcome of the reference AutoAttack is recorded, by its key in autoattack.json; the first images."""
MMR = {
    "mmr_mnist_linf": ("mnist", threat("Linf", 0.1)), "mmr_mnist_l1": ("mnist", threat("L1", 1.0)),
    "mmr_mnist_l2": ("mnist", threat("L2", 0.3)), "mmr_cifar_linf": ("cifar10", threat("Linf", 2 / 255)),
    "mmr_cifar_l1": ("cifar10", threat("L1", 2.0)), "mmr_cifar_l2": ("cifar10", threat("L2", 0.1)),
}  # fmt: skip
"""The networks of Croce & Hein 2020, Provable robustness against all lp-perturbations, with the radii of that paper."""


def mnist() -> tuple[Tensor, Tensor]:
    folder = SHARED / "data" / "mnist"
    return fashion(folder, "t10k", "cpu")


def cifar(part: str) -> tuple[Tensor, Tensor]:
    """All images of one part ("test_batch", "data_batch_1", …), read from their lossless grids."""
    from PIL import Image

    folder = SHARED / "data" / "cifar10"
    grid = np.asarray(Image.open(folder / f"{part}.webp").convert("RGB"))
    tiles = grid.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10000, 3, 32, 32)
    with np.load(folder / "labels.npz") as labels:
        y = labels["test"] if part == "test_batch" else labels["train"][(int(part[-1]) - 1) * 10000 :][:10000]
    return torch.from_numpy(tiles.copy()).float() / 255, torch.from_numpy(y.astype(np.int64))


def fashion_test() -> tuple[Tensor, Tensor]:
    return fashion(FASHION, "t10k", "cpu")


def cifar_test() -> tuple[Tensor, Tensor]:
    return cifar("test_batch")


@cache
def data(name: str, train: bool) -> tuple[Tensor, Tensor]:
    """The samples to train on, or those to evaluate on."""
    if name.startswith("mnist"):
        x, y = mnist()
        if name == "mnist60k" and train:
            return fashion(MNIST, "train", "cpu")
        x, y = (x[:MNIST_TRAIN], y[:MNIST_TRAIN]) if train else (x[MNIST_TRAIN:], y[MNIST_TRAIN:])
        if name == "mnist38":
            keep = (y == 3) | (y == 8)
            x, y = x[keep], (y[keep] == 8).long()
        return x, y
    if name.startswith("prototypes"):
        classes = int(name.removeprefix("prototypes"))
        return prototypes(classes, 20000 if train else 1000, 200 + classes, "cpu")
    if name == "fashion":
        x, y = fashion(FASHION, "train" if train else "t10k", "cpu")
    else:
        x, y = cifar("data_batch_1" if train else "test_batch")
    return (x, y) if train else (x[HELD_OUT:], y[HELD_OUT:])


def method(name: str) -> Method:
    return Method("fgsm", FGSM()) if name == "fgsm" else METHODS[name]


def train(name: str) -> None:
    """Train the network and store its weights; the radius it is measured at is part of the metadata."""
    kind = NETWORKS[name]
    torch.manual_seed(0)
    net = kind.make()
    recipe = Recipe(
        epochs=kind.epochs, optimiser="adamw", lr=2e-3, schedule="one-cycle", average=0.0,
        ramp=kind.epochs / 3 if kind.method != "standard" else 0.0,
    )  # fmt: skip
    x, y = data(kind.data, train=True)
    at = threat(kind.norm, kind.eps or 0.5)
    if kind.method == "wong":
        return save(name, train_wong(net, x, y, kind.eps, kind.epochs))
    with tempfile.TemporaryDirectory() as folder:
        made = fit(net, (x, y), at, method(kind.method), recipe, out=folder, validation=0, progress=False)
        save(name, made.classifier.module)


def save(name: str, net: nn.Module) -> None:
    kind = NETWORKS[name]
    net.eval().requires_grad_(False)
    x, y = data(kind.data, train=False)
    eps = kind.eps or calibrate(net, x, y, kind.norm, 0.0, {"Linf": 0.1, "L2": 2.0, "L1": 10.0}[kind.norm]).eps
    NETWORKS_FOLDER.mkdir(parents=True, exist_ok=True)
    weights = {k: v.contiguous() for k, v in net.state_dict().items()}
    save_file(weights, NETWORKS_FOLDER / f"{name}.safetensors", {"eps": repr(float(eps))})


def load(name: str, n: int = N) -> World:
    """The network of this name with n samples to evaluate it on and the threat."""
    if name in NETWORKS:
        kind, file = NETWORKS[name], NETWORKS_FOLDER / f"{name}.safetensors"
        net = kind.make()
        net.load_state_dict(load_file(file))
        with safe_open(file, "pt") as stored:
            eps = float(stored.metadata()["eps"])
        x, y = data(kind.data, train=False)
        return World(name, net.eval().requires_grad_(False), x[:n], y[:n], threat(kind.norm, eps))
    if name == GOLDEN:
        x, y = (v[HELD_OUT : HELD_OUT + n] for v in fashion_test())
        return World(name, load_golden(), x, y, threat("L2", 1.5))
    if name in RECORDED:
        x, y = (v[:n] for v in (cifar_test() if name == "cifar_par18" else fashion_test()))
        return World(name, par18() if name == "cifar_par18" else load_golden(), x, y, RECORDED[name][1])
    if name in MMR:
        x, y = (v[:n] for v in (mnist() if MMR[name][0] == "mnist" else cifar_test()))
        return World(name, mmr(MMR[name][0]), x, y, MMR[name][1])
    stored = json.loads((FOLDER / "networks.json").read_text())[name]
    if name.startswith("sdp"):
        with np.load(FOLDER / f"sdp_{stored['data']}_200.npz") as chosen:
            x, y = torch.from_numpy(chosen["x"]).float() / 255, torch.from_numpy(chosen["y"]).long()
    else:
        x, y = {"mnist": mnist, "fashion": fashion_test, "cifar": cifar_test}[stored["data"]]()
    return World(name, published(name), x[:n], y[:n], threat("Linf", stored["eps"]))


def mmr(kind: str) -> nn.Module:
    """The MMR-UNIV network for MNIST or CIFAR-10; its arrays are those of TensorFlow, channels last."""
    layers = ("conv1", "conv2", "fc1", "fc2")
    names = [f"{part}_{layer}" for layer in layers for part in ("weights", "biases")]
    stored = read_mat(FOLDER / f"mmr_univ_{kind}.mat", *names)
    w = {k: torch.from_numpy(np.array(v)).float() for k, v in zip(names, stored, strict=True)}
    channels, size = w["weights_conv1"].shape[2], 7 if kind == "mnist" else 8
    net = nn.Sequential(
        nn.Conv2d(channels, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * size**2, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    first = w["weights_fc1"].view(size, size, 32, 100).permute(2, 0, 1, 3).reshape(-1, 100)
    weights = [*(w[f"weights_conv{k}"].permute(3, 2, 0, 1) for k in (1, 2)), first.T, w["weights_fc2"].T]
    modules = [m for m in net if isinstance(m, nn.Conv2d | nn.Linear)]
    for m, weight, layer in zip(modules, weights, layers, strict=True):
        m.load_state_dict({"weight": weight.contiguous(), "bias": w[f"biases_{layer}"].flatten()})
    return net.eval().requires_grad_(False)


def recorded_flags(name: str) -> list[bool]:
    """Whether each of the first images is robust to the reference AutoAttack."""
    key = RECORDED[name][0]
    if not key:
        return np.load(SHARED / "golden" / "autoattack_standard_linf_first1000_flags.npy").astype(bool).tolist()
    return [bool(f) for f in json.loads((SHARED / "golden" / "autoattack.json").read_text())[key]["flags"]]


def reference(name: str, runs: Path, n: int = N) -> None:
    """`autoattack` on the network as a Run in the folder `runs`; an interrupted one goes on."""
    w = load(name, n)
    folder = runs / name
    run = brinell.evaluate(
        w.net, (w.x, w.y), w.threat, "autoattack", out=folder, resume=folder.exists(), device="cpu", progress=False
    )
    after = ", ".join(f"{stage} {value.value:.1%}" for stage, value in run.accuracy_after())
    print(f"{name}: {w.threat}, n = {len(w.x)}, clean {run.clean_accuracy.value:.1%}, {after}; {folder}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("train", "list", "reference"))
    parser.add_argument("names", nargs="*", help="default: all, smallest first")
    parser.add_argument("--out", type=Path, default=Path("references"))
    parser.add_argument("--n", type=int, default=N)
    args = parser.parse_args()
    for name in args.names or (*NETWORKS, GOLDEN, *SMALL_PUBLISHED, *MMR):
        if args.task == "reference":
            reference(name, args.out, args.n)
        elif args.task == "train" and name in NETWORKS and not (NETWORKS_FOLDER / f"{name}.safetensors").exists():
            train(name)
        if args.task != "reference":
            w = load(name, args.n)
            clean = (as_classifier(w.net).forward(w.x).logits.argmax(1) == w.y).float().mean().item()
            print(f"{name}: {w.threat}, {tuple(w.x.shape)}, clean {clean:.1%}", flush=True)


if __name__ == "__main__":
    main()
