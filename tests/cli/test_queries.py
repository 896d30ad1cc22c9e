"""A budget of queries on the command line."""

from pathlib import Path
from typing import Any

from brinell import Run

DEMO = ("--model", "demo", "--data", "demo", "--n", "6", "--eps", "0.02", "-q")


def test_a_budget_is_kept_and_named(brinell: Any, here: Path) -> None:
    code, out, _ = brinell("evaluate", *DEMO, "--plan", "blackbox", "--queries", "40", "--out", "run")
    run = Run.open(here / "run")
    assert code == 0 and "blackbox, 40 queries" in out and run.attacks == ["square", "hop-skip-jump"]
    asked = [r["forwards"] for r in run.rows().to_pylist() if r["attack"] != "clean"]
    assert max(asked) == 20 and not run.cost.backwards


def test_a_budget_is_for_plans_without_gradients(brinell: Any) -> None:
    code, _, error = brinell("evaluate", *DEMO, "--plan", "pgd20", "--queries", "40")
    assert code == 2 and "black-box attacks only, since the number of queries is limited" in error
