"""ONNX files, run by onnxruntime, as black boxes."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from brinell.errors import InputError, ModelError, one_of, told
from brinell.models.adapters.bridge import OUTPUTS, Bridge, as_logits, classifier, framework, numbers
from brinell.models.wrap import TorchClassifier

KINDS = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}


class OnnxBridge(Bridge):
    """A session of onnxruntime, made anew from the file's bytes where it is shipped to."""

    def __init__(
        self, source: str | bytes, mark: str, outputs: str, output: str | None, providers: Sequence[str], classes: Any
    ) -> None:
        super().__init__(mark)
        self.source, self.outputs, self.output, self.classes = source, outputs, output, classes
        self.providers = tuple(providers)
        self._open()

    def _open(self) -> None:
        runtime = framework("onnxruntime", "onnx", "ONNX models")
        try:
            self._session = runtime.InferenceSession(self.source, providers=list(self.providers))
        except Exception as error:  # the runtime has a class of errors for every reason
            raise ModelError(
                expected="an ONNX model that onnxruntime can open",
                got=told(error),
                remedy="Check the file with onnx.checker, and that weights in other files lie beside it.",
            ) from None
        entry = self._session.get_inputs()[0]
        if len(self._session.get_inputs()) != 1 or entry.type not in KINDS:
            got = ", ".join(f"{i.name}: {i.type}" for i in self._session.get_inputs())
            raise ModelError(expected="an ONNX model with one input of floats", got=got, remedy="Export it so.")
        self._entry, self._kind = entry.name, KINDS[entry.type]
        self._rows = entry.shape[0] if entry.shape and isinstance(entry.shape[0], int) else None
        self._exit = self._chosen()
        self.stored = frozenset({self._kind})

    def _chosen(self) -> str:
        """The output that is asked for: by name, or the first that fits."""
        found = {o.name: o.type for o in self._session.get_outputs()}
        wanted = ("tensor(int64)", "tensor(int32)") if self.outputs == "labels" else tuple(KINDS)
        fitting = [n for n, kind in found.items() if kind in wanted]
        if self.output is not None and self.output in found:
            return self.output
        if self.output is not None or not fitting:
            raise ModelError(
                expected=f"an output of the ONNX model with {self.outputs}",
                got=", ".join(f"{n}: {kind}" for n, kind in found.items()),
                remedy="Name one of them: output=….",
            )
        return fitting[0]

    def __getstate__(self) -> dict[str, Any]:
        """Without the session; a path becomes the bytes it leads to."""
        state = {k: v for k, v in self.__dict__.items() if k != "_session"}
        if isinstance(self.source, str):
            state["source"] = Path(self.source).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._open()

    def answer(self, x: Tensor) -> Tensor:
        """One run, or several where the model has a batch size of its own."""
        points, n = numbers(x).astype(self._kind), len(x)
        size = self._rows or n
        if n % size:
            points = np.concatenate([points, np.repeat(points[:1], -n % size, 0)])
        said = [self._session.run([self._exit], {self._entry: v})[0] for v in np.split(points, len(points) // size)]
        return as_logits(np.concatenate(said)[:n], self.outputs, n, self.classes).to(x.device)


def _read(model: Any) -> "tuple[str | bytes, bytes]":
    """What the runtime opens, and the bytes that are hashed."""
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    if isinstance(model, bytes):
        return model, model
    path = Path(model)
    if not path.is_file():
        raise InputError(expected="an ONNX file, its bytes or a ModelProto", got=str(model), remedy="Check the path.")
    return str(path), path.read_bytes()


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
    """A black box from an ONNX model: a path, its bytes or a ModelProto.

    Method: onnxruntime answers, on the `providers` named; there are no gradients. `output` names the output to read
    (default: the first of floats); `outputs` says what it is: logits, probabilities (which become logits by a
    logarithm, at least log 1e-30) or labels (which need `classes`). A fixed batch size is filled up. The fingerprint
    hashes the file's bytes and `version`; weights kept in other files are not in it, so give such a model a version.
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
