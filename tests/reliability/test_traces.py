"""Traces by iteration against single runs and a closed form; the scale of the logits against its formula."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import brinell
from brinell.attacks import APGD, PGD, MomentumPGD
from brinell.cli.main import app
from brinell.core.threat import Linf, threat
from brinell.ops import rng
from brinell.reliability.traces import logit_scales, trace
from brinell.reliability.traces.logit_scale import LogitScale, LogitScales
from brinell.reliability.traces.trace import Trace, Traces
from brinell.results import Proportion
from brinell.testing import linear_world

EPS = 0.1


@pytest.fixture(scope="module")
def data() -> brinell.Problem:
    return brinell.data.load("demo", 24)


def starts(data: brinell.Problem, seed: int = 0) -> torch.Tensor:
    key = rng.fold(rng.keys(seed, data.ids), rng.digest("trace"))
    return Linf(EPS).ball(torch.arange(len(data)), torch.device("cpu")).inside(data.x, key)


@pytest.mark.parametrize("loss", ["ce", "cw", "dlr"])
def test_every_point_of_a_trace_is_the_result_of_a_single_run(data: brinell.Problem, loss: str) -> None:
    found = trace("demo", data, Linf(EPS), losses=[loss], steps=[3, 7], rel_steps=[0.25, 2.0])
    assert [t.name for t in found.traces] == [
        "pgd, eps/4", "pgd, 2 eps", "momentum-pgd, eps/4", "momentum-pgd, 2 eps", "apgd, 3 steps", "apgd, 7 steps",
    ]  # fmt: skip
    named = {"cw": "margin"}.get(loss, loss)
    singles = {
        "pgd": lambda n, rel: PGD(n, rel, named),
        "momentum-pgd": lambda n, rel: MomentumPGD(n, rel, named),
        "apgd": lambda n, rel: APGD(n, named),
    }
    for t in found.traces:
        for n in (t.steps,) if t.rel_step is None else (2, t.steps):
            rows = brinell.attack(
                "demo", data, Linf(EPS), singles[t.attack](n, t.rel_step), start=starts(data), early_exit=False
            )
            correct = np.asarray(rows["clean_pred"]) == np.asarray(rows["label"])
            broken = np.asarray(rows["broken"], dtype=bool)
            assert t.robust[n] == int((correct & ~broken).sum()) == t.accuracy(n).k
            assert t.best_loss[n] == pytest.approx(np.asarray(rows["best_loss"])[correct].mean(), rel=1e-5)
    assert found.clean.k < found.clean.n == len(data), "the test does not see misclassified samples"
    assert any(t.robust[-1] < t.robust[0] for t in found.traces)


def test_the_best_margin_of_a_linear_model_reaches_the_closed_form() -> None:
    world = linear_world(classes=2, n=12)
    eps = float(world.distance("Linf").min()) / 2
    found = trace(world.classifier, (world.x, world.y), Linf(eps), losses=["margin"], steps=[40])
    z, sign = world.x @ world.weight.T + world.bias, 1 - 2 * world.y
    gap = sign * (z[:, 1] - z[:, 0]) + eps * (world.weight[1] - world.weight[0]).abs().sum()
    for t in found.traces:
        assert t.best_loss[-1] == pytest.approx(float(gap.mean()), rel=1e-4), t.name
        assert t.best_loss[0] < t.best_loss[-1] and t.robust[-1] == 12
        assert list(t.best_loss) == sorted(t.best_loss)


def test_the_findings_give_every_budget(data: brinell.Problem) -> None:
    found = trace("demo", data, Linf(EPS), ["momentum-pgd", "apgd", APGD(4, "dlr")], steps=[2, 6])
    accuracy, loss = found.findings().tables
    assert accuracy.columns[3:] == ("2 steps", "4 steps", "6 steps") == loss.columns[3:]
    momentum, adaptive, own = loss.rows
    assert momentum[3] == float(f"{found.traces[0].best_loss[2]:.4g}") and momentum[4] is not None
    assert adaptive[3] == float(f"{found.traces[1].best_loss[-1]:.4g}") and adaptive[4] is None
    assert own[:2] == ("dlr", "apgd-dlr") and own[3] is None and own[4] is not None
    lines = found.to_csv().splitlines()
    assert len(lines) == 1 + 7 + 3 + 7 + 5 and lines[1].startswith("momentum-pgd,ce,0.25,6,0,")
    with pytest.raises(brinell.BrinellError, match=r"momentum-pgd"):
        trace("demo", data, Linf(EPS), ["momentum"])


class Saturated(nn.Module):
    """Logits ± c · (x₁ − 1/2) in the first coordinate; the others do not matter."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c = c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.c * (x.flatten(1)[:, 0] - 0.5)
        return torch.stack([-v, v], 1)


def test_gradients_vanish_where_the_logits_are_large() -> None:
    """1 − p underflows for a gap of 2 · 0.1 · 1000 = 200; divided by 100 it is 2, and one coordinate of four moves."""
    x = torch.full((10, 4), 0.5)
    x[:, 0] = torch.tensor([0.4] * 4 + [0.6] * 6)
    y = torch.tensor([0] * 4 + [1] * 5 + [0])
    model = brinell.wrap(Saturated(1000.0).eval())
    found = logit_scales(model, (x, y), threat("Linf", 0.2), [1, 100], attack=PGD(5, random_start=False))
    one, hundred = found.scales
    assert (found.clean.k, found.clean.n) == (9, 10)
    assert (one.zeros, one.vanished.k, one.vanished.n, one.robust.k) == (1.0, 9, 9, 9)
    assert (hundred.zeros, hundred.vanished.k, hundred.robust.k) == (0.75, 0, 0)
    with pytest.raises(brinell.BrinellError, match="positive"):
        logit_scales(model, (x, y), threat("Linf", 0.2), [0])


def test_the_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    base = ["--model", "demo", "--data", "demo", "--n", "12", "--eps", "0.1"]
    files = {name: tmp_path / f"a.{name}" for name in ("json", "csv", "svg")}
    written = ["--json", str(files["json"]), "--csv", str(files["csv"]), "--plot", str(files["svg"])]
    traced = ["analyze", "trace", *base, "--attack", "pgd", "--attack", "apgd", "--loss", "dlr", "--steps", "4"]
    made = runner.invoke(app, [*traced, *written])
    assert made.exit_code == 0, made.output
    assert "robust accuracy in %" in made.output and "<svg" in files["svg"].read_text()
    numbers = json.loads(files["json"].read_text())["numbers"]
    assert [len(t["best_loss"]) for t in numbers["traces"]] == [5, 5]
    assert len(files["csv"].read_text().splitlines()) == 11
    scaled = ["analyze", "logit-scale", *base, "--scale", "1", "--scale", "0.01", "--steps", "2", "--loss", "cw"]
    made = runner.invoke(app, [*scaled, "--csv", str(files["csv"])])
    assert made.exit_code == 0, made.output
    assert [line.split(",")[0] for line in files["csv"].read_text().splitlines()] == ["scale", "1", "0.01"]


def test_targeted_losses_are_refused_since_no_target_is_chosen(data: brinell.Problem) -> None:
    with pytest.raises(brinell.PlanError, match=r"an untargeted loss among .*dlr-targeted"):
        logit_scales("demo", data, Linf(EPS), [1], attack=PGD(2, loss="dlr-targeted"))
    with pytest.raises(brinell.PlanError, match="an untargeted loss"):
        trace("demo", data, Linf(EPS), [APGD(2, "dlr-targeted")])


def test_data_without_a_correct_sample_is_refused() -> None:
    x, y = torch.full((3, 4), 0.4), torch.ones(3, dtype=torch.long)
    model = brinell.wrap(Saturated(1.0).eval())  # predicts class 0 for all
    for call in (lambda: trace(model, (x, y), Linf(EPS), steps=[2]), lambda: logit_scales(model, (x, y), Linf(EPS))):
        with pytest.raises(brinell.InputError, match="0 of 3 samples classified correctly"):
            call()


def test_the_summaries_name_ties() -> None:
    def summary(*robust: int) -> str:
        made = tuple(Trace(f"a{i}", "ce", None, (0.0, 1.0), (9, k), 10) for i, k in enumerate(robust))
        return Traces("m", "t", Proportion(9, 10), (1,), made).findings().summary

    assert summary(5, 5, 5).endswith("n = 10, by all 3 attacks.")
    assert summary(6, 5, 5).endswith("by a1, 1 steps, on the loss ce and by a2, 1 steps, on the loss ce.")
    assert summary(6, 5, 7).endswith("by a1, 1 steps, on the loss ce.")

    def scales(*robust: int) -> str:
        made = tuple(LogitScale(10.0**i, 0, Proportion(0, 9), Proportion(k, 10)) for i, k in enumerate(robust))
        return LogitScales("m", "t", "pgd", "ce", Proportion(9, 10), made).findings().summary

    assert scales(5, 5).endswith("and pgd leaves 50.0 % [23.7, 76.3], n = 10 at all 2 scales.")
    found = scales(5, 5, 8)
    assert "but pgd leaves between 50.0 %" in found and "(divided by 1 or 10) and 80.0 %" in found
