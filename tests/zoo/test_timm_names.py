"""`timm:NAME` with a stand-in for timm: its interface, without its need for torchvision."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import brinell
from brinell.core.model import ExpectedInputs
from brinell.errors import MissingExtra, ModelError
from brinell.models.by_name import load_model

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A module `timm` with one model; the dict is its configuration."""
    config = {
        "input_size": (3, 8, 8), "crop_pct": 0.8, "interpolation": "bicubic", "mean": MEAN, "std": STD,
        "crop_mode": "center",
    }  # fmt: skip

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pretrained_cfg = config
            self.head = nn.Linear(3, 4)
            nn.init.constant_(self.head.bias, 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x.mean((2, 3)))

    def create_model(name: str, pretrained: bool = False) -> nn.Module:
        if name != "small" or not pretrained:
            raise RuntimeError(f"Unknown model ({name})")
        return Net()

    module = ModuleType("timm")
    module.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    return config


def test_normalisation_and_size_are_those_of_timm(timm: dict[str, Any]) -> None:
    model = load_model("timm:small")
    assert model.name == "timm:small" and not model.modes()
    assert model.inputs == ExpectedInputs((3, 8, 8), 10, 8, "bicubic")
    x = torch.full((2, 3, 8, 8), 0.3)
    normalised = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert torch.allclose(model.forward(x).logits, model.module(normalised))


@pytest.mark.parametrize(
    ("changes", "resize", "crop"),
    [({"crop_mode": "squash"}, (10, 10), 8), ({"input_size": (3, 8, 16)}, (8, 16), None), ({"crop_pct": 1.0}, 8, 8)],
)
def test_other_configurations(timm: dict[str, Any], changes: dict[str, Any], resize: Any, crop: Any) -> None:
    timm.update(changes)
    inputs = load_model("timm:small").inputs
    assert (inputs.resize, inputs.crop) == (resize, crop)


def test_pictures_get_the_size_of_the_model(timm: dict[str, Any], tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / "pictures" / str(i)).mkdir(parents=True)
        pixels = np.full((20, 30, 3), 60 * i, np.uint8)
        pixels[:, ::2] = 20
        Image.fromarray(pixels).save(tmp_path / "pictures" / str(i) / f"{i}.png")
    data = str(tmp_path / "pictures")
    run = brinell.evaluate("timm:small", data, brinell.Linf(0.01), "fgsm", progress=False, test=False)
    assert {c["name"]: c["level"] for c in run.checks}["input size"] == "ok"
    assert run.clean_accuracy.n == 4 and sorted(run.sample_names.values()) == [f"{i}/{i}.png" for i in range(4)]
    other = brinell.data.load(data, preprocessing="Res32")
    run = brinell.evaluate("timm:small", other, brinell.Linf(0.01), "fgsm", progress=False, test=False)
    found = {c["name"]: c for c in run.checks}["input size"]
    assert found["level"] == "warn" and "3 × 8 × 8, these are 3 × 32 × 32" in found["message"]
    assert run.verdict.level == "suspicious"


def test_names_that_timm_does_not_know(timm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="list_models"):
        load_model("timm:smal")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"brinell\[zoo\]"):
        load_model("timm:small")


def test_a_package_that_timm_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text("import torchvision_of_nobody")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(MissingExtra, match=r"timm without torchvision_of_nobody.*: pip install torchv"):
        load_model("timm:resnet18")
