"""What public functions take, as types: models, data, plans and targets in every form that they accept."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from brinell.core.attack import AnyAttack
from brinell.core.certificate import Certifier
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.plan import Plan, Stage
from brinell.core.ranking import MaltRanking


@runtime_checkable
class ClassifierLike(Protocol):
    """An object with the members of `brinell.core.model.Classifier`."""

    def forward(self, x: Tensor, /) -> Any:
        """Return the output for a batch of points in [0, 1]."""
        ...


@runtime_checkable
class EstimatorLike(Protocol):
    """A fitted classifier of scikit-learn, or its like."""

    def predict(self, X: Any, /) -> Any:
        """Return the label of every row."""
        ...


@runtime_checkable
class IndexedSamples(Protocol):
    """Samples by position: pairs (x, y), or dicts with an input and a label."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Path = str | os.PathLike[str]

ModelLike = Classifier | ClassifierLike | nn.Module | EstimatorLike | Callable[..., Any] | Path
"""A classifier, a module, an estimator, a function of a batch, or the name or path of a model."""

ArrayLike = Tensor | np.ndarray | Sequence[Any]
"""A tensor, an array, or nested lists of numbers."""

DataLike = (
    Problem
    | tuple[ArrayLike, ArrayLike]
    | Dataset[Any]
    | DataLoader[Any]
    | IndexedSamples
    | Mapping[str, Any]
    | Iterable[Any]
    | Path
)
"""A problem, (x, y), a data set, a loader, a list or stream of samples, or the name or path of data."""

AttackLike = str | AnyAttack | Stage
"""An attack, a stage, or the name of an attack."""

PlanLike = Plan | AttackLike | Sequence[AttackLike]
"""A plan, its name, an attack, or a list of attacks."""

CertifyLike = bool | str | Sequence[str] | Certifier
"""Whether to certify, or the method, several methods, or a certifier of your own."""

RankingLike = str | AnyAttack | MaltRanking | None
"""What ranks target classes: an attack or its name, "malt", or the logits (None)."""

TargetsLike = int | ArrayLike | None
"""Target classes: one per sample, or one for all."""
