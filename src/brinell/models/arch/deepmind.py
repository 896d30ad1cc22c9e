"""WideResNet and PreAct-ResNet in the variant of Gowal et al. 2020, and networks derived from it."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork
from brinell.models.arch.parts import activation, conv1, conv3, groups, pooled, same, shown_as, stacked, through

STRIDES = (1, 2, 2)
DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class MeanSparse(nn.Module):
    """A layer that replaces values within `threshold` standard deviations of their channel's mean by this mean.

    Reference: Amini et al. 2024, MeanSparse.
    """

    running_mean: Tensor
    running_var: Tensor
    threshold: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.zeros(width))
        self.register_buffer("threshold", torch.tensor(0.0))
        # Used only to collect the statistics, but part of the checkpoints.
        self.register_buffer("flag_update_statistics", torch.tensor(0))
        self.register_buffer("batch_num", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.running_mean.view(1, -1, 1, 1)
        near = self.threshold * self.running_var.sqrt().view(1, -1, 1, 1)
        return torch.where((x - mean).abs() < near, mean, x)


class Squeeze(nn.Module):
    """A squeeze-and-excitation layer: a small network computes a weight for each channel from the channel means.

    Reference: Hu, Shen & Sun 2018, Squeeze-and-excitation networks.
    """

    def __init__(self, width: int, ratio: float) -> None:
        super().__init__()
        narrow = round(ratio * width)
        self.fc1, self.fc2 = nn.Conv2d(width, narrow, 1), nn.Conv2d(narrow, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.fc2(torch.relu(self.fc1(means))))


@shown_as("Block")
class DeepmindBlock(nn.Module):
    """A residual block: two 3×3 convolutions, each after batch normalisation; a shortcut layer if widths differ."""

    def __init__(self, inside: int, outside: int, stride: int, act: str, sparse: bool, squeeze: float | None) -> None:
        super().__init__()
        self.stride, self.act = stride, activation(act)
        self.batchnorm_0, self.conv_0 = nn.BatchNorm2d(inside), conv3(inside, outside, stride, padding=0)
        self.batchnorm_1, self.conv_1 = nn.BatchNorm2d(outside), conv3(outside, outside)
        self.shortcut = None if inside == outside else conv1(inside, outside, stride)
        self.se = None if squeeze is None else Squeeze(outside, squeeze)
        self.meansparse_0, self.meansparse_1, self.meansparse_2 = (
            MeanSparse(width) if sparse else nn.Identity() for width in (inside, outside, outside)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.act(self.meansparse_0(self.batchnorm_0(x)))
        short = x if self.shortcut is None else self.shortcut(out)
        out = self.conv_0(same(out, self.stride))
        out = self.conv_1(self.act(self.meansparse_1(self.batchnorm_1(out))))
        return self.meansparse_2(short + (out if self.se is None else self.se(out)))


@shown_as("Group")
class DeepmindGroup(nn.Module):
    """A sequence of blocks of one width; the first block changes width and resolution."""

    def __init__(
        self, n: int, inside: int, outside: int, stride: int, act: str, sparse: bool, squeeze: float | None
    ) -> None:
        super().__init__()
        make = partial(DeepmindBlock, act=act, sparse=sparse, squeeze=squeeze)
        self.block = stacked(make, n, inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class DeepmindWideResNet(NormalizedNetwork):
    """WideResNet-`depth`-`width`, or a network with given `depths` and `widths` (stem first).

    `sparse` adds MeanSparse layers, `squeeze` is the ratio of squeeze-and-excitation. Without `head` the network
    returns features.

    References: Gowal et al. 2020, Uncovering the limits; Peng et al. 2023, Robust principles (depths, widths, squeeze).
    """

    def __init__(
        self,
        inputs: Inputs,
        classes: int = 10,
        depth: int = 28,
        width: int = 10,
        act: str = "silu",
        depths: Sequence[int] | None = None,
        widths: Sequence[int] | None = None,
        sparse: bool = False,
        squeeze: float | None = None,
        head: bool = True,
    ) -> None:
        super().__init__(inputs)
        counts = depths or (groups(depth),) * 3
        wide = widths or (16, 16 * width, 32 * width, 64 * width)
        self.init_conv = conv3(3, wide[0])
        stages = zip(counts, wide[:-1], wide[1:], STRIDES, strict=True)
        self.layer = nn.Sequential(*(DeepmindGroup(*stage, act, sparse, squeeze) for stage in stages))
        self.batchnorm, self.act = nn.BatchNorm2d(wide[-1]), activation(act)
        self.meansparse_end = MeanSparse(wide[-1]) if sparse else nn.Identity()
        self.logits = nn.Linear(wide[-1], classes) if head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(self.init_conv(self.normalised(x)))
        return self.logits(pooled(self.act(self.meansparse_end(self.batchnorm(out)))))


@shown_as("PreActBlock")
class DeepmindPreActBlock(nn.Module):
    """A block of two 3×3 convolutions after batch normalisation; a shortcut that reshapes is a 3×3 convolution."""

    def __init__(self, inside: int, outside: int, stride: int, act: str) -> None:
        super().__init__()
        self.stride, self.act = stride, activation(act)
        self.batchnorm_0, self.conv_2d_1 = nn.BatchNorm2d(inside), conv3(inside, outside, stride, padding=0)
        self.batchnorm_1, self.conv_2d_2 = nn.BatchNorm2d(outside), conv3(outside, outside)
        reshapes = stride != 1 or inside != outside
        self.shortcut = conv3(inside, outside, stride, padding=0) if reshapes else None

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(same(x, self.stride))
        out = self.conv_2d_1(same(self.act(self.batchnorm_0(x)), self.stride))
        return short + self.conv_2d_2(self.act(self.batchnorm_1(out)))


class DeepmindPreActResNet(NormalizedNetwork):
    """PreAct-ResNet-18 or -34 with "SAME" padding.

    Reference: Rebuffi et al. 2021, Fixing data augmentation.
    """

    def __init__(self, inputs: Inputs, classes: int = 10, depth: int = 18, act: str = "silu") -> None:
        super().__init__(inputs)
        self.conv_2d = conv3(3, 64)
        inside = 64
        for i, n in enumerate(DEPTHS[depth]):
            outside, make = 64 * 2**i, partial(DeepmindPreActBlock, act=act)
            setattr(self, f"layer_{i}", stacked(make, n, inside, outside, 1 if i == 0 else 2))
            inside = outside
        self.batchnorm, self.act, self.logits = nn.BatchNorm2d(inside), activation(act), nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = through(self, self.conv_2d(self.normalised(x)), "layer_", range(4))
        return self.logits(pooled(self.act(self.batchnorm(out))))
