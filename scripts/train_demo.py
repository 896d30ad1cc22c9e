"""Train the demonstration model and write the demonstration files.

    python scripts/train_demo.py --data /path/to/fashion-mnist --out /path/to/folder

DATA holds the four gzipped idx files of Fashion-MNIST as Zalando publishes them. Two files are written to OUT:

    demo.safetensors          the weights of `brinell.models.demo.DemoNet`, float16   (src/brinell/models/files)
    fashion_mnist_1000.npz    the first 1,000 test images and labels, uint8           (src/brinell/data/files)

Training is PGD adversarial training (Madry et al. 2018) in Linf with eps 0.1, on inputs in [0, 1], without
normalisation or augmentation: the radius grows from zero over the first epochs, the learning rate follows one cycle,
and the weights kept are a running average. Every random number comes from one generator, so a seed
(with a torch version and a kind of processor) fixes the result. It runs on one thread, for about ten minutes.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Generator, Tensor, nn

from brinell.models.demo import DemoNet

EPS = 0.1
BATCH = 128
RAMP_EPOCHS = 1.5  # the radius grows linearly over these
PEAK_LR = 2e-3
AVERAGE = 0.998  # decay of the running average of the weights, per step
KEPT = 1000  # test images shipped with the package


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array of a gzipped idx file: two zero bytes, type 8, the rank, big-endian sizes, the data."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes: it starts with {raw[:4]!r}")
    rank = raw[3]
    shape = np.frombuffer(raw, ">u4", count=rank, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(tuple(int(n) for n in shape))


def pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.copy()).unsqueeze(1).float() / 255


def initialise(net: nn.Module, rng: Generator) -> None:
    """He initialisation drawn from `rng` alone; zero biases."""
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=rng)
            nn.init.zeros_(layer.bias)


def pgd(net: nn.Module, x0: Tensor, y: Tensor, eps: float, step: float, steps: int, rng: Generator) -> Tensor:
    """The last iterate of projected gradient ascent on the cross-entropy, from a uniform start in the ball."""
    lo, hi = (x0 - eps).clamp_(min=0), (x0 + eps).clamp_(max=1)
    x = lo + (hi - lo) * torch.rand(x0.shape, generator=rng)
    for _ in range(steps):
        x.requires_grad_(True)
        (grad,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
        x = torch.clamp(x.detach() + step * grad.sign(), lo, hi)
    return x


def train(x: Tensor, y: Tensor, epochs: int, attack_steps: int, rng: Generator) -> nn.Module:
    """Adversarially train a fresh network and return its averaged copy."""
    net = DemoNet()
    initialise(net, rng)
    net.to(memory_format=torch.channels_last)  # nearly twice as fast on a CPU
    average = copy.deepcopy(net).requires_grad_(False)
    per_epoch = len(x) // BATCH
    optimiser = torch.optim.AdamW(net.parameters(), lr=PEAK_LR, weight_decay=1e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_LR, total_steps=epochs * per_epoch, pct_start=0.3)
    begun = time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=rng)
        total = 0.0
        for i in range(per_epoch):
            rows = order[i * BATCH : (i + 1) * BATCH]
            eps = EPS * min(1.0, (epoch + i / per_epoch) / RAMP_EPOCHS)
            adversarial = pgd(net, x[rows], y[rows], eps, step=2.5 * eps / attack_steps, steps=attack_steps, rng=rng)
            loss = F.cross_entropy(net(adversarial), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cycle.step()
            for kept, new in zip(average.parameters(), net.parameters(), strict=True):
                kept.lerp_(new.detach(), 1 - AVERAGE)
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}: loss {total / per_epoch:.3f}, {time.monotonic() - begun:.0f} s", flush=True)
    return average


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demonstration model and write the demonstration files.")
    parser.add_argument("--data", type=Path, required=True, help="folder with the gzipped idx files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--attack-steps", type=int, default=5, help="PGD steps per training batch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    train_x, train_y = (read_idx(args.data / f"train-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    test_x, test_y = (read_idx(args.data / f"t10k-{part}-ubyte.gz") for part in ("images-idx3", "labels-idx1"))
    torch.set_num_threads(1)  # so small a network gains nothing from more, and sums keep their order
    rng = Generator().manual_seed(args.seed)
    net = train(pixels(train_x), torch.from_numpy(train_y.astype(np.int64)), args.epochs, args.attack_steps, rng)

    net.half().float()  # judge the weights as they are stored
    x, y = pixels(test_x), torch.from_numpy(test_y.astype(np.int64))
    for n in (KEPT, len(x)):
        attacked = pgd(net, x[:n], y[:n], EPS, step=EPS / 4, steps=20, rng=rng)
        clean, robust = accuracy(net, x[:n], y[:n]), accuracy(net, attacked, y[:n])
        print(f"first {n} test images: clean {clean:.2%}, PGD-20 {robust:.2%}")

    args.out.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.half().contiguous() for name, weight in net.state_dict().items()}
    save_file(weights, args.out / "demo.safetensors")
    np.savez_compressed(args.out / "fashion_mnist_1000.npz", images=test_x[:KEPT], labels=test_y[:KEPT])


if __name__ == "__main__":
    main()
