"""Make a Problem whose images are corrupted when they are read."""

from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from brinell.core.dataset import Problem
from brinell.data.corruptions.registry import check, corrupt


class _Corrupted(Dataset[Any]):
    """A data set with the samples of a problem; the images are corrupted in batches when they are read."""

    def __init__(self, problem: Problem, name: str, severity: int, seed: int) -> None:
        self.problem, self.name, self.severity, self.seed = problem, name, severity, seed

    def __len__(self) -> int:
        return len(self.problem)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        samples: list[tuple[Tensor, Tensor]] = []
        for first, last in _ranges(indices):
            for chunk in self.problem[first : last + 1].chunks(last + 1 - first):
                x = corrupt(chunk.x, self.name, self.severity, chunk.ids, self.seed)
                samples.extend(zip(x, chunk.y, strict=True))
        return samples


def _ranges(indices: list[int]) -> list[tuple[int, int]]:
    """Return the first and last index of each run of consecutive indices.

    >>> _ranges([4, 5, 6, 9, 2])
    [(4, 6), (9, 9), (2, 2)]
    """
    ranges: list[tuple[int, int]] = []
    for i in indices:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], i)
        else:
            ranges.append((i, i))
    return ranges


def corrupted(problem: Problem, name: str, severity: int, seed: int = 0) -> Problem:
    """Return the problem with the same ids and labels, and with images that are corrupted when they are read.

    >>> import brinell
    >>> foggy = corrupted(brinell.data.load("demo", n=10), "fog", 3)
    >>> len(foggy), foggy.name, next(foggy[4:6].chunks(2)).ids.tolist()
    (10, 'demo, fog 3', [4, 5])
    """
    check(name, severity)
    ids = problem._given_ids if problem.streamed else problem.ids
    label = f"{problem.name}, {name} {severity}".removeprefix(", ")
    return Problem(_Corrupted(problem, name, severity, seed), ids=ids, name=label, names=problem.names)
