"""The pruned networks of Diffenderfer et al. 2021 (CARD): a wider PreAct-ResNet-18 and a wider ResNet-18."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import conv1, conv3, pooled, shown_as, stacked, through
from brinell.models.arch.resnet import BasicBlock

STEM = 64


def _norm(width: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(width, affine=False)


@shown_as("Block")
class CardBlock(nn.Module):
    """A residual block: two 3×3 convolutions after batch normalisation; the shortcut starts after the first ReLU."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = _norm(inside), conv3(inside, outside, stride)
        self.bn2, self.conv2 = _norm(outside), conv3(outside, outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(conv1(inside, outside, stride), _norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        return self.shortcut(out) + self.conv2(F.relu(self.bn2(self.conv1(out))))


class BinaryResNet(NormalizedNetwork):
    """PreAct-ResNet-18 with pruned, binary weights.

    Reference: Diffenderfer et al. 2021, A winning hand: compressing deep networks can improve out-of-distribution
    robustness.
    """

    def __init__(self, inputs: Inputs, classes: int = 10, widths: Sequence[int] = (64, 192, 384, 768)) -> None:
        super().__init__(inputs)
        self.conv1, inside = conv3(3, STEM), STEM
        for i, width in enumerate(widths):
            setattr(self, f"layer{i + 1}", stacked(CardBlock, 2, inside, width, 1 if i == 0 else 2))
            inside = width
        self.bn1, self.fc = _norm(inside), conv1(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = through(self, self.conv1(self.normalised(x)), "layer", range(1, 5))
        return self.fc(pooled(F.relu(self.bn1(out)))[:, :, None, None]).flatten(1)


class PrunedBlock(BasicBlock):
    """A basic residual block whose shortcut has the parameter name of torchvision, `downsample`."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__(inside, outside, stride)
        self.downsample, self.shortcut = self.shortcut, nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.downsample(x))


class PrunedResNet(NormalizedNetwork):
    """A ResNet-18 pruned by learning-rate rewinding (Diffenderfer et al. 2021); `width` channels in the first group."""

    def __init__(self, inputs: Inputs, classes: int = 10, width: int = 128) -> None:
        super().__init__(inputs)
        self.conv1, self.bn1, inside = conv3(3, width), nn.BatchNorm2d(width), width
        for i in range(4):
            outside = width * 2**i
            setattr(self, f"layer{i + 1}", stacked(PrunedBlock, 2, inside, outside, 1 if i == 0 else 2))
            inside = outside
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(self.normalised(x))))
        return self.fc(pooled(through(self, out, "layer", range(1, 5))))
