"""The evaluation of RobustBench: `benchmark`, on Brinell's leaderboards."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from brinell.analysis.corruptions.table import CELLS
from brinell.compat.functions import Function
from brinell.compat.robustbench.data import FOLDERS
from brinell.compat.robustbench.model_zoo.enums import as_text
from brinell.core.dataset import Problem
from brinell.data.load import ROBUSTBENCH, load
from brinell.errors import InputError
from brinell.leaderboard import benchmark as boards
from brinell.leaderboard.definitions import find_leaderboard
from brinell.leaderboard.records import Record
from brinell.models import zoo
from brinell.models.wrap import ALLOWED, TorchClassifier, wrap
from brinell.results import Run
from brinell.results.format.manifest import MANIFEST

MODEL_INFO = "model_info"


def benchmark(
    model: nn.Module | Callable[[Tensor], Tensor], n_examples: int = 10_000, dataset: Any = "cifar10",
    threat_model: Any = "Linf", to_disk: bool = False, model_name: str | None = None,
    data_dir: str | os.PathLike[str] = "./data", corruptions_data_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None, batch_size: int = 32, eps: float | None = None,
    log_path: str | os.PathLike[str] | None = None, preprocessing: Any = None,
    aa_state_path: str | os.PathLike[str] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Return the clean and robust accuracy of a model on a leaderboard, between 0 and 1.

    Differences from the original: the seed is 0 instead of the clock, so two calls agree, at any `batch_size`. Only
    verified adversarials count. `eps=None` means the radius of the leaderboard instead of an error. `aa_state_path` is
    the folder of a Run: an interrupted evaluation resumes from there. `to_disk` needs `model_name` and writes the
    record, with Brinell's fields, to model_info/DATA/THREAT/NAME.json. Corruptions are read from
    `corruptions_data_dir`, for CIFAR too; only ImageNet records have an mCE. As in the original, the leaderboard's
    restrictions are not checked: `brinell.benchmark` checks them. A model in train mode gets the warning of the
    original, and its Run is invalid.

    >>> from brinell.models.demo import demo_net
    >>> benchmark(demo_net(), n_examples=4, dataset="demo", threat_model="Linf", eps=0.5)
    (1.0, 0.0)
    """
    if isinstance(model, list | tuple) or isinstance(device, list | tuple):
        raise InputError(expected="one model on one device", got="a list", remedy="Call benchmark for each model.")
    if to_disk and not model_name:
        raise InputError(expected="a model_name with to_disk=True", got="no model_name", remedy="Pass model_name='…'.")
    data, threat = as_text(dataset), as_text(threat_model)
    state = None if aa_state_path is None else Path(aa_state_path)
    record = boards.benchmark(
        _classifier(model, model_name, device),
        data,
        threat,
        n=n_examples,
        data=_samples(data, n_examples, Path(data_dir), preprocessing, model_name, threat),
        corrupted=corruptions_data_dir,
        eps=eps,
        name=model_name,
        strict=False,
        out=state,
        resume=state is not None and any((state / name).exists() for name in (MANIFEST, CELLS)),
        slots=batch_size,
        progress=False,
    )
    if to_disk:
        record.write(MODEL_INFO)
    if log_path is not None:
        _log(record, Path(log_path))
    return _accuracies(record)


def _classifier(model: Any, name: str | None, device: torch.device | str | None) -> TorchClassifier:
    module = model if isinstance(model, nn.Module) else Function(model).eval()
    if module.training:
        warnings.warn("the model is in train mode: call model.eval() first", UserWarning, stacklevel=3)
    # The original evaluates models with such defects. They are evaluated here too, and the verdict names them.
    classifier = wrap(module, name=name, allow=ALLOWED)
    return classifier if device is None else classifier.to(torch.device(device))


def _samples(data: str, n: int, folder: Path, preprocessing: Any, name: str | None, threat: str) -> Problem | None:
    """Return the first n samples of `data` in `folder`; None if the caller should load the data set by name."""
    if data in FOLDERS:
        inner = folder / FOLDERS[data]
        return load(inner, n) if inner.is_dir() else None
    card = zoo.cards().get(f"{find_leaderboard(data, threat).zoo}{name}")
    chosen = preprocessing if preprocessing is not None or card is None else card.preprocessing
    options: dict[str, Any] = {"root": folder if folder.is_dir() else None, "preprocessing": chosen}
    options = {k: v for k, v in options.items() if v is not None}
    if options and data == "imagenet":
        options["paths"] = ROBUSTBENCH
    return load(data, n, **options) if options else None


def _accuracies(record: Record) -> tuple[float, float]:
    if record.autoattack is None:  # corruptions
        return (record.clean or 0.0) / 100, (record.best or 0.0) / 100
    run = Run.open(record.run or "")
    return run.clean_accuracy.value, run.robust_accuracy.value


def _log(record: Record, path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{record.key}: clean accuracy {record.clean:.2f}%, robust accuracy {record.best:.2f}%, ")
        file.write(f"n = {record.n}, verdict {record.verdict}, run {record.run}\n")
