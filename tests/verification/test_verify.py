"""Nothing found is trusted: tampered adversarials are caught, unconfirmed ones do not count."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from brinell import Linf, Problem, Run, RunError, evaluate, verify, wrap
from brinell.models.demo import demo_net
from brinell.results.format.files import read_rows, write_rows
from brinell.results.format.manifest import Manifest
from brinell.testing.runs import reseal

EPS = 0.1


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, problem: Problem) -> Path:
    out = tmp_path_factory.mktemp("honest") / "run"
    run = evaluate("demo", problem, Linf(EPS), "pgd20", out=out, progress=False)
    assert len(run.adversarials().ids) > 1
    return out


def tamper(run: Path, change: Callable[[np.ndarray, int], np.ndarray]) -> int:
    """Replace the first stored adversarial; returns its sample."""
    file = sorted((run / "adversarials").iterdir())[0]
    stored = load_file(file)
    sample = int(stored["ids"][0])
    x = stored["x"].copy()
    x[0] = change(x[0], sample)
    save_file({"ids": stored["ids"], "x": x}, file)
    reseal(run)
    return sample


def towards_grey(x: np.ndarray, by: float) -> np.ndarray:
    return (x + by * np.where(x < 0.5, 1, -1)).astype(np.float32)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("further than eps", lambda x, x0, other: towards_grey(x0, 1.01 * EPS)),
        ("outside the box", lambda x, x0, other: x0 - 0.01),
        ("outside the box", lambda x, x0, other: np.nextafter(np.float32(1), np.float32(2)) + 0 * x),
        ("not finite", lambda x, x0, other: x * np.float32("nan")),
        ("not misclassified", lambda x, x0, other: x0),
        ("further than eps", lambda x, x0, other: other),
    ],
    ids=["too far", "below the box", "above the box", "nan", "the clean image", "another clean image"],
)
def test_tampered_adversarial_is_caught(reason: str, change, honest: Path, tmp_path: Path, problem: Problem) -> None:
    copy = tmp_path / "run"
    shutil.copytree(honest, copy)
    images = problem.x.numpy()
    sample = tamper(copy, lambda x, i: change(x, images[i], images[(i + 1) % len(images)]))
    result = verify(copy, "demo", problem)
    assert dict(result.failures) == {sample: reason}
    assert not result.ok
    assert f"sample {sample} ({reason})" in str(result)
    assert verify(honest, "demo", problem).ok


def test_a_slight_excess_is_caught(honest: Path, tmp_path: Path, problem: Problem) -> None:
    """A relative excess of 1e-4 is far above the rounding that is allowed for."""
    copy = tmp_path / "run"
    shutil.copytree(honest, copy)
    sample = tamper(copy, lambda x, i: towards_grey(problem.x.numpy()[i], EPS * (1 + 1e-4)))
    assert verify(copy, "demo", problem).failures[sample] == "further than eps"


def test_a_change_outside_the_mask_is_caught(tmp_path: Path, problem: Problem) -> None:
    mask = torch.ones(1, 28, 28, dtype=torch.bool)
    mask[:, 27] = False
    run = evaluate("demo", problem, Linf(EPS, mask=mask), "fgsm", out=tmp_path / "run", progress=False)
    assert verify(run, "demo", problem).ok

    def move(x: np.ndarray, i: int) -> np.ndarray:
        x = x.copy()
        x[0, 27, 27] += 0.01
        return x

    sample = tamper(run.path, move)
    assert verify(run.path, "demo", problem).failures == {sample: "outside the box"}


def test_exchanged_ids_are_refused(honest: Path, tmp_path: Path, problem: Problem) -> None:
    copy = tmp_path / "run"
    shutil.copytree(honest, copy)
    file = sorted((copy / "adversarials").iterdir())[0]
    stored = load_file(file)
    save_file({"ids": stored["ids"][::-1].copy(), "x": stored["x"]}, file)
    reseal(copy)
    with pytest.raises(RunError, match="other samples"):
        verify(copy, "demo", problem)


def test_a_claim_without_an_adversarial_is_caught(honest: Path, tmp_path: Path, problem: Problem) -> None:
    copy = tmp_path / "run"
    shutil.copytree(honest, copy)
    for file in (copy / "rows").iterdir():
        table = read_rows(file)
        for name in ("adv_shard", "adv_row"):
            i = table.column_names.index(name)
            table = table.set_column(i, table.schema.field(i), pa.nulls(table.num_rows, table.schema.field(i).type))
        write_rows(file, table)
    reseal(copy)
    claimed = len(Run.open(honest).adversarials().ids)
    result = verify(copy, "demo", problem)
    assert result.checked == claimed
    assert set(result.failures.values()) == {"no adversarial stored"}
    assert len(result.failures) == claimed


def test_other_data_under_the_same_ids_is_caught(honest: Path, problem: Problem) -> None:
    sample = int(Run.open(honest).adversarials().ids[0])
    x = problem.x.clone()
    x[sample, 0, 0, 0] = 0.5 - x[sample, 0, 0, 0] / 4
    result = verify(honest, "demo", Problem(x, problem.y))
    assert result.failures == {sample: "the clean input is not the one that was attacked"}


def test_other_data_are_one_sentence(honest: Path, problem: Problem) -> None:
    result = verify(honest, "demo", Problem(problem.x.flip(3), problem.y))
    n = len(problem.y)
    assert not result.ok and not result.failures and len(result.objections) == 1
    assert f"The data are others: {n} of the {n} inputs of the Run" in str(result) and "sample 0" not in str(result)


def test_missing_data_is_refused(honest: Path, problem: Problem) -> None:
    with pytest.raises(RunError, match="same ids"):
        verify(honest, "demo", problem[:2])


def test_another_model_does_not_verify(honest: Path, problem: Problem) -> None:
    sample = int(Run.open(honest).adversarials().ids[0])

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.eye(10)[problem.y[sample]] * torch.full((len(x), 1), 5.0)

    result = verify(honest, Constant().eval(), problem)
    assert result.failures[sample] == "not misclassified"


class Moody(nn.Module):
    """Undecided at first, itself later."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.calls = demo_net(), 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) if self.calls > 1 else self.net(x) + torch.nan


def test_randomised_models_are_judged_as_when_the_run_was_made(honest: Path, problem: Problem) -> None:
    run = Run.open(honest)
    assert len(run.adversarials().ids) <= 32, "the model must be called once per pass"
    assert set(verify(run, Moody(), problem).failures.values()) == {"not misclassified"}
    manifest = run.manifest
    manifest["identity"]["plan"]["draws"] = 3
    assert not verify(Run(honest, Manifest.read(manifest)), Moody(), problem).failures


class TwoFaced(nn.Module):
    """Gives another answer when asked with gradients than without: what attacks find does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        return z.flip(1) if torch.is_grad_enabled() else z


def test_unverified_adversarials_do_not_count_and_are_told(problem: Problem) -> None:
    run = evaluate(wrap(TwoFaced()), problem, Linf(0.001), "pgd20", progress=False)
    assert run.unverified.num_rows > 0
    assert set(run.unverified["verified"].to_pylist()) == {False}
    assert run.robust_accuracy == run.clean_accuracy
    assert len(run.adversarials().ids) == 0
    assert run.verdict.level == "suspicious"
    assert (
        f"{run.unverified.num_rows} adversarials did not pass verification and are not counted." in run.verdict.reasons
    )
    assert "did not pass verification" in str(run)


def test_unverified_samples_are_attacked_again_by_the_next_stage(problem: Problem) -> None:
    from brinell import attacks

    stages = [attacks.PGD(steps=1), attacks.FGSM()]
    run = evaluate(wrap(TwoFaced()), problem[:8], Linf(0.001), stages, progress=False)
    attacked = [s.attacked for s in run.stages()]
    assert attacked[0] == attacked[1] > 0


def test_a_model_that_is_always_wrong_does_not_pass_for_the_one_that_was_attacked(
    honest: Path, problem: Problem
) -> None:
    run = Run.open(honest)
    broken = int(run.clean_accuracy.k - run.robust_accuracy.k)
    net = nn.Sequential(demo_net(), nn.Linear(10, 10, bias=False)).eval()
    with torch.no_grad():
        net[1].weight.copy_(-torch.eye(10))  # says what is least likely
    found = verify(run, net, problem)
    assert broken and found.checked == broken
    assert sum("counts it as right" in why for why in found.failures.values()) >= broken
    assert any("another model" in note or "fingerprint" in note for note in found.notes)
    assert verify(run, "demo", problem).ok
