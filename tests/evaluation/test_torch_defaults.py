"""Torch's global settings around an evaluation: default dtype and device, grad modes, memory format, oneDNN."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyarrow as pa
import pytest
import torch

import brinell
from brinell import L1, L2, Linf, Problem, Run
from brinell.attacks import APGD, DDN, EAD, FAB, FMN, PGD, Bisect, HopSkipJump, Pursuit, Square
from brinell.core.threat import Threat
from brinell.errors import ModelError
from brinell.models.demo import demo_net

BALLS = [PGD(steps=3), APGD(steps=6), FAB(steps=3), Square(steps=15), Pursuit(steps=6)]
CASES: dict[str, tuple[Threat, list[Any]]] = {
    "Linf": (Linf(0.06), [*BALLS, HopSkipJump(steps=40)]),
    "L2": (L2(0.9), BALLS),
    "L1": (L1(7.0), [PGD(steps=3), APGD(steps=6), FAB(steps=3), Square(steps=15)]),
    "distance in L2": (L2(), [DDN(steps=6), FMN(steps=6)]),
    "distance in L1": (L1(), [EAD(steps=4, rounds=2), FMN(steps=6)]),
    "distance in Linf": (Linf(), [Bisect(PGD(steps=3)), FMN(steps=6)]),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def without_onednn() -> Iterator[None]:
    torch.backends.mkldnn.set_flags(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(True)


def evaluated(case: str, model: Any, problem: Problem) -> Run:
    threat, attacks = CASES[case]
    return brinell.evaluate(model, problem, threat, attacks, individual=True, progress=False)


@pytest.fixture(scope="module")
def expected(problem: Problem) -> dict[str, Run]:
    return {case: evaluated(case, demo_net(), problem[:4]) for case in CASES}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_changes_no_bit(
    dtype: torch.dtype, case: str, problem: Problem, expected: dict[str, Run], outcome: Callable[[pa.Table], pa.Table]
) -> None:
    with default_dtype(dtype):
        run = evaluated(case, "demo", problem[:4])
    assert run.identity.threat.raw == expected[case].identity.threat.raw
    assert outcome(run.rows()).equals(outcome(expected[case].rows()))
    assert run.adversarials().x.tobytes() == expected[case].adversarials().x.tobytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_run_is_verified_under_another_default_dtype(
    dtype: torch.dtype, problem: Problem, expected: dict[str, Run]
) -> None:
    with default_dtype(dtype):
        report = brinell.verify(expected["L2"].path, demo_net_in_float32(), problem[:4])
    assert report.ok, str(report)


def demo_net_in_float32() -> torch.nn.Module:
    net = demo_net()
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    return net


def test_numbers_without_a_dtype_are_not_rounded_to_the_default_dtype() -> None:
    with default_dtype(torch.bfloat16):
        assert Problem([[0.1, 0.7]], [0]).x.equal(torch.tensor([[0.1, 0.7]], dtype=torch.float32))
        assert Linf(0.1).ball(torch.arange(1), torch.device("cpu")).eps.equal(torch.tensor([0.1], dtype=torch.float32))


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("case", ["Linf", "distance in L2"])
def test_settings_around_an_evaluation_change_no_bit(
    around: str, case: str, expected: dict[str, Run], outcome: Callable[[pa.Table], pa.Table]
) -> None:
    with AROUND[around]():
        data = brinell.data.load("demo")[:4]
        run = evaluated(case, "demo", data)
        assert brinell.verify(run.path, "demo", data).ok
    assert outcome(run.rows()).equals(outcome(expected[case].rows()))
    assert run.adversarials().x.tobytes() == expected[case].adversarials().x.tobytes()


@pytest.mark.parametrize("around", ["channels last", "without oneDNN"])
def test_other_kernels_change_digits_but_no_outcome(around: str, problem: Problem, expected: dict[str, Run]) -> None:
    net = demo_net()
    if around == "channels last":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with without_onednn() if around == "without oneDNN" else nullcontext():
        run = evaluated("Linf", net, problem[:4])
    assert run.rows()["broken"].to_pylist() == expected["Linf"].rows()["broken"].to_pylist()


def test_a_model_made_in_inference_mode_gets_an_error_with_a_remedy(problem: Problem) -> None:
    with torch.inference_mode():
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).eval()
    with pytest.raises(ModelError, match=r"made in torch.inference_mode\(\), such as 1.weight. Build or load the mod"):
        brinell.evaluate(net, problem[:4], Linf(0.1), "fgsm", progress=False)
