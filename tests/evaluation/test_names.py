"""Ids may be names of files: they decide the outcome, and come back in rows, reports, bundles and checks."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell.core.samples import BYTES, id_of
from brinell.errors import InputError
from brinell.results import Run
from brinell.verification.bundle import pack
from brinell.verification.submission import open_submission

N = 12
DATA = brinell.data.load("demo", N)
NAMES = [f"test/{i:03}.png" for i in range(N)]
NAMED = brinell.Problem(DATA.x, DATA.y, ids=NAMES)


def run_on(problem: Any, **more: Any) -> Run:
    plan = [brinell.attacks.PGD(steps=3)]
    return brinell.evaluate("demo", problem, brinell.Linf(0.06), plan, progress=False, test=False, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_on(NAMED, out=tmp_path_factory.mktemp("named") / "run")


def test_rows_have_the_names(run: Run) -> None:
    rows = run.rows()
    assert {*zip(rows["sample_name"].to_pylist(), rows["sample_id"].to_pylist(), strict=True)} == {
        (name, id_of(name)) for name in NAMES
    }
    assert run.sample_names == {id_of(name): name for name in NAMES}


def test_the_outcome_depends_on_the_name_and_not_on_the_place(run: Run, tmp_path: Path) -> None:
    order = torch.tensor([7, 2, 11, 0])
    some = brinell.Problem(DATA.x[order], DATA.y[order], ids=[NAMES[i] for i in order])
    columns = ["sample_name", "attack", "broken", "adv_margin", "best_loss", "distance"]
    whole = {tuple(row.values()) for row in run.rows().select(columns).to_pylist()}
    part = {tuple(row.values()) for row in run_on(some, out=tmp_path / "part").rows().select(columns).to_pylist()}
    assert len(part) > 4 and part <= whole


def test_reports_bundles_and_checks_have_the_names(run: Run, tmp_path: Path) -> None:
    broken = [run.sample_names[int(i)] for i in run.adversarials().ids]
    page = run.report(tmp_path / "page.html", problem=NAMED).read_text()
    assert broken and all(f"Sample {name}" in page for name in broken[:1])
    pack(run, tmp_path / "run.zip")
    with ExitStack() as stack:
        opened = open_submission(tmp_path / "run.zip", stack)
        assert isinstance(opened, Run) and opened.sample_names == run.sample_names
    assert brinell.verify(run, "demo", NAMED, rerun=0, progress=False).ok
    renamed = brinell.Problem(DATA.x, DATA.y, ids=NAMED.ids, names=[f"x{name}" for name in NAMES])
    assert "the name is" in str(brinell.verify(run, "demo", renamed, rerun=0, progress=False))


def test_a_run_goes_on_and_merges_with_names(run: Run, tmp_path: Path) -> None:
    parts = [run_on(NAMED[i : i + 6], out=tmp_path / str(i)) for i in (0, 6)]
    assert brinell.results.merge([p.path for p in parts], tmp_path / "both").sample_names == run.sample_names
    assert run_on(NAMED, out=run.path, resume=True).sample_names == run.sample_names


def test_names_in_files(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "named.npz", x=DATA.x.numpy(), y=DATA.y.numpy(), ids=np.array(NAMES))
    assert brinell.data.load(tmp_path / "named.npz").fingerprint() == NAMED.fingerprint()
    adversarials = run.adversarials()
    names = np.array([run.sample_names[int(i)] for i in adversarials.ids])
    np.savez(tmp_path / "adv.npz", ids=names, x=adversarials.x)
    checked = brinell.review([tmp_path / "adv.npz"], "demo", NAMED, brinell.Linf(0.06))
    assert checked.ok, str(checked)


def test_runs_without_names_store_none(tmp_path: Path) -> None:
    plain = run_on(DATA, out=tmp_path / "plain")
    assert plain.sample_names == {} and set(plain.rows()["sample_name"].to_pylist()) == {None}


def test_bytes_give_the_same_run_with_a_note(tmp_path: Path) -> None:
    pixels = (DATA.x * 255).round().to(torch.uint8)
    runs = [run_on((x, DATA.y), out=tmp_path / str(x.dtype)) for x in (pixels, pixels.float() / 255)]
    assert runs[0].identity.data.fingerprint == runs[1].identity.data.fingerprint
    assert BYTES in runs[0].notes and BYTES not in runs[1].notes
    columns = ["sample_id", "attack", "x_sha256", "broken", "adv_margin", "distance"]
    assert runs[0].rows().select(columns) == runs[1].rows().select(columns)


@pytest.mark.parametrize("name", ["a\ud800", "x" * 100_000], ids=["no Unicode", "long"])
def test_names_that_a_run_cannot_hold_are_refused(name: str) -> None:
    for given in ({"ids": [name, "b"]}, {"names": [name, "b"]}):
        with pytest.raises(InputError, match="names in Unicode of at most 1,000 characters"):
            brinell.Problem(torch.zeros(2, 1, 2, 2), torch.zeros(2, dtype=torch.long), **given)
