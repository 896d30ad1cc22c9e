"""The functions of RobustBench's `utils`: published models and the clean accuracy."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brinell.compat.functions import as_classifier, predictions
from brinell.compat.missing import refuse_name
from brinell.compat.robustbench.model_zoo.enums import as_text
from brinell.models import zoo
from brinell.models.wrap import TorchClassifier

NAMES = ("clean_accuracy", "load_model")
INSTEAD = {
    "get_leaderboard_latex": "`brinell leaderboard table --format tex`",
    "get_leaderboard_bibtex": "`brinell leaderboard table --format bib`",
    "list_available_models": "`brinell zoo list`",
    "update_json": "`brinell benchmark --about FILE.json`, which writes a record",
    "parse_args": "argparse, or `brinell benchmark`",
}


def __getattr__(name: str) -> Any:
    """Raise that a name of RobustBench is missing here; the remedy names what to use."""
    refuse_name(__name__, name, NAMES, INSTEAD)


def clean_accuracy(
    model: Any, x: Tensor, y: Tensor, batch_size: int = 100, device: torch.device | str | None = None
) -> float:
    """Return the share of samples that the model classifies correctly; it does not depend on `batch_size`.

    >>> import brinell
    >>> from brinell.models.demo import demo_net
    >>> clean_accuracy(demo_net(), *brinell.data.load("demo", 4))
    1.0
    """
    return float((predictions(as_classifier(model, device), x) == y.cpu()).float().mean())


def load_model(
    model_name: str, model_dir: str | os.PathLike[str] = "./models", dataset: Any = "cifar10",
    threat_model: Any = "Linf", custom_checkpoint: str | os.PathLike[str] = "", norm: str | None = None,
) -> nn.Module:  # fmt: skip
    """Return a published model as a module in evaluation mode, for inputs in [0, 1].

    Differences from the original: weights are read without executing code in them. Weights that are not in `model_dir`
    are downloaded to the cache of Brinell and checked against their hash (docs/zoo.md). `custom_checkpoint` is a file
    with other weights for the same network, read in the same way. Ensembles return log probabilities instead of
    probabilities. `norm` is the deprecated name of `threat_model`.

    >>> load_model("Demo", dataset="fashion-mnist").training
    False
    """
    threat = as_text(threat_model)
    if norm is not None:
        warnings.warn("norm is deprecated, use threat_model instead", DeprecationWarning, stacklevel=2)
        threat = norm
    classifier = zoo.load(
        f"{as_text(dataset)}/{threat}/{model_name}", folder=Path(model_dir), checkpoint=custom_checkpoint or None
    )
    return classifier.module if classifier.mean is None and classifier.std is None else _WithNormalisation(classifier)


class _WithNormalisation(nn.Module):
    """A module that normalises its inputs and returns the logits of the classifier."""

    def __init__(self, classifier: TorchClassifier) -> None:
        super().__init__()
        self.module, self._classifier = classifier.module, classifier
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self._classifier.forward(x).logits
