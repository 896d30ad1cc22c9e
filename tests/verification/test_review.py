"""Submissions: what is honest passes, what was tampered with is refused with the reason, and finds add up."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import brinell
from brinell import L2, InputError, Linf, Problem, Run, RunError, evaluate, review, wrap
from brinell.leaderboard import records
from brinell.leaderboard.records import RECORD
from brinell.models.demo import demo_net
from brinell.results import Proportion
from brinell.results.format.files import read_rows, write_rows
from brinell.results.format.manifest import attack_hash
from brinell.testing.runs import reseal
from brinell.testing.worlds import linear_world
from brinell.verification.bundle import opened, pack
from brinell.verification.consistency import contradictions
from brinell.verification.rerun import chosen_ids
from brinell.verification.review import certify
from brinell.verification.sampling import RerunSample

EPS, N = 0.1, 40


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("honest") / "run"
    data = brinell.data.load("demo", N)
    run = evaluate("demo", data, Linf(EPS), "pgd20", out=out, progress=False)
    assert 2 < len(run.adversarials().ids) < run.clean_accuracy.k
    return out


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "run"))


def bundled(run: Path) -> Path:
    """A bundle with hashes that fit whatever the Run has become: made by somebody who knows how."""
    out = run.with_suffix(".zip")
    pack(Run.open(run), out)
    return out


def edit_rows(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    for shard in sorted((run / "rows").iterdir()):
        table = read_rows(shard)
        rows = table.to_pylist()
        change(rows)
        write_rows(shard, pa.Table.from_pylist(rows, schema=table.schema))
    reseal(run)


def edit_manifest(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    reseal(run)


def edit_adversarial(run: Path, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> int:
    file = sorted((run / "adversarials").iterdir())[0]
    stored = load_file(file)
    x, sample = stored["x"].copy(), int(stored["ids"][0])
    x[0] = change(x[0], brinell.data.load("demo", N).x[sample].numpy())
    save_file({"ids": stored["ids"], "x": x}, file)
    reseal(run)
    return sample


def test_an_honest_bundle_holds(run: Path) -> None:
    told = Run.open(run)
    result = review([bundled(run)], "demo", rerun=4)
    part = result.submissions[0]
    assert result.ok and (part.rerun, part.alike) == (4, 4)
    assert part.held == part.checked == len(told.adversarials().ids)
    assert (result.bound, result.clean_accuracy) == (told.robust_accuracy, told.clean_accuracy)
    assert f"4 of {len(told.survivors())} survivors run again" in str(result) and "4 with identical rows" in str(result)
    assert "Linf(eps=0.1)" in str(result)
    standing = [s.id for s in result.samples if s.standing]
    assert standing == told.survivors().tolist()
    rows = {r["sample_id"]: r["distance"] for r in told.rows().to_pylist() if r["adv_shard"] is not None}
    assert {s.id: s.distance for s in result.samples if s.by} == rows


def test_a_review_says_what_it_does_and_that_data_are_others(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = brinell.data.load("demo", N)
    result = review([bundled(run)], "demo", Problem(data.x.flip(3), data.y), progress=None)
    told = capsys.readouterr().err
    assert f"classify {N} clean samples" in told and ": check rows and adversarials on the model" in told
    part = result.submissions[0]
    assert not result.ok and not part.failures and f"The data are others: {N} of the {N} inputs" in part.objections[0]
    assert result.bound == result.clean_accuracy


def test_which_samples_are_run_again_depends_on_the_seed_and_the_run(run: Path) -> None:
    def chosen(count: int, seed: int) -> list[int]:
        opened = Run.open(run)
        return chosen_ids(opened, opened.survivors().tolist(), RerunSample(count, seed=seed))

    first = chosen(6, 0)
    assert first == chosen(6, 0) and len(set(first)) == 6
    assert first != chosen(6, 1)
    edit_manifest(run, lambda m: m.update(wall_seconds=1.0))
    assert first != chosen(6, 0)
    assert chosen(10**6, 0) == Run.open(run).survivors().tolist()


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("further than eps", lambda x, x0: (x0 + 1.01 * EPS * np.where(x0 < 0.5, 1, -1)).astype(np.float32)),
        ("outside the box", lambda x, x0: x0 - np.float32(0.01)),
        ("not finite", lambda x, x0: x * np.float32("nan")),
        ("not misclassified", lambda x, x0: x0),
    ],
    ids=["outside the ball", "outside the box", "nan", "clean"],
)
def test_an_adversarial_that_is_none_is_refused(reason: str, change: Any, run: Path) -> None:
    sample = edit_adversarial(run, change)
    result = review([bundled(run)], "demo", rerun=2)
    assert not result.ok and dict(result.submissions[0].failures) == {sample: reason}
    assert f"Refused: Failed: sample {sample} ({reason})." in str(result)
    # It counts for nothing, and nothing was run again for a submission that is refused anyway.
    assert result.bound.k == Run.open(run).robust_accuracy.k + 1
    assert result.submissions[0].rerun == 0


def one(rows: list[dict[str, Any]], **change: Any) -> None:
    """Change the first broken attack row."""
    row = next((r for r in rows if r["attack"] != "clean" and r["broken"]), None)
    if row is not None:
        row.update(change)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("have an adversarial but are not broken", lambda rows: one(rows, broken=False, verified=None)),
        ("above eps", lambda rows: one(rows, distance=0.11)),
        ("not an attack of the plan", lambda rows: one(rows, attack="apgd-ce")),
        ("other parameters than the plan's", lambda rows: one(rows, attack_hash="0")),
        ("seeds", lambda rows: one(rows, seed=1)),
        ("no adversarial stored", lambda rows: one(rows, adv_shard=None, adv_row=None)),
    ],
)
def test_a_changed_row_is_refused(said: str, change: Any, run: Path) -> None:
    edit_rows(run, change)
    result = review([bundled(run)], "demo", rerun=0)
    assert not result.ok and said in str(result)


def test_a_wrong_clean_answer_is_refused(run: Path) -> None:
    """A misclassified sample that is told to be right, and the other way round."""

    def lie(rows: list[dict[str, Any]]) -> None:
        for r in rows:
            if r["attack"] == "clean" and r["broken"]:
                r.update(broken=False, verified=None, clean_pred=r["label"])

    wrong = sorted(set(range(N)) - set(_right(run)))
    assert wrong
    edit_rows(run, lie)
    result = review([bundled(run)], "demo", rerun=0)
    assert result.submissions[0].failures[wrong[0]].startswith("the clean input is misclassified")
    assert "lack a row of some attack" in str(result)


def _right(run: Path) -> list[int]:
    rows = Run.open(run).rows().to_pylist()
    return [r["sample_id"] for r in rows if r["attack"] == "clean" and not r["broken"]]


def test_an_inconsistent_clean_row_is_told(run: Path) -> None:
    def lie(rows: list[dict[str, Any]]) -> None:
        for r in rows:
            if r["attack"] == "clean":
                r.update(broken=False, verified=None)

    edit_rows(run, lie)
    assert any("misclassified clean inputs are not counted" in f.message for f in contradictions(Run.open(run)))


def test_robustness_that_is_only_told_is_found_by_running_again(run: Path) -> None:
    """Consistent to the last row, but a broken sample is told to stand: only an attack can see it."""
    fallen = []

    def lie(rows: list[dict[str, Any]]) -> None:
        for r in rows:
            if r["attack"] != "clean" and r["broken"]:
                fallen.append(r["sample_id"])
                r.update(broken=False, verified=None, verified_8bit=None, adv_pred=None, distance=None)
                r.update(adv_margin=-1.0, first_broken_at=None, adv_shard=None, adv_row=None)

    edit_rows(run, lie)
    messages = [finding.message for finding in contradictions(Run.open(run))]
    assert messages == [f"{len(fallen)} adversarials are stored that no row refers to."]
    shutil.rmtree(run / "adversarials")
    reseal(run)
    assert contradictions(Run.open(run)) == []
    bundle = bundled(run)
    assert review([bundle], "demo", rerun=0).ok
    result = review([bundle], "demo", rerun=N)
    failed = result.submissions[0].failures
    assert dict(failed) == dict.fromkeys(sorted(fallen), "counted as robust, broken when run again")
    assert {s.by for s in result.samples if s.by} == {"run.zip, run again"}
    assert result.bound.k == Run.open(run).robust_accuracy.k - len(fallen)


def test_rows_that_are_missing_are_told(run: Path) -> None:
    edit_rows(run, lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["sample_id"] != 3]))
    assert "clean rows of 39 samples, but the manifest says 40 samples" in str(review([bundled(run)], "demo", rerun=0))


def test_more_rows_than_there_can_be_are_not_read(run: Path) -> None:
    edit_manifest(run, lambda m: m["identity"]["data"].update(n=10))
    with pytest.raises(RunError, match="at most 20 rows"):
        contradictions(Run.open(run))


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("model.fingerprint", lambda i: i["model"].pop("fingerprint")),
        ("data.n as int", lambda i: i["data"].update(n="many")),
        (r"plan.stages as a list of dict", lambda i: i["plan"].update(stages=[3])),
        ("equal to its eps_text, 0.1", lambda i: i["threat"].update(eps=0.2)),
        ("equal to its eps_text, a lot", lambda i: i["threat"].update(eps_text="a lot")),
        ("a manifest with threat.eps", lambda i: i["threat"].pop("eps")),
        ("judging passes", lambda i: i["plan"].update(draws=10**9)),
        ("a criterion", lambda i: i.update(goal="win")),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(said: str, change: Any, run: Path) -> None:
    edit_manifest(run, lambda m: change(m["identity"]))
    with pytest.raises(RunError, match=said):
        review([bundled(run)], "demo", rerun=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"checks": "none"},
        {"checks": [{}]},
        {"checks": [{"name": [], "level": "ok", "message": ""}]},
        {"probes": [{"attack": "pgd"}]},
        {"probes": [{"attack": "pgd", "items": [{"name": "loss surface"}]}]},
        {"notes": 3},
    ],
)
def test_lists_that_the_verdict_cannot_read_are_refused(fields: dict[str, Any], run: Path) -> None:
    edit_manifest(run, lambda m: m.update(fields))
    with pytest.raises(RunError, match=f"a manifest with {next(iter(fields))}"):
        review([bundled(run)], "demo", rerun=0)


@pytest.mark.parametrize("cost", [{"forwards": -5}, {"seconds": float("nan")}])
def test_costs_that_are_none_are_told(cost: dict[str, Any], run: Path) -> None:
    edit_rows(run, lambda rows: rows[0].update(cost))
    assert "negative or non-finite cost" in str(review([bundled(run)], "demo", rerun=0))


@pytest.mark.parametrize("reference", [{"adv_row": None}, {"adv_row": -1}, {"adv_shard": "../../other"}])
def test_references_lead_to_adversarials_of_the_run(reference: dict[str, Any], run: Path) -> None:
    last = load_file(sorted((run / "adversarials").iterdir())[0])["ids"][-1]

    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["adv_row"] is not None and row["sample_id"] == last:
                row.update(reference)

    edit_rows(run, change)
    with pytest.raises(RunError, match=r"adversarials( that the rows of the Run refer to|/ of their Run)"):
        review([run], "demo", rerun=0)


def test_another_model_or_other_data_are_told(run: Path, honest: Path) -> None:
    bundle = bundled(run)
    other = nn.Sequential(demo_net(), nn.Identity()).eval()
    assert "is of another model" in str(review([bundle], other, rerun=0))
    data = brinell.data.load("demo", N)
    x = data.x.clone()
    x[5] = x[6]
    said = review([bundle], "demo", Problem(x, data.y), rerun=0).submissions[0].failures
    assert said[5] == "the clean input is not the one that was attacked"
    y = data.y.clone()
    y[5] = (y[5] + 1) % 10
    assert review([bundle], "demo", Problem(data.x, y), rerun=0).submissions[0].failures[5].startswith("the label is")


def test_checks_that_were_made_better_are_told(run: Path) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = demo_net()

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x + 1e-3 * torch.randn_like(x))

    data = brinell.data.load("demo", 8)
    out = run.parent / "noisy"
    evaluate(Noisy().eval(), data, Linf(EPS), "fgsm", out=out, progress=False)
    clean = [{"name": "randomised", "level": "ok", "message": "repeated passes agree"}]
    edit_manifest(out, lambda m: m.update(checks=clean))
    assert "The check randomised finds a problem here" in str(review([bundled(out)], Noisy().eval(), data, rerun=2))


def test_a_plan_of_ones_own_is_run_again(run: Path) -> None:
    out = run.parent / "own"
    data = brinell.data.load("demo", 8)
    evaluate("demo", data, Linf(EPS), [brinell.attacks.PGD(steps=2)], out=out, progress=False)
    part = review([bundled(out)], "demo", data, rerun=2).submissions[0]
    assert part.ok and part.rerun == part.alike == 2 and "not built into Brinell" in part.notes[0]


def test_a_plan_with_other_numbers_is_told(run: Path) -> None:
    def weaker(m: dict[str, Any]) -> None:
        stage = m["identity"]["plan"]["stages"][0]
        stage["attack"]["steps"] = 1
        del stage["hash"]
        stage["hash"] = attack_hash(stage)

    edit_manifest(run, weaker)
    hashed = Run.open(run).manifest["identity"]["plan"]["stages"][0]["hash"]
    edit_rows(run, lambda rows: [r.update(attack_hash=hashed) for r in rows if r["attack"] != "clean"] and None)
    assert "other parameters than the built-in plan pgd20" in str(review([bundled(run)], "demo", rerun=1))


@pytest.mark.parametrize("shape", [(1, 1, 1), (28, 28), (1, 28, 29)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...], run: Path) -> None:
    """Arithmetic would stretch some of them to the shape of the data."""
    for file in sorted((run / "adversarials").iterdir()):
        stored = load_file(file)
        save_file({"ids": stored["ids"], "x": np.zeros((len(stored["ids"]), *shape), np.float32)}, file)
    reseal(run)
    with pytest.raises(RunError, match="adversarials of shape"):
        review([bundled(run)], "demo", rerun=0)


@pytest.mark.parametrize("name", ["../secret.npz", "/etc/passwd", "", None])
def test_a_run_does_not_choose_what_is_read(name: str | None, run: Path) -> None:
    edit_manifest(run, lambda m: m["identity"]["data"].update(name=name))
    with pytest.raises(InputError, match="--data"):
        review([bundled(run)], "demo", rerun=0)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("plan has other parameters", lambda i: i["plan"].update(strength="standard")),
        ("plan has other parameters", lambda i: i["plan"].update(draws=3)),
        ("box of the Run is", lambda i: i["threat"].update(box=[0.4, 0.6])),
        ("is on other data", lambda i: i["data"].update(fingerprint="00")),
    ],
    ids=["strength", "draws", "box", "data"],
)
def test_a_manifest_that_tells_of_something_better_is_refused(said: str, change: Any, run: Path) -> None:
    """A plan called strong would make the verdict of a weak one "reliable"."""
    edit_manifest(run, lambda m: change(m["identity"]))
    result = review([bundled(run)], "demo", rerun=1)
    assert not result.ok and said in str(result)


def test_nobody_can_know_which_samples_are_run_again(run: Path) -> None:
    first, second = (review([run], "demo", rerun=1) for _ in range(2))
    assert first.seed != second.seed and f"seed {first.seed}" in str(first)
    assert first.to_json()["seed"] == first.seed
    assert review([run], "demo", rerun=0, seed=7).seed == 7


# ------------------------------------------------------------------------------------------- files of other attacks


@pytest.fixture(scope="module")
def world() -> tuple[nn.Module, Problem, np.ndarray, np.ndarray, float]:
    """A linear model, its samples, an image of each on the way to the nearest other class, and the distances."""
    w = linear_world(classes=3, shape=(1, 4, 4), n=12, seed=3)
    _, slope = w.gaps()
    nearest = w.distances("L2").argmin(1)
    step = slope[torch.arange(12), nearest]
    unit = step / step.norm(dim=1, keepdim=True)
    far = w.distance("L2")
    x = (w.x.double() + (1.001 * far[:, None] * unit).view(12, 1, 4, 4)).float()
    return w.classifier, Problem(w.x, w.y), x.numpy(), far.numpy(), float(np.sort(far.numpy())[7] * 1.01)


@pytest.mark.parametrize("end", ["npz", "safetensors"])
def test_finds_of_other_attacks_count_where_they_hold(end: str, world: Any, tmp_path: Path) -> None:
    model, data, x, far, eps = world
    inside = far * 1.001 <= eps
    path = tmp_path / f"theirs.{end}"
    arrays = {"ids": np.flatnonzero(inside).astype(np.int64), "x": np.ascontiguousarray(x[inside])}
    np.savez(path, **arrays) if end == "npz" else save_file(arrays, path)
    result = review([path], model, data, L2(eps))
    assert result.ok and result.submissions[0].held == inside.sum() == 8
    assert result.bound == Proportion(4, 12)
    for known in result.samples:
        assert (known.by == path.name) == bool(inside[known.id])
        assert known.distance is None or known.distance == pytest.approx(1.001 * far[known.id], rel=1e-4)


def test_images_that_break_nothing_are_no_fault_and_those_too_far_are(world: Any, tmp_path: Path) -> None:
    model, data, x, far, eps = world
    whole = np.where((far * 1.001 <= eps)[:, None, None, None], x, data.x.numpy())
    np.savez(tmp_path / "whole.npz", ids=np.arange(12), x=whole)
    result = review([tmp_path / "whole.npz"], model, data, L2(eps))
    assert result.ok and (result.submissions[0].checked, result.submissions[0].held) == (12, 8)
    np.savez(tmp_path / "far.npz", ids=np.arange(12), x=x)
    result = review([tmp_path / "far.npz"], model, data, L2(eps))
    assert not result.ok and result.bound == Proportion(4, 12)
    assert set(result.submissions[0].failures.values()) == {"further than eps"}
    assert set(result.submissions[0].failures) == set(np.flatnonzero(far * 1.001 > eps).tolist())


def test_the_union_and_the_nearest(world: Any, tmp_path: Path) -> None:
    """Each finds what the other does not; where both do, the nearer counts; several images of a sample are allowed."""
    model, data, x, far, eps = world
    order = np.argsort(far)
    a, b = order[:5], order[3:8]
    further = (data.x.numpy() + (x - data.x.numpy()) * np.float32(1.005)).astype(np.float32)
    np.savez(tmp_path / "a.npz", ids=np.concatenate([a, a]), x=np.concatenate([further[a], data.x.numpy()[a]]))
    np.savez(tmp_path / "b.npz", ids=b, x=x[b])
    result = review([tmp_path / "a.npz", tmp_path / "b.npz"], model, data, L2(eps * 1.01))
    assert result.ok and result.bound == Proportion(4, 12)
    by = {s.id: s.by for s in result.samples}
    assert [by[i] for i in order[:8].tolist()] == ["a.npz"] * 3 + ["b.npz"] * 5
    assert review([tmp_path / "b.npz", tmp_path / "a.npz"], model, data, L2(eps * 1.01)).bound == result.bound


def test_a_bundle_and_a_file_together(honest: Path, tmp_path: Path) -> None:
    """What a stronger attack finds lowers the bound of a submission, and makes the record's best known number."""
    strong, run = Run.open(honest), tmp_path / "run"
    found = strong.adversarials()
    np.savez(tmp_path / "theirs.npz", ids=found.ids, x=found.x)
    told = evaluate("demo", brinell.data.load("demo", N), Linf(EPS), "fgsm", out=run, progress=False)
    more = set(told.survivors().tolist()) - set(strong.survivors().tolist())
    assert more
    records.of_run(told, "demo", "Linf", "Mine", {"authors": "A"}).write(run / RECORD)
    bundle = bundled(run)
    result = review([bundle, tmp_path / "theirs.npz"], "demo", rerun=3)
    assert result.ok
    assert result.bound.k == told.robust_accuracy.k - len(more)
    assert {s.id for s in result.samples if s.by == "theirs.npz"} >= more
    record = certify(bundle, result, "demo")
    assert (record.status, record.authors, record.run) == ("verified", "A", "run.zip")
    assert record.autoattack == round(100 * told.robust_accuracy.value, 2)
    assert record.external == record.best == round(100 * result.bound.value, 2)
    with pytest.raises(RunError, match="had no samples run again"):
        certify(bundle, review([bundle], "demo", rerun=0), "demo")
    with pytest.raises(RunError, match="was not reviewed"):
        certify("other.zip", result, "demo")


def test_a_record_is_computed_anew(run: Path) -> None:
    """Numbers in the submitted record count for nothing."""
    told = records.of_run(Run.open(run), "demo", "Linf", "Mine")
    replace(told, autoattack=99.9, clean=100.0, status="verified", verdict="reliable").write(run / RECORD)
    bundle = bundled(run)
    record = certify(bundle, review([bundle], "demo", rerun=1), "demo")
    assert (record.clean, record.autoattack, record.verdict) == (told.clean, told.autoattack, "upper bound")


def test_a_plan_of_ones_own_is_not_certified(run: Path) -> None:
    out = run.parent / "own"
    told = evaluate("demo", brinell.data.load("demo", 8), Linf(EPS), [brinell.attacks.PGD(2)], out=out, progress=False)
    records.of_run(told, "demo", "Linf", "Mine").write(out / RECORD)
    result = review([out], "demo", rerun=1)
    assert result.ok
    with pytest.raises(RunError, match="whose strength is only claimed"):
        certify(out, result, "demo")


def test_a_submission_that_changes_after_the_review_is_not_certified(run: Path) -> None:
    records.of_run(Run.open(run), "demo", "Linf", "Mine").write(run / RECORD)
    bundle = bundled(run)
    result = review([bundle], "demo", rerun=1)
    edit_manifest(run, lambda m: m.update(wall_seconds=0.0))
    pack(Run.open(run), bundle)
    with pytest.raises(RunError, match="changed since"):
        certify(bundle, result, "demo")


def test_a_submission_without_a_record_cannot_be_certified(run: Path) -> None:
    bundle = bundled(run)
    with pytest.raises(RunError, match="without"):
        certify(bundle, review([bundle], "demo", rerun=1), "demo")


def test_radii_of_their_own(tmp_path: Path) -> None:
    data = brinell.data.load("demo", 12)
    eps = torch.linspace(0.02, 0.2, 12, dtype=torch.float64)
    told = evaluate("demo", data, Linf(eps), "fgsm", out=tmp_path / "run", progress=False)
    result = review([bundled(tmp_path / "run")], "demo", data, rerun=5)
    assert result.ok and result.submissions[0].alike == 5 and result.bound == told.robust_accuracy


def test_radii_for_other_samples_are_refused(run: Path) -> None:
    edit_manifest(run, lambda m: m["identity"]["threat"].update(eps=[0.1] * 3))
    with pytest.raises(RunError, match="a radius for each of 40 samples, got 3"):
        review([run], "demo", rerun=0)


def test_two_threats_are_refused(run: Path, tmp_path: Path) -> None:
    data = brinell.data.load("demo", 4)
    evaluate("demo", data, Linf(0.2), "fgsm", out=tmp_path / "other", progress=False)
    with pytest.raises(RunError, match=r"Linf\(eps=0.1\) and Linf\(eps=0.2\)"):
        review([run, tmp_path / "other"], "demo", data)


def test_runs_of_one_name_are_told_apart(run: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    shutil.copytree(run, tmp_path / "b" / "run")
    names = [p.name for p in review([run, tmp_path / "b" / "run"], "demo", rerun=0).submissions]
    assert names == [str(run), str(tmp_path / "b" / "run")]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"ids": np.arange(2)}, "KeyError"),
        ({"ids": np.arange(2), "x": np.zeros((2, 1, 28, 28))}, "float64"),
        ({"ids": np.arange(2), "x": np.zeros((2, 1, 28, 28), np.uint8)}, "uint8"),
        ({"ids": np.arange(3), "x": np.zeros((2, 1, 28, 28), np.float32)}, "ids int64"),
        ({"ids": np.array([0.0, 1.0]), "x": np.zeros((2, 1, 28, 28), np.float32)}, "float64"),
        ({"ids": np.arange(2), "x": np.zeros((2, 28, 28), np.float32)}, "shape"),
        ({"ids": np.array([{}, {}], dtype=object), "x": np.zeros((2, 1, 28, 28), np.float32)}, "ValueError"),
    ],
)
def test_files_that_cannot_be_judged(arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(InputError, match=said):
        review([tmp_path / "f.npz"], "demo", brinell.data.load("demo", 4), Linf(0.1))


def test_ids_of_nobody_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", ids=np.array([1, 77]), x=np.zeros((2, 1, 28, 28), np.float32))
    result = review([tmp_path / "f.npz"], "demo", brinell.data.load("demo", 4), Linf(0.1))
    assert not result.ok and "1 ids belong to no sample of the data, the first is 77" in str(result)


def test_what_is_missing_is_asked_for(tmp_path: Path, run: Path) -> None:
    np.savez(tmp_path / "f.npz", ids=np.arange(1), x=np.zeros((1, 1, 28, 28), np.float32))
    with pytest.raises(InputError, match="--eps"):
        review([tmp_path / "f.npz"], "demo", brinell.data.load("demo", 4))
    with pytest.raises(InputError, match="--data"):
        review([tmp_path / "f.npz"], "demo", threat=Linf(0.1))
    with pytest.raises(InputError, match="does not exist"):
        review([tmp_path / "nothing.npz"], "demo")
    with pytest.raises(InputError, match="at least one"):
        review([], "demo")
    with pytest.raises(InputError, match="rerun"):
        review([run], "demo", rerun=-1)


def test_nothing_is_left_behind(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundled(run)
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    review([bundle], "demo", rerun=2)
    with opened(bundle):
        assert list(place.iterdir())
    assert list(place.iterdir()) == []
    assert wrap(demo_net()).modes() == []


@pytest.mark.parametrize(("dataset", "threat"), [("cifar10", "Linf"), ("demo", "L2")])
def test_a_record_for_another_board_is_not_certified(dataset: str, threat: str, run: Path) -> None:
    records.of_run(Run.open(run), dataset, threat, "Mine").write(run / RECORD)
    result = review([run], "demo", rerun=1)
    assert result.ok
    with pytest.raises(RunError, match=r"to name the (data|norm) of the Run"):
        certify(run, result, "demo")


def test_a_run_on_chosen_samples_is_not_certified(run: Path) -> None:
    """Only samples that stand: everything in the Run is true, and 100 % says nothing about the model."""
    data, standing = brinell.data.load("demo", N), Run.open(run).survivors().tolist()
    edit_rows(run, lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["sample_id"] in standing]))
    edit_manifest(run, lambda m: m["identity"]["data"].update(n=len(standing)))
    shutil.rmtree(run / "adversarials")
    reseal(run)
    records.of_run(Run.open(run), "demo", "Linf", "Mine").write(run / RECORD)
    result = review([run], "demo", data, rerun=1)
    assert not result.ok and "is on other data" in str(result) and "not on the first ones" in str(result)
    with pytest.raises(RunError, match="did not pass"):
        certify(run, result, "demo", data)


def test_samples_of_others_do_not_count_for_a_record(run: Path, tmp_path: Path) -> None:
    """The best known accuracy of a Run on 8 samples is about these 8, whoever looked at more."""
    few = brinell.data.load("demo", 8)
    told = evaluate("demo", few, Linf(EPS), "pgd20", out=tmp_path / "few", progress=False)
    records.of_run(told, "demo", "Linf", "Mine").write(tmp_path / "few" / RECORD)
    result = review([tmp_path / "few", run], "demo", rerun=1)
    assert result.bound.n == N and result.bound.value < told.robust_accuracy.value
    assert certify(tmp_path / "few", result, "demo").external is None


def test_a_mask_is_told_with_the_threat(tmp_path: Path) -> None:
    """100 % under changes of one pixel is no robust accuracy under Linf, and must not read like one."""
    mask = torch.zeros(1, 28, 28, dtype=torch.bool)
    mask[0, 14, 14] = True
    data = brinell.data.load("demo", 4)
    told = evaluate("demo", data, Linf(EPS, mask=mask), "fgsm", out=tmp_path / "run", progress=False)
    assert "Under Linf perturbations of 1 of 784 values of size eps = 0.1" in told.sentence()
    assert "Linf of 1 of 784 values, eps = 0.1" in brinell.report.text([told], "md")
    assert "under Linf(eps=0.1, mask of 1 of 784 values)" in str(review([tmp_path / "run"], "demo", data, rerun=0))
    with pytest.raises(RunError, match="which has a mask"):
        records.of_run(told, "demo", "Linf", "Mine")
