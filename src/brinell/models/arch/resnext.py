"""ResNeXt for small images."""

import torch.nn.functional as F
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import conv1, conv3, pooled, shown_as, through

EXPANSION = 4


@shown_as("Bottleneck")
class ResNeXtBottleneck(nn.Module):
    """A residual block: 1×1, grouped 3×3 and 1×1 convolutions, each before batch normalisation, and a shortcut."""

    def __init__(self, inside: int, planes: int, cardinality: int, base: int, stride: int) -> None:
        super().__init__()
        width, outside = planes * base // 64 * cardinality, planes * EXPANSION
        self.conv_reduce, self.bn_reduce = conv1(inside, width), nn.BatchNorm2d(width)
        self.conv_conv = nn.Conv2d(width, width, 3, stride, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.conv_expand, self.bn_expand = conv1(width, outside), nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(conv1(inside, outside, stride), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn_reduce(self.conv_reduce(x)))
        out = F.relu(self.bn(self.conv_conv(out)))
        short = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn_expand(self.conv_expand(out)) + short)


class ResNeXt(NormalizedNetwork):
    """ResNeXt-`depth` (`cardinality`×`base`d): three groups of bottlenecks.

    Reference: Xie et al. 2017, Aggregated residual transformations.
    """

    def __init__(
        self, inputs: Inputs, classes: int = 10, depth: int = 29, cardinality: int = 4, base: int = 32
    ) -> None:
        super().__init__(inputs)
        self.conv_1_3x3, self.bn_1 = conv3(3, 64), nn.BatchNorm2d(64)
        inside = 64
        for i, planes in enumerate((64, 128, 256)):
            stage = nn.Sequential()
            for j in range((depth - 2) // 9):
                stage.append(ResNeXtBottleneck(inside, planes, cardinality, base, 2 if i > 0 and j == 0 else 1))
                inside = planes * EXPANSION
            setattr(self, f"stage_{i + 1}", stage)
        self.classifier = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn_1(self.conv_1_3x3(self.normalised(x))))
        return self.classifier(pooled(through(self, out, "stage_", range(1, 4))))
