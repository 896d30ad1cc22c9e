"""Adapter for ONNX models, run by onnxruntime as black boxes."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from brinell.errors import InputError, ModelError, one_of, reported_as
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, framework, numbers
from brinell.models.wrap import TorchClassifier
from brinell.untrusted import read_plain

DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}


class OnnxBridge(Bridge):
    """A bridge to an onnxruntime session; after unpickling, a new session is made from the file's bytes."""

    def __init__(
        self, source: str | bytes, mark: str, outputs: str, output: str | None, providers: Sequence[str], classes: Any
    ) -> None:
        super().__init__(mark)
        self.source, self.outputs, self.output, self.classes = source, outputs, output, classes
        self.providers = tuple(providers)
        self._open()

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
        if isinstance(self.source, str):
            state["source"] = Path(self.source).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open()

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
    channels_last: bool = False,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    allow: Iterable[str] = (),
) -> TorchClassifier:
    """Make a black box from an ONNX model: a path, its bytes or a ModelProto.

    Method: onnxruntime runs the model on the given `providers`; there are no gradients. `output` names the output to
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
    return classifier(
        bridge, name=label, differentiable=False, channels_last=channels_last, mean=mean, std=std, allow=allow
    )
