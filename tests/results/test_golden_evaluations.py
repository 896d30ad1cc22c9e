"""Two evaluations of the demo model by the first version: they open, verify, resume and give the same numbers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import brinell
from brinell.attacks.catalogue import EARLIER, PLANS
from brinell.results import Run

FOLDER = Path(__file__).parent / "golden_evaluations"
# Name, number of samples, threat, plan, clean accuracy, robust accuracy, forwards, backwards.
RUNS = [
    ("fast-linf", 24, brinell.Linf(0.1), "fast", 20, 14, 8_040, 2_115),
    ("mm3-l2", 16, brinell.L2(1.5), "mm3", 14, 5, 405, 389),
]
# What a repeated attack on another processor may round differently.
ROUNDED = ("clean_margin", "adv_margin", "best_loss", "distance")
OUTCOME = ("sample_id", "x_sha256", "label", "clean_pred", "attack", "attack_hash", "broken", "adv_pred", "verified")


def case(name: str) -> Any:
    return next(r for r in RUNS if r[0] == name)


@pytest.mark.parametrize("name", [r[0] for r in RUNS])
def test_opens_with_the_same_numbers(name: str) -> None:
    _, n, _, _, clean, robust, forwards, backwards = case(name)
    run = Run.open(FOLDER / name)
    assert (run.clean_accuracy.k, run.clean_accuracy.n) == (clean, n)
    assert (run.robust_accuracy.k, run.robust_accuracy.n) == (robust, n)
    assert (run.cost.forwards, run.cost.backwards) == (forwards, backwards)


@pytest.mark.parametrize("name", [r[0] for r in RUNS])
def test_verifies(name: str) -> None:
    n = case(name)[1]
    result = brinell.verify(FOLDER / name, "demo", brinell.data.load("demo")[:n])
    assert result.ok, str(result)


@pytest.mark.parametrize("name", [r[0] for r in RUNS])
def test_an_interrupted_copy_resumes_to_the_same_rows(name: str, tmp_path: Path) -> None:
    _, n, threat, plan, *_ = case(name)
    plan = EARLIER[0] if plan == "fast" else plan
    whole, copy = Run.open(FOLDER / name).rows(), tmp_path / name
    shutil.copytree(FOLDER / name, copy)
    # As a kill leaves it: the first two shards are there, and the manifest does not say that the Run is finished.
    for shard in sorted((copy / "rows").iterdir())[2:] or sorted((copy / "rows").iterdir())[1:]:
        shard.unlink()
        (copy / "adversarials" / f"{shard.stem}.safetensors").unlink(missing_ok=True)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "finished": False}))
    run = brinell.evaluate(
        "demo", brinell.data.load("demo")[:n], threat, plan, out=copy, resume=True, progress=False, escalate=False
    )
    for column in OUTCOME:
        assert run.rows()[column].to_pylist() == whole[column].to_pylist(), column
    for column in ROUNDED:
        new, old = (np.asarray(t[column].to_pylist(), dtype=float) for t in (run.rows(), whole))
        np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4, err_msg=column)


def test_the_present_plan_does_not_continue_a_run_of_the_first_one(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / "fast-linf", tmp_path / "run")
    data = brinell.data.load("demo")[:24]
    with pytest.raises(brinell.RunError, match=r"plan.description \(stored .* and \d+ more"):
        brinell.evaluate(
            "demo", data, brinell.Linf(0.1), "fast", out=tmp_path / "run", resume=True, progress=False, escalate=False
        )


def test_every_stage_of_every_plan_keeps_its_hash_and_its_noise_key() -> None:
    assert stages() == json.loads((FOLDER / "stages.json").read_text())


def stages() -> dict[str, list[list[str]]]:
    """Name, hash and noise key of every stage, by plan and norm; an earlier plan has a number, the oldest 1."""
    found = {}
    earlier = {f"{plan.name} {k}": plan for k, plan in enumerate(EARLIER, 1)}
    for name, plan in {**PLANS, **earlier}.items():
        for threat in (brinell.Linf(0.1), brinell.L2(0.5), brinell.L1(5)):
            found[f"{name} {threat.norm.name}"] = [
                [s.name, s.to_json()["hash"], s.noise or s.attack.name] for s in plan.stages_for(threat)
            ]
    return found
