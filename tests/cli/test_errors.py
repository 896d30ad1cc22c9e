"""A user's error is one sentence on standard error and exit code 2, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brinell as package
from brinell.cli._shared import load

ON = ("evaluate", "-m", "demo", "-d", "data.npz", "--plan", "fgsm", "--eps")

CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "no such model file": (("evaluate", "-m", "nothing.py:make", "-d", "demo", "--eps", "0.1"), "FILE.py:FACTORY"),
    "model without a factory": (("evaluate", "-m", "net.py", "-d", "demo", "--eps", "0.1"), "FILE.py:FACTORY"),
    "no such factory": (("evaluate", "-m", "net.py:make", "-d", "demo", "--eps", "0.1"), "function make in net.py"),
    "factory with arguments": (("evaluate", "-m", "net.py:needs_more", "-d", "demo", "--eps", "0.1"), "no arguments"),
    "factory fails": (("evaluate", "-m", "net.py:fails", "-d", "demo", "--eps", "0.1"), "net.py: no [weights] here"),
    "not Python": (("evaluate", "-m", "broken.py:make_net", "-d", "demo", "--eps", "0.1"), "SyntaxError in broken.py"),
    "factory that is no model": (("evaluate", "-m", "net.py:number", "-d", "demo", "--eps", "0.1"), "Classifier"),
    "train mode": (("evaluate", "-m", "net.py:in_train_mode", "-d", "demo", "--eps", "0.1"), "net.eval()"),
    "no such data": (("evaluate", "-m", "demo", "-d", "nothing.npz", "--eps", "0.1"), "does not exist"),
    "unknown kind of data": (("evaluate", "-m", "demo", "-d", "notes.txt", "--eps", "0.1"), ".npz or .safetensors"),
    "data without labels": (("evaluate", "-m", "demo", "-d", "only_x.npz", "--eps", "0.1"), "y (labels)"),
    "torn data file": (("evaluate", "-m", "demo", "-d", "torn.npz", "--eps", "0.1"), "readable file torn.npz"),
    "pickled data": (("evaluate", "-m", "demo", "-d", "objects.npz", "--eps", "0.1"), "plain arrays"),
    "file of weights as model": (("evaluate", "-m", "net.pt", "-d", "demo", "--eps", "0.1"), "loads these weights"),
    "file without a function": (("evaluate", "-m", "net.py", "-d", "demo", "--eps", "0.1"), "net.py:make_net"),
    "another function": (("evaluate", "-m", "net.py:zzz", "-d", "demo", "--eps", "0.1"), "It has make_net"),
    "torch and torchvision of two builds": (
        ("evaluate", "-m", "torn.py:make_net", "-d", "demo", "--eps", "0.1"), "torch torchvision --index-url",
    ),
    "misspelt factory": (("evaluate", "-m", "net.py:make_nett", "-d", "demo", "--eps", "0.1"), "mean 'make_net'"),
    "misspelt demo": (("evaluate", "-m", "dmeo", "-d", "demo", "--eps", "0.1"), "Did you mean 'demo'?"),
    "half a name of the zoo": (
        ("evaluate", "-m", "Carmon2019", "-d", "demo", "--eps", "0.1"), "'cifar10/Linf/Carmon2019Unlabeled'"
    ),
    "model of fewer classes": (("evaluate", "-m", "net.py:five", "-d", "demo", "--eps", "0.1"), "labels in 0..4"),
    "NaN weights": (("evaluate", "-m", "net.py:no_numbers", "-d", "demo", "--eps", "0.1"), "weights were loaded"),
    "final sigmoid": (("evaluate", "-m", "net.py:squashed", "-d", "demo", "--eps", "0.1"), "Remove the final sigmoid"),
    "factory without return": (("evaluate", "-m", "net.py:forgets", "-d", "demo", "--eps", "0.1"), "returns it"),
    "normalised images": (("evaluate", "-m", "demo", "-d", "normalised.npz", "--eps", "0.1"), "brinell.wrap(net, mean"),
    "labels out of range": (("evaluate", "-m", "demo", "-d", "labels.npz", "--eps", "0.1"), "labels in 0..9"),
    "no data": (("evaluate", "-m", "demo", "-d", "empty.npz", "--eps", "0.1"), "at least one sample"),
    "arrays of other names": (("evaluate", "-m", "demo", "-d", "named.npz", "--eps", "0.1"), "with images, labels"),
    "channels last": (("evaluate", "-m", "demo", "-d", "last.npz", "--eps", "0.1"), "Move the channels first"),
    "misspelt data set": (("evaluate", "-m", "demo", "-d", "cifar_10", "--eps", "0.1"), "Did you mean 'cifar10'"),
    "folder without classes": (("evaluate", "-m", "demo", "-d", "photos", "--eps", "0.1"), "one folder per class"),
    "unwritable folder": ((*ON, "0.1", "--out", "/proc/run"), "Choose another folder"),
    "no such leaderboard": (("benchmark", "-m", "demo", "--data", "cifar10", "--threat", "linf"), "cifar10/Linf"),
    "no such zoo model": (("zoo", "show", "nope"), "brinell zoo list"),
    "no such corruption": (("corruptions", "-m", "demo", "-d", "demo", "--only", "foggy"), "Did you mean 'fog'"),
    "no Run to report": (("report", "nowhere"), "brinell evaluate --out"),
    "a file to report": (("report", "data.npz"), "brinell evaluate --out"),
    "no samples": ((*ON, "0.1", "--n", "0"), "n of at least 1"),
    "eps in 0-255 units": ((*ON, "8"), "8/255"),
    "negative eps": ((*ON, "-0.1"), "eps > 0"),
    "eps that is no number": ((*ON, "small"), "8/255"),
    "unknown norm": ((*ON, "0.1", "--norm", "l7"), "a norm among Linf, L2, L1, L0"),
    "unknown plan": ((*ON, "0.1", "--plan", "pgd2"), "'pgd20'"),
    "unknown precision": ((*ON, "0.1", "--precision", "float7"), "float32"),
    "unknown device": ((*ON, "0.1", "--device", "quantum"), "device='cpu'"),
    "no slots": ((*ON, "0.1", "--slots", "0"), "slots of at least 1"),
    "bad part": ((*ON, "0.1", "--part", "3/2"), "such as 2/4"),
    "part that is no part": ((*ON, "0.1", "--part", "half"), "such as 2/4"),
    "clean accuracy above 100 %": ((*ON, "0.1", "--expected-clean-accuracy", "850"), "12.5%"),
    "another clean accuracy": ((*ON, "0.1", "--expected-clean-accuracy", "0.01"), "normalisation"),
    "foreign files": ((*ON, "0.1", "--out", "."), "holds files but no Run"),
    "verify of no run": (("verify", "nowhere", "-m", "demo", "-d", "demo"), "does not exist"),
    "compare of no run": (("compare", "nowhere", "here"), "manifest"),
    "merge of no run": (("merge", "nowhere", "-o", "merged"), "manifest"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_exit_code_2(case: str, brinell: Any, here: Path) -> None:
    arguments, hint = CASES[case]
    before = sorted(os.listdir(here))
    code, out, err = brinell(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: expected ")
    assert err.count("\n") == 1
    assert hint in err
    assert "Traceback" not in err
    assert sorted(set(os.listdir(here)) - {"__pycache__"}) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate",),
        ("evaluate", "--wrong"),
        ("nonsense",),
        ("evaluate", "-m", "demo", "-d", "demo", "--eps", "1", "--n", "x"),
    ],
    ids=["nothing", "unknown option", "unknown verb", "no number"],
)
def test_usage_errors(arguments: tuple[str, ...], brinell: Any) -> None:
    code, out, err = brinell(*arguments)
    assert code == 2
    assert out == ""
    assert "Usage" in err
    assert "Traceback" not in err


def test_all_missing_options_are_named_at_once(brinell: Any) -> None:
    code, _, err = brinell("evaluate", "net.py:make", "test.npz", "--eps", "8/255")
    said = " ".join(err.replace("│", " ").split())
    assert code == 2
    assert "Missing options: --model, --data. Did you mean --model net.py:make --data test.npz?" in said
    assert "Missing options: --model, --data, --eps." in " ".join(brinell("evaluate").err.split())
    assert brinell("evaluate", "--help").code == 0


def test_a_used_folder(brinell: Any, here: Path) -> None:
    assert brinell(*ON, "0.1", "-q", "--out", "run").code == 0
    code, out, _ = brinell(*ON, "0.1", "-q", "--out", "run")
    assert code == 0 and "run" in out  # the finished Run of the same evaluation
    code, _, err = brinell(*ON, "0.2", "-q", "--out", "run")
    assert code == 2
    assert "threat.eps (stored 0.1, given 0.2)" in err and "--out" in err
    code, _, err = brinell(*ON, "0.2", "-q", "--out", "run", "--resume", "--seed", "4")
    assert code == 2
    assert "threat.eps" in err
    assert "seed" in err
    assert brinell(*ON, "0.1", "-q", "--out", "run", "--resume").code == 0


def test_the_real_program(here: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "brinell", *ON, "8"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: expected a Linf eps of at most 1")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "distances -d demo --csv no/a.csv",
        "distances -d demo --plot no/a.svg",
        "corruptions -m demo -d demo --csv no/a.csv",
        "analyze trace -m demo -d demo --eps 0.1 --csv no/a.csv",
        "analyze trace -m demo -d demo --eps 0.1 --json no/a.json",
        "analyze logit-scale -m demo -d demo --eps 0.1 --csv no/a.csv",
        "analyze logit-scale -m demo -d demo --eps 0.1 --plot no/a.svg",
    ],
)
def test_the_folder_of_a_file_to_write_is_checked_before_the_work(
    words: str, brinell: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "data", lambda *a: pytest.fail("the data were read before the path was checked"))
    code, _, err = brinell(*words.split())
    assert code == 2 and "a file in an existing folder" in err and "Make the folder no first." in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_for_the_output_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "brinell", "plans"]
        ended = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2 and "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
