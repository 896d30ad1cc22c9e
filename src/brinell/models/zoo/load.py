"""Build the network of a zoo model, or load the model with its published weights."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brinell.errors import ModelError, import_extra
from brinell.fetch import Progress, sha256
from brinell.models.arch import network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo.card import Card, cards, find
from brinell.models.zoo.fetch import fetch
from brinell.models.zoo.weights import fill, read, tensors
from brinell.ops.defaults import standard_defaults

TIMM = "timm"


def _config(card: Card) -> Mapping[str, Any]:
    if card.network is None:
        raise ModelError(
            expected=f"a network for {card.name}",
            got=f"no network in Brinell: {card.missing}",
            remedy="Build the network with the code of the publication and call brinell.wrap(net).",
        )
    return card.network


def _network(card: Card) -> nn.Module:
    config = _config(card)
    return _timm_network(config) if config["family"] == TIMM else network(config)


def _timm_network(config: Mapping[str, Any]) -> nn.Module:
    """Build the timm network of a card with its options and strides, without the input normalisation."""
    timm = import_extra("timm", "zoo", "the package timm, for transformers and most ImageNet models")
    options = config.get("options", {})
    net: nn.Module = timm.create_model(config["name"], pretrained=False, num_classes=config["classes"], **options)
    for path, stride in config.get("strides", {}).items():
        setattr(net.get_submodule(path), "stride", (stride, stride))  # noqa: B010
    return net


def build(name: str) -> nn.Module:
    """Build the network of a zoo model with random initial weights and the published parameter names.

    >>> len(build("cifar10/Linf/Wong2020Fast").state_dict())
    104
    """
    return _network(find(name))


@standard_defaults()
def load(
    name: str,
    *, device: torch.device | str | None = None, progress: Progress | None = None, folder: Path | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> TorchClassifier:  # fmt: skip
    """Load a zoo model with its published weights, which are downloaded into the cache on first use.

    Files are read without running code. Their SHA-256 must be that of the card or, if the card has none, of the first
    download. `progress` is called with the bytes so far and the total. `folder` is RobustBench's folder of models, with
    files DATA/THREAT/MODEL.pt; if it has all files of the model, they are used instead of the cache. `checkpoint` is a
    file with your own weights for the network of this model; it is not compared with a digest. Weights whose licence
    forbids commercial use give a warning.

    >>> load("fashion-mnist/Linf/Demo").forward(torch.zeros(2, 1, 28, 28)).logits.shape
    torch.Size([2, 10])
    """
    card = find(name)
    _config(card)
    if card.unloadable:
        raise ModelError(
            expected=f"a checkpoint of {card.name} that can be loaded",
            got=card.unloadable,
            remedy="Load the weights with the code of the publication and call brinell.wrap(net).",
        )
    if card.restriction and checkpoint is None:
        warnings.warn(card.restriction, stacklevel=3)
    # Our networks need no initial weights because the files have all of them. timm computes some buffers itself.
    with torch.device("cpu" if _config(card)["family"] == TIMM else "meta"):
        net = _network(card)
    paths = _own(card, checkpoint) or _files_in(card, folder) or fetch(card, progress)
    for file, path in zip(card.files, paths, strict=True):
        submodule = net.get_submodule(file.into.rstrip("."))
        fill(submodule, tensors(read(path, card.name), card.keys), card.keys, card.name)
    _check_complete(net, card)
    net.eval().requires_grad_(False)
    inputs = _config(card).get("inputs", {}) if _config(card)["family"] == TIMM else {}
    classifier = wrap(net, inputs.get("mean"), inputs.get("std"), name=card.name)
    return classifier if device is None else classifier.to(torch.device(device))


def _own(card: Card, checkpoint: str | os.PathLike[str] | None) -> list[Path]:
    """Return the user's checkpoint as a list of one path, in place of the card's files; [] if `checkpoint` is None."""
    if checkpoint is None:
        return []
    path = Path(checkpoint)
    if len(card.files) != 1 or not path.is_file():
        got = "one file" if path.is_file() else f"{path}, which is not a file"
        raise ModelError(
            expected=f"a checkpoint file for {card.name}, whose weights are in {len(card.files)} file(s)",
            got=got,
            remedy="Pass an existing file. For an ensemble pass a folder: brinell.models.zoo.load(name, folder=…).",
        )
    return [path]


def card_of_file(file: Path) -> Card | None:
    """Return the card whose only file of weights has the SHA-256 of `file`, or None if there is no such card."""
    digest = sha256(file)
    return next((c for c in cards().values() if [f.sha256 for f in c.files] == [digest]), None)


def _files_in(card: Card, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    ends = [".pt"] if len(card.files) == 1 else [f".pt_m{i}.pt" for i in range(len(card.files))]
    paths = [folder / f"{card.name}{end}" for end in ends]
    return paths if all(path.is_file() for path in paths) else []


def _check_complete(net: nn.Module, card: Card) -> None:
    """Set batch counters that older checkpoints lack to zero; raise a ModelError if another tensor has no value."""
    for path, module in net.named_modules():
        for name, tensor in (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False)):
            if tensor.is_meta and name == "num_batches_tracked":
                module.register_buffer(name, torch.zeros((), dtype=torch.long, device="cpu"))
            elif tensor.is_meta:
                expected = f"a value for every tensor of {card.name}"
                raise ModelError(expected=expected, got=f"none for {path}.{name}", remedy="Report this as a bug.")
