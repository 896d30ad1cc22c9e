"""Every verb does what its help says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

import brinell as package
from brinell import Run, data

EVALUATE = ("evaluate", "--model", "demo", "--data", "demo", "--n", "12", "--eps", "0.1", "--plan", "fgsm", "-q")


# Lines for the clipboard are never broken.
WHOLE = ("Under ", "Run: ", "  report ", "  check again ", "  share ")


def no_line_is_longer(text: str, width: int, but: tuple[str, ...] = WHOLE) -> bool:
    return all(len(line) <= width for line in text.splitlines() if not line.startswith(but))


def test_version(brinell: Any) -> None:
    code, out, _ = brinell("--version")
    assert code == 0
    assert out == f"brinell {package.__version__}\n"


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("evaluate", "--help"), ("verify", "-h"), ("merge", "-h")])
def test_help(arguments: tuple[str, ...], brinell: Any) -> None:
    code, out, _ = brinell(*arguments)
    assert code == 0
    assert "Usage" in out


def test_help_lists_every_verb(brinell: Any) -> None:
    out = brinell("--help").out
    for verb in ("evaluate", "verify", "compare", "merge", "plans", "demo", "doctor"):
        assert verb in out


def test_evaluate_shows_a_run(brinell: Any, here: Path) -> None:
    code, out, err = brinell(*EVALUATE, "--out", "run")
    assert code == 0
    assert err == ""
    for part in (
        "demo · Linf, eps = 0.1 · plan fgsm",
        "clean",
        "fgsm-ce",
        "robust accuracy",
        "verdict",
        "cost",
        "Run: run",
    ):
        assert part in out
    run = Run.open(here / "run")
    assert run.sentence() in out.splitlines()
    assert no_line_is_longer(out, 100)


def test_evaluate_stays_aligned_on_narrow_screens(brinell: Any, here: Path) -> None:
    out = brinell(*EVALUATE, width=70).out
    assert no_line_is_longer(out, 70)
    panel = [line for line in out.splitlines() if line.startswith("│ ")]
    assert len({len(line) for line in panel if not line.count("│") > 2}) == 1


def test_evaluate_json(brinell: Any, here: Path) -> None:
    code, out, _ = brinell(*EVALUATE, "--out", "run", "--json")
    told = json.loads(out)
    run = Run.open(here / "run")
    assert code == 0
    assert told["robust_accuracy"]["value"] == float(run.robust_accuracy)
    assert told["robust_accuracy"]["n"] == 12
    assert told["clean_accuracy"]["k"] == run.clean_accuracy.k
    assert [s["attack"] for s in told["stages"]] == ["fgsm-ce"]
    assert told["cost"]["forwards"] == run.cost.forwards
    assert told["verdict"]["level"] == run.verdict.level
    assert told["sentence"] == run.sentence()
    assert told["plan"] == "fgsm"


def test_progress_goes_to_standard_error(brinell: Any, here: Path) -> None:
    _, out, err = brinell(*EVALUATE[:-1], "--json")
    json.loads(out)
    assert "fgsm-ce" in err


@pytest.mark.parametrize("model", ["net.py:make_net", "net.py:ready", "net.py:wrapped", "./net.py:make_net"])
def test_models_from_a_file(model: str, brinell: Any, here: Path) -> None:
    code, out, err = brinell(
        "evaluate", "-m", model, "-d", "data.npz", "--eps", "0.1", "--plan", "fgsm", "-q", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["robust_accuracy"]["n"] == 12


def test_data_from_safetensors_with_ids(brinell: Any, here: Path) -> None:
    problem = data.load("demo", 12)
    tensors = {"x": problem.x.numpy(), "y": problem.y.numpy(), "ids": problem.ids.numpy() + 100}
    save_file(tensors, here / "data.safetensors")
    code, _, err = brinell(
        "evaluate", "-m", "demo", "-d", "data.safetensors", "--eps", "0.1", "--plan", "fgsm", "-q", "-o", "run"
    )
    assert code == 0, err
    assert Run.open("run").rows()["sample_id"].to_pylist()[0] == 100


def test_n_takes_the_first(brinell: Any, here: Path) -> None:
    out = brinell(
        "evaluate", "-m", "demo", "-d", "data.npz", "--n", "5", "--eps", "0.1", "--plan", "fgsm", "-q", "--json"
    ).out
    assert json.loads(out)["robust_accuracy"]["n"] == 5


def test_all_options(brinell: Any, here: Path) -> None:
    code, out, err = brinell(
        *EVALUATE, "--norm", "L2", "--out", "run", "--seed", 3, "--slots", 4, "--precision", "float32",
        "--device", "cpu", "--individual", "--expected-clean-accuracy", "0.85", "--resume", "--json",
    )  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    assert told["threat"]["norm"] == "L2"
    assert told["seed"] == 3


def test_eps_as_a_fraction(brinell: Any, here: Path) -> None:
    out = brinell("evaluate", "-m", "demo", "-d", "data.npz", "--eps", "8/255", "--plan", "fgsm", "-q").out
    assert "eps = 8/255" in out


def test_verify(brinell: Any, here: Path) -> None:
    brinell(*EVALUATE, "--out", "run", "--n", "40")
    n = len(Run.open("run").adversarials().ids)
    code, out, _ = brinell("verify", "run", "--model", "demo", "--data", "demo")
    assert code == 0 and out.startswith(f"{n} of {n} adversarials verified; ") and "survivors run again (seed" in out
    assert "first 40 of the 1,000 samples" in out
    code, out, _ = brinell("verify", "run", "--model", "demo", "--data", "demo", "--n", 40, "--json", "--rerun", 0)
    told = {"ok": True, "checked": n, "held": n, "again": None, "failures": {}, "objections": [], "notes": []}
    assert json.loads(out) == told


def test_verify_fails_with_exit_code_1(brinell: Any, here: Path) -> None:
    brinell(*EVALUATE, "--out", "run", "--n", "40")
    (here / "other.py").write_text(
        "from torch import nn\n"
        "class Undecided(nn.Module):\n"
        "    def forward(self, x):\n        return x.flatten(1)[:, :10] + float('nan')\n"
        "def make():\n    return Undecided().eval()\n"
    )
    code, out, _ = brinell("verify", "run", "-m", "other.py:make", "-d", "demo")
    assert code == 1
    assert "failed: sample" in out
    code, out, _ = brinell("verify", "run", "-m", "other.py:make", "-d", "demo", "--json")
    assert code == 1
    told = json.loads(out)
    assert not told["ok"] and told["held"] == 0 and "another model" in told["notes"][0]
    attacked = Run.open("run").adversarials().ids.tolist()
    assert {told["failures"][str(i)] for i in attacked} == {"not misclassified"}


def test_compare(brinell: Any, here: Path) -> None:
    brinell(*EVALUATE, "--out", "a")
    brinell(*EVALUATE, "--out", "b", "--eps", "0.3")
    code, out, _ = brinell("compare", "a", "b")
    assert code == 0
    assert "McNemar" in out and "Verdict on A: " in out
    code, _, err = brinell("compare", "a", "b", "a")
    assert code == 2 and "brinell report a b a" in err
    tex = brinell("compare", "a", "b", "--format", "tex").out
    assert r"\caption{Paired comparison on" in tex and r"\end{tabular}" in tex
    assert brinell("compare", "a", "b", "--format", "md").out.startswith("|  | robust accuracy |")
    told = json.loads(brinell("compare", "a", "b", "--json").out)
    assert told["n"] == 12
    assert told["only_b"] == []
    shares = [told["difference"], told["agreement"], *told["robust"]]
    assert all(s["low"] <= s["value"] <= s["high"] for s in shares)
    assert told["agreement"]["k"] == 12 - len(told["only_a"]) and told["agreement"]["n"] == 12


def test_parts_merge_to_the_whole(brinell: Any, here: Path) -> None:
    brinell(*EVALUATE, "--out", "whole")
    for part in ("1/2", "2/2"):
        assert brinell(*EVALUATE, "--part", part, "--out", part[0]).code == 0
    code, out, _ = brinell("merge", "2", "1", "--out", "merged")
    assert code == 0
    assert "robust accuracy" in out
    drop = ["seconds", "adv_shard", "adv_row"]
    merged, whole = (Run.open(p).rows().drop_columns(drop).combine_chunks() for p in ("merged", "whole"))
    assert merged.equals(whole)
    assert brinell("verify", "merged", "-m", "demo", "-d", "demo").code == 0
    told = json.loads(brinell("merge", "1", "2", "-o", "again", "--json").out)
    assert told["robust_accuracy"]["n"] == 12


def test_two_processes_share_the_work(brinell: Any, here: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from brinell.cli import main; main()"]
    workers = [
        subprocess.Popen([*program, *EVALUATE, "--part", f"{i}/2", "--out", str(i)], env=env, stdout=subprocess.DEVNULL)
        for i in (1, 2)
    ]
    assert [w.wait(timeout=120) for w in workers] == [0, 0]
    brinell(*EVALUATE, "--out", "whole")
    assert brinell("merge", "1", "2", "--out", "merged").code == 0
    drop = ["seconds", "adv_shard", "adv_row"]
    merged, whole = (Run.open(p).rows().drop_columns(drop).combine_chunks() for p in ("merged", "whole"))
    assert merged.equals(whole)


def test_plans(brinell: Any) -> None:
    code, out, _ = brinell("plans")
    assert code == 0
    assert all(name in out for name in package.plans())
    assert no_line_is_longer(out, 100)
    told = json.loads(brinell("plans", "--json").out)
    assert sorted(told) == sorted(package.plans())
    assert told["pgd20"]["stages"][0]["attack"]["steps"] == 20


def test_demo(brinell: Any, here: Path) -> None:
    code, out, _ = brinell("demo", "--n", "16", "--plan", "fgsm", "--quiet", "--out", "run")
    assert code == 0
    assert "demo · Linf, eps = 0.1 · plan fgsm" in out
    assert Run.open("run").robust_accuracy.n == 16
    assert json.loads(brinell("demo", "--n", "4", "--plan", "fgsm", "-q", "--json").out)["robust_accuracy"]["n"] == 4


def test_doctor(brinell: Any) -> None:
    code, out, _ = brinell("doctor")
    assert code == 0
    assert "self-test on cpu: passed" in out
    assert "torch" in out
    if "extra ray" in out and "not installed" in out:
        assert "pip install 'brinell[" in out


def test_doctor_reports_a_failed_self_test(brinell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brinell.cli.commands.doctor._self_test", lambda device: "it [really] broke")
    code, out, _ = brinell("doctor")
    assert code == 1
    assert "failed: it [really] broke" in out
