"""The pages made of docstrings hold what a reader of an attack or a plan needs."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import brinell
from brinell.attacks.catalogue import PLANS

SOURCE = Path(__file__).resolve().parents[1] / "docs" / "reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    return dict(reference.pages())


@pytest.mark.parametrize("name", brinell.attacks.__all__)
def test_every_attack_says_method_cost_reference_and_limits(pages: dict[str, str], name: str) -> None:
    page = pages[f"attacks/{name.lower()}.md"]
    assert [label for label in ("**Method.**", "**Reference.**", "**Limits.**") if label not in page] == []
    assert "**Cost.**" in page or "**Cost per step.**" in page


def test_every_plan_has_a_page_with_its_stages(pages: dict[str, str]) -> None:
    for plan in PLANS.values():
        page = pages[f"plans/{plan.name.replace('+', '-plus')}.md"]
        assert plan.citation in page
        assert [s.name for s in plan.stages_for(brinell.Linf(0.1)) if f"| {s.name} |" not in page] == []


def test_the_cost_of_autoattack_is_the_known_one(pages: dict[str, str]) -> None:
    """101 + 9 · 101 + 9 · 200 + 5,001 queries."""
    page = pages["plans/autoattack.md"]
    assert [n for n in ("| 101 |", "| 909 |", "| 1,800 |", "| 5,001 |") if n not in page] == []


def test_the_interface_has_every_public_name(pages: dict[str, str]) -> None:
    headings = {line.lstrip("# ") for line in pages["api.md"].splitlines() if line.startswith("##")}
    assert {f"brinell.{name}" for name in brinell.__all__} <= headings


def test_labels_begin_new_paragraphs(reference: ModuleType) -> None:
    class Documented:
        """Does a thing.

        Method: it does. Cost: none; more. Reference: A 2020.
        Limits: many.

        >>> 1
        1
        """

    assert reference.document(Documented) == (
        "Does a thing.\n\n**Method.** It does.\n\n**Cost.** None; more.\n\n**Reference.** A 2020.\n\n"
        "**Limits.** Many.\n\n```pycon\n>>> 1\n1\n```"
    )
