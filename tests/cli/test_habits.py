"""What people type from habit: other spellings, shares in any unit, Runs as arguments, names completed by the shell."""

import inspect
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from brinell import data
from brinell.analysis.across_models import across_models
from brinell.cli._shared import completion, options
from brinell.cli.main import COMMANDS, GROUPS, command_of
from brinell.models import zoo
from brinell.models.by_name import load_model

ON = ("evaluate", "-m", "demo", "-d", "demo", "--n-examples", 8, "--eps", 0.1, "--quiet")


def every_command() -> dict[str, Any]:
    alone = {name: command_of(name) for name, *_ in COMMANDS}
    grouped = {f"{name} {c.name}": c.callback for name, *_ in GROUPS for c in command_of(name).registered_commands}
    return alone | grouped


def parameters(command: Any) -> dict[str, Any]:
    found = inspect.signature(options.expanded(command)).parameters
    return {name: get_args(p.annotation)[1] for name, p in found.items() if len(get_args(p.annotation)) > 1}


def test_no_command_takes_a_run_by_an_option() -> None:
    """`--out` writes one. `--run` and `--known` still work for old scripts, unseen."""
    named = {
        (name, option)
        for name, command in every_command().items()
        for option, info in parameters(command).items()
        if isinstance(info, typer.models.OptionInfo)
        if "of a Run" in (info.help or "") and option not in ("fail_under", "no_images", "out") and not info.hidden
    }
    assert named == set()


@pytest.mark.parametrize("share", ["1/4", "0.25", "25%", "25 %", "25"])
def test_every_share_is_read_alike(share: str, brinell: Any, here: Path) -> None:
    assert options.share(share, "--audit") == 0.25
    out = brinell(*ON, "--plan", "fast", "--audit", share, "--dry-run", "--json")
    assert out.code == 0, out.err
    code, _, err = brinell("evaluate", *ON[1:], "--plan", "fgsm", "--expected-clean-accuracy", share)
    assert code == 2 and "a clean accuracy of 25.0 %" in err


def test_options_that_are_shares_take_text() -> None:
    shares = {"audit", "expected_clean_accuracy", "fail_under", "confidence", "clean_error", "gap"}
    for name, command in every_command().items():
        for option, p in inspect.signature(options.expanded(command)).parameters.items():
            if option in shares:
                assert "str" in str(get_args(p.annotation)[0]), (name, option)


def test_the_gate_reads_a_share(brinell: Any, here: Path) -> None:
    assert brinell(*ON, "--plan", "fgsm", "--out", "run").code == 0
    assert brinell("report", "run", "--format", "md", "--fail-under", "0%", "--require", "suspicious").code == 0
    code, _, err = brinell("report", "run", "--format", "md", "--fail-under", "99/100", "--require", "suspicious")
    assert code == 1 and "below 99 %" in err


def test_american_spelling_and_batch_size() -> None:
    names = [name for info in parameters(command_of("train")).values() for name in info.param_decls]
    assert {"--optimizer", "--batch-size", "--n-examples"} <= set(names)


def test_a_factory_in_an_importable_module(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "nets" / "small").mkdir(parents=True)
    (here / "nets" / "small" / "__init__.py").write_text("")
    (here / "nets" / "small" / "demo.py").write_text((here / "net.py").read_text().replace("import helper", ""))
    monkeypatch.chdir(here)
    try:
        assert load_model("nets.small.demo:wrapped").name == "mine"
        assert load_model("nets.small.demo:make_net").name == "nets.small.demo:make_net"
        assert load_model(f"{here}/nets/small/demo.py:make_net").name == "demo.py:make_net"
        with pytest.raises(Exception, match="make_net"):
            load_model("nets.small.demo:make_nett")
        with pytest.raises(Exception, match=r"nets\.small\.nowhere"):
            load_model("nets.small.nowhere:make_net")
        assert across_models(["nets.small.demo:wrapped"], lambda m, _: m.name).measured[0].result == "mine"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "nets"]:
            del sys.modules[name]
    assert str(here) not in sys.path


@pytest.mark.filterwarnings("default")
def test_more_samples_than_there_are(brinell: Any, here: Path) -> None:
    code, out, err = brinell("evaluate", "-m", "demo", "-d", "data.npz", "--n", 100, "--eps", 0.1, "--plan", "fgsm")
    assert code == 0 and "n = 12" in out
    assert "n = 100 is more than the data have: all 12 samples are used." in " ".join(err.split())
    with pytest.warns(UserWarning, match="all 12 samples"):
        assert len(data.load(here / "data.npz", 100)) == 12


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("brinell evaluate --plan autoattack-p", ["autoattack-paper", "autoattack-plus"]),
        ("brinell evaluate -m cifar10/L2/Rice", ["cifar10/L2/Rice2020Overfitting"]),
        ("brinell curve --data mn", ["mnist"]),
        ("brinell curve --norm L", ["Linf", "L2", "L1", "L0"]),
        ("brinell dem", ["demo"]),
    ],
)
def test_the_shell_completes(typed: str, expected: list[str], brinell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(completion.VARIABLE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert brinell().out.split() == expected


def test_completed_names_exist() -> None:
    assert list(completion.DATA) == sorted(("demo", *data.SETS))
    assert completion.models("") == ["demo", *zoo.cards()]
