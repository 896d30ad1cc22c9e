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
CALL = {"hash": "h", "methods": ["crown"], "seconds": 1.0}


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
    found = proof(world, 1, 0.0, "exact", broken=True, verified=True, distance=0.02, certified=False)
    run = add(world, world.run(tmp_path, {0: "...", 1: "..."}), found, proof(world, 0))
    assert run.states() == {0: "certified", 1: "broken"}
    assert run.robust_accuracy.k == 1 and run.bracket.open == 0 and contradictions(run).tolist() == []


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
