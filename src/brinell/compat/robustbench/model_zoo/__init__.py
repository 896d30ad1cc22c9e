"""The published models of RobustBench as `model_dicts`; `enums` names its data sets and threat models."""

from collections import OrderedDict
from typing import Any

from brinell.compat.robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel
from brinell.models import zoo


def published_models() -> "OrderedDict[BenchmarkDataset, dict[ThreatModel, dict[str, dict[str, Any]]]]":
    """Return the published models by data set, threat model and name; `card` holds what is known about each."""
    listed: OrderedDict[BenchmarkDataset, dict[ThreatModel, dict[str, dict[str, Any]]]] = OrderedDict()
    known = {d.value: d for d in BenchmarkDataset}
    for name, card in zoo.cards().items():
        data, threat, model = name.split("/")
        if data in known:
            of_threat = listed.setdefault(known[data], {}).setdefault(ThreatModel(threat), {})
            of_threat[model] = {"card": card, "model": lambda name=name: zoo.build(name)}
    return listed


def __getattr__(name: str) -> Any:
    """Return `model_dicts`, the published models by data set, threat model and name, made when it is first read."""
    if name == "model_dicts":
        return published_models()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
