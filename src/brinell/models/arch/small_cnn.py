"""The small convolutional network of the papers on certified robustness: two convolutions, two linear layers."""

import torch.nn.functional as F
from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork

KERNEL, STRIDE, PADDING, HIDDEN = 4, 2, 1, 100


class SmallCNN(NormalizedNetwork):
    """A network of convolutions 16@4×4 and 32@4×4 with stride 2, and 100 hidden units, for `side` × `side` images.

    Features are flattened with channels last, the order of the published TensorFlow weights.
    Reference: Wong & Kolter 2018, Provable defenses via the convex outer adversarial polytope.
    """

    def __init__(self, inputs: Inputs, classes: int = 10, channels: int = 3, side: int = 32) -> None:
        super().__init__(inputs)
        self.conv1 = nn.Conv2d(channels, 16, KERNEL, STRIDE, PADDING)
        self.conv2 = nn.Conv2d(16, 32, KERNEL, STRIDE, PADDING)
        self.fc1 = nn.Linear(32 * (side // STRIDE**2) ** 2, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv2(F.relu(self.conv1(self.normalised(x)))))
        return self.fc2(F.relu(self.fc1(out.permute(0, 2, 3, 1).flatten(1))))
