"""Models of the zoo: the bare network, or a classifier with the published weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brinell.errors import ModelError
from brinell.models.arch import network
from brinell.models.wrap import TorchClassifier, wrap
from brinell.models.zoo.card import Card, find
from brinell.models.zoo.fetch import Progress, fetch
from brinell.models.zoo.timm import build_with_timm
from brinell.models.zoo.weights import fill, read, tensors

__all__ = ["build", "load"]

TIMM = "timm"


def _config(card: Card) -> Mapping[str, Any]:
    if card.network is None:
        raise ModelError(
            expected=f"a network for {card.name}",
            got=f"none in Brinell: {card.missing}",
            remedy="Build it with the code of its publication and call brinell.wrap(net).",
        )
    return card.network


def _network(card: Card) -> nn.Module:
    config = _config(card)
    return build_with_timm(config) if config["family"] == TIMM else network(config)


def build(name: str) -> nn.Module:
    """The bare network of a model of the zoo, with torch's own initial weights and the names of the publication.

    >>> len(build("cifar10/Linf/Wong2020Fast").state_dict())
    104
    """
    return _network(find(name))


def load(
    name: str,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> TorchClassifier:
    """A model of the zoo with its published weights, fetched into the cache when first asked for.

    Files are read without running code in them; their sha256 must be the one in the card or, where that is not known,
    the one of the first time. `progress` is called with bytes so far and in all. `folder` is one of RobustBench's, with
    DATA/THREAT/MODEL.pt in it: what it holds is used as it is.

    >>> load("fashion-mnist/Linf/Demo").forward(torch.zeros(2, 1, 28, 28)).logits.shape
    torch.Size([2, 10])
    """
    card = find(name)
    _config(card)
    if card.unloadable:
        raise ModelError(
            expected=f"a checkpoint of {card.name} that can be loaded",
            got=card.unloadable,
            remedy="Load it with the code of its publication and call brinell.wrap(net).",
        )
    # Ours need no initial weights, since all come from the files; timm computes some buffers instead of storing them.
    with torch.device("cpu" if _config(card)["family"] == TIMM else "meta"):
        net = _network(card)
    paths = _held(card, folder) or fetch(card, progress)
    for file, path in zip(card.files, paths, strict=True):
        part = net.get_submodule(file.into.rstrip("."))
        fill(part, tensors(read(path, card.name), card.keys), card.keys, card.name)
    _complete(net, card)
    net.eval().requires_grad_(False)
    around = _config(card).get("inputs", {}) if _config(card)["family"] == TIMM else {}
    classifier = wrap(net, around.get("mean"), around.get("std"), name=card.name)
    return classifier if device is None else classifier.to(torch.device(device))


def _held(card: Card, folder: Path | None) -> list[Path]:
    """The model's files in a folder of RobustBench's, or none."""
    if folder is None:
        return []
    ends = [".pt"] if len(card.files) == 1 else [f".pt_m{i}.pt" for i in range(len(card.files))]
    paths = [folder / f"{card.name}{end}" for end in ends]
    return paths if all(path.is_file() for path in paths) else []


def _complete(net: nn.Module, card: Card) -> None:
    """Counters that older checkpoints lack become zero; nothing else may still be without a value."""
    for path, module in net.named_modules():
        for name, tensor in (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False)):
            if tensor.is_meta and name == "num_batches_tracked":
                module.register_buffer(name, torch.zeros((), dtype=torch.long))
            elif tensor.is_meta:
                raise ModelError(
                    expected=f"every tensor of {card.name} in its files",
                    got=f"none for {path}.{name}",
                    remedy="Report it.",
                )
