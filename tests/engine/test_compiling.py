"""What is compiled, and what happens where the compiler gives up; compiling itself takes minutes and is slow."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

import brinell
from brinell.core.threat import Linf
from brinell.engine.compiling import fused


def refusing(error):
    """A compiler that fails at the first call, as they do."""

    def compile(function, **options):
        def call(*inputs):
            raise error

        return call

    return compile


def test_what_cannot_be_compiled_is_called(monkeypatch):
    monkeypatch.setattr(torch, "compile", refusing(TorchDynamoException("PassManager::run failed\nat great length")))
    notes, calls = [], []
    double = fused(lambda x: calls.append(1) or 2 * x, notes.append)
    assert [double(3), double(4)] == [6, 8] and len(calls) == 2
    [told] = notes
    assert "cannot be compiled (PassManager::run failed)" in told and "without" in told


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), ValueError("not the compiler's")], ids=str)
def test_other_errors_are_not_the_compilers(monkeypatch, error):
    monkeypatch.setattr(torch, "compile", refusing(error))
    with pytest.raises(type(error)):
        fused(lambda x: x)(1)


def test_the_backends_failure_is_one_of_them():
    assert issubclass(BackendCompilerFailed, TorchDynamoException)


def test_an_evaluation_survives_the_compiler(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", refusing(TorchDynamoException("PassManager::run failed")))
    data = brinell.data.load("demo", 8)
    plain = brinell.evaluate("demo", data, Linf(0.1), "fgsm", progress=False)
    run = brinell.evaluate("demo", data, Linf(0.1), "fgsm", execution="compile", progress=True)
    assert run.survivors().tolist() == plain.survivors().tolist()
    assert "cannot be compiled" in " ".join(capsys.readouterr().err.split())
