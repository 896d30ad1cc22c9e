"""The program, run in this process: arguments in, exit code and both streams out."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from brinell import data
from brinell.cli import main

MODEL = '''
"""Models of a user."""
import torch
from torch import nn
from helper import WIDTH
from brinell.models.demo import demo_net


def make_net():
    return demo_net()


def in_train_mode():
    return demo_net().train()


def needs_more(path):
    return demo_net()


def fails():
    raise FileNotFoundError("no [weights] here")


def wrapped():
    import brinell
    return brinell.wrap(demo_net(), name="mine")


def five():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 5)).eval()


def no_numbers():
    net = demo_net()
    nn.init.constant_(next(net.parameters()), float("nan"))
    return net


def squashed():
    return nn.Sequential(demo_net(), nn.Sigmoid()).eval()


def forgets():
    demo_net()


ready = demo_net()
number = WIDTH
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


Program = Callable[..., Result]


@pytest.fixture(scope="session", autouse=True)
def _runs_without_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is evaluated without a folder goes where pytest cleans up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("runs")))
        yield


@pytest.fixture
def brinell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    """Run `brinell …`."""

    def run(*arguments: object, width: int = 100) -> Result:
        monkeypatch.setattr(sys, "argv", ["brinell", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model file and data files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text("WIDTH = 3\n")
    (tmp_path / "broken.py").write_text("def make_net(:\n")
    (tmp_path / "torn.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (tmp_path / "notes.txt").write_text("not data")
    problem = data.load("demo", 12)
    x, y = problem.x.numpy(), problem.y.numpy()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "only_x.npz", x=x)
    np.savez(tmp_path / "normalised.npz", x=(x - 0.5) / 0.25, y=y)
    np.savez(tmp_path / "labels.npz", x=x, y=y + 1)
    np.savez(tmp_path / "empty.npz", x=x[:0], y=y[:0])
    np.savez(tmp_path / "named.npz", images=x, labels=y)
    np.savez(tmp_path / "last.npz", x=x.transpose(0, 2, 3, 1), y=y)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    (tmp_path / "net.pt").write_bytes(b"")
    np.savez(tmp_path / "bytes.npz", x=(255 * x).astype(np.uint8), y=y)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object), y=y)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:500])
    return tmp_path
