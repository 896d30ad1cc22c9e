"""ResNet and PreAct-ResNet for small images: a 3×3 stem, four groups, no pooling before the end.

Parameters have the names that most published checkpoints of adversarially trained CIFAR models use.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from brinell.errors import one_of
from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import conv1, conv3, pooled, stacked, through

WIDTHS, STRIDES = (64, 128, 256, 512), (1, 2, 2, 2)
EXPANSION = 4  # of the bottleneck blocks, He et al. 2016


def _shortcut(inside: int, outside: int, stride: int) -> nn.Sequential:
    if stride == 1 and inside == outside:
        return nn.Sequential()
    return nn.Sequential(conv1(inside, outside, stride), nn.BatchNorm2d(outside))


class BasicBlock(nn.Module):
    """A residual block: two 3×3 convolutions, each followed by batch normalisation, plus the shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3(inside, outside, stride), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = conv3(outside, outside), nn.BatchNorm2d(outside)
        self.shortcut = _shortcut(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """A block of two 3×3 convolutions, each after a ReLU; a shortcut that reshapes starts after the first ReLU."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside), conv3(inside, outside, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), conv3(outside, outside)
        self.reshapes = stride != 1 or inside != outside
        if self.reshapes:
            self.shortcut = nn.Sequential(conv1(inside, outside, stride))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        short = self.shortcut(out) if self.reshapes else x
        return self.conv2(F.relu(self.bn2(self.conv1(out)))) + short


class Bottleneck(nn.Module):
    """A residual block: 1×1, 3×3 and 1×1 convolutions, each followed by batch normalisation, plus the shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        width = outside // EXPANSION
        self.conv1, self.bn1 = conv1(inside, width), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3(width, width, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv1(width, outside), nn.BatchNorm2d(outside)
        self.shortcut = _shortcut(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class PreBottleneck(nn.Module):
    """A bottleneck with batch normalisation before each convolution.

    A shortcut that changes shape starts after the first activation.

    Reference: Chen et al. 2020, Adversarial robustness: from self-supervised pre-training to fine-tuning.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        width = outside // EXPANSION
        self.bn0, self.conv1 = nn.BatchNorm2d(inside), conv1(inside, width)
        self.bn1, self.conv2 = nn.BatchNorm2d(width), conv3(width, width, stride)
        self.bn2, self.conv3 = nn.BatchNorm2d(width), conv1(width, outside)
        self.shortcut = _shortcut(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        start = F.relu(self.bn0(x))
        out = F.relu(self.bn1(self.conv1(start)))
        out = self.conv3(F.relu(self.bn2(self.conv2(out))))
        return out + (self.shortcut(start) if len(self.shortcut) else x)


class RawShortcutBlock(PreActBlock):
    """A pre-activation block whose shortcut starts before the first normalisation.

    Reference: Wong, Rice & Kolter 2020, Fast is better than free.
    """

    def forward(self, x: Tensor) -> Tensor:
        short = self.shortcut(x) if self.reshapes else x
        return self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x)))))) + short


BLOCKS: dict[str, tuple[type[nn.Module], int]] = {
    "basic": (BasicBlock, 1),
    "bottleneck": (Bottleneck, EXPANSION),
    "pre-bottleneck": (PreBottleneck, EXPANSION),
}
PRE_BLOCKS: dict[str, type[nn.Module]] = {"late": PreActBlock, "raw": RawShortcutBlock}


def _stages(net: nn.Module, block: type[nn.Module], blocks: Sequence[int], expansion: int) -> None:
    """Add the four groups of blocks to `net` as layer1 … layer4."""
    inside = WIDTHS[0]
    for i, (width, stride, n) in enumerate(zip(WIDTHS, STRIDES, blocks, strict=True), start=1):
        outside = width * expansion
        setattr(net, f"layer{i}", stacked(block, n, inside, outside, stride))
        inside = outside


class ResNet(NormalizedNetwork):
    """ResNet-18 (`block` "basic", `blocks` 2 2 2 2), ResNet-50 ("bottleneck", 3 4 6 3) and similar networks.

    Reference: He et al. 2016, Deep residual learning.
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        block: str = "basic",
        blocks: Sequence[int] = (2, 2, 2, 2),
        channels: int = 3,
    ) -> None:
        super().__init__(inputs)
        kind, expansion = BLOCKS[one_of("a block", block, BLOCKS)]
        self.conv1, self.bn1 = conv3(channels, WIDTHS[0]), nn.BatchNorm2d(WIDTHS[0])
        _stages(self, kind, blocks, expansion)
        self.linear = nn.Linear(WIDTHS[-1] * expansion, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(self.normalised(x))))
        return self.linear(pooled(through(self, out, "layer", range(1, 5))))


class PreActResNet(NormalizedNetwork):
    """PreAct-ResNet-18 and similar networks; shortcuts start at the input ("raw") or after the first ReLU ("late").

    Reference: He et al. 2016, Identity mappings in deep residual networks.
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        blocks: Sequence[int] = (2, 2, 2, 2),
        shortcut: str = "late",
        last_norm: bool = True,
        channels: int = 3,
    ) -> None:
        super().__init__(inputs)
        self.conv1 = conv3(channels, WIDTHS[0])
        _stages(self, PRE_BLOCKS[one_of("a shortcut", shortcut, PRE_BLOCKS)], blocks, 1)
        self.bn = nn.BatchNorm2d(WIDTHS[-1]) if last_norm else None
        self.linear = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        out = through(self, self.conv1(self.normalised(x)), "layer", range(1, 5))
        return self.linear(pooled(out if self.bn is None else F.relu(self.bn(out))))
