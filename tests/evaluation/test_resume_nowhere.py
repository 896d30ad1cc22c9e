"""To go on with a Run takes a Run."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import brinell
from brinell import InputError, Linf
from brinell.cli.main import app

DATA = brinell.data.load("demo", 4)
CALLS: dict[str, Callable[[], Any]] = {
    "evaluate": lambda: brinell.evaluate("demo", DATA, Linf(0.1), "fgsm", resume=True, progress=False),
    "estimate": lambda: brinell.estimate("demo", DATA, Linf(0.1), "fgsm", resume=True),
    "curve": lambda: brinell.curve("demo", DATA, "Linf", "minimal-quick", resume=True, progress=False),
    "rescalings": lambda: brinell.rescalings("demo", DATA, Linf(0.1), targets=1, resume=True, progress=False),
    "benchmark": lambda: brinell.benchmark("demo", "demo", "Linf", n=4, resume=True, progress=False),
}


@pytest.mark.parametrize("name", CALLS)
def test_resume_without_out_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="resume without out") as caught:
        CALLS[name]()
    assert "out= (--out)" in caught.value.remedy


COMMON = ["--model", "demo", "--data", "demo", "--n", "4", "--quiet", "--resume"]


@pytest.mark.parametrize(
    "call",
    [
        ["rescalings", *COMMON, "--eps", "0.1"],
        ["curve", *COMMON, "--norm", "Linf", "--plan", "minimal-quick"],
    ],
    ids=["rescalings", "curve"],
)
def test_the_program_refuses_it_too(call: list[str]) -> None:
    done = CliRunner().invoke(app, call)
    assert done.exit_code != 0
    assert isinstance(done.exception, InputError) and "resume without out" in str(done.exception)
