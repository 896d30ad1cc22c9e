"""The leaderboards: radius, number of samples and plan for every data set and threat. Data only."""

import difflib
from dataclasses import dataclass

from brinell.core.threat import L2, Linf, Threat
from brinell.errors import InputError
from brinell.leaderboard.records import CORRUPTIONS, CORRUPTIONS_3D


@dataclass(frozen=True)
class Leaderboard:
    """The rules of one leaderboard; `points` is the number of samples; `ball` is None if inputs are only corrupted.

    `listed` says that its samples are those of RobustBench's list of 5,000 ImageNet pictures, in the order of the list.

    >>> find_leaderboard("cifar10", "Linf").ball
    Linf(eps=8/255)
    """

    dataset: str
    threat: str
    ball: Threat | None
    points: int
    plan: str
    listed: bool = False

    @property
    def name(self) -> str:
        """The data set and the threat, such as "cifar10/Linf", as in the names of zoo models."""
        return f"{self.dataset}/{self.threat}"

    @property
    def zoo(self) -> str:
        """The start of the zoo models' names, e.g. "cifar10/Linf/"; 3D corruptions share the models of corruptions."""
        return f"{self.dataset}/{CORRUPTIONS if self.threat == CORRUPTIONS_3D else self.threat}/"

    @property
    def corrupted(self) -> str:
        """The name of the corrupted version of the data set."""
        return f"{self.dataset}-{'3dcc' if self.threat == CORRUPTIONS_3D else 'c'}"


LEADERBOARDS = (
    #     data set    threat        radius          points  plan
    Leaderboard("cifar10", "Linf", Linf("8/255"), 10_000, "autoattack"),
    Leaderboard("cifar10", "L2", L2("0.5"), 10_000, "autoattack"),
    Leaderboard("cifar10", CORRUPTIONS, None, 10_000, CORRUPTIONS),
    Leaderboard("cifar100", "Linf", Linf("8/255"), 10_000, "autoattack"),
    Leaderboard("cifar100", CORRUPTIONS, None, 10_000, CORRUPTIONS),
    Leaderboard("imagenet", "Linf", Linf("4/255"), 5_000, "autoattack", listed=True),
    Leaderboard("imagenet", CORRUPTIONS, None, 5_000, CORRUPTIONS, listed=True),
    Leaderboard("imagenet", CORRUPTIONS_3D, None, 5_000, CORRUPTIONS_3D, listed=True),
    Leaderboard("demo", "Linf", Linf("0.1"), 1_000, "autoattack"),
)
"""Croce et al. 2021, RobustBench, sec. 3; the last one is for experiments."""


def find_leaderboard(dataset: str, threat: str) -> Leaderboard:
    """Return the leaderboard of a data set and a threat, or raise an InputError that lists all leaderboards."""
    leaderboard = next((b for b in LEADERBOARDS if (b.dataset, b.threat) == (dataset, threat)), None)
    if leaderboard is not None:
        return leaderboard
    names = [b.name for b in LEADERBOARDS]
    near = difflib.get_close_matches(f"{dataset}/{threat}", names, n=2)
    raise InputError(
        expected=f"a leaderboard among {', '.join(names)}",
        got=f"{dataset}/{threat}",
        remedy=f"Did you mean {' or '.join(near)}?"
        if near
        else "Choose one of these, or use brinell evaluate for other data and threats.",
    )
