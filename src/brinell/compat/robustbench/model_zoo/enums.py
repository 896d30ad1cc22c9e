"""The data sets and threat models of RobustBench."""

from enum import Enum
from typing import Any


class BenchmarkDataset(Enum):
    """The data sets of RobustBench."""

    cifar_10 = "cifar10"
    cifar_100 = "cifar100"
    imagenet = "imagenet"


class ThreatModel(Enum):
    """The threat models of RobustBench."""

    Linf = "Linf"
    L2 = "L2"
    corruptions = "corruptions"
    corruptions_3d = "corruptions_3d"


def as_text(value: Any) -> str:
    """Return a data set or threat model as text; for a member of an enumeration, its value."""
    return str(getattr(value, "value", value))
