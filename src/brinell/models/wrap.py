"""Wrap a torch module as a classifier."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier, ExpectedInputs, Output
from brinell.core.references import References
from brinell.errors import ModelError
from brinell.models.detector import Detector, as_detector
from brinell.models.fast_copy.inference_copy import inference_copy
from brinell.models.outputs import NARROW, GradientScaling, input_dtype, logits_of
from brinell.ops.defaults import with_gradients

ALLOWED = ("train mode", "probabilities", "mixed rows")


def _column(values: Sequence[float] | float | None) -> Tensor | None:
    """Return per-channel numbers as a tensor of shape (1, c), one number as (1, 1), None as None."""
    if values is None:
        return None
    try:
        return with_gradients(torch.as_tensor(values, dtype=torch.float32, device="cpu").reshape(1, -1))
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(
            expected="mean and std as numbers", got=repr(values)[:80], remedy="Give one number per channel."
        ) from None


def _broadcast(v: Tensor, x: Tensor) -> Tensor:
    """Reshape per-channel numbers so that they broadcast over the channels of x."""
    if v.numel() not in (1, x.shape[1]):
        raise ModelError(
            expected=f"mean and std with one number, or one per channel ({x.shape[1]})",
            got=f"{v.numel()} numbers",
            remedy="Give one number per channel; inputs have shape (batch, channels, …).",
        )
    return v.to(x.device).view(1, -1, *[1] * (x.ndim - 2))


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def require_module(classifier: Classifier, remedy: str) -> nn.Module:
    """Return the classifier's torch module; refuse a classifier without a module."""
    if classifier.torch_module is None:
        raise ModelError(expected="a classifier with a torch module", got=type(classifier).__name__, remedy=remedy)
    return classifier.torch_module


@dataclass(frozen=True, eq=False)
class TorchClassifier(Classifier):
    """A torch module as a classifier, with input normalisation, detector and options. Make it with `wrap`.

    `foreign_dtypes` are the dtypes of weights that another framework holds.
    """

    module: nn.Module
    mean: Tensor | None = None
    std: Tensor | None = None
    name: str = ""
    allow: frozenset[str] = frozenset()
    differentiable: bool = True
    device: torch.device = field(default=torch.device("cpu"))
    detector: Detector | None = None
    features: str = ""
    foreign_dtypes: frozenset[str] = frozenset()
    inputs: ExpectedInputs | None = None
    _known: dict[str, torch.dtype] = field(default_factory=dict, repr=False)

    @property
    def torch_module(self) -> nn.Module:
        return self.module

    @property
    def references(self) -> References | None:
        return None if self.detector is None else self.detector.references

    @property
    def detector_rule(self) -> str:
        return "" if self.detector is None else self.detector.describe()

    def forward(self, x: Tensor) -> Output:
        """Return the logits of a batch of points in [0, 1]; a single logit z becomes the two logits (0, z)."""
        # A copy, because a module may write into its input.
        raw, features = self._run(self.normalised(x.clone()))
        logits = raw.reshape(len(x), -1)
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        if self.detector is None:
            return Output(logits, None, features)
        return Output(logits, self.detector.reject(x.clone(), logits.float(), features), features)

    def _in_dtype(self, x: Tensor) -> Tensor:
        """Return normalised inputs in the dtype that the module takes, which its first call tells."""
        if "dtype" not in self._known:
            self._known["dtype"] = input_dtype(self.module, x)
        return x.to(self._known["dtype"])

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits and, if `features` names a layer, that layer's output as one row per input.

        A module in half or double precision is called in it. Logits of double precision stay, others become float32.
        """
        cast = self._in_dtype(x)
        if not self.features:
            if cast.dtype == NARROW and self.detector is None:
                scaling = GradientScaling()
                return scaling.up(logits_of(self.module(scaling.down(x)), len(x))), None
            return _at_least_float32(logits_of(self.module(cast), len(x))), None
        outputs: list[Tensor] = []
        handle = self.module.get_submodule(self.features).register_forward_hook(lambda *args: outputs.append(args[2]))
        try:
            raw = logits_of(self.module(cast), len(x))
        finally:
            handle.remove()
        if len(outputs) != 1 or not isinstance(outputs[0], Tensor):
            raise ModelError(
                expected=f"one tensor per forward pass from the layer {self.features}",
                got=f"{len(outputs)} outputs",
                remedy="Name a layer that every forward pass uses exactly once.",
            )
        return _at_least_float32(raw), outputs[0].flatten(1).float()

    def normalised(self, x: Tensor) -> Tensor:
        """Return the input of the module for points x in [0, 1]."""
        if self.mean is not None:
            x = x - _broadcast(self.mean, x)
        return x if self.std is None else x / _broadcast(self.std, x)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the module's structure, parameters, buffers and normalisation."""
        h = hashlib.sha256(repr(self.module).encode())
        extra = {"mean": self.mean, "std": self.std}
        tensors = {**self.module.state_dict(), **{k: v for k, v in extra.items() if v is not None}}
        if self.detector is not None:
            d = self.detector
            h.update(f"{d.module!r}{d.threshold!r}{d.scale!r}{self.features * ('features' in d.reads)}".encode())
            tensors |= {f"detector.{k}": v for k, v in d.module.state_dict().items()}
        for key, value in sorted(tensors.items()):
            if isinstance(value, Tensor):
                h.update(f"{key}{value.dtype}{tuple(value.shape)}".encode())
                # Flatten first: a zero-dimensional tensor cannot be viewed as bytes.
                h.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        return h.hexdigest()

    def to(self, device: torch.device) -> "TorchClassifier":
        """Return the classifier on a device; the module that was wrapped is moved, not copied."""
        for module in self._modules():
            module.to(device)
        mean, std = (None if v is None else v.to(device) for v in (self.mean, self.std))
        return replace(self, mean=mean, std=std, device=device)

    def copy(self, dtype: torch.dtype | None = None, check_on: Tensor | None = None) -> "TorchClassifier":
        """Return the classifier with a frozen inference copy of its module; see `inference_copy`."""
        # Fusion could remove the layer that `features` names.
        inputs = None if check_on is None or self.features else self._in_dtype(self.normalised(check_on))
        return replace(self, module=inference_copy(self.module, dtype, inputs))

    def _modules(self) -> list[nn.Module]:
        return [self.module] if self.detector is None else [self.module, self.detector.module]

    def dtypes(self) -> set[str]:
        """Return the dtypes of all parameters and buffers."""
        tensors = [t for module in self._modules() for t in (*module.parameters(), *module.buffers())]
        return {*self.foreign_dtypes, *(str(t.dtype).removeprefix("torch.") for t in tensors)}

    def modes(self) -> list[str]:
        """Return the submodules that are in train mode: name and class; the whole module is its class."""
        named = [pair for module in self._modules() for pair in module.named_modules()]
        return [f"{name} ({type(m).__name__})" if name else type(m).__name__ for name, m in named if m.training]


def wrap(
    module: nn.Module,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    *,
    name: str | None = None,
    allow: Iterable[str] = (),
    differentiable: bool = True,
    detector: Detector | nn.Module | Callable[..., Tensor] | None = None,
    features: str = "",
    inputs: ExpectedInputs | None = None,
) -> TorchClassifier:
    """Wrap a torch module with inputs in [0, 1] as a classifier; `mean` and `std` are applied inside.

    `allow` names defects that do not stop an evaluation ("train mode", "probabilities", "mixed rows"); the Run then
    stores them as failed checks. `differentiable=False` marks a black box. `detector` is a module or function that
    rejects an input if its score is positive; `brinell.calibrated` sets another threshold. The names of its arguments
    decide what the detector receives: x (the input in [0, 1]), logits, features. `features` names the layer of the
    module that provides the features. `inputs` says what the model was trained on; other inputs get a warning.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    >>> wrap(net, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)).forward(torch.rand(2, 3, 2, 2)).logits.shape
    torch.Size([2, 3])
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            expected="a torch.nn.Module",
            got=type(module).__name__,
            remedy="Wrap an nn.Module whose forward calls this object; other frameworks: brinell.models.adapters.",
        )
    unknown = set(allow) - set(ALLOWED)
    if unknown:
        raise ModelError(
            expected=f"names among {', '.join(ALLOWED)} in allow",
            got=", ".join(sorted(unknown)),
            remedy=f"Write e.g. allow=[{ALLOWED[0]!r}].",
        )
    std_column = _column(std)
    if std_column is not None and not bool((std_column > 0).all()):
        raise ModelError(expected="std above 0", got=str(std), remedy="Give one positive number per channel.")
    mean_column = _column(mean)
    if mean_column is not None and bool((mean_column > 1).any()):
        raise ModelError(
            expected="a mean in the units of the inputs, which are in [0, 1]",
            got=str(mean),
            remedy="If mean and std are in 0-255 units, divide both by 255.",
        )
    first = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if first is None else first.device
    if device.type == "meta":
        raise ModelError(
            expected="a model with weights",
            got="a model on the device meta, which has shapes only",
            remedy="Load the weights: net.to_empty(device='cpu'), then net.load_state_dict(weights).",
        )
    label = name if name is not None else type(module).__name__
    if features and features not in dict(module.named_modules()):
        raise ModelError(
            expected="the name of a layer of the module as features",
            got=repr(features),
            remedy="See all names with [name for name, _ in net.named_modules()].",
        )
    rejects = None if detector is None else as_detector(detector)
    m, s = (None if v is None else v.to(device) for v in (mean_column, std_column))
    return TorchClassifier(
        module, m, s, label, frozenset(allow), differentiable, device, rejects, features, inputs=inputs
    )
