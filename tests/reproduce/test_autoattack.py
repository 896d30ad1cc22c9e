"""The exhibits of the AutoAttack paper: their cells are those of the functions and Runs they lay out."""

from pathlib import Path

import pytest

import brinell
from brinell.reliability import trace
from brinell.reproduce import Setup, exhibits, find, reproduce
from brinell.reproduce.papers import autoattack
from brinell.results import Run


def start(cell: object) -> float:
    """The number before the interval."""
    return float(str(cell).split(" ")[0])


def test_every_table_and_figure_is_there() -> None:
    names = [e.name.removeprefix("aa/") for e in exhibits("aa")]
    assert names == ["figure-1", "figure-2", "section-4.2", "table-1", "table-2", "table-3"]
    for e in exhibits("aa"):
        assert all(len(t.rows) <= 12 for t in e.published)
    # The reduction is the difference of two other columns.
    for table in (t for name in ("aa/table-1", "aa/table-3") for t in find(name).published):
        for row in table.rows:
            numbers = [float(c) for c in row[1:] if c is not None]
            assert numbers[-1] == pytest.approx(numbers[-3] - numbers[-2], abs=0.011), row


def test_figure_1_compares_the_best_step_size(tmp_path: Path) -> None:
    made = reproduce("aa/figure-1", Setup(n=12, steps=30, out=tmp_path, progress=False))
    first = made.report.tables[0]
    assert [row[0] for row in first.rows] == [25, 30] and made.picture == "result.svg"
    assert made.command == "brinell reproduce aa/figure-1 --n 12 --steps 30"
    fixed = trace(
        "demo", brinell.data.load("demo", 12), brinell.Linf(0.1), ["momentum-pgd"], steps=[30],
        rel_steps=autoattack.FIGURE_1_STEPS,
    )  # fmt: skip
    assert start(first.rows[0][2]) == pytest.approx(max(t.best_loss[25] for t in fixed.traces), abs=1e-4)
    assert start(first.rows[1][4]) == pytest.approx(100 * min(t.robust[-1] for t in fixed.traces) / 12, abs=0.06)


def test_section_4_2_averages_over_networks(tmp_path: Path) -> None:
    one, two = (
        reproduce(
            "aa/section-4.2", Setup(models=models, n=8, steps=5, out=tmp_path / str(len(models)), progress=False)
        ).report.tables[0]
        for models in (("demo",), ("demo", "demo"))
    )
    assert [row[0] for row in one.rows][-2:] == ["APGD", "networks on which APGD is better than all PGD"]
    assert len(one.rows) == 8 and one.columns == ("attack", "CE", "CW", "DLR")
    for a, b in zip(one.rows[:-1], two.rows[:-1], strict=True):
        assert [start(c) for c in a[1:]] == pytest.approx([start(c) for c in b[1:]], abs=0.06)
    # Ties are no wins: the last row is better only where APGD leaves fewer samples than every version of PGD.
    for column in (1, 2, 3):
        *pgd, apgd = (start(row[column]) for row in one.rows[:-1])
        expected = "0 of 1 (1 tie)" if apgd == min(pgd) else f"{int(apgd < min(pgd))} of 1"
        assert one.rows[-1][column] == expected


def test_tables_1_and_3_have_each_attack_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t")
    stages = tuple(brinell.Stage(brinell.attacks.PGD(i + 1, 0.1), label=name) for i, name in enumerate(names))
    short = {"one": brinell.Plan("one", stages[:4]), "three": brinell.Plan("three", stages)}
    monkeypatch.setattr(autoattack, "PLAIN", short["one"])
    monkeypatch.setattr(autoattack, "PLUS", short["three"])
    for name, plan in (("aa/table-1", "one"), ("aa/table-3", "three")):
        out = tmp_path / plan
        row = reproduce(name, Setup(n=24, out=out, progress=False)).report.tables[0].rows[0]
        (folder,) = (out / "runs").iterdir()
        run = Run.open(folder)
        alone = [100 * p.value for _, p in run.accuracy_alone()]
        assert start(row[2]) == pytest.approx(100 * run.clean_accuracy.value, abs=0.06)
        expected = alone if plan == "one" else [100 * run.accuracy_after()[3][1].value, *alone[4:]]
        assert [start(c) for c in row[3:-3]] == pytest.approx(expected, abs=0.06)
        assert start(row[-3]) == pytest.approx(100 * run.robust_accuracy.value, abs=0.06) and row[-2:] == (None, None)
