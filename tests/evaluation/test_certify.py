"""Certificates for finished Runs, with a certifier that is exact: the closed form for linear models in Linf."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import InputError, ModelError, Problem, RunError, ThreatError
from brinell.certification import Bounds
from brinell.core.certificate import Certificate
from brinell.evaluation.certificates.certifiers import call_of
from brinell.models import smoothed
from brinell.results import Run

N, FEW, SHAPE = 40, 8, (1, 2, 2)
EPS = 0.1
WEAK = brinell.attacks.PGD(steps=1, random_start=False, rel_step=0.01)


def linear(seed: int = 0) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[2.0, -1, 0.5, 1], [-1, 2, 1, -0.5], [0.5, 1, -2, 1]]) + seed)
        net[1].bias.copy_(torch.tensor([0.1, -0.1, 0.0]))
    return net


@dataclass
class Exact:
    """Certifies a linear model in Linf by its closed form in the box; `calls` counts what it was asked."""

    net: nn.Module
    seconds: float = 1.0
    answer: str = "exact"
    calls: list[int] = field(default_factory=list)

    def certify(self, x: Tensor, y: Tensor, threat: brinell.Threat) -> list[Certificate]:
        self.calls.append(len(x))
        weight, bias = (v.detach().double() for v in self.net[1].parameters())
        eps = threat.ball(torch.arange(len(x)), x.device).eps.double()
        logits = x.double().flatten(1) @ weight.T + bias
        certificates = []
        for z, label, radius, point in zip(logits, y, eps, x.double().flatten(1), strict=True):
            worst = (point + radius * (weight - weight[label]).sign()).clamp(0, 1)
            margins = z[label] - z - ((weight - weight[label]) * (worst - point)).sum(1)
            margins[label] = torch.inf
            corner = worst[int(margins.argmin())].float().view(x.shape[1:])
            certificates.append(self.certificate(float(margins.min()), float(radius), corner))
        return certificates

    def certificate(self, margin: float, radius: float, corner: Tensor) -> Certificate:
        certified = margin > 0 or self.answer == "lies"
        stopped = "" if certified else "a counterexample"
        point = None if certified or self.answer == "open" else corner
        return Certificate("closed-form", certified, radius, margin, 1, 0.01, "float64", stopped, point)


def world(seed: int = 0) -> tuple[nn.Module, Problem]:
    net = linear(seed)
    x = torch.rand(N, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return net, Problem(x, net(x).argmax(1))


def evaluated(out: Path, plan: object = "fgsm", eps: object = EPS, **options) -> tuple[Run, nn.Module, Problem]:
    net, data = world()
    threat = brinell.Linf(eps)
    return brinell.evaluate(net, data, threat, plan, out=out, test=False, progress=False, **options), net, data


@pytest.fixture(scope="module")
def run_of_fgsm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluated(tmp_path_factory.mktemp("run") / "run")[0].path


@pytest.fixture
def finished(run_of_fgsm: Path, tmp_path: Path) -> tuple[Path, nn.Module, Problem]:
    return Path(shutil.copytree(run_of_fgsm, tmp_path / "run")), *world()


def test_an_exact_method_closes_the_bracket(finished) -> None:
    path, net, data = finished
    before = Run.open(path)
    exact = Exact(net)
    run = brinell.certify(path, net, data, method=exact, progress=False)
    assert run.finished and sum(exact.calls) == len(before.survivors())
    assert run.bracket.open == 0 and run.bracket.width == 0
    truth = [i for i, c in enumerate(Exact(net).certify(data.x, data.y, brinell.Linf(EPS))) if c.certified]
    assert set(truth) == {i for i, state in run.states().items() if state == "certified"}
    assert 0 < run.certified_accuracy.k < N and run.verdict.level != "invalid"
    assert run.certificates()["passes"].to_pylist() == [1] * sum(exact.calls)
    again = brinell.certify(path, net, data, method=exact, progress=False)
    assert sum(exact.calls) == len(before.survivors()) and again.certificates().equals(run.certificates())


def test_a_counterexample_that_the_model_confirms_breaks_its_sample(finished) -> None:
    path, net, data = finished
    table = Run.open(path).rows().to_pylist()
    weak = evaluated(path.parent / "weak", WEAK)[0]
    run = brinell.certify(weak, net, data, method=Exact(net), progress=False)
    found = [row for row in run.rows().to_pylist() if row["attack"] == "certificate:closed-form"]
    assert found and all(row["broken"] and row["verified"] and row["distance"] <= EPS * 1.000001 for row in found)
    assert run.robust_accuracy.k == Run.open(path).robust_accuracy.k < weak.robust_accuracy.k
    assert run.bracket.open == 0 and len(run.adversarials().ids) == N - run.robust_accuracy.k
    assert brinell.verify(run, net, data, certifier=Exact(net)).ok and len(table) == Run.open(path).rows().num_rows


def test_an_interrupted_call_goes_on_where_it_stopped(finished, monkeypatch: pytest.MonkeyPatch) -> None:
    path, net, data = finished
    exact, renames, replace = Exact(net, answer="open"), [], os.replace
    whole = brinell.certify(shutil.copytree(path, path.parent / "whole"), net, data, method=exact, progress=False)

    class Killed(BaseException):
        pass

    def interrupted(left: int):
        def rename(*args):
            renames.append(args)
            if len(renames) > left:
                raise Killed
            replace(*args)

        return rename

    left = 0
    while True:
        out = Path(shutil.copytree(path, path.parent / f"killed-{left}"))
        renames.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", interrupted(left))
            try:
                brinell.certify(out, net, data, method=exact, progress=False)
                break
            except Killed:
                left += 1
        killed = Run.open(out)
        assert killed.finished and killed.robust_accuracy == whole.robust_accuracy
        run = brinell.certify(out, net, data, method=exact, progress=False)
        assert run.verdict.level == whole.verdict.level
        assert run.certificates().drop_columns(["seconds"]).equals(whole.certificates().drop_columns(["seconds"]))
    assert left >= 3


class Rectified(nn.Module):
    """The linear model as a network of ReLUs, which raises from a call on."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.linear, self.calls, self.fail_at = linear(), 0, fail_at
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("the socket is closed")
        z = self.linear(x)
        return torch.relu(z) - torch.relu(-z)


def proofs(run: Run) -> list[dict[str, object]]:
    return run.certificates().drop_columns(["seconds", "adv_shard", "adv_row"]).to_pylist()


@pytest.fixture(scope="module")
def rectified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, folder = world()[1][:FEW], tmp_path_factory.mktemp("rectified")
    threat, options = brinell.Linf(EPS), {"test": False, "progress": False}
    return brinell.evaluate(Rectified(), data, threat, WEAK, out=folder / "run", **options).path


AROUND = {
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def test_settings_around_a_certification_change_no_bit(rectified: Path, tmp_path: Path) -> None:
    net, data = Rectified(), world()[1][:FEW]
    plain = brinell.certify(shutil.copytree(rectified, tmp_path / "plain"), net, data, progress=False)
    assert {"branch-and-bound", "crown"} & {str(row["attack"]).split(":")[1] for row in proofs(plain)}
    for name, around in AROUND.items():
        with around():
            run = brinell.certify(shutil.copytree(rectified, tmp_path / name), net, data, progress=False)
            assert name != "default device" or brinell.verify(run, net, data, seed=0).ok
        assert proofs(run) == proofs(plain), name


def test_a_model_or_data_that_fail_midway_leave_a_run_that_goes_on(
    rectified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brinell.evaluation.certificates.certify.FIRST", 2)
    monkeypatch.setattr("brinell.evaluation.certificates.certify.MOST", 2)
    for module in ("brinell.evaluation.certificates.certify", "brinell.core.dataset"):
        monkeypatch.setattr(f"{module}.READ", 4)
    data = world()[1][:FEW]

    class Source(torch.utils.data.Dataset):
        def __init__(self, bad: int | None) -> None:
            self.bad = bad

        def __len__(self) -> int:
            return FEW

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            if i == self.bad:
                raise OSError("disk gone")
            return data.x[i], int(data.y[i])

    whole = brinell.certify(shutil.copytree(rectified, tmp_path / "whole"), Rectified(), data, progress=False)
    path = shutil.copytree(rectified, tmp_path / "run")
    before = Run.open(path).robust_accuracy
    with pytest.raises(InputError, match="OSError: disk gone, at sample 6"):
        brinell.certify(path, Rectified(), Source(6), progress=False)
    done = Run.open(path)
    assert done.finished and 0 < len(proofs(done)) < len(proofs(whole)) and done.robust_accuracy <= before
    with pytest.raises(ModelError, match="the socket is closed"):
        brinell.certify(path, Rectified(fail_at=6), data, progress=False)
    assert len(proofs(done)) < len(proofs(Run.open(path))) < len(proofs(whole))
    assert proofs(brinell.certify(path, Rectified(), data, progress=False)) == proofs(whole)


def test_a_resumed_evaluation_keeps_the_certificates(finished) -> None:
    path, net, data = finished
    run = brinell.certify(path, net, data, method=Exact(net), progress=False)
    again = brinell.evaluate(net, data, brinell.Linf(EPS), "fgsm", out=path, resume=True, test=False, progress=False)
    assert again.certificates().equals(run.certificates()) and again.bracket == run.bracket


def test_own_radii_are_certified_each(tmp_path: Path) -> None:
    eps = torch.linspace(0.01, 0.4, N)
    run, net, data = evaluated(tmp_path / "run", eps=eps)
    run = brinell.certify(run, net, data, method=Exact(net), progress=False)
    assert run.bracket.open == 0
    for row in run.certificates().to_pylist():
        assert row["radius"] == pytest.approx(float(eps[row["sample_id"]])) or not row["certified"]


def test_a_false_certificate_makes_the_run_invalid(tmp_path: Path) -> None:
    run, net, data = evaluated(tmp_path / "run", WEAK)
    run = brinell.certify(run, net, data, method=Exact(net, answer="lies"), progress=False)
    # The certifier is the user's own, so nothing is settled.
    assert run.bracket.open == 0 and run.verdict.level == "suspicious"
    assert not any("decided by proof" in text for text in run.verdict.evidence)
    again = brinell.verify(run)
    assert not again.ok and "certified with a margin that is not above 0" in str(again)
    broken = brinell.evaluate(net, data, brinell.Linf(EPS), "fgsm", test=False, progress=False)
    liar = Exact(net, answer="lies")
    # As if the attack came later: the broken samples are certified too.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "survivors", lambda self: np.arange(N))
        brinell.certify(broken, net, data, method=liar, progress=False)
    found = Run.open(broken.path)
    assert found.verdict.level == "invalid" and "both certified and broken" in found.verdict.reasons[0]
    assert not brinell.verify(found).ok


def test_bounds_prove_the_model_of_the_run(finished) -> None:
    """Bounds of another network, or without the normalisation of the model, would prove a wrong statement."""
    path, net, data = finished
    other = brinell.wrap(net, mean=[0.5], std=[2.0])
    wrong = Bounds(other, ("crown",)).certify(data.x, other.forward(data.x).logits.argmax(1), brinell.Linf(EPS))
    run = brinell.certify(path, net, data, method=Bounds(other, ("crown",)), progress=False)
    truth = [c.certified for c in Exact(net).certify(data.x, data.y, brinell.Linf(EPS))]
    assert run.manifest["certifiers"][-1]["methods"] == ["crown"]
    assert all(truth[i] for i, state in run.states().items() if state == "certified")
    assert run.certified_accuracy.k == sum(truth) and [c.certified for c in wrong] != truth


def test_evaluate_certifies_too(tmp_path: Path) -> None:
    run, *_ = evaluated(tmp_path / "run", certify="interval")
    assert run.bracket.certified.k > 0 and run.manifest["certifiers"][0]["methods"] == ["interval"]
    assert Run.open(tmp_path / "run").verdict.level == run.verdict.level


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda net, data: (linear(1), data, {}), RunError, "a Run of another model"),
        (lambda net, data: (net, data[:9], {}), RunError, "the 40 samples of the Run"),
        (lambda net, data: (net, Problem(data.x.flip(0), data.y), {}), RunError, "another input or label"),
        (lambda net, data: (net, data, {"method": "crow"}), brinell.PlanError, "crown"),
        (lambda net, data: (net, data, {"method": "smoothing"}), ModelError, "a smoothed model"),
        (lambda net, data: (net, data, {"seconds": 0}), InputError, "seconds per sample above 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(finished, change, kind, message) -> None:
    path, net, data = finished
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    net, data, options = change(net, data)
    with pytest.raises(kind, match=message):
        brinell.certify(path, net, data, progress=False, **options)
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_an_unfinished_run_and_a_threat_without_radius_are_refused(tmp_path: Path, finished) -> None:
    path, net, data = finished
    run = brinell.evaluate(net, data, brinell.L2(), "minimal-quick", out=tmp_path / "r", test=False, progress=False)
    with pytest.raises(RunError, match="whose threat has a radius"):
        brinell.certify(run, net, data, progress=False)
    with brinell.results.Writer.resume(path, Run.open(path).manifest) as writer:
        writer.update(finished=False)
    with pytest.raises(RunError, match="a finished Run"):
        brinell.certify(path, net, data, progress=False)


def test_a_smoothed_model_is_bracketed(tmp_path: Path) -> None:
    net, data = world()
    model = smoothed(net, 0.1)
    plan = brinell.Plan("noise", (brinell.Eot(brinell.attacks.PGD(steps=3), 2),), draws=9)
    run = brinell.evaluate(model, data[:12], brinell.L2(0.05), plan, out=tmp_path / "r", test=False, progress=False)
    with pytest.raises(ModelError, match="the method smoothing for a smoothed model"):
        brinell.certify(run, model, data[:12], method="crown", progress=False)
    method = brinell.models.Smoothing(smoothed(linear(1), 0.1), select=20, n=500)
    rebuilt = call_of(model, method).certifier
    assert isinstance(rebuilt, brinell.models.Smoothing) and rebuilt.model is model
    assert (rebuilt.select, rebuilt.n, rebuilt.seed) == (method.select, method.n, method.seed)
    with pytest.raises(ModelError, match="a smoothed model for the method smoothing"):
        call_of(brinell.wrap(net), method)
    run = brinell.certify(run, model, data[:12], method=method, progress=False)
    assert 0 < run.certified_accuracy.k <= run.robust_accuracy.k
    assert set(run.certificates()["passes"].to_pylist()) == {520}
    assert max(run.certified_radii().values()) > 0.05
    other = brinell.evaluate(model, data[:12], brinell.Linf(0.01), plan, test=False, progress=False)
    with pytest.raises(ThreatError, match="a threat in L2"):
        brinell.certify(other, model, data[:12], method=method, progress=False)
