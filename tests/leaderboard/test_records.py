"""Records: what was published is taken over to the letter, what was measured survives the way through a file."""

import csv
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from brinell.errors import InputError, RunError
from brinell.leaderboard import records
from brinell.leaderboard.records import PERCENTAGES, Record
from brinell.results import Proportion, Run
from brinell.results.format.manifest import Manifest

pytestmark = pytest.mark.usefixtures("few")

GOLDEN = Path(__file__).parents[1] / "results" / "golden_run_v1"
SHA256 = "4baba07e866ffe0a1a87e9e24dc0bedf4611a12af615f6bc3f7d4362b67556f4"
COUNTS = {
    ("cifar10", "Linf"): 99,
    ("cifar10", "L2"): 21,
    ("cifar10", "corruptions"): 23,
    ("cifar100", "Linf"): 38,
    ("cifar100", "corruptions"): 13,
    ("imagenet", "Linf"): 30,
    ("imagenet", "corruptions"): 12,
}


def test_the_file_is_the_one_that_was_compared() -> None:
    data = (files("brinell.leaderboard") / records.PUBLISHED).read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256
    assert len(data) < 40_000


def test_every_published_record_is_there() -> None:
    found = records.published()
    assert Counter((r.dataset, r.threat) for r in found) == COUNTS
    assert len({r.key for r in found}) == 236
    assert {r.status for r in found} == {"published"}
    assert sum(r.external is not None for r in found) == 25
    assert sum(r.unreliable is True for r in found) == 2
    assert sum(r.autoattack is not None for r in found) == 188
    assert sum(r.corruptions is not None for r in found) == 48


def test_titles_authors_licences_and_notes_come_with_the_records() -> None:
    found = {r.key: r for r in records.published()}
    assert all(r.title for r in found.values()) and len({r.title for r in found.values()}) == 87
    # Only the standardly trained models have no authors.
    assert {r.title for r in found.values() if not r.authors} == {"Standardly trained model"}
    assert Counter(r.licence for r in found.values()) == {
        "MIT": 170, "Apache-2.0": 30, "": 33, "CC-BY-NC-SA-4.0": 2, "BSD-3-Clause": 1,
    }  # fmt: skip
    assert {r.name for r in found.values() if r.non_commercial} == {"Ding2020MMA"}
    fixing = found["cifar10/Linf/Rebuffi2021Fixing_70_16_cutmix_ddpm"]
    assert fixing.title == "Fixing Data Augmentation to Improve Adversarial Robustness"
    assert fixing.authors.startswith("Sylvestre-Alvise Rebuffi, Sven Gowal")
    for r in found.values():
        # A number below AutoAttack's is explained.
        assert r.external in (None, r.autoattack) or f"{r.external:.2f} %" in (r.footnote or ""), r.key
        assert not re.search(r"\s{2}|^\s|\s$|<(?!a |/a)", r.title + (r.footnote or "") + r.authors), r.key


def test_published_numbers_are_those_of_the_table() -> None:
    shared = os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[3] / "shared")
    table = Path(shared) / "spec" / "robustbench_models.csv"
    if not table.exists():
        pytest.skip("needs the table of the leaderboard (set BRINELL_SHARED)")
    columns = {
        "clean": "clean_acc",
        "autoattack": "autoattack_acc",
        "external": "best_known_external",
        "reported": "reported_acc",
        "corruptions": "corruptions_acc",
        "corruptions_mce": "corruptions_mce",
        "corruptions_3d": "corruptions_acc_3d",
        "corruptions_mce_3d": "corruptions_mce_3d",
    }
    assert set(columns) == set(PERCENTAGES)
    with open(table, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records.published())
    for row, record in zip(rows, records.published(), strict=True):
        assert record.key == f"{row['dataset']}/{row['threat_model']}/{row['model_id']}"
        for ours, theirs in columns.items():
            wanted = None if row[theirs] in ("", "null") else float(row[theirs])
            assert getattr(record, ours) == wanted, (record.key, ours)
        assert (record.eps or "", record.venue, record.link) == (row["eps"], row["venue"], row["link"])
        assert record.architecture == row["architecture"]
        assert {True: "true", False: "false", None: ""}[record.unreliable] == row["unreliable_flag"]
        assert str(record.extra_data).lower() == row["extra_data"]
        assert record.forward_passes == int(row["n_forward_passes"])


def test_the_best_known_number_decides_the_order() -> None:
    linf = [r for r in records.published() if (r.dataset, r.threat) == ("cifar10", "Linf")]
    order = records.ranked(linf)
    assert [r.name for r in order[:3]] == [
        "Bartoldson2024Adversarial_WRN-94-16",
        "Amini2024MeanSparse_S-WRN-94-16",
        "Bartoldson2024Adversarial_WRN-82-8",
    ]
    kang = records.find(linf, "cifar10/Linf/Kang2021Stable")
    # Whoever tells a number higher than AutoAttack's has found nothing.
    assert Record("d", "t", "m", autoattack=50.0, external=99.0).best == 50.0
    assert kang is not None and (kang.autoattack, kang.external, kang.best) == (71.28, 64.2, 64.2)
    assert records.ranked([Record("a", "b", "c"), *order])[-1].name == "c"
    assert records.find(linf, "cifar10/Linf/Nobody") is None


def test_a_board_of_corruptions_sorts_by_them() -> None:
    order = records.ranked(r for r in records.published() if (r.dataset, r.threat) == ("imagenet", "corruptions"))
    assert order[0].name == "Tian2022Deeper_DeiT-B" and order[0].best == 67.55
    assert order[-1].name == "AlexNet" and order[-1].corruptions_mce_3d is not None


def test_overestimation_is_reported_minus_best() -> None:
    record = Record("d", "t", "m", autoattack=50.01, reported=61.5)
    assert record.overestimation == 11.49
    assert replace(record, external=40.0).overestimation == 21.5
    assert replace(record, reported=None).overestimation is None
    assert Record("d", "t", "m", reported=3.0).overestimation is None


@pytest.mark.parametrize(
    ("venue", "year"), [("ICLR 2020", 2020), ("arXiv, Mar 2021", 2021), ("", None), ("N/A", None), ("OpenReview", None)]
)
def test_year(venue: str, year: int | None) -> None:
    assert Record("d", "t", "m", venue=venue).year == year


def test_every_published_record_survives_a_file(tmp_path: Path) -> None:
    for record in records.published()[::9]:
        place = record.write(tmp_path)
        assert place == tmp_path / record.dataset / record.threat / f"{record.name}.json"
        assert records.read(place) == record


def test_a_file_has_the_names_and_texts_of_the_public_leaderboard() -> None:
    record = Record("cifar10", "Linf", "Mine2026", title="Mine, and how", clean=90.1, autoattack=0.0, extra_data=True)
    told = record.to_json()
    for name in (
        *("link", "name", "authors", "venue", "architecture", "dataset", "additional_data", "number_forward_passes"),
        *("eps", "clean_acc", "reported", "autoattack_acc", "external", "unreliable", "footnote", "corruptions_acc"),
        *("corruptions_mce", "corruptions_acc_3d", "corruptions_mce_3d"),
    ):
        assert name in told
    assert (told["clean_acc"], told["autoattack_acc"], told["external"]) == ("90.10", "0.00", None)
    assert (told["name"], told["id"], told["additional_data"]) == ("Mine, and how", "Mine2026", True)


def test_a_file_of_the_public_leaderboard_is_read(tmp_path: Path) -> None:
    place = tmp_path / "cifar10" / "L2" / "Rice2020Overfitting.json"
    place.parent.mkdir(parents=True)
    stored = {"link": "l", "name": "Overfitting in deep learning", "authors": "A, B", "additional_data": False,
              "number_forward_passes": 1, "dataset": "cifar10", "venue": "ICML 2020", "architecture": "PreActResNet-18",
              "eps": "0.5", "clean_acc": "88.67", "reported": "71.6", "autoattack_acc": "67.68"}  # fmt: skip
    place.write_text(json.dumps(stored))
    record = records.read(place)
    assert (record.key, record.status, record.autoattack) == ("cifar10/L2/Rice2020Overfitting", "published", 67.68)
    assert (record.title, record.overestimation) == ("Overfitting in deep learning", 3.92)


def test_a_folder_of_records(tmp_path: Path) -> None:
    some = records.published()[:3]
    for record in some:
        record.write(tmp_path / "board")
    mine = Record("cifar10", "Linf", "Mine", clean=1.0)
    mine.write(tmp_path / "run" / records.RECORD)
    (tmp_path / "run" / "manifest.json").write_text("{}")
    assert sorted(r.key for r in records.read_folder(tmp_path)) == sorted([mine.key, *(r.key for r in some)])
    (tmp_path / "run" / records.RECORD).write_text("{")
    with pytest.raises(RunError, match="leaderboard record"):
        records.read_folder(tmp_path)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\nb"])
def test_a_name_is_one_part_of_a_file_name(name: str) -> None:
    with pytest.raises(InputError, match="Pass another name"):
        Record("cifar10", "Linf", name)


def test_other_statuses_are_refused() -> None:
    with pytest.raises(InputError, match="published, unverified, verified"):
        Record("d", "t", "m", status="sure")  # type: ignore[arg-type]


def test_a_record_of_a_run(tmp_path: Path) -> None:
    run = Run.open(GOLDEN)
    record = records.of_run(run, "toy", "Linf", "Golden", {"authors": "A", "reported": 50.0})
    p = run.robust_accuracy
    assert (record.n, record.clean, record.autoattack) == (6, round(100 * run.clean_accuracy.value, 2), 33.33)
    assert record.interval == (round(100 * p.low, 2), round(100 * p.high, 2))
    assert (record.verdict, record.unreliable, record.status) == (run.verdict.level, True, "unverified")
    assert record.cost == run.cost
    assert (record.authors, record.overestimation) == ("A", 16.67)
    place = record.write(tmp_path / records.RECORD)
    assert records.read(place) == replace(record, run=run.path.name)
    checked = records.with_bound(record, Proportion(1, 6))
    assert (checked.status, checked.external, checked.best) == ("verified", 16.67, 16.67)
    assert records.with_bound(record, Proportion(2, 6)).external is None


def test_what_is_measured_cannot_be_told() -> None:
    with pytest.raises(InputError, match="autoattack"):
        records.of_run(Run.open(GOLDEN), "toy", "Linf", "Golden", {"autoattack": 99.0})


def test_an_unfinished_run_has_no_record() -> None:
    run = Run.open(GOLDEN)
    with pytest.raises(RunError, match="unfinished"):
        records.of_run(Run(run.path, Manifest.read({**run.manifest, "finished": False})), "toy", "Linf", "Golden")
