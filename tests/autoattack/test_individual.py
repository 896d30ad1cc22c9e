"""Individual mode: one Run with the numbers of a separate evaluation of every attack."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from brinell import L1, L2, Linf, Plan, Run
from brinell.cli.main import app

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize("threat", [Linf(0.018), L2(0.12), L1(0.35)], ids=lambda t: t.norm.name)
def test_columns_are_those_of_separate_evaluations(
    threat: Any, tiny: Any, images: Any, quiet: Any, cut: Any, outcome: Any
) -> None:
    net, whole = tiny(), cut("autoattack-plus")
    data = images(net, 16)
    together = quiet(net, data, threat, whole, individual=True)
    standing = set(range(16))
    for stage, numbers in zip(whole.stages_for(threat), together.stages(), strict=True):
        alone = quiet(net, data, threat, Plan("alone", (stage,)))
        assert numbers == alone.stages()[0]
        assert numbers.attacked == together.clean_accuracy.k
        mine = outcome(together).filter(pc.equal(outcome(together)["attack"], stage.name))
        theirs = outcome(alone).filter(pc.equal(outcome(alone)["attack"], stage.name))
        assert mine.equals(theirs)
        standing &= set(alone.survivors().tolist())
        own = dict(together.accuracy_alone())[stage.name]
        assert (own.k, own.n) == (alone.robust_accuracy.k, 16) == (len(alone.survivors()), 16)
    assert together.survivors().tolist() == sorted(standing)
    assert any(a.k != b.k for (_, a), (_, b) in zip(together.accuracy_alone(), together.accuracy_after(), strict=True))
    assert len({s.broken for s in together.stages()}) > 1


def test_the_chain_breaks_the_same_samples(tiny: Any, images: Any, quiet: Any, cut: Any) -> None:
    """Whether every attack sees every sample or only those left over does not change who survives."""
    net, whole = tiny(), cut("autoattack-plus")
    data = images(net, 16)
    chain, together = (quiet(net, data, Linf(0.018), whole, individual=i) for i in (False, True))
    assert np.array_equal(chain.survivors(), together.survivors())
    assert [a.k for _, a in chain.accuracy_after()] == [a.k for _, a in together.accuracy_after()]
    assert chain.cost.forwards < together.cost.forwards


def test_the_command_shows_the_accuracy_under_each_attack_alone(tmp_path: Path) -> None:
    """Alone, each attack leaves at least as many samples as all attacks so far; the last two columns say how many."""
    start = ["evaluate", "--model", "demo", "--data", "demo", "--n", "24", "--eps", "0.1", "--quiet"]
    chosen = ["--attacks", "pgd-ce,fgsm", "--individual", "--out", str(tmp_path / "run")]
    text = CliRunner().invoke(app, [*start, *chosen], env={"COLUMNS": "160"}).output
    run = Run.open(tmp_path / "run")
    (_, pgd), (_, fgsm) = run.accuracy_alone()
    assert pgd.k < fgsm.k and run.robust_accuracy.k <= pgd.k
    line = next(line for line in text.splitlines() if "fgsm" in line)
    after = run.robust_accuracy
    assert line.index(f"{100 * after.value:.1f} %") < line.index(f"{100 * fgsm.value:.1f} %")
    assert f"{100 * fgsm.low:.1f}" in line and "alone" in text
    stored = json.loads(CliRunner().invoke(app, [*start, *chosen, "--resume", "--json"]).output)
    assert [s["alone"]["k"] for s in stored["stages"]] == [pgd.k, fgsm.k]
    assert "accuracy under it alone" in str(run)
    page = run.report(tmp_path / "run.md").read_text()
    assert "| accuracy alone |" in page and f"| {fgsm} |" in page
    chain = CliRunner().invoke(app, [*start, "--attacks", "pgd-ce,fgsm"], env={"COLUMNS": "160"}).output
    assert "alone" not in chain
