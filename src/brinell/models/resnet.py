"""ResNet-18 and PreAct-ResNet-18 for small images: a 3×3 stem, no pooling before the end.

Parameters have the names of the checkpoints most adversarially trained CIFAR models are published with.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PreActResNet18", "ResNet18"]

# He et al. 2016: four groups of two blocks, each group twice as wide as the last and at half its resolution.
WIDTHS, STRIDES, BLOCKS = (64, 128, 256, 512), (1, 2, 2, 2), 2


def _conv3(inside: int, outside: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, normalised after each, plus the shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv3(inside, outside, stride), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = _conv3(outside, outside, 1), nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """Two 3×3 convolutions, normalised before each; a shortcut that must change shape starts after the first."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside), _conv3(inside, outside, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), _conv3(outside, outside, 1)
        self.reshapes = stride != 1 or inside != outside
        if self.reshapes:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        short = self.shortcut(out) if self.reshapes else x
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + short


class _Network(nn.Module):
    """What both have in common: normalisation of the input (buffers mu and sigma, absent without it) and the groups."""

    mu: Tensor
    sigma: Tensor

    def __init__(
        self, block: type[nn.Module], channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        super().__init__()
        self.normalises = mean is not None or std is not None
        if self.normalises:
            self.register_buffer("mu", _column(mean, channels, 0.0))
            self.register_buffer("sigma", _column(std, channels, 1.0))
        self.conv1 = _conv3(channels, WIDTHS[0], 1)
        self.stem_norm()
        inside = WIDTHS[0]
        for i, (width, stride) in enumerate(zip(WIDTHS, STRIDES, strict=True), start=1):
            blocks = [block(inside if j == 0 else width, width, stride if j == 0 else 1) for j in range(BLOCKS)]
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
            inside = width

    def stem_norm(self) -> None:
        """What follows the first convolution."""

    def groups(self, x: Tensor) -> Tensor:
        """The four groups, one after another."""
        for i in range(1, len(WIDTHS) + 1):
            x = getattr(self, f"layer{i}")(x)
        return x

    def normalised(self, x: Tensor) -> Tensor:
        """The input as the network was trained to see it."""
        return (x - self.mu) / self.sigma if self.normalises else x


def _column(values: Sequence[float] | None, channels: int, otherwise: float) -> Tensor:
    return torch.tensor([otherwise] * channels if values is None else list(values)).view(1, -1, 1, 1)


class ResNet18(_Network):
    """Logits for images in [0, 1] of any size; `mean` and `std`, one number per channel, are applied inside.

    Reference: He et al. 2016, Deep residual learning, in the variant for 32×32 images.

    >>> ResNet18(classes=7)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(BasicBlock, channels, mean, std)
        self.linear = nn.Linear(WIDTHS[-1], classes)

    def stem_norm(self) -> None:
        """Batch normalisation."""
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])

    def forward(self, x: Tensor) -> Tensor:
        out = self.groups(F.relu(self.bn1(self.conv1(self.normalised(x)))))
        return self.linear(out.mean((2, 3)))


class PreActResNet18(_Network):
    """The same with normalisation before every convolution.

    Reference: He et al. 2016, Identity mappings in deep residual networks; the usual network of Rice et al. 2020.

    >>> PreActResNet18(classes=7, channels=1)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 7])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(PreActBlock, channels, mean, std)
        self.bn = nn.BatchNorm2d(WIDTHS[-1])
        self.linear = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.groups(self.conv1(self.normalised(x)))))
        return self.linear(out.mean((2, 3)))
