"""The zoo on the command line."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from brinell.cli._shared.terminal import make_table, print_table
from brinell.models.zoo import cards

DEMO = "fashion-mnist/Linf/Demo"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINELL_OFFLINE", "1")


def test_list_filters_and_sorts(brinell: Any) -> None:
    code, out, _ = brinell("zoo", "list", "--data", "cifar10", "--threat", "L2", "--loadable", "--json")
    names = [c["name"] for c in json.loads(out)]
    wanted = [c for c in cards().values() if c.data == "cifar10" and c.threat == "L2" and c.loadable]
    assert code == 0 and set(names) == {c.name for c in wanted}
    robust = [cards()[n].best_known or cards()[n].robust_accuracy or 0.0 for n in names]
    assert robust == sorted(robust, reverse=True)


def test_list_says_what_loads(brinell: Any) -> None:
    code, out, _ = brinell("zoo", "list", "--data", "fashion-mnist", width=200)
    assert code == 0 and "83.40" in out and "in cache" in out


def test_tables_in_a_pipe_are_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = make_table("", ("name", "why"), [(name, "a long sentence " * 9) for name in cards()])
    pipe = io.StringIO()
    print_table(table, Console(file=pipe))
    assert all(f"{name} " in pipe.getvalue() for name in cards()) and pipe.getvalue().count("\n") == len(cards()) + 4


def test_show(brinell: Any, tmp_path: Path) -> None:
    code, out, _ = brinell("zoo", "show", "Carmon2019Unlabeled", width=400)
    assert code == 0
    for text in ("arxiv.org/abs/1905.13736", "89.69", "59.53", "gdrive:15tUx", '"depth": 28', "MIT", "Percy Liang"):
        assert text in out
    assert json.loads(brinell("zoo", "show", DEMO, "--json")[1])["licence"] == "MIT"


def test_a_non_commercial_licence_is_said_loudly(brinell: Any) -> None:
    code, out, err = brinell("zoo", "show", "cifar10/Linf/Ding2020MMA", width=200)
    assert code == 0 and "CC-BY-NC-SA-4.0" in out and "Gavin Weiguang Ding" in out
    assert err.count("NON-COMMERCIAL") == 1
    code, out, err = brinell("zoo", "list", "--data", "cifar10", "--threat", "L2", width=200)
    assert code == 0 and "Apache-2.0" in out and err.count("NON-COMMERCIAL") == 1
    assert "NON-COMMERCIAL" not in brinell("zoo", "list", "--data", "cifar100", width=200)[2]


def test_show_says_why_there_is_no_network(brinell: Any) -> None:
    assert "none: a mixture" in brinell("zoo", "show", "cifar10/Linf/Bai2024MixedNUTS", width=200)[1]


def test_fetch_offline_names_the_place(brinell: Any, tmp_path: Path) -> None:
    code, _, err = brinell("zoo", "fetch", "Carmon2019Unlabeled", "-q", width=1000)
    assert code == 2
    assert str(tmp_path / "cache" / "models" / "cifar10" / "Linf" / "Carmon2019Unlabeled.pt") in err


def test_fetch_prints_where_the_files_are(brinell: Any) -> None:
    code, out, err = brinell("zoo", "fetch", DEMO, "-q")
    assert (code, err) == (0, "") and out.strip().endswith("demo.safetensors")


def test_check_agrees_and_disagrees(brinell: Any, here: Path) -> None:
    code, out, _ = brinell("zoo", "check", "Demo", "--data", "demo", "--json")
    (result,) = json.loads(out)
    assert code == 0 and result["ok"] and result["accuracy"] == 0.834 and result["n"] == 1000
    from brinell import data

    images = data.load("demo")
    np.savez(here / "wrong.npz", x=images.x.numpy(), y=(images.y.numpy() + 1) % 10)
    code, out, _ = brinell("zoo", "check", DEMO, "--data", "wrong.npz")
    assert code == 1 and "differs" in out


def test_a_model_of_the_zoo_can_be_evaluated(brinell: Any, here: Path) -> None:
    arguments = ("--data", "data.npz", "--eps", "0.1", "--plan", "fgsm", "-q", "--json")
    by_name = json.loads(brinell("evaluate", "-m", DEMO, *arguments)[1])
    assert by_name["robust_accuracy"] == json.loads(brinell("evaluate", "-m", "demo", *arguments)[1])["robust_accuracy"]


def test_an_unknown_model_is_one_sentence(brinell: Any) -> None:
    code, _, err = brinell("zoo", "show", "cifar10/Linf/Carmon2020", width=400)
    assert code == 2 and "Did you mean 'cifar10/Linf/Carmon2019Unlabeled'" in err
