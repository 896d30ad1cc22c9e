"""Any torch module as a classifier."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.model import Output
from brinell.errors import ModelError
from brinell.models.detector import Detector, as_detector
from brinell.models.fast_copy.layout import laid_out

ALLOWED = ("train mode", "probabilities", "mixed rows")


def _column(values: Sequence[float] | float | None) -> Tensor | None:
    """Per-channel numbers with shape (1, c, 1, 1), or (1, 1) for one number."""
    if values is None:
        return None
    try:
        return torch.as_tensor(values, dtype=torch.float32).reshape(1, -1)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(
            expected="mean and std as numbers", got=repr(values)[:80], remedy="Give one number per channel."
        ) from None


def _shaped(v: Tensor, x: Tensor) -> Tensor:
    """Such a column so that it broadcasts over the channels of x."""
    if v.numel() not in (1, x.shape[1]):
        raise ModelError(
            expected=f"mean and std with one number, or one per channel ({x.shape[1]})",
            got=f"{v.numel()} numbers",
            remedy="Inputs have shape (batch, channels, …): give the normalisation the model was trained with.",
        )
    return v.to(x.device).view(1, -1, *[1] * (x.ndim - 2))


@dataclass(frozen=True, eq=False)
class TorchClassifier:
    """A module, its normalisation, and what it is known for. Make one with `wrap`."""

    module: nn.Module
    mean: Tensor | None = None
    std: Tensor | None = None
    name: str = ""
    allow: frozenset[str] = frozenset()
    differentiable: bool = True
    device: torch.device = field(default=torch.device("cpu"))
    detector: Detector | None = None
    features: str = ""

    def forward(self, x: Tensor) -> Output:
        """Logits of a batch of points in [0, 1]; a single logit z becomes the two logits (0, z)."""
        # A copy: a module that writes into its input must not reach the engine's points.
        raw, features = self._run(self._normalised(x.clone()))
        if isinstance(raw, tuple | list):
            raw = raw[0]
        if not isinstance(raw, Tensor) or raw.ndim not in (1, 2) or len(raw) != len(x):
            got = f"shape {tuple(raw.shape)}" if isinstance(raw, Tensor) else type(raw).__name__
            raise ModelError(
                expected=f"logits of shape ({len(x)}, classes) for {len(x)} inputs",
                got=got,
                remedy="Return the tensor of logits itself, one row per row of input.",
            )
        if not raw.is_floating_point():
            raise ModelError(
                expected="logits in floating point",
                got=f"{str(raw.dtype).removeprefix('torch.')}, as class numbers are",
                remedy="Return the logits, without argmax; of a black box that gives classes see "
                "brinell.models.adapters.from_function(…, outputs='labels').",
            )
        logits = raw.reshape(len(x), -1).float()
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        if self.detector is None:
            return Output(logits, None, features)
        return Output(logits, self.detector.reject(x.clone(), logits, features), features)

    def _run(self, x: Tensor) -> tuple[Any, Tensor | None]:
        """What the module returns and, where a layer was named for it, what that layer did: one flat row per input."""
        if not self.features:
            return self.module(x), None
        seen: list[Tensor] = []
        handle = self.module.get_submodule(self.features).register_forward_hook(lambda *said: seen.append(said[2]))
        try:
            raw = self.module(x)
        finally:
            handle.remove()
        if len(seen) != 1 or not isinstance(seen[0], Tensor):
            raise ModelError(
                expected=f"the layer {self.features} to answer once with a tensor",
                got=f"{len(seen)} answers",
                remedy="Name a layer that every pass goes through once.",
            )
        return raw, seen[0].flatten(1).float()

    def _normalised(self, x: Tensor) -> Tensor:
        if self.mean is not None:
            x = x - _shaped(self.mean, x)
        return x if self.std is None else x / _shaped(self.std, x)

    @property
    def fingerprint(self) -> str:
        """sha256 over the module's structure, parameters, buffers and normalisation."""
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
                # Flattened first: a tensor without dimensions, such as a counter, has no bytes to view.
                h.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        return h.hexdigest()

    def to(self, device: torch.device) -> "TorchClassifier":
        """The same classifier elsewhere; the module itself is moved."""
        for part in self._parts():
            part.to(device)
        mean, std = (None if v is None else v.to(device) for v in (self.mean, self.std))
        return replace(self, mean=mean, std=std, device=device)

    def copy(self, kept: torch.dtype | None = None, tried_on: Tensor | None = None) -> "TorchClassifier":
        """The same classifier with weights of its own, laid out for an accelerator; see `laid_out`."""
        # A layer that is listened to must stay what it is.
        inputs = None if tried_on is None or self.features else self._normalised(tried_on)
        return replace(self, module=laid_out(self.module, kept, inputs))

    def _parts(self) -> list[nn.Module]:
        return [self.module] if self.detector is None else [self.module, self.detector.module]

    def dtypes(self) -> set[str]:
        """Kinds of numbers the parameters and buffers are stored in."""
        tensors = [t for part in self._parts() for t in (*part.parameters(), *part.buffers())]
        # Weights that another framework keeps are no tensors of this one.
        elsewhere = {kind for part in self._parts() for kind in getattr(part, "stored", ())}
        return elsewhere | {str(t.dtype).removeprefix("torch.") for t in tensors}

    def modes(self) -> list[str]:
        """Names of submodules in train mode."""
        named = [pair for part in self._parts() for pair in part.named_modules()]
        return [name or type(m).__name__ for name, m in named if m.training]


def wrap(
    module: nn.Module,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    *,
    name: str | None = None,
    allow: Iterable[str] = (),
    differentiable: bool = True,
    detector: Any = None,
    features: str = "",
) -> TorchClassifier:
    """A classifier from a torch module whose inputs live in [0, 1]; `mean` and `std` are applied inside.

    `allow` names defects to evaluate in spite of ("train mode", "probabilities", "mixed rows"): they are then stored in
    the Run as failed checks instead of being refused. `differentiable=False` marks a black box. `detector` is a module
    or function whose score rejects an input where it is positive; `brinell.calibrated` sets another threshold. It gets
    what its arguments are named after: x (the input in [0, 1]), logits, features; `features` names the layer of the
    module that gives these.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
    >>> wrap(net, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2)).forward(torch.rand(2, 3, 2, 2)).logits.shape
    torch.Size([2, 3])
    """
    if not isinstance(module, nn.Module):
        raise ModelError(
            expected="a torch.nn.Module", got=type(module).__name__, remedy="Put a function into a module's forward."
        )
    unknown = set(allow) - set(ALLOWED)
    if unknown:
        raise ModelError(
            expected=f"allow among {', '.join(ALLOWED)}", got=", ".join(sorted(unknown)), remedy="Check the spelling."
        )
    spread = _column(std)
    if spread is not None and not bool((spread > 0).all()):
        raise ModelError(expected="std above 0", got=str(std), remedy="Give one positive number per channel.")
    centre = _column(mean)
    if centre is not None and bool((centre > 1).any()):
        raise ModelError(
            expected="a mean in the units of the inputs, which live in [0, 1]",
            got=str(mean),
            remedy="If mean and std are in 0-255 units, divide both by 255.",
        )
    first = next(iter([*module.parameters(), *module.buffers()]), None)
    device = torch.device("cpu") if first is None else first.device
    if device.type == "meta":
        raise ModelError(
            expected="a model with weights",
            got="one on the device meta, which has shapes only",
            remedy="Load the weights: net.to_empty(device='cpu'), then net.load_state_dict(weights).",
        )
    label = name if name is not None else type(module).__name__
    if features and features not in dict(module.named_modules()):
        raise ModelError(
            expected="the name of a layer of the module as features", got=repr(features), remedy="See named_modules()."
        )
    guard = None if detector is None else as_detector(detector)
    centre, spread = (None if v is None else v.to(device) for v in (centre, spread))
    return TorchClassifier(module, centre, spread, label, frozenset(allow), differentiable, device, guard, features)
