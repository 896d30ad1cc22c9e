"""What is compiled, and what happens where the compiler gives up; compiling itself takes minutes and is slow."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

import brinell
from brinell.core.attack import Requires
from brinell.core.threat import Linf
from brinell.engine.accelerate import accelerated
from brinell.engine.cuda.compile import Refusals
from brinell.engine.events import Note
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap


def refusing(error):
    """A compiler that fails at the first call, as they do."""

    def compile(function, **options):
        def call(*inputs):
            raise error

        return call

    return compile


def failing(error):
    def call():
        raise error

    return call


def test_what_cannot_be_compiled_is_done_plainly():
    notes = []
    refusals = Refusals(notes.append)
    failed = failing(TorchDynamoException("PassManager::run failed\nat great length"))
    assert [refusals.attempt("small", failed, lambda: 6), refusals.attempt("small", lambda: 7, lambda: 8)] == [6, 8]
    [told] = notes
    assert "cannot be compiled (TorchDynamoException: PassManager::run failed)" in told and "without" in told
    # Of another kind, for instance another shape, nothing is known.
    assert refusals.attempt("large", lambda: 9, lambda: 10) == 9


def test_what_the_compiler_says_is_told():
    notes = []
    error = BackendCompilerFailed(refusing, ZeroDivisionError("by great length"), None)
    assert Refusals(notes.append).attempt(0, failing(error), lambda: 1) == 1
    assert "(ZeroDivisionError: by great length)" in notes[0]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("out of memory"),
        TorchDynamoException("CUDA out of memory. Tried to allocate 2 GiB"),
        ValueError("not the compiler's"),
    ],
    ids=str,
)
def test_other_errors_are_not_the_compilers(error):
    """Where memory is short, the model is asked about fewer rows at a time."""
    with pytest.raises(type(error)):
        Refusals(print).attempt(0, failing(error), lambda: 1)


def test_the_backends_failure_is_one_of_them():
    assert issubclass(BackendCompilerFailed, TorchDynamoException)


def test_an_evaluation_survives_the_compiler(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", refusing(TorchDynamoException("PassManager::run failed")))
    data = brinell.data.load("demo", 8)
    plain = brinell.evaluate("demo", data, Linf(0.1), "fgsm", progress=False)
    run = brinell.evaluate("demo", data, Linf(0.1), "fgsm", execution="compile", progress=True)
    assert run.survivors().tolist() == plain.survivors().tolist()
    assert "cannot be compiled" in " ".join(capsys.readouterr().err.split())
    [note] = [n for n in run.manifest["notes"] if "compiled" in n]
    assert "PassManager" in note


@pytest.mark.parametrize("rows", [4, 8])
def test_a_way_back_that_cannot_be_compiled(monkeypatch, rows):
    """It is compiled when it is first gone, by the engine of gradients."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if len(grad) == 8:
                raise TorchDynamoException("PassManager::run failed")
            return grad

    def compile(function, **options):
        def call(*inputs):
            out = function(*inputs)
            return replace(out, logits=Refusing.apply(out.logits))

        return call

    monkeypatch.setattr(torch, "compile", compile)
    net = torch.nn.Linear(3, 2).eval()
    x, y = torch.rand(rows, 3), torch.zeros(rows, dtype=torch.long)
    notes = []
    plain, compiled = (
        accelerated(Oracle(wrap(net), rows, notes.append), torch.device("cpu"), c) for c in (False, True)
    )
    expected, got = ((o.query(x, y, y - 1, "margin", Requires.GRAD) for _ in range(2)) for o in (plain, compiled))
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a.gradient, b.gradient) and torch.equal(a.logits, b.logits)
    assert sum(isinstance(event, Note) for event in notes) == len(compiled.notes) == (rows == 8)


def test_a_refused_pass_repeats_no_earlier_one(monkeypatch):
    """The compiler may refuse any pass: a randomised model draws once per pass and block, and no more."""

    class Drawing(torch.nn.Module):
        calls = 0

        def forward(self, x):
            Drawing.calls += 1
            return x * Drawing.calls

    class Compiler:
        calls = 0

        def __call__(self, function, **options):
            def call(*inputs):
                Compiler.calls += len(inputs) == 1  # the network, not the loss
                if Compiler.calls == 4:
                    raise TorchDynamoException("refused")
                return function(*inputs)

            return call

    monkeypatch.setattr(torch, "compile", Compiler())
    x, y = torch.rand(8, 3), torch.zeros(8, dtype=torch.long)
    oracle = accelerated(Oracle(wrap(Drawing().eval()), 4), torch.device("cpu"), fuse=True)
    response = oracle.query(x, y, y - 1, "margin", Requires.GRAD, draws=3)
    assert Drawing.calls == 6
    torch.testing.assert_close(response.logits, x * torch.tensor([2.0] * 4 + [5.0] * 4)[:, None])
    assert len(oracle.notes) == 1
