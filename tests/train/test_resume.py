"""Killed at any moment, a training goes on and ends with the very same bytes."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brinell
from brinell import Linf
from brinell.train import Recipe, fit

# One process that has everything imported; every training, killed or not, is a child of it.
DRIVER = """
import importlib, os, signal, sys
import torch
torch.set_num_threads(1)
from brinell import Linf
from brinell.models.networks import Network
from brinell.ops import rng
from brinell.results.format import files
from brinell.train import Method, Recipe, fit
from brinell.train.progress import EpochFinished, StepFinished
from brinell.train import folder as folders
from torch import nn

def net():
    # Initialises itself, differently in every process: only the first checkpoint knows the weights.
    torch.manual_seed(os.getpid())
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))

key = rng.keys(0, torch.arange(40))
x, y = rng.uniform(key, (1, 8, 8)), torch.arange(40) % 3
RECIPES = {
    "sgd": Recipe(epochs=3, batch=8, lr=0.1, schedule="one-cycle", average=0.9, crop=2, flip=True, ramp=1.0),
    "adamw": Recipe(epochs=3, batch=8, optimiser="adamw", average=0.0, label_smoothing=0.1, clip=1.0, patience=2),
}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def train(out, recipe, method, moment, fixed):
    place, _, number = moment.partition(" ")
    count = int(number or 0)

    def listen(event):
        if place == "step" and isinstance(event, StepFinished) and event.step == count:
            die()
        if place == "epoch" and isinstance(event, EpochFinished) and event.row.epoch == count:
            die()

    if place in ("before", "after"):
        # While the count-th file is being written: before or after it gets its name.
        real, seen = os.replace, []
        def replace(a, b):
            # Validation writes files too, elsewhere.
            seen.extend([b] * (os.path.dirname(b) == out))
            if len(seen) == count and seen[-1] is b and place == "before":
                die()
            real(a, b)
            if len(seen) == count and seen[-1] is b and place == "after":
                die()
        files.os.replace = replace
    model = "demo" if fixed else net
    inputs = (x, y) if not fixed else (rng.uniform(key, (1, 28, 28)), y)
    fit(model, inputs, Linf(0.1), method, RECIPES[recipe], out=out, resume=True, validation=8, plan="fgsm",
        checkpoint_every=0.0, progress=listen)

# Validation without the checks after the attacks, which other tests make.
importlib.import_module("brinell.evaluation.evaluate").run_survivor_checks = lambda *_: []
# What torch imports on first use is imported here once.
optimiser = Recipe().make_optimiser(nn.Linear(1, 1))
optimiser.step()

for line in sys.stdin:
    out, recipe, method, fixed, moment = line.rstrip("\\n").split("|")
    child = os.fork()
    if child == 0:
        try:
            train(out, recipe, method, moment, fixed == "1")
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(3)
    _, status = os.waitpid(child, 0)
    print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
"""
KILLED = -int(signal.SIGKILL)


class Driver:
    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(Path(brinell.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def __call__(
        self, out: Path, recipe: str = "sgd", method: str = "pgd", fixed: bool = False, moment: str = ""
    ) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{out}|{recipe}|{method}|{int(fixed)}|{moment}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def driver() -> Any:
    made = Driver()
    yield made
    made.close()


def digests(folder: Path) -> dict[str, str]:
    files = sorted(folder.glob("*.safetensors"))
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def curve(folder: Path) -> list[list[str]]:
    """Without the seconds."""
    return [line.split(",")[:-1] for line in (folder / "curve.csv").read_text().splitlines()]


def begun(driver: Any, folder: Path, **how: Any) -> None:
    """A folder with its first checkpoint and nothing more: the initial weights."""
    assert driver(folder, moment="step 1", **how) == KILLED


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


# Three epochs of four steps. A resumed training replaces files in this order: a checkpoint after each of the first
# three steps of an epoch, then checkpoint, model, last and curve at its end.
MOMENTS = ["step 2", "step 4", "step 5", "step 11", "step 12", "epoch 1", "epoch 3", "before 1", "after 1", "before 3",
           "before 4", "after 4", "before 5", "before 6", "after 8", "after 13", "after 18"]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "method", "moments"),
    [
        ("sgd", "pgd", ["step 5", "before 5", "after 18"]),
        ("adamw", "trades", ["step 2"]),
        ("sgd", "mm3", ["before 4"]),
        pytest.param("sgd", "pgd", MOMENTS, marks=pytest.mark.slow),
        pytest.param("adamw", "mm3-f10", MOMENTS, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(driver: Any, recipe: str, method: str, moments: list[str], tmp_path: Path) -> None:
    how = {"recipe": recipe, "method": method}
    begun(driver, tmp_path / "begun", **how)
    whole = copied(tmp_path / "begun", tmp_path / "whole")
    assert driver(whole, **how) == 0
    assert sorted(digests(whole)) == ["last.safetensors", "model.safetensors"]
    for moment in moments:
        folder = copied(tmp_path / "begun", tmp_path / moment.replace(" ", "-"))
        assert driver(folder, moment=moment, **how) == KILLED, moment
        assert driver(folder, **how) == 0, moment
        assert digests(folder) == digests(whole), moment
        assert curve(folder) == curve(whole), moment
        assert not list(folder.glob(".*.tmp")), moment


def test_killed_again_and_again(driver: Any, tmp_path: Path) -> None:
    """Also before the first checkpoint, since the seed alone decides the initial weights."""
    assert driver(tmp_path / "whole", fixed=True, method="fgsm-rs") == 0
    hurt = tmp_path / "hurt"
    for moment in ("before 1", "before 2", "step 1", "step 3", "step 4", "after 1", "step 9", "epoch 3"):
        assert driver(hurt, fixed=True, method="fgsm-rs", moment=moment) == KILLED, moment
    assert driver(hurt, fixed=True, method="fgsm-rs") == 0
    assert digests(hurt) == digests(tmp_path / "whole")
    assert curve(hurt) == curve(tmp_path / "whole")


def test_another_seed_is_another_training(tmp_path: Path) -> None:
    """What the comparison of bytes is worth: it notices a different seed."""
    images = brinell.data.load("demo", 24)
    for seed in (0, 1):
        recipe = Recipe(epochs=1, batch=8, lr=0.01, seed=seed)
        fit("demo", images, Linf(0.1), "fgsm-rs", recipe, out=tmp_path / str(seed), validation=0, progress=False)
    assert digests(tmp_path / "0") != digests(tmp_path / "1")


@pytest.mark.slow
def test_the_program_killed_from_outside(tmp_path: Path) -> None:
    x, y = brinell.data.load("demo", 256).x, brinell.data.load("demo", 256).y
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    env = {**os.environ, "PYTHONPATH": str(Path(brinell.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def command(out: Path) -> list[str]:
        options = ["--model", "demo", "--data", tmp_path / "data.npz", "--eps", "0.1", "--epochs", "6", "--batch", "32"]
        options += ["--lr", "0.02", "--schedule", "one-cycle", "--crop", "2", "--flip", "--plan", "fgsm", "--out", out]
        options += ["--checkpoint-every", "0", "--resume", "--quiet", "--validation", "32"]
        return [sys.executable, "-c", "from brinell.cli import main; main()", "train", *map(str, options)]

    subprocess.run(command(tmp_path / "whole"), env=env, check=True, capture_output=True)
    hurt, kills = tmp_path / "hurt", 0
    for seconds in (0.4, 0.9, 0.2):
        process = subprocess.Popen(command(hurt), env=env, stdout=subprocess.DEVNULL)
        stamp = (hurt / "checkpoint.pt").stat().st_mtime_ns if (hurt / "checkpoint.pt").exists() else 0
        while process.poll() is None:
            if (hurt / "checkpoint.pt").exists() and (hurt / "checkpoint.pt").stat().st_mtime_ns > stamp:
                break
            time.sleep(0.01)
        time.sleep(seconds)
        process.kill()
        kills += process.wait() == KILLED
    assert kills
    subprocess.run(command(hurt), env=env, check=True, capture_output=True)
    assert digests(hurt) == digests(tmp_path / "whole")
