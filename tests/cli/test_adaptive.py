"""The option --adaptive: what was done is stored and shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from brinell import Run

pytestmark = pytest.mark.usefixtures("unchecked")

MODEL = """
import torch
from torch import nn
from brinell.models.demo import demo_net


class Flat(nn.Module):
    def forward(self, x):
        return x.detach() + 0 * x


def masked():
    return nn.Sequential(Flat(), demo_net()).eval()
"""


def test_what_was_done_is_stored_and_shown(brinell: Any, here: Path) -> None:
    Path("masked.py").write_text(MODEL)
    evaluate = ("evaluate", "--model", "masked.py:masked", "--data", "demo", "--n", 8, "--eps", "0.1", "--plan", "fgsm")
    plain = json.loads(brinell(*evaluate, "-q", "--json").out)
    code, out, err = brinell(*evaluate, "--adaptive", "-q", "--json", "--out", "run")
    assert code == 0, err
    assert json.loads(out)["robust_accuracy"]["value"] < plain["robust_accuracy"]["value"]
    run = Run.open("run")
    assert "the module 0 misleads" in next(c["message"] for c in run.checks if c["name"] == "adaptive")
    assert "apgd-ce via ~0" in run.attacks
    code, _, err = brinell("report", "run", "--out", "report.html")
    assert code == 0, err
    assert "the module 0 misleads" in Path("report.html").read_text()
