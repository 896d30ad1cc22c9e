"""One small network, in torch; its twins in other frameworks have the same weights."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.models.wrap import TorchClassifier

# Gradients agree to this; survivors must be the same samples, whatever the rounding.
CLOSE = 1e-5


@dataclass(frozen=True)
class Twins:
    """A network of two layers on images of one channel, samples, and labels of which some are hard to break."""

    net: nn.Module
    x: Tensor
    y: Tensor

    @property
    def weights(self) -> list[np.ndarray]:
        return [p.detach().numpy() for p in self.net.parameters()]

    @property
    def classifier(self) -> TorchClassifier:
        return brinell.wrap(self.net)

    def gradients_agree(self, other: TorchClassifier) -> None:
        """Of a function that weighs every logit, at every sample; and of every logit by itself."""
        found = []
        for c in (self.classifier, other):
            x = self.x.clone().requires_grad_()
            logits = c.forward(x).logits.log_softmax(1)
            each = [torch.autograd.grad(logits[:, k].sum(), x, retain_graph=True)[0] for k in range(logits.shape[1])]
            found.append(torch.stack(each))
        assert float((found[0] - found[1]).abs().max()) <= CLOSE

    def same_outcomes(self, other: TorchClassifier, plan, threat=None) -> None:
        """The survivors are the same samples, the clean predictions too; some fall, some do not."""
        threat = brinell.Linf(0.04) if threat is None else threat
        runs = [brinell.evaluate(c, (self.x, self.y), threat, plan, progress=False) for c in (self.classifier, other)]
        assert runs[0].survivors().tolist() == runs[1].survivors().tolist()
        assert 0 < len(runs[0].survivors()) < len(self.x), "all samples end alike: the test tests little"
        assert float(runs[0].clean_accuracy) == float(runs[1].clean_accuracy)
        assert brinell.verify(runs[1], other, (self.x, self.y)).ok


@pytest.fixture(scope="session")
def twins() -> Twins:
    g = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.Tanh(), nn.Linear(16, 5)).eval()
    with torch.no_grad():
        for p, scale in zip(net.parameters(), (0.4, 0.1, 0.8, 0.1), strict=True):
            p.copy_(scale * torch.randn(p.shape, generator=g))
    x = torch.rand(24, 1, 6, 6, generator=g)
    return Twins(net.requires_grad_(False), x, net(x).argmax(1))
