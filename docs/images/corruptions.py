"""Draw docs/images/corruptions.png: a small image under every corruption at every severity.

Usage: python docs/images/corruptions.py OUT.png    (needs matplotlib)
"""

import sys

import matplotlib
import torch
from torch import Tensor

from brinell.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from brinell.data.corruptions.weather import clouds
from brinell.ops import rng

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FINE = 4


def scene(size: int) -> Tensor:
    """A house with a tree under a cloudy sky, in [0, 1], (1, 3, size, size)."""
    n = size * FINE
    r, c = (torch.arange(n) + 0.5)[:, None] / n, (torch.arange(n) + 0.5) / n
    cloud, grain = (
        clouds(rng.keys(7, torch.tensor([i])), 1 << (n - 1).bit_length(), d)[0, :n, :n]
        for i, d in ((1, 1.7), (2, 1.15))
    )
    x = torch.stack([0.35 + 0.6 * cloud * (1 - r), 0.58 + 0.35 * cloud * (1 - r), 0.92 - 0.1 * r + 0 * cloud])
    hill = r > 0.62 - 0.10 * torch.sin(3.2 * c + 0.6)
    parts = [
        (((r - 0.2) ** 2 + (c - 0.82) ** 2) < 0.008, (1.0, 0.86, 0.25)),
        (hill, (0.25, 0.52, 0.20)),
        ((r > 0.45) & (r < 0.80) & (c > 0.16) & (c < 0.56), (0.86, 0.78, 0.62)),
        ((r > 0.22) & (r < 0.46) & ((c - 0.36).abs() < (r - 0.22) * 1.05), (0.70, 0.18, 0.14)),
        ((r > 0.60) & (r < 0.80) & (c > 0.32) & (c < 0.41), (0.36, 0.20, 0.10)),
        ((r > 0.53) & (r < 0.63) & (c > 0.20) & (c < 0.29), (0.20, 0.30, 0.45)),
        ((r > 0.53) & (r < 0.63) & (c > 0.44) & (c < 0.53), (0.20, 0.30, 0.45)),
        ((r > 0.60) & (r < 0.86) & ((c - 0.76).abs() < 0.025), (0.38, 0.24, 0.12)),
        (((r - 0.52) ** 2 + (c - 0.76) ** 2) < 0.022, (0.10, 0.36, 0.14)),
    ]  # fmt: skip
    for inside, colour in parts:
        x = torch.where(inside, torch.tensor(colour)[:, None, None].expand_as(x), x)
    x = (x * (0.82 + 0.36 * grain)).clamp(0, 1)
    x = x.unflatten(2, (size, FINE)).unflatten(1, (size, FINE)).mean((2, 4))
    return ((x * 255).round() / 255)[None]


def main(out: str) -> None:
    small, large = scene(32), scene(160)
    names = list(CORRUPTIONS)
    figure, axes = plt.subplots(len(names), 12, figsize=(10.4, 0.79 * len(names) + 0.5))
    for row, name in zip(axes, names, strict=True):
        for block, x in enumerate((small, large)):
            shown = [x, *(corrupt(x, name, s, [1]) for s in SEVERITIES)]
            for i, (ax, image) in enumerate(zip(row[6 * block :], shown, strict=False)):
                ax.imshow(image[0].permute(1, 2, 0).numpy(), interpolation="nearest", vmin=0, vmax=1)
                ax.set_xticks([])
                ax.set_yticks([])
                ax.spines[:].set_visible(False)
                if name == names[0]:
                    ax.set_title("clean" if i == 0 else str(i), fontsize=8, pad=3)
        row[0].set_ylabel(name.replace("_", "\n"), fontsize=7, rotation=0, ha="right", va="center")
    figure.subplots_adjust(left=0.085, right=0.998, top=0.966, bottom=0.002, wspace=0.04, hspace=0.04)
    for place, text in ((0.31, "32 × 32, constants of CIFAR-10-C"), (0.77, "160 × 160, constants of ImageNet-C")):
        figure.text(place, 0.992, text, ha="center", va="top", fontsize=9)
    figure.savefig(out, dpi=80, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main(sys.argv[1])
