"""A Run whose numbers are known, a key, and dossiers made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import make_images, make_run

from brinell.dossier import PrivateKey, new_key, write_dossier
from brinell.results import Run

N, DAY = 50, "2026-03-01"
SYSTEM = """
[system]
name = "Sorter <script>alert(1)</script> & sons"
intended_purpose = "Sorts pieces."
[data]
sampling = "simple random sample"
[[levels]]
measure = "robust"
norm = "linf"
eps = 0.1
at_least = 40
[[levels]]
measure = "clean"
at_least = 99
"""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two Runs, a key, a description of the system and subgroups."""
    place = tmp_path_factory.mktemp("dossier")
    images = make_images(N)
    make_run(place / "a", images)
    make_run(place / "b", images, eps=0.25, model__name="b <script>alert(2)</script>")
    new_key(place / "key.pem")
    (place / "system.toml").write_text(SYSTEM)
    rows = [f"{i},{'day' if i < 30 else 'night <b>'},{i % 2}" for i in range(N - 1)]
    (place / "groups.csv").write_text("\n".join(["id,light,half", *rows]))
    return place


@pytest.fixture(scope="package")
def key(folder: Path) -> PrivateKey:
    from brinell.dossier import read_key

    return read_key(folder / "key.pem")


@pytest.fixture(scope="package")
def write(folder: Path) -> Callable[..., Path]:
    """Write a dossier of both Runs with everything, unless arguments say otherwise."""

    def written(path: Path, *names: str, **changes: Any) -> Path:
        given: dict[str, Any] = {
            "key": folder / "key.pem", "system": folder / "system.toml", "groups": folder / "groups.csv", "date": DAY,
        }  # fmt: skip
        runs = [Run.open(folder / name) for name in names or ("a", "b")]
        return write_dossier(runs, path, **(given | changes))[0]

    return written


@pytest.fixture(scope="package")
def page(folder: Path, write: Callable[..., Path]) -> Path:
    """A dossier as HTML."""
    return write(folder / "dossier.html")


@pytest.fixture(scope="package")
def data(folder: Path, write: Callable[..., Path]) -> Path:
    """The same dossier as JSON."""
    return write(folder / "plain.json")
