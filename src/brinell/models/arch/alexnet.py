"""AlexNet in the version with one tower, the reference for corruption errors on ImageNet."""

from torch import Tensor, nn

from brinell.models.arch.inputs import Inputs, NormalizedNetwork

# Kernel, stride, padding and width of the five convolutions, and the indices of those followed by pooling.
CONVOLUTIONS = ((11, 4, 2, 64), (5, 1, 2, 192), (3, 1, 1, 384), (3, 1, 1, 256), (3, 1, 1, 256))
POOLED, SIDE, HIDDEN = (0, 1, 4), 6, 4096


class AlexNet(NormalizedNetwork):
    """AlexNet for images of about 224×224.

    Reference: Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks.
    """

    def __init__(self, inputs: Inputs, classes: int = 1000) -> None:
        super().__init__(inputs)
        layers: list[nn.Module] = []
        inside = 3
        for i, (kernel, stride, padding, width) in enumerate(CONVOLUTIONS):
            layers += [nn.Conv2d(inside, width, kernel, stride, padding), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if i in POOLED else []
            inside = width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(SIDE)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(inside * SIDE**2, HIDDEN),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(self.normalised(x))).flatten(1))
