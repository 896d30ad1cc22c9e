"""Draw docs/images/bracket.svg: what attacks leave and what is certified, by radius, for a small network.

Usage: python docs/images/bracket.py OUT.svg    (needs matplotlib)
"""

import sys

import torch

import brinell


def small_network(train):
    """A network with one hidden layer, trained with noise."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        noisy = train.x + 0.2 * torch.randn_like(train.x)
        torch.nn.functional.cross_entropy(net(noisy), train.y).backward()
        optimiser.step()
    return net.eval()


def main(out: str) -> None:
    images = brinell.data.load("demo")
    net = brinell.wrap(small_network(images[:600]), name="one hidden layer")
    curve = brinell.curve(net, images[600:700], "Linf", "minimal-quick", certify=True, progress=False)
    curve.plot(out, title="The true robust accuracy lies in the hatched band")


if __name__ == "__main__":
    main(sys.argv[1])
