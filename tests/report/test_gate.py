"""A gate lets through what is finished, believed and high enough, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.report.conftest import ATTACKS, Images

from brinell.errors import InputError, PlanError
from brinell.report.formats import as_junit
from brinell.report.gate import check_gate
from brinell.results import Run
from brinell.results.format.manifest import Manifest

pytestmark = pytest.mark.usefixtures("few")

LOW = 46.0  # under the lower bound of the Runs made here


@pytest.fixture
def run(make: Callable[..., Run], images: Images, tmp_path: Path) -> Run:
    """As it was stored before Runs said what their attacks need: nothing speaks against it."""
    stages = [{"name": name, "attack": {"steps": 5}, "hash": name} for name in ATTACKS]
    return make(tmp_path / "run", images, plan__stages=stages)


def about(run: Run, fail_under: float | None = None, require: str | None = None) -> list[str]:
    return [finding.name for finding in check_gate(run, fail_under, require)]


def worse(run: Run, level: str) -> Run:
    checks = [{"name": "gradient", "level": level, "message": "it is zero"}]
    return Run(run.path, Manifest.read({**run.manifest, "checks": checks}))


def test_a_reliable_run_that_is_high_enough_passes(run: Run) -> None:
    assert run.verdict.level == "reliable"
    assert about(run, LOW) == about(run, LOW, "reliable") == about(run, None, "suspicious") == []
    assert about(run, 47.0) == ["robust accuracy of at least 47 %"]


def test_nothing_is_asked_without_a_percentage_or_a_verdict(run: Run) -> None:
    assert about(worse(run, "fail")) == []


def test_an_unfinished_run_never_passes(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    run = make(tmp_path / "half", images, finished=False)
    assert about(run, LOW, "suspicious") == about(run, None, "suspicious") == ["finished"]
    assert about(run, LOW) == ["finished", "verdict"]
    (finding,) = check_gate(run, LOW, "suspicious")
    assert "half" in finding.message and "--resume" in finding.remedy


def test_a_suspicious_run_passes_only_where_it_is_accepted(run: Run) -> None:
    run = worse(run, "warn")
    assert about(run, LOW) == about(run, LOW, "reliable") == about(run, None, "reliable") == ["verdict"]
    assert about(run, LOW, "suspicious") == []
    finding = check_gate(run, LOW)[0]
    assert "expected the verdict reliable, got suspicious: Check gradient warns: it is zero." in finding.message
    assert "--require suspicious" in finding.remedy


def test_an_upper_bound_passes_only_where_it_is_accepted(
    make: Callable[..., Run], images: Images, tmp_path: Path
) -> None:
    run = make(tmp_path / "quick", images, plan__strength="weak")
    assert run.verdict.level == "upper bound"
    assert about(run, LOW) == about(run, None, "reliable") == ["verdict"]
    assert about(run, LOW, "upper-bound") == about(run, LOW, "upper bound") == about(run, LOW, "suspicious") == []
    assert about(worse(run, "warn"), LOW, "upper-bound") == ["verdict"]
    assert "--require upper-bound" in check_gate(run, LOW)[0].remedy


def test_an_invalid_run_never_passes(run: Run) -> None:
    run = worse(run, "fail")
    assert about(run, LOW) == about(run, LOW, "suspicious") == about(run, 0.0, "suspicious") == ["verdict"]
    assert "--require" not in check_gate(run, LOW)[0].remedy


def test_invalid_is_nothing_to_require(run: Run) -> None:
    with pytest.raises(PlanError, match="a verdict to require among reliable, upper bound, suspicious, got 'invalid'"):
        check_gate(run, LOW, "invalid")
    with pytest.raises(InputError, match="Write 45 for 45 %"):
        check_gate(run, 0.45)


@pytest.mark.parametrize(("require", "failed"), [(None, {"verdict", "finished"}), ("suspicious", {"finished"})])
def test_junit_says_the_same(
    make: Callable[..., Run], images: Images, tmp_path: Path, require: str | None, failed: set[str]
) -> None:
    run = make(tmp_path / "half", images, finished=False)
    (suite,) = ElementTree.fromstring(as_junit([run], LOW, require))
    assert {case.get("name") for case in suite if case.find("failure") is not None} == failed
    assert suite.get("failures") == str(len(failed))
