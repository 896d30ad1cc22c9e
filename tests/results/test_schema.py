import pyarrow as pa
import pytest

import brinell.results
from brinell.errors import InputError
from brinell.results import ROWS, SCHEMA_VERSION, conform, counted


def test_the_schema_is_pinned() -> None:
    """A change here needs a new schema version and a new golden Run, unless it adds a nullable column."""
    assert SCHEMA_VERSION == 1
    required = (
        "sample_id x_sha256 label clean_pred clean_margin attack attack_hash seed broken forwards backwards seconds"
    )
    required += " precision device"
    nullable = "restart target adv_pred adv_margin best_loss distance first_broken_at verified verified_8bit judged"
    nullable += " chosen flags adv_shard adv_row certified radius bound passes stopped sample_name"
    assert [f.name for f in ROWS if not f.nullable] == required.split()
    assert [f.name for f in ROWS if f.nullable] == nullable.split()


def test_the_public_names_are_sorted_and_exist() -> None:
    names = brinell.results.__all__
    assert names == sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
    assert all(hasattr(brinell.results, name) for name in names)


def test_later_columns_are_dropped_and_missing_nullable_ones_filled(world) -> None:
    table = world.table({0: "...", 1: ".x"})
    changed = table.drop_columns(["verified_8bit", "flags", "best_loss"]).append_column("new", pa.nulls(5))
    result = conform(changed)
    assert result.schema == ROWS
    assert result["verified_8bit"].null_count == 5
    assert result["flags"].to_pylist() == [[]] * 5
    assert result["sample_id"] == table["sample_id"]


def test_types_are_widened_or_refused(world) -> None:
    table = world.table({0: "."})
    place = table.column_names.index("label")
    assert conform(table.set_column(place, "label", pa.array([3], pa.int8())))["label"].to_pylist() == [3]
    with pytest.raises(InputError, match="column label of type int64"):
        conform(table.set_column(place, "label", pa.array(["three"])))
    with pytest.raises(InputError, match="every row of column label"):
        conform(table.set_column(place, "label", pa.array([None], pa.int64())))


def test_missing_required_columns_are_all_named(world) -> None:
    with pytest.raises(InputError, match="without label, seed"):
        conform(world.table({0: "."}).drop_columns(["seed", "label"]))


def test_only_verified_rows_count(world) -> None:
    assert counted(world.table({0: "x", 1: ".ux", 2: "..."})).tolist() == [True, False, False, True, *[False] * 3]
