"""RobustBench's functions with their call signatures, on Brinell's leaderboards, data and model zoo.

The modules have the names of the original, so a script needs `brinell.compat.` in front of `robustbench` and no other
change: `data` has the loaders, `utils` `load_model` and `clean_accuracy`, `eval` `benchmark`, `model_zoo` the lists.
"""

from typing import Any

from brinell.compat.missing import refuse_name
from brinell.compat.robustbench.data import (
    CORRUPTIONS,
    load_cifar10,
    load_cifar10c,
    load_cifar100,
    load_cifar100c,
    load_clean_dataset,
    load_imagenet,
)
from brinell.compat.robustbench.eval import benchmark
from brinell.compat.robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel
from brinell.compat.robustbench.utils import INSTEAD, clean_accuracy, load_model

__all__ = [
    "CORRUPTIONS", "BenchmarkDataset", "ThreatModel", "benchmark", "clean_accuracy", "load_cifar10", "load_cifar10c",
    "load_cifar100", "load_cifar100c", "load_clean_dataset", "load_imagenet", "load_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return `model_dicts`, which is made when it is first read; raise for other names what to use."""
    from brinell.compat.robustbench import model_zoo

    if name == "model_dicts":
        return model_zoo.published_models()
    refuse_name(__name__, name, [*__all__, "model_dicts"], INSTEAD)
