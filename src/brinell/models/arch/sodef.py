"""SODEF: a neural ODE transforms the features before they are classified."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from brinell.models.arch.deepmind import DeepmindWideResNet
from brinell.models.arch.inputs import Inputs

FEATURES, TIME, STEPS = 64, 5.0, 100


class _Projection(nn.Module):
    """A linear layer x W without bias, with W stored in shape (in, out)."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside))
        nn.init.orthogonal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class _Field(nn.Module):
    """The right-hand side of the ODE dz/dt = sin(−(W z + b))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.ModuleDict({"_layer": nn.Linear(width, width)})

    def forward(self, z: Tensor) -> Tensor:
        return torch.sin(-self.fc1["_layer"](z))


class Flow(nn.Module):
    """A layer that returns the solution of the ODE at time 5, from its input at time 0.

    Method: Runge-Kutta of order four with a fixed step. The published adaptive step depends on the whole batch, so the
    logits of a row would depend on the other rows. Fixed and adaptive steps approximate the same solution.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.odefunc = _Field(width)

    def forward(self, z: Tensor) -> Tensor:
        f, h = self.odefunc, TIME / STEPS
        for _ in range(STEPS):
            a = f(z)
            b = f(z + h / 2 * a)
            c = f(z + h / 2 * b)
            z = z + h / 6 * (a + 2 * b + 2 * c + f(z + h * c))
        return z


def _under(name: str, module: nn.Module) -> nn.Sequential:
    """Return a container that holds the module under this name, which the checkpoint uses."""
    return nn.Sequential(OrderedDict([(name, module)]))


class Sodef(nn.Sequential):
    """A network of four parts: a WideResNet, an orthogonal projection of its features, the ODE, and a linear layer.

    Reference: Kang et al. 2021, Stable neural ODE with Lyapunov-stable equilibrium points.
    """

    def __init__(self, inputs: Inputs, classes: int = 10, depth: int = 70, width: int = 16) -> None:
        features = DeepmindWideResNet(inputs, classes, depth, width, head=False)
        project = _under("fc0", _under("linear", _Projection(64 * width, FEATURES)))
        head = _under("fc0", nn.Linear(FEATURES, classes))
        super().__init__(features, project, nn.Sequential(Flow(FEATURES), head))
