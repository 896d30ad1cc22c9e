"""Adapter for ONNX models: onnxruntime computes the outputs, and the graph in torch the gradients where it can."""

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.errors import BrinellError, InputError, ModelError, error_text, one_of, reported_as
from brinell.models.adapters.bridge import (
    OUTPUTS,
    PROBABILITIES,
    Bridge,
    Pullback,
    as_logits,
    classifier,
    framework,
    numbers,
)
from brinell.models.adapters.onnx_torch import OnnxGraph, onnx_graph
from brinell.models.wrap import TorchClassifier
from brinell.ops import rng
from brinell.untrusted import read_plain

# The graph in torch agrees with onnxruntime if no logit differs by more than this share of the spread of the logits.
AGREEMENT = 1e-3
PROBES = 4
DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}


class OnnxBridge(Bridge):
    """A bridge to an onnxruntime session; after unpickling, a new session is made from the file's bytes."""

    def __init__(
        self, source: str | bytes, mark: str, outputs: str, output: str | None, providers: Sequence[str], classes: Any
    ) -> None:
        super().__init__(mark)
        self.source, self.outputs, self.output, self.classes = source, outputs, output, classes
        self.providers, self.formula = tuple(providers), None
        self._open()

    formula: OnnxGraph | None

    def add_gradients(self, content: bytes) -> None:
        """Translate the graph to torch and compare it with onnxruntime; raise a ValueError if that fails."""
        if self.outputs == "labels":
            raise ValueError("labels have no gradients")
        self.formula = onnx_graph(content, self._output, self.outputs == PROBABILITIES)
        shape = self._session.get_inputs()[0].shape[1:]
        if all(isinstance(size, int) for size in shape):
            points = rng.uniform(rng.keys(0, torch.arange(self._rows or PROBES, device="cpu")), tuple(shape))
            self._compare(points, self.logits(points))

    def _compare(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return the outputs of the graph in torch; raise a ValueError if they differ from those of onnxruntime."""
        assert self.formula is not None
        same = self.formula(x.to("cpu", getattr(torch, self._dtype))).reshape(logits.shape).float()
        far = float((same.detach() - logits.cpu()).abs().max())
        if not far <= AGREEMENT * max(1.0, float(logits.max() - logits.min())):
            raise ValueError(f"the graph in torch differs from onnxruntime by {far:.2g}")
        return same

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        if self.formula is None:
            return super().differentiate(x)
        logits = self.logits(x)
        with torch.enable_grad():
            point = x.detach().cpu().requires_grad_()
            remedy = "Write from_onnx(…, gradients=False), and use the plan blackbox."
            with reported_as(ModelError, ValueError, expected="gradients of the ONNX model", remedy=remedy):
                same = self._compare(point, logits)

        def pullback(g: Tensor) -> Tensor:
            return torch.autograd.grad(same, point, g.cpu().reshape(same.shape), retain_graph=True)[0].to(g.device)

        return logits, pullback

    def _open(self) -> None:
        runtime = framework("onnxruntime", "onnx", "ONNX models")
        remedy = "Check the file with onnx.checker. Weights in separate files must be in the same folder."
        # onnxruntime has many error classes.
        with reported_as(ModelError, Exception, expected="an ONNX model that onnxruntime can open", remedy=remedy):
            self._session = runtime.InferenceSession(self.source, providers=list(self.providers))
        entry = self._session.get_inputs()[0]
        if len(self._session.get_inputs()) != 1 or entry.type not in DTYPES:
            got = ", ".join(f"{i.name}: {i.type}" for i in self._session.get_inputs())
            remedy = "Export with one float32 batch x as the only input: torch.onnx.export(net, (x,), 'net.onnx')."
            raise ModelError(expected="an ONNX model with one input of floats", got=got, remedy=remedy)
        self._input, self._dtype = entry.name, DTYPES[entry.type]
        self._rows = entry.shape[0] if entry.shape and isinstance(entry.shape[0], int) else None
        self._output = self._choose_output()
        self.dtypes = frozenset({self._dtype})

    def _choose_output(self) -> str:
        """Return the name of the output to read: `output`, or the first with floats (with integers for labels)."""
        available = {o.name: o.type for o in self._session.get_outputs()}
        wanted = ("tensor(int64)", "tensor(int32)") if self.outputs == "labels" else tuple(DTYPES)
        fitting = [n for n, kind in available.items() if kind in wanted]
        if self.output is not None and self.output in available:
            return self.output
        if self.output is not None or not fitting:
            raise ModelError(
                expected=f"an output of the ONNX model with {self.outputs}",
                got=", ".join(f"{n}: {kind}" for n, kind in available.items()),
                remedy="Write output='NAME' with one of these names, and set outputs to what this output contains.",
            )
        return fitting[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: without the session, and with the file's bytes instead of its path."""
        state = {k: v for k, v in self.__dict__.items() if k != "_session"}
        state["formula"] = None if self.formula is None else True
        if isinstance(self.source, str):
            state["source"] = Path(self.source).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open()
        if state["formula"]:
            self.add_gradients(_read(self.source)[1])

    def logits(self, x: Tensor) -> Tensor:
        points, n = numbers(x).astype(self._dtype), len(x)
        size = self._rows or n
        if n % size:
            points = np.concatenate([points, np.repeat(points[:1], -n % size, 0)])
        batches = np.split(points, len(points) // size)
        values = np.concatenate([self._session.run([self._output], {self._input: v})[0] for v in batches])
        return as_logits(values[:n], self.outputs, n, self.classes).to(x.device)


def _read(model: Any) -> "tuple[str | bytes, bytes]":
    """Return what onnxruntime opens (a path or bytes), and the model's bytes for the fingerprint."""
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    if isinstance(model, bytes):
        return model, model
    path = Path(model)
    if not path.is_file():
        raise InputError(
            expected="an ONNX file, its bytes or a ModelProto", got=str(model), remedy="Check that this file exists."
        )
    return str(path), read_plain(path)


def from_onnx(
    model: Any,
    *,
    outputs: str = "logits",
    output: str | None = None,
    classes: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    name: str | None = None,
    version: str = "",
    gradients: bool | None = None,
    channels_last: bool = False,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    allow: Iterable[str] = (),
) -> TorchClassifier:
    """Make a classifier from an ONNX model: a path, its bytes or a ModelProto.

    Method: onnxruntime runs the model on the given `providers`. Gradients come from the same graph in torch, if it has
    only the usual operators of networks that classify and agrees with onnxruntime on random inputs and on every batch;
    a warning says why a model has none. `gradients=True` makes this an error; `gradients=False` makes a black box.
    `output` names the output to
    read (default: the first one with floats, or with integers for labels). `outputs` says what it contains: logits,
    probabilities (converted to log-probabilities, at least log 1e-30) or labels (which need `classes`). If the model
    has a fixed batch size, inputs are padded to it.
    The fingerprint hashes the file's bytes and `version`. It does not cover weights in separate files, so give such a
    model a version.
    """
    one_of("outputs", outputs, OUTPUTS)
    framework("onnxruntime", "onnx", "ONNX models")
    source, content = _read(model)
    mark = hashlib.sha256("\0".join(("onnx", outputs, str(output), version)).encode() + content).hexdigest()
    bridge = OnnxBridge(source, mark, outputs, output, providers, classes)
    label = name if name is not None else Path(source).stem if isinstance(source, str) else "onnx"
    if gradients is not False:
        _add_gradients(bridge, content, label, required=bool(gradients))
    options: dict[str, Any] = {"channels_last": channels_last, "mean": mean, "std": std, "allow": allow}
    return classifier(bridge, name=label, differentiable=bridge.formula is not None, **options)


def _add_gradients(bridge: OnnxBridge, content: bytes, name: str, required: bool) -> None:
    try:
        bridge.add_gradients(content)
    except BrinellError:
        raise
    except Exception as error:  # whatever an operator raises on a graph that it does not expect
        bridge.formula = None
        why = str(error) if isinstance(error, ValueError) else error_text(error)
        if required:
            remedy = "Pass the torch module instead, or gradients=False with the plan blackbox."
            raise ModelError(expected=f"gradients of {name}", got=why, remedy=remedy) from error
        if bridge.outputs != "labels":
            warnings.warn(f"{name} is a black box, without gradients: {why}. Use the plan blackbox.", stacklevel=3)
