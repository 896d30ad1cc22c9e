"""What a launcher refuses, and how it is asked for; without Ray."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import brinell
from brinell import InputError, Run
from brinell.cli.commands import evaluate as verb
from brinell.cli.main import app
from brinell.distributed import Ray
from brinell.distributed.serialize_model import _user_modules
from brinell.evaluation.backend import IN_PROCESS, Backend


@pytest.mark.parametrize("workers", [0, -1, True, "", "gpus", "gpu:", "gpu:x", "gpu:0", "-2", "0"])
def test_odd_numbers_of_workers(workers: Any) -> None:
    with pytest.raises(InputError, match="workers"):
        Ray(workers=workers)


@pytest.mark.parametrize(("workers", "device"), [(2, "cpu"), ("3", "cpu"), ("gpu", "cuda"), ("gpu:4", "cuda")])
def test_the_device_follows_from_the_workers(workers: Any, device: str) -> None:
    launcher = Ray(workers=workers)
    assert isinstance(launcher, Backend)
    assert launcher.device == torch.device(device)


@pytest.mark.parametrize("more", [{"threads": 0}, {"unit": 0}, {"unit": 1.5}, {"address": "ray://head:10001"}])
def test_odd_options(more: dict[str, Any]) -> None:
    with pytest.raises((InputError, Exception)) as caught:
        Ray(workers=1, **more)
    assert "expected" in str(caught.value).lower()


def test_without_ray_the_extra_is_named(
    evaluate: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(brinell.MissingExtra, match=r"pip install 'brinell\[ray\]'"):
        evaluate(20, out=tmp_path / "never", launch=Ray(workers=1))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], IN_PROCESS),
        (["--workers", "2"], Ray(workers="2")),
        (["--workers", "gpu"], Ray(workers="gpu")),
        (["--ray", "auto"], Ray(workers="gpu", address="auto")),
        (["--workers", "gpu:8", "--ray", "head:6379"], Ray(workers="gpu:8", address="head:6379")),
    ],
    ids=["none", "two", "gpus", "cluster", "both"],
)
def test_the_program_asks_for_workers(options: list[str], wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def evaluate(*_: Any, **keywords: Any) -> None:
        asked.update(keywords)
        raise brinell.PlanError(expected="-", got="-", remedy="-")

    monkeypatch.setattr(verb, "evaluate", evaluate)
    CliRunner().invoke(app, ["evaluate", "--model", "demo", "--data", "demo", "--n", "2", "--eps", "0.1", *options])
    assert asked["launch"] == wanted


def test_a_unit_has_its_own_radii() -> None:
    at = torch.tensor([3, 0])
    assert brinell.Linf(torch.tensor([0.1, 0.2, 0.3, 0.4])).subset(at).eps.tolist() == pytest.approx([0.4, 0.1])
    assert brinell.L2(0.5).subset(at).eps == 0.5


def test_users_modules_travel_and_installed_ones_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_layers.py").write_text("from torch import nn\nimport my_helper\nclass Mine(nn.Identity): pass\n")
    (tmp_path / "my_helper.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_layers  # type: ignore[import-not-found]

    model = brinell.wrap(torch.nn.Sequential(my_layers.Mine(), torch.nn.Linear(2, 2)).eval())
    names = {m.__name__ for m in _user_modules([model, brinell.attacks.PGD()])}
    assert names == {"my_layers", "my_helper"}
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    assert _user_modules([brinell.wrap(torch.nn.Linear(2, 2).eval())]) == []


def test_detectors_travel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_guard.py").write_text("def score(x):\n    return x.flatten(1).mean(1) - 0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_guard  # type: ignore[import-not-found]

    model = brinell.wrap(torch.nn.Linear(2, 2).eval(), detector=my_guard.score)
    assert [m.__name__ for m in _user_modules([model])] == ["my_guard"]
    monkeypatch.delitem(sys.modules, "my_guard")
