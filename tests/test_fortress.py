"""The frame of benchmarks/fortress.py: it counts what held, and the page shows the stored results."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def fortress(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("fortress")
    sys.modules.pop("fortress", None)


def test_an_attempt_that_does_not_hold_fails_the_command(
    fortress: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part, counts = ModuleType("fortress_corrupt"), []

    def run(seed: int, count: int) -> list[tuple[object, ...]]:
        counts.append(count)
        return [("one bit", 3, 2, ("seed 4, mutation 1: other numbers",)), ("cut", 1, 1)]

    part.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fortress_corrupt", part)
    monkeypatch.setattr(sys, "argv", ["fortress.py", "--only", "corrupt", "--scale", "0.01"])
    with pytest.raises(SystemExit) as end:
        fortress.main()
    assert end.value.code == 1 and counts == [5]
    out = capsys.readouterr().out
    assert "| Corruptions | 4 | 3 |" in out and "- one bit: seed 4, mutation 1: other numbers" in out


def test_the_page_shows_the_stored_results_and_all_held(fortress: ModuleType) -> None:
    results, page = fortress.read(), fortress.PAGE.read_text()
    assert fortress.on_page(page, fortress.summary(results)) == page
    assert (fortress.RESULTS / "fortress.md").read_text() == fortress.markdown(results)
    assert {name: r.total("tried") - r.total("held") for name, r in results.items()} == dict.fromkeys(results, 0)
    least = {"corrupt": 500, "forge": 100, "fuzz": 2000}
    assert [name for name, r in results.items() if r.total("tried") < least.get(name, 0)] == []
    lines = [line for name, r in results.items() if name == "kill" for line in r.lines]
    assert not lines or sum(line.tried for line in lines if "kill" in line.kind) >= 200
