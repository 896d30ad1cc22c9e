"""The detectors of the defences, and functions that fit them."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from brinell.defences.base_networks import adversarials, plain_network, training_data, trapdoor_network
from brinell.defences.layers import split_head
from brinell.ops import rng

# The side of an occluded patch, and the radius of the adversarials that the detector is fitted to.
PATCH, SEEN = 7, 0.05
# Changes of the features below this count as zero.
FLOOR = 1e-3


class Shaken(nn.Module):
    """A detector whose score is how much another class's logit gains on the predicted class under fixed noise.

    It imitates the statistical test of Roth et al. 2019: noise moves adversarials back to their true class.
    """

    def __init__(self, net: nn.Module, deviation: float, copies: int = 8) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("noise", deviation * rng.normal(rng.keys(2, torch.arange(copies)), (1, 28, 28)))

    def forward(self, x: Tensor) -> Tensor:
        noise: Any = self.noise
        z = self.net(x)
        shaken = self.net((x[:, None] + noise).flatten(0, 1)).view(len(x), len(noise), -1).mean(1)
        first = z.argmax(1, keepdim=True)
        gain = (shaken - shaken.gather(1, first)) - (z - z.gather(1, first))
        worst: Tensor = gain.amax(1)
        return worst


class LeaveOneOut(nn.Module):
    """A detector on attributions: how much the features change when each image patch is occluded.

    It imitates ML-LOO (Yang et al. 2020): attributions of adversarials have different quantiles and dispersion. The
    score is linear in `statistics`, with the weights of a logistic regression between clean images and adversarials
    (`fit`).
    """

    def __init__(self, body: nn.Module, side: int = PATCH) -> None:
        super().__init__()
        self.body = body
        n = 28 // side
        patch = torch.kron(torch.eye(n * n).view(-1, n, n), torch.ones(side, side))
        self.register_buffer("masks", 1 - patch[:, None])
        self.register_buffer("weight", torch.zeros(n * n + 3))
        self.register_buffer("bias", torch.zeros(()))

    def statistics(self, x: Tensor) -> Tensor:
        """Return, per row, the logarithms of the sorted attributions, and three measures of their dispersion.

        These are the interquartile range, the median absolute deviation and the standard deviation.
        """
        masks: Any = self.masks
        n = len(masks)
        every = torch.cat([x[:, None], x[:, None] * masks], 1)
        f = self.body(every.flatten(0, 1)).view(len(x), n + 1, -1)
        a = (f[:, :1] - f[:, 1:]).norm(dim=2)
        s = a.sort(1).values
        quartiles, middle = s[:, 3 * n // 4] - s[:, n // 4], s[:, n // 2]
        deviation = (a - middle[:, None]).abs().sort(1).values[:, n // 2]
        return torch.cat([(s + FLOOR).log(), torch.stack([quartiles, deviation, a.std(1)], 1)], 1)

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        score: Tensor = self.statistics(x) @ weight + self.bias
        return score

    def fit(self, clean: Tensor, adversarial: Tensor) -> "LeaveOneOut":
        weight, bias = fit_logistic(self.statistics(clean), self.statistics(adversarial))
        self.weight, self.bias = weight, bias
        return self


def fit_logistic(zeros: Tensor, ones: Tensor, ridge: float = 1e-2, steps: int = 30) -> tuple[Tensor, Tensor]:
    """Return weights and bias of a logistic regression between the rows of `zeros` and `ones`, by Newton's method.

    >>> weight, bias = fit_logistic(torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]]))
    >>> (torch.tensor([[1.4], [1.6]]) @ weight + bias > 0).tolist()
    [False, True]
    """
    x = torch.cat([zeros, ones]).double()
    y = torch.cat([torch.zeros(len(zeros)), torch.ones(len(ones))]).to(x)
    mean, spread = x.mean(0), x.std(0).clamp(min=FLOOR)
    f = torch.cat([(x - mean) / spread, torch.ones_like(x[:, :1])], 1)
    w, small = torch.zeros_like(f[0]), ridge * torch.eye(f.shape[1]).to(f)
    for _ in range(steps):
        p = (f @ w).sigmoid()
        slope = f.T @ (p - y) / len(y) + ridge * w
        w = w - torch.linalg.solve((f.T * (p * (1 - p))) @ f / len(y) + small, slope)
    weight = w[:-1] / spread
    return weight.float(), (w[-1] - weight @ mean).float()


class Signature(nn.Module):
    """A detector whose score is the cosine similarity of the features to the signature of the predicted class.

    It imitates Shan et al. 2020: gradient attacks find the trapdoor of a class, whose mean features (signature) give
    the attacks away.
    """

    def __init__(self, body: nn.Module, signatures: Tensor) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("signatures", signatures)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        signatures: Any = self.signatures
        return nn.functional.cosine_similarity(self.body(x), signatures[logits.argmax(1)], dim=1)


@cache
def left_out() -> tuple[Any, nn.Module]:
    """Return the undefended network and a `LeaveOneOut` detector fitted to the network's adversarials."""
    net = plain_network()
    x, y = (v[:300] for v in training_data())
    with torch.no_grad():
        return net, LeaveOneOut(split_head(net)[0]).fit(x, adversarials(net, x, y, SEEN))


@cache
def trapdoor() -> tuple[Any, nn.Module]:
    """Return a network with a trapdoor for every class, and the detector of the trapdoors' signatures."""
    net, traps = trapdoor_network()
    body, _ = split_head(net)
    x, _ = training_data()
    with torch.no_grad():
        return net, Signature(body, torch.stack([body((x + trap).clamp(0, 1)).mean(0) for trap in traps]))
