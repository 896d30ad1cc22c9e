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


class Bottleneck(nn.Module):
    """A residual block of 1 × 1, 3 × 3 and 1 × 1 convolutions, each followed by batch normalisation."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        reshapes = stride != 1 or before != after
        self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.short = self.short if reshapes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class ResNet50(nn.Module):
    """ResNet-50 for 224 × 224 images (He et al. 2016), with whatever weights it was born with."""

    def __init__(self, classes: int = 1000, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        layers, before = [], width
        for k, count in enumerate(blocks):
            for j in range(count):
                layers.append(Bottleneck(before, width << k, 2 if k > 0 and j == 0 else 1))
                before = 4 * (width << k)
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention over tokens, with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        parts = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts)
        return self.out(mixed.transpose(1, 2).reshape(n, tokens, width))


class Layer(nn.Module):
    """A layer of a transformer, normalised before attention and before the two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.second = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.linear(self.second(x))


class ViT(nn.Module):
    """ViT-B/16 (Dosovitskiy et al. 2021) by default, with whatever weights it was born with."""

    def __init__(
        self, size: int = 224, patch: int = 16, width: int = 768, depth: int = 12, heads: int = 12, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        return self.fc(self.norm(self.layers(h))[:, 0])
