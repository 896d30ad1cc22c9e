"""Training data in memory: bytes or floats, labels, and the ids that decide every sample's noise."""

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.core.dataset import Problem
from brinell.data.load import arrays
from brinell.errors import InputError
from brinell.ops import rng
from brinell.ops.types import Keys

LEVELS = 255
# The part of the data held out for validation unless told otherwise: a tenth, at most so many.
HELD_OUT, AT_MOST = 10, 1000


@dataclass(frozen=True)
class Samples:
    """Images of bytes or points in [0, 1], labels and ids. Make them with `as_samples`."""

    x: Tensor
    y: Tensor
    ids: Tensor
    name: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> "Samples":
        """The samples at these positions."""
        return Samples(self.x[index], self.y[index], self.ids[index], self.name)

    def to(self, device: torch.device) -> "Samples":
        """The same on a device; bytes stay bytes."""
        return Samples(self.x.to(device), self.y.to(device), self.ids.to(device), self.name)

    def problem(self) -> Problem:
        """The same for an evaluation."""
        return Problem(as_points(self.x), self.y, self.ids, name=self.name)

    def fingerprint(self) -> str:
        """A hash of everything."""
        h = hashlib.sha256()
        for part in (self.x, self.y, self.ids):
            h.update(f"{part.dtype}{tuple(part.shape)}".encode() + part.cpu().contiguous().numpy().tobytes())
        return h.hexdigest()


def as_points(x: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]; floats as they are."""
    return x.float() / LEVELS if x.dtype == torch.uint8 else x


def as_samples(data: Any, split: str = "train") -> Samples:
    """Samples from (x, y), a Problem, a data set's name, a file or a published folder; x as bytes or floats in [0, 1].

    Of a name or folder the split is taken: "train" or "test".
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, str | os.PathLike):
        stored = arrays(data, split)
        return _checked(stored["x"], stored["y"], stored.get("ids"), os.path.basename(os.fspath(data)))
    if isinstance(data, tuple | list) and len(data) == 2:
        return _checked(*data)
    problem = data if isinstance(data, Problem) else Problem(data)
    chunks = list(problem.chunks(4096))
    x, y, ids = (torch.cat([getattr(c, part) for c in chunks]) for part in ("x", "y", "ids"))
    return Samples(x, y, ids, problem.name)


def _checked(x: Any, y: Any, ids: Any = None, name: str = "") -> Samples:
    values = torch.as_tensor(x)
    if values.dtype != torch.uint8:
        problem = Problem(x, y, ids, name=name)
        return Samples(problem.x, problem.y, problem.ids, name)
    if values.ndim < 2 or (values.ndim == 4 and values.shape[1] > 4 >= values.shape[3]):
        raise InputError(
            expected="images of shape (n, channels, height, width)",
            got=f"shape {tuple(values.shape)}",
            remedy="Transpose them: x.transpose(0, 3, 1, 2).",
        )
    # The door of a Problem looks at labels and ids; the bytes themselves cannot be wrong.
    stand_in = Problem(torch.zeros(len(values), 1), y, ids, name=name)
    return Samples(values.cpu().contiguous(), stand_in.y, stand_in.ids, name)


def order(seed: int, epoch: int, n: int, device: torch.device) -> Tensor:
    """The order of n samples in an epoch, from the seed alone."""
    key = rng.fold(rng.keys(seed, torch.zeros(1, dtype=torch.long, device=device)), rng.digest("order"))
    return rng.bits(rng.fold(key, epoch), n)[0].argsort(stable=True)


def sample_keys(seed: int, ids: Keys, epoch: int, purpose: str) -> Keys:
    """One key per sample and epoch for one purpose."""
    return rng.fold(rng.fold(rng.keys(seed, ids), rng.digest(purpose)), epoch)


def split(samples: Samples, held_out: int | None, seed: int) -> tuple[Samples, Samples | None]:
    """Training and validation samples: the ids and the seed choose at random which are held out."""
    n = min(AT_MOST, len(samples) // HELD_OUT) if held_out is None else held_out
    if not 0 <= n < len(samples):
        raise InputError(
            expected=f"validation samples between 0 and {len(samples) - 1}",
            got=f"{n}",
            remedy="Leave it out for a tenth of the data.",
        )
    if n == 0:
        return samples, None
    words = rng.bits(rng.fold(rng.keys(seed, samples.ids), rng.digest("validation")), 1)[:, 0]
    held = torch.zeros(len(samples), dtype=torch.bool)
    held[words.argsort(stable=True)[:n]] = True
    return samples.take((~held).nonzero()[:, 0]), samples.take(held.nonzero()[:, 0])
