"""WideResNet as in most adversarially trained CIFAR models, and its variants."""

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import activation, conv1, conv3, groups, pooled, shown_as, stacked, through

STEM, STRIDES = 16, (1, 2, 2)


class WideBlock(nn.Module):
    """A block of two 3×3 convolutions; if widths differ, the shortcut starts after normalisation and activation."""

    def __init__(self, inside: int, outside: int, stride: int, act: nn.Module) -> None:
        super().__init__()
        self.bn1, self.activation, self.conv1 = nn.BatchNorm2d(inside), act, conv3(inside, outside, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), conv3(outside, outside)
        self.convShortcut = None if inside == outside else conv1(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(x))
        short = x if self.convShortcut is None else self.convShortcut(out)
        return short + self.conv2(self.activation(self.bn2(self.conv1(out))))


class NestedBlock(WideBlock):
    """A wide block whose shortcut is the only entry of an nn.Sequential, as in the checkpoints of Huang et al. 2022."""

    def __init__(self, inside: int, outside: int, stride: int, act: nn.Module) -> None:
        super().__init__(inside, outside, stride, act)
        self.shortcut = None if self.convShortcut is None else nn.Sequential(self.convShortcut)
        self.convShortcut = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.activation(self.bn1(x))
        short = x if self.shortcut is None else self.shortcut(out)
        return short + self.conv2(self.activation(self.bn2(self.conv1(out))))


@shown_as("Group")
class WideGroup(nn.Module):
    """A sequence of blocks of one width; the first block changes width and resolution."""

    def __init__(
        self, n: int, inside: int, outside: int, stride: int, act: nn.Module, block: type[WideBlock] = WideBlock
    ) -> None:
        super().__init__()
        self.layer = stacked(partial(block, act=act), n, inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(NormalizedNetwork):
    """WideResNet-`depth`-`width`.

    With `spare` the network has an unused copy of the first group, as in the code of TRADES and in many checkpoints.

    Reference: Zagoruyko & Komodakis 2016, Wide residual networks.
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        depth: int = 34,
        width: int = 10,
        spare: bool = False,
        act: str = "relu",
        bias: bool = True,
        channels: int = 3,
    ) -> None:
        super().__init__(inputs)
        n, widths = groups(depth), (STEM, 16 * width, 32 * width, 64 * width)
        # One activation module, so that its parameters are shared by the whole network.
        shared = activation(act)
        self.conv1 = conv3(channels, STEM)
        for i in range(3):
            setattr(self, f"block{i + 1}", WideGroup(n, widths[i], widths[i + 1], STRIDES[i], shared))
            if spare and i == 0:
                self.sub_block1 = WideGroup(n, widths[0], widths[1], STRIDES[0], shared)
        self.bn1, self.activation = nn.BatchNorm2d(widths[-1]), shared
        self.fc = nn.Linear(widths[-1], classes, bias=bias)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the last layer for the images x."""
        out = through(self, self.conv1(self.normalised(x)), "block", range(1, 4))
        return pooled(self.activation(self.bn1(out)))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class CosineWideResNet(WideResNet):
    """WideResNet whose logits are the cosines of features and class weights.

    Reference: Pang et al. 2020, Boosting adversarial training with hypersphere embedding.
    """

    def __init__(self, inputs: Inputs, classes: int = 10, depth: int = 34, width: int = 20, spare: bool = True) -> None:
        super().__init__(inputs, classes, depth, width, spare, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(self.features(x), dim=1), F.normalize(self.fc.weight, dim=1))


class StagedWideResNet(NormalizedNetwork):
    """A WideResNet with separate depths and widths of its groups.

    With `nested`, parameters have the names of Huang et al. 2022. References: Huang et al. 2021, Exploring
    architectural ingredients; Huang et al. 2022, Revisiting residual networks.
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        depths: Sequence[int] = (5, 5, 5),
        widths: Sequence[int] = (160, 320, 640),
        act: str = "relu",
        nested: bool = False,
    ) -> None:
        super().__init__(inputs)
        self.stem_conv, block = conv3(3, STEM), NestedBlock if nested else WideBlock
        insides = (STEM, *widths[:-1])
        self.blocks = nn.ModuleList(
            WideGroup(n, inside, width, stride, activation(act), block)
            for n, inside, width, stride in zip(depths, insides, widths, STRIDES, strict=True)
        )
        self.last = "norm1" if nested else "bn1"
        setattr(self, self.last, nn.BatchNorm2d(widths[-1]))
        self.activation, self.fc = activation(act), nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stem_conv(self.normalised(x))
        for block in self.blocks:
            out = block(out)
        return self.fc(pooled(self.activation(getattr(self, self.last)(out))))
