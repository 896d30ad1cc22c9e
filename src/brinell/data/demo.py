"""The demonstration data: the first 1,000 test images of Fashion-MNIST, shipped with the package."""

from importlib.resources import files
from io import BytesIO

import numpy as np
import torch
from torch import Tensor


def demo() -> tuple[Tensor, Tensor]:
    """Return images in [0, 1] (multiples of 1/255) and labels (int64) in the order of the published test set.

    >>> x, y = demo()
    >>> x.shape, y[:5].tolist()
    (torch.Size([1000, 1, 28, 28]), [9, 2, 1, 1, 6])
    """
    blob = (files("brinell.data") / "files" / "fashion_mnist_1000.npz").read_bytes()
    with np.load(BytesIO(blob), allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"]
    x = torch.from_numpy(images).unsqueeze(1).to(torch.float32) / 255
    return x, torch.from_numpy(labels).to(torch.int64)
