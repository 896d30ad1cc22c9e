"""The demonstration model: a small convolutional network, adversarially trained on Fashion-MNIST."""

from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor, nn

from brinell.ops.defaults import standard_defaults


class DemoNet(nn.Module):
    """Two convolutions and two linear layers for grey images in [0, 1] of the ten Fashion-MNIST classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


@standard_defaults()
def demo_net() -> nn.Module:
    """Return the trained `DemoNet` in evaluation mode and float32, with frozen parameters.

    >>> net = demo_net()
    >>> net(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    blob = (files("brinell.models") / "files" / "demo.safetensors").read_bytes()
    net = DemoNet()
    net.load_state_dict({name: weight.to(torch.float32) for name, weight in load(blob).items()})
    return net.eval().requires_grad_(False)
