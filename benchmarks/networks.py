"""Networks the benchmarks need beside the demo model."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """A pre-activation residual block of two 3 × 3 convolutions."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        if stride != 1 or before != width:
            self.short = nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        skip = self.short(h) if hasattr(self, "short") else x
        return skip + self.conv2(F.relu(self.bn2(self.conv1(h))))


class PreActResNet18(nn.Module):
    """PreAct-ResNet-18 for 32 × 32 images in [0, 1], its normalisation inside."""

    WIDTHS, STRIDES = (64, 64, 128, 128, 256, 256, 512, 512), (1, 1, 2, 1, 2, 1, 2, 1)

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("std", torch.ones(1, 3, 1, 1))
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        before = (64, *self.WIDTHS[:-1])
        self.layers = nn.ModuleList(map(Block, before, self.WIDTHS, self.STRIDES))
        self.bn, self.fc = nn.BatchNorm2d(512), nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1((x - self.mean) / self.std)
        for layer in self.layers:
            h = layer(h)
        return self.fc(F.relu(self.bn(h)).mean((2, 3)))


def load_preact18(path: str) -> nn.Module:
    """The network with stored weights, in evaluation mode and float32, frozen."""
    stored = torch.load(path, map_location="cpu", weights_only=True)
    net = PreActResNet18()
    shapes = net.state_dict()
    net.load_state_dict(
        {k: v.float().reshape(shapes[k].shape) if v.is_floating_point() else v for k, v in stored.items()}
    )
    return net.eval().requires_grad_(False)


def load_fashion(path: str) -> nn.Module:
    """The small Fashion-MNIST network of the golden numbers: two convolutions and two linear layers."""
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1568, 100),
        nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    places = {"c1": 0, "c2": 2, "f1": 5, "f2": 7}
    with np.load(path) as stored:
        weights = {f"{places[k.split('.')[0]]}.{k.split('.')[1]}": torch.from_numpy(v) for k, v in stored.items()}
    net.load_state_dict(weights)
    return net.eval().requires_grad_(False)


class WideBlock(nn.Module):
    """A pre-activation block of a wide residual network."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(before), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, width, 1, stride, bias=False) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        skip = x if self.short is None else self.short(h)
        return skip + self.conv2(F.relu(self.bn2(self.conv1(h))))


class WideResNet(nn.Module):
    """WideResNet-28-10 for 32 × 32 images, with whatever weights it was born with."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = (160, 320, 640), blocks: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        layers, before = [], 16
        for k, width in enumerate(widths):
            for j in range(blocks):
                layers.append(WideBlock(before, width, 2 if k > 0 and j == 0 else 1))
                before = width
        self.layers = nn.Sequential(*layers)
        self.bn, self.fc = nn.BatchNorm2d(before), nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.bn(self.layers(self.conv1(x)))).mean((2, 3)))
