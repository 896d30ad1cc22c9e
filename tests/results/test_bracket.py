"""Certificates beside attacks: the bracket, the states of samples, and contradictions."""

from pathlib import Path

import pyarrow as pa
import pytest

from brinell.results import ROWS, Run, Writer, merge
from brinell.results.bracket import contradictions
from brinell.results.format import files
from brinell.results.format.schema import PROOF

pytestmark = pytest.mark.usefixtures("few")
EPS = 8 / 255
CALL = {"hash": "h", "methods": ["interval", "crown", "milp"], "seconds": 1.0}


def proof(world, sample: int, radius: float = EPS, method: str = "crown", **fields):
    """Return the row of a certificate."""
    columns = {"certified": radius > 0, "radius": radius, "bound": 0.5, "passes": 2, "stopped": "", "verified": None}
    return world.record(sample, f"certificate:{method}", attack_hash="h", forwards=0, backwards=0, **columns | fields)


def add(world, run: Run, *rows) -> Run:
    with Writer.resume(run.path, run.manifest) as writer:
        writer.update(certifiers=[CALL])
        writer.append(pa.Table.from_pylist(list(rows), schema=ROWS))
    return Run.open(run.path)


def test_both_ends_and_the_state_of_every_sample(tmp_path, world) -> None:
    run = world.run(tmp_path, {0: "...", 1: "...", 2: ".x", 3: "x", 4: "..."})
    before = run.rows(), run.robust_accuracy, run.cost, run.verdict.level
    assert run.bracket is None and run.certified_accuracy is None and run.certificates().num_rows == 0
    run = add(world, run, proof(world, 1), proof(world, 0, 0.0, bound=-1.0, stopped="time limit"))
    assert (run.rows(), run.robust_accuracy, run.cost, run.verdict.level) == before
    assert run.states() == {0: "open", 1: "certified", 2: "broken", 3: "broken", 4: "open"}
    bracket = run.bracket
    assert (bracket.certified.k, bracket.robust.k, bracket.certified.n, bracket.open) == (1, 3, 5, 2)
    assert bracket.certified == run.certified_accuracy and bracket.width == pytest.approx(2 / 5)
    (method,) = bracket.methods
    assert (method.samples, method.certified, method.passes, method.stopped) == (2, 1, 4, (("time limit", 1),))
    assert "20.0 %" in str(run) and "certified <= true <=" in str(run)


def test_only_a_radius_of_at_least_eps_certifies(tmp_path, world) -> None:
    run = add(world, world.run(tmp_path, {0: "...", 1: "..."}), proof(world, 0, EPS * 0.99), proof(world, 1, 1.0))
    assert run.states() == {0: "open", 1: "certified"}
    assert run.certified_radii() == {0: EPS * 0.99, 1: 1.0}


def test_own_radii_decide_for_each_sample(tmp_path, world) -> None:
    manifest = world.manifest(threat__eps=[0.1, 0.3])
    with Writer.create(tmp_path, {**manifest, "sample_ids": [0, 1]}) as writer:
        writer.append(world.table({0: "...", 1: "..."}))
        writer.update(finished=True)
    run = add(world, Run.open(tmp_path), proof(world, 0, 0.2), proof(world, 1, 0.2))
    assert run.states() == {0: "certified", 1: "open"}


@pytest.mark.parametrize("word", [".x", "x"])
def test_a_sample_that_is_certified_and_broken_makes_the_run_invalid(tmp_path, world, word: str) -> None:
    run = add(world, world.run(tmp_path, {0: "...", 7: word}), proof(world, 0), proof(world, 7))
    assert contradictions(run).tolist() == [7]
    assert run.verdict.level == "invalid" and "with id 7" in run.verdict.reasons[0]
    assert run.states()[7] == "broken" and run.bracket.certified.k == 1


def test_without_a_radius_the_distance_decides(tmp_path, world) -> None:
    run = world.run(tmp_path, {0: ".x", 1: ".x"}, threat__eps=None)  # broken at the distance 0.03
    run = add(world, run, proof(world, 0, 0.029), proof(world, 1, 0.031))
    assert run.bracket is None and contradictions(run).tolist() == [1]


def test_a_verified_counterexample_breaks_its_sample(tmp_path, world) -> None:
    """Its line ends the table of attacks; the method that found it is named, after those that ran before it."""
    stopped = {"certified": False, "stopped": "milp: a counterexample was found"}
    found = proof(world, 0, 0.0, broken=True, verified=True, distance=0.02, **stopped)
    run = add(world, world.run(tmp_path, {0: "...", 1: "..."}), found, proof(world, 1, method="interval"))
    assert run.states() == {0: "broken", 1: "certified"}
    assert run.robust_accuracy.k == 1 and run.bracket.open == 0 and contradictions(run).tolist() == []
    last, accuracy = run.steps()[-1]
    assert (last.attack, last.attacked, last.broken, accuracy) == ("proof (milp)", 2, 1, run.robust_accuracy)
    assert [str(m).partition(",")[0] for m in run.bracket.methods] == ["interval: 1 certified", "milp: 0 certified"]
    assert "1 broken (it found an adversarial)" in str(run.bracket.methods[1])
    assert not any("open" in str(method) for method in run.bracket.methods)


WEAK = {"plan__strength": "weak"}
OPEN_ROW = {"stopped": "time limit", "bound": -1.0}


def bracketed(world, path: Path, certified: int, left: int, broken: int, method: str = "crown", **changes) -> Run:
    """Return a Run with so many samples of each state."""
    n = certified + left + broken
    run = world.run(path, {i: "..." if i < certified + left else ".x" for i in range(n)}, **changes)
    rows = [proof(world, i, method=method) for i in range(certified)]
    return add(world, run, *rows, *(proof(world, certified + i, 0.0, method, **OPEN_ROW) for i in range(left)))


@pytest.mark.parametrize("checks", [[], [{"name": "zero gradient", "level": "warn", "message": "all are zero"}]])
def test_a_run_whose_samples_are_all_decided_is_settled_by_proof(tmp_path, world, checks) -> None:
    """However weak the attacks are and however few the samples: no attack can change the number."""
    with Writer.resume(bracketed(world, tmp_path, 2, 0, 1, **WEAK).path, world.manifest(**WEAK)) as writer:
        writer.update(certifiers=[CALL], checks=checks)
    run = Run.open(tmp_path)
    assert str(run.verdict) == f"reliable: {run.verdict.evidence[0]}"
    assert "decided by proof: 2 certified, 1 misclassified or broken, 0 open" in run.verdict.ground
    assert "so every sample is decided by proof" in run.sentence() and len(run.verdict.untested) == 1


@pytest.mark.parametrize(
    ("check", "method", "changes"),
    [
        ({"name": "batch shape", "level": "warn", "message": "outputs differ"}, "crown", {}),
        ({"name": "gradient", "level": "fail", "message": "train mode"}, "crown", {}),
        ({"name": "zero gradient", "level": "warn", "message": "all are zero"}, "smoothing", {}),
        ({"name": "zero gradient", "level": "warn", "message": "all are zero"}, "crown", {"plan__draws": 25}),
    ],
)
def test_proofs_excuse_attacks_but_not_the_model(tmp_path, world, check, method, changes) -> None:
    with Writer.resume(
        bracketed(world, tmp_path, 3, 0, 1, method, **changes).path, world.manifest(**changes)
    ) as writer:
        writer.update(certifiers=[CALL], checks=[check])
    assert Run.open(tmp_path).verdict.level == {"warn": "suspicious", "fail": "invalid"}[check["level"]]


@pytest.mark.parametrize(("left", "level"), [(1, "reliable"), (6, "upper bound")])
def test_open_samples_bound_how_much_too_high_the_number_is(tmp_path, world, left: int, level: str) -> None:
    """Of 16 samples, 1 open one is less than the sampling error of 20 points, 6 are more."""
    run = bracketed(world, tmp_path, 10 - left, left, 6, model__classes=None, **WEAK)
    assert run.verdict.level == level
    points = f"at most {100 * left / 16:.1f} points too high"
    assert points in str(run.verdict) and ("less than its sampling error" in str(run.verdict)) == (left == 1)
    assert ("to settle it, run the plan fast" in str(run.verdict)) == (left == 6)


def test_a_shard_without_certificates_is_stored_as_before(tmp_path, world) -> None:
    run = add(world, world.run(tmp_path, {0: "...", 1: "..."}), proof(world, 0))
    *old, new = [files.pq.read_schema(files.rows_file(tmp_path, name)).names for name in run.shards.names]
    plain = [name for name in ROWS.names if name not in (*PROOF, "sample_name")]
    assert old == [plain] * 2 and new == [name for name in ROWS.names if name != "sample_name"]


def test_certificates_are_merged(tmp_path: Path, world) -> None:
    parts = []
    for name, i in (("a", 0), ("b", 1)):
        run = world.run(tmp_path / name, {i: "...", i + 10: ".x"}, data__fingerprint=name)
        parts.append(add(world, run, proof(world, i)).path)
    merged = merge(parts, tmp_path / "out")
    assert merged.bracket.certified.k == 2 and merged.bracket.robust.n == 4
    assert merged.manifest["certifiers"] == [CALL]
    assert merge(parts, tmp_path / "out").certificates().equals(merged.certificates())


def test_an_old_run_is_read_as_before(golden) -> None:
    assert golden.bracket is None and set(golden.states().values()) == {"broken", "open"}
    assert list(golden.states().values()).count("open") == golden.robust_accuracy.k


@pytest.mark.parametrize(("fooled", "contradicted"), [(14, []), (25, [0])])
def test_few_passes_of_a_randomised_model_contradict_no_certificate(tmp_path, world, fooled, contradicted) -> None:
    passes = [True] * fooled + [False] * (25 - fooled)
    clean = world.record(0, "clean", verified=True, judged=[False] * 25)
    broken = world.record(0, "one", broken=True, verified=True, distance=0.01, judged=passes, chosen=25)
    with Writer.create(tmp_path, world.manifest(plan__draws=25)) as writer:
        writer.append(pa.Table.from_pylist([clean, broken], schema=ROWS))
        writer.update(finished=True)
    run = add(world, Run.open(tmp_path), proof(world, 0, method="smoothing"))
    assert contradictions(run).tolist() == contradicted and run.states() == {0: "broken"}
    assert run.bracket.doubtful == 1 - len(contradicted)
    assert (run.verdict.level == "invalid") == bool(contradicted)
