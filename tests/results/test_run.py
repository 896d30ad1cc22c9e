import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brinell.errors import RunError
from brinell.results import ROWS, Proportion, Run, StageResult, Writer
from brinell.results.format import files
from brinell.results.summary import eps_text
from brinell.testing.runs import reseal


def test_only_verified_breaks_count(tmp_path, world) -> None:
    run = world.run(tmp_path, {0: "x", 1: ".x", 2: ".u.", 3: "..x", 4: "...", 5: ".xx"})
    assert run.clean_accuracy == Proportion(5, 6)
    assert run.accuracy_after() == [("one", Proportion(3, 6)), ("two", Proportion(2, 6))]
    assert run.robust_accuracy == Proportion(2, 6)
    assert run.survivors().tolist() == [2, 4]
    assert run.stages() == [StageResult("one", 5, 2), StageResult("two", 4, 2)]
    assert run.unverified["sample_id"].to_pylist() == [2]


def test_rows_come_in_the_order_of_the_plan(tmp_path, world) -> None:
    rows = [world.record(i, a) for i in (2, 1) for a in ("zeta", "two", "alpha", "clean", "one")]
    with Writer.create(tmp_path, world.manifest()) as writer:
        for row in rows:
            writer.append(pa.Table.from_pylist([row], schema=ROWS))
    table = Run.open(tmp_path).rows()
    assert table["sample_id"].to_pylist() == [1] * 5 + [2] * 5
    assert table["attack"].to_pylist() == ["clean", "one", "two", "alpha", "zeta"] * 2


def test_the_nearest_adversarial_is_chosen(tmp_path, world) -> None:
    table = world.table({0: ".xx", 1: ".xx", 2: ".xx", 3: ".xx", 4: ".x"})
    distances = [0, 0.2, 0.1, 0, 0.1, 0.2, 0, 0.1, 0.1, 0, None, 0.5, 0, None]
    place = ROWS.get_field_index("distance")
    table = table.set_column(place, ROWS.field("distance"), pa.array(distances, pa.float64()))
    with Writer.create(tmp_path, world.manifest()) as writer:
        writer.append(table, *world.adversarials(table))
    found = Run.open(tmp_path).adversarials()
    assert found.ids.tolist() == [0, 1, 2, 3, 4]
    assert found.x[:, 0, 0].tolist() == [0.25, 1.0, 2.0, 3.25, 4.0]


def test_a_run_without_rows_or_facts_still_speaks(tmp_path, world) -> None:
    with Writer.create(tmp_path, {"schema_version": 1, "identity": {}}):
        pass
    run = Run.open(tmp_path)
    assert run.robust_accuracy == Proportion(0, 0) and run.attacks == []
    assert run.adversarials().ids.tolist() == [] and run.adversarials().x.dtype == np.float32
    assert run.cost.forwards == 0 and run.cost.seconds_per_sample == 0
    assert str(run).count("unnamed") == 7
    assert "Brinell of unknown version" in run.sentence()


def test_an_unfinished_run_says_so(tmp_path, world) -> None:
    run = world.run(tmp_path, {0: "...", 1: "."}, finished=False)
    assert str(run).splitlines()[0].endswith("(unfinished: all numbers are provisional)")
    assert run.sentence().startswith("Provisional")
    assert run.verdict.level == "upper bound"
    assert repr(run).startswith(f"<Run {tmp_path}: ") and "unfinished, robust 100.0 % [" in repr(run)


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        (8 / 255, "8/255"),
        (0.2, "0.2"),
        (0.5, "0.5"),
        (12, "12"),
        (1 / 3, "85/255"),
        (0.123456789, "0.123457"),
        ("8/255", "8/255"),
        ([0.1], "one value per sample"),
    ],
)
def test_eps_is_written_as_people_write_it(eps: object, text: str) -> None:
    assert eps_text(eps) == text


def test_a_threat_without_eps(tmp_path, world) -> None:
    assert "Under Linf perturbations, net has" in world.run(tmp_path, {0: "..."}, threat__eps=None).sentence()


def test_repeated_rows_are_dropped_and_conflicting_ones_refused(tmp_path, world) -> None:
    run = world.run(tmp_path, {0: "..x", 1: "x"})
    rows = run.rows()
    nan = world.record(1, "one", clean_margin=float("nan"))
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.append(world.table({0: "..x"}))
        for seconds in (1.0, 2.0):
            writer.append(pa.Table.from_pylist([{**nan, "seconds": seconds, "device": f"{seconds}"}], schema=ROWS))
    assert Run.open(tmp_path).rows().num_rows == rows.num_rows + 1
    with Writer.resume(tmp_path, world.manifest()) as writer:
        writer.append(world.table({0: "..."}))
    with pytest.raises(RunError, match=r"two outcomes that differ in broken, distance, verified for 1 .*: 0/two\."):
        Run.open(tmp_path).rows()


def test_a_shard_of_a_later_version_is_read(tmp_path, world) -> None:
    world.run(tmp_path, {0: "..x"})
    shard = next(tmp_path.glob("rows/*.parquet"))
    table = pq.read_table(shard)
    pq.write_table(table.append_column("entropy", pa.array([1.0] * 3)), shard)
    reseal(tmp_path)
    assert Run.open(tmp_path).rows().schema == ROWS


@pytest.mark.parametrize("column", ["label", "verified", "adv_shard", "judged"])
def test_a_renamed_column_is_refused_even_without_checksums(tmp_path, world, column: str) -> None:
    world.run(tmp_path, {0: "..x"})
    shard = next(tmp_path.glob("rows/*.parquet"))
    table = pq.read_table(shard)
    pq.write_table(table.rename_columns([f"{n}_" if n == column else n for n in table.column_names]), shard)
    reseal(tmp_path, checksums=False)
    with pytest.raises(RunError, match=f"{shard.name}.*no column {column}"):
        Run.open(tmp_path).rows()


@pytest.mark.parametrize("ids", [[7], [0, 0], []])
def test_exchanged_adversarials_are_noticed(tmp_path, world, ids: list[int]) -> None:
    run = world.run(tmp_path, {0: "..x", 1: "..x"})
    shard = run.rows()["adv_shard"].to_pylist()[-1]
    x = np.zeros((len(ids), 2, 2), np.float32)
    files.write_adversarials(files.adversarials_file(tmp_path, shard), files.Adversarials(np.array(ids, np.int64), x))
    with pytest.raises(RunError, match=f"{shard}.* as it was written"):
        run.adversarials()
    reseal(tmp_path)
    run = Run.open(tmp_path)
    with pytest.raises(RunError, match=f"other samples in .*{shard}"):
        run.adversarials()


def test_results_never_import_torch() -> None:
    code = "import sys, brinell.errors; before = 'torch' in sys.modules; import brinell.results; "
    code += "assert ('torch' in sys.modules) == before"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
