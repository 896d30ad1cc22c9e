"""ResNeSt for small images: bottlenecks with split attention."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import activation, conv1, conv3, pooled, shown_as, through

WIDTHS, STRIDES, EXPANSION = (64, 128, 256, 512), (1, 2, 2, 2), 4
REDUCTION, NARROWEST = 4, 32


class SplitAttention(nn.Module):
    """A grouped 3×3 convolution with `radix` splits, combined with attention weights from the channel means."""

    def __init__(self, width: int, radix: int, act: nn.Module) -> None:
        super().__init__()
        self.radix, self.act, narrow = radix, act, max(width * radix // REDUCTION, NARROWEST)
        self.conv = nn.Conv2d(width, width * radix, 3, padding=1, groups=radix, bias=False)
        self.bn0, self.bn1 = nn.BatchNorm2d(width * radix), nn.BatchNorm2d(narrow)
        self.fc1, self.fc2 = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width * radix, 1)

    def forward(self, x: Tensor) -> Tensor:
        candidates = self.act(self.bn0(self.conv(x))).unflatten(1, (self.radix, -1))
        means = candidates.sum(1).mean((2, 3), keepdim=True)
        votes = self.fc2(self.act(self.bn1(self.fc1(means)))).unflatten(1, (self.radix, -1))
        return (torch.softmax(votes, 1) * candidates).sum(1)


@shown_as("Bottleneck")
class ResNeStBottleneck(nn.Module):
    """A residual block: 1×1 convolution, split attention, 1×1 convolution; average pooling reduces the resolution."""

    def __init__(self, inside: int, width: int, stride: int, radix: int, act: nn.Module, smooth: bool) -> None:
        super().__init__()
        outside = width * EXPANSION
        self.conv1, self.bn1, self.act = conv1(inside, width), nn.BatchNorm2d(width), act
        self.conv2 = SplitAttention(width, radix, act)
        self.conv3, self.bn3 = conv1(width, outside), nn.BatchNorm2d(outside)
        self.pool = nn.AvgPool2d(3, stride, padding=1) if smooth else nn.Identity()
        self.downsample = None
        if stride != 1 or inside != outside:
            shrink = nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False)
            self.downsample = nn.Sequential(shrink, conv1(inside, outside), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.pool(self.conv2(self.act(self.bn1(self.conv1(x)))))
        short = x if self.downsample is None else self.downsample(x)
        return self.act(self.bn3(self.conv3(out)) + short)


class ResNeSt(NormalizedNetwork):
    """ResNeSt-152 (blocks 3 8 36 3) and similar networks, without early downsampling.

    References: Zhang et al. 2020, ResNeSt: split-attention networks; Sehwag et al. 2022, Robust learning meets
    generative models.
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        blocks: Sequence[int] = (3, 8, 36, 3),
        radix: int = 4,
        act: str = "silu",
        stem: int = 64,
    ) -> None:
        super().__init__(inputs)
        self.act, inside = activation(act), 2 * stem
        first = [conv3(3, stem), nn.BatchNorm2d(stem), self.act, conv3(stem, stem), nn.BatchNorm2d(stem), self.act]
        self.conv1, self.bn1 = nn.Sequential(*first, conv3(stem, inside)), nn.BatchNorm2d(inside)
        for i, (width, stride, n) in enumerate(zip(WIDTHS, STRIDES, blocks, strict=True)):
            group = nn.Sequential()
            for j in range(n):
                # The first block of every group except the first one pools, whatever its stride.
                group.append(
                    ResNeStBottleneck(inside, width, stride if j == 0 else 1, radix, self.act, i > 0 and j == 0)
                )
                inside = width * EXPANSION
            setattr(self, f"layer{i + 1}", group)
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.bn1(self.conv1(self.normalised(x))))
        return self.fc(pooled(through(self, out, "layer", range(1, 5))))
