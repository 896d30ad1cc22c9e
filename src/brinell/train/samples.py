"""Hold training data in memory, shuffle and augment them; random numbers depend on seed, sample id and epoch."""

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from brinell.core.dataset import Problem
from brinell.core.samples import is_pairs
from brinell.data.load import arrays
from brinell.errors import InputError
from brinell.ops import rng
from brinell.ops.types import Keys

LEVELS = 255


@dataclass(frozen=True)
class TrainingSamples:
    """Training samples in memory: inputs x (bytes, or floats in [0, 1]), labels y and ids; `as_samples` makes them."""

    x: Tensor
    y: Tensor
    ids: Tensor
    name: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> "TrainingSamples":
        """Return the samples at the positions `index`."""
        return TrainingSamples(self.x[index], self.y[index], self.ids[index], self.name)

    def to(self, device: torch.device) -> "TrainingSamples":
        """Return the samples on a device; bytes stay bytes."""
        return TrainingSamples(self.x.to(device), self.y.to(device), self.ids.to(device), self.name)

    def problem(self) -> Problem:
        """Return the samples as a Problem that can be evaluated, with inputs in [0, 1]."""
        return Problem(as_points(self.x), self.y, self.ids, name=self.name)

    def fingerprint(self) -> str:
        """Return the SHA-256 of inputs, labels and ids."""
        h = hashlib.sha256()
        for part in (self.x, self.y, self.ids):
            h.update(f"{part.dtype}{tuple(part.shape)}".encode() + part.cpu().contiguous().numpy().tobytes())
        return h.hexdigest()


def as_points(x: Tensor) -> Tensor:
    """Return bytes as floats in [0, 1], and floats unchanged."""
    return x.float() / LEVELS if x.dtype == torch.uint8 else x


def as_samples(data: Any, split: str = "train") -> TrainingSamples:
    """Return training samples from (x, y), a Problem, the name of a data set, a file or a folder.

    x holds bytes or floats in [0, 1]. `split` ("train" or "test") selects a part of a named data set or folder.
    """
    if isinstance(data, TrainingSamples):
        return data
    if isinstance(data, str | os.PathLike):
        stored = arrays(data, split)
        return _checked(stored["x"], stored["y"], stored.get("ids"), os.path.basename(os.fspath(data)))
    if isinstance(data, tuple | list) and len(data) == 2 and not is_pairs(data):
        return _checked(*data)
    problem = data if isinstance(data, Problem) else Problem(data)
    chunks = list(problem.chunks(4096))
    x, y, ids = (torch.cat(values) for values in zip(*((c.x, c.y, c.ids) for c in chunks), strict=True))
    return TrainingSamples(x, y, ids, problem.name)


def _checked(x: Any, y: Any, ids: Any = None, name: str = "") -> TrainingSamples:
    values = torch.as_tensor(x, device="cpu")
    if values.dtype != torch.uint8:
        problem = Problem(x, y, ids, name=name)
        return TrainingSamples(problem.x, problem.y, problem.ids, name)
    if values.ndim < 2 or (values.ndim == 4 and values.shape[1] > 4 >= values.shape[3]):
        raise InputError(
            expected="images of shape (n, channels, height, width)",
            got=f"shape {tuple(values.shape)}",
            remedy="If the channels are last, write x.transpose(0, 3, 1, 2).",
        )
    # Problem checks the labels and ids. Bytes need no check.
    stand_in = Problem(torch.zeros(len(values), 1, dtype=torch.float32, device="cpu"), y, ids, name=name)
    return TrainingSamples(values.cpu().contiguous(), stand_in.y, stand_in.ids, name)


def order(seed: int, epoch: int, n: int, device: torch.device) -> Tensor:
    """Return a random permutation of n samples, determined by seed and epoch."""
    key = rng.fold(rng.keys(seed, torch.zeros(1, dtype=torch.long, device=device)), rng.digest("order"))
    return rng.bits(rng.fold(key, epoch), n)[0].argsort(stable=True)


def sample_keys(seed: int, ids: Keys, epoch: int, purpose: str) -> Keys:
    """Return one random key per sample, determined by seed, sample id, epoch and purpose."""
    return rng.fold(rng.fold(rng.keys(seed, ids), rng.digest(purpose)), epoch)


# By default one tenth of the data, at most this many samples, is held out for validation.
HELD_OUT, AT_MOST = 10, 1000


def split(samples: TrainingSamples, held_out: int | None, seed: int) -> tuple[TrainingSamples, TrainingSamples | None]:
    """Return training samples and `held_out` random validation samples (None if 0), determined by ids and seed.

    By default `held_out` is a tenth of the samples, at most 1,000.
    """
    n = min(AT_MOST, len(samples) // HELD_OUT) if held_out is None else held_out
    if not 0 <= n < len(samples):
        raise InputError(
            expected=f"between 0 and {len(samples) - 1} validation samples",
            got=f"{n}",
            remedy="Omit `validation` to hold out a tenth of the samples.",
        )
    if n == 0:
        return samples, None
    words = rng.bits(rng.fold(rng.keys(seed, samples.ids), rng.digest("validation")), 1)[:, 0]
    validation = torch.zeros(len(samples), dtype=torch.bool, device="cpu")
    validation[words.argsort(stable=True)[:n]] = True
    return samples.take((~validation).nonzero()[:, 0]), samples.take(validation.nonzero()[:, 0])


def augment(x: Tensor, key: Keys, crop: int, flip: bool) -> Tensor:
    """Return images (b, c, h, w), cropped at random and, with `flip`, mirrored with probability ½, as `key` determines.

    Method: pad every side by `crop` zeros, then take a window of the original size at a position drawn from the key.
    Bytes stay bytes.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2)
    >>> torch.equal(augment(x, rng.keys(0, torch.arange(1)), crop=0, flip=False), x)
    True
    """
    if not crop and not flip:
        return x
    b, c, h, w = x.shape
    top, left = rng.integers(rng.fold(key, 1), 2 * crop + 1, (2,)).unbind(1)
    down, across = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    if flip:
        mirrored = rng.signs(rng.fold(key, 2), (1,)) < 0
        across = torch.where(mirrored, across.flip(0), across)
    rows, columns = top[:, None] + down, left[:, None] + across
    padded = F.pad(x, (crop, crop, crop, crop)) if crop else x
    samples, channels = torch.arange(b, device=x.device), torch.arange(c, device=x.device)
    return padded[samples[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None]]
