"""Two-class readouts on the features of a network. Every sample has its own readout; one batch may use several
readouts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from brinell.errors import InputError, one_of
from brinell.ops.rowwise import concat, take
from brinell.reliability.binarization.margin import hard_margin


@runtime_checkable
class Heads(Protocol):
    """Fitted two-class readouts, one readout per sample, evaluated as a batch."""

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        """Return logits (b, 2): row i applies the readout at position at[i] to the features f[i]."""

    def keep(self, index: Tensor) -> "Heads":
        """Return only the readouts at the positions `index`."""

    def join(self, others: "list[Any]") -> "Heads":
        """Return one object with these readouts, followed by the readouts of the objects `others` of the same class."""


@runtime_checkable
class Readout(Protocol):
    """A kind of readout: `fit` fits a readout per sample to inner points (class 0) and boundary points (class 1)."""

    @property
    def name(self) -> str:
        """The name of this kind of readout in reports."""

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> Heads:
        """Return one readout per sample, fitted to float64 features of inner (n, N, f) and boundary points (n, B, f).

        `widths` are the numbers of features of the layers. A readout is fitted even if it cannot separate the two
        classes; the caller checks separation.
        """


@dataclass(frozen=True)
class _TensorHeads:
    """Readouts whose fields are all tensors with one row per readout."""

    def keep(self, index: Tensor) -> Any:
        return take(self, index)

    def join(self, others: "list[Any]") -> Any:
        return concat([self, *others])


@dataclass(frozen=True)
class LinearHeads(_TensorHeads):
    """Linear readouts of features φ: the logits −d and d with d = w·(φ − c) + b.

    c is a boundary point: near it, float32 resolves small values of d.
    """

    weight: Tensor
    centre: Tensor
    bias: Tensor

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        d = (self.weight[at] * (f - self.centre[at])).sum(1) + self.bias[at]
        return torch.stack([-d, d], 1)


@dataclass(frozen=True)
class LinearReadout:
    """A linear readout: its decision boundary is the hyperplane of widest margin (see `hard_margin`).

    >>> LinearReadout().name
    'linear'
    """

    name: str = "linear"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> LinearHeads:
        s = hard_margin(inner, boundary)
        return _linear(s.weight, s.middle, boundary)


def _linear(weight: Tensor, middle: Tensor, boundary: Tensor) -> LinearHeads:
    centre = boundary[:, 0]
    return LinearHeads(weight.float(), centre.float(), ((weight * centre).sum(1) - middle).float())


@dataclass(frozen=True)
class PrototypeHeads(_TensorHeads):
    """Readouts of features φ with the logits −‖φ − p_c‖²: p_0 is `inner`, p_1 is `boundary`."""

    inner: Tensor
    boundary: Tensor

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        return -torch.stack([(f - p[at]).square().sum(1) for p in (self.inner, self.boundary)], 1)


@dataclass(frozen=True)
class PrototypeReadout:
    """A readout that chooses the class of the nearer of two prototypes.

    The prototypes lie symmetrically about the widest-margin hyperplane. Use it for networks that compare features with
    class prototypes.
    """

    name: str = "prototypes"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> PrototypeHeads:
        s = hard_margin(inner, boundary)
        # The midpoint of the prototypes is the projection of the boundary points' mean onto the hyperplane.
        mean = boundary.mean(1)
        half = ((s.weight * mean).sum(1) - s.middle)[:, None] * s.weight
        return PrototypeHeads((mean - 2 * half).float(), mean.float())


@dataclass(frozen=True)
class NeighbourHeads(_TensorHeads):
    """Readouts of features φ: the logit of a class is −min_i ‖φ − φ_i‖² over its fitted points φ_i."""

    inner: Tensor
    boundary: Tensor

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        near = [(f[:, None] - p[at]).square().sum(2).amin(1) for p in (self.inner, self.boundary)]
        return -torch.stack(near, 1)


@dataclass(frozen=True)
class NeighbourReadout:
    """A readout that chooses the class of the nearest fitted point, for networks that end in nearest neighbours."""

    name: str = "neighbours"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> NeighbourHeads:
        return NeighbourHeads(inner.float(), boundary.float())


@dataclass(frozen=True)
class EnsembleReadout:
    """The mean of several linear readouts: one per layer or, for one layer, one per subset of the inner points.

    `members` is the number of subsets. The mean is a linear readout too.

    >>> EnsembleReadout(5).name
    'ensemble of 5'
    """

    members: int = 3

    def __post_init__(self) -> None:
        if self.members < 1:
            raise InputError(
                expected="an ensemble of at least 1 member",
                got=f"{self.members}",
                remedy="Omit `members` for 3 members.",
            )

    @property
    def name(self) -> str:
        return f"ensemble of {self.members}"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> LinearHeads:
        if len(widths) > 1:
            parts = zip(inner.split(widths, 2), boundary.split(widths, 2), strict=True)
            separations = [hard_margin(i, b) for i, b in parts]
            weight = torch.cat([s.weight for s in separations], 1) / len(separations)
        else:
            # The first inner point, the clean one, belongs to every member.
            shares = [torch.cat([inner[:, :1], inner[:, 1 + m :: self.members]], 1) for m in range(self.members)]
            separations = [hard_margin(i, boundary) for i in shares]
            weight = torch.stack([s.weight for s in separations]).mean(0)
        # Each member's threshold lies in the middle of its own margin.
        return _linear(weight, torch.stack([s.middle for s in separations]).mean(0), boundary)


Fit = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
"""(inner features (N, f), boundary features (B, f)), both float64 -> a function of features (1, f) to logits (1, 2)."""


@dataclass(frozen=True)
class CustomHeads:
    """User-defined readouts, evaluated one row at a time, so that rows cannot influence each other."""

    each: tuple[Callable[[Tensor], Tensor], ...]

    def logits(self, f: Tensor, at: Tensor) -> Tensor:
        return torch.cat([self.each[i](f[k : k + 1]).reshape(1, 2) for k, i in enumerate(at.tolist())]).to(f.dtype)

    def keep(self, index: Tensor) -> "CustomHeads":
        return replace(self, each=tuple(self.each[i] for i in index.tolist()))

    def join(self, others: "list[CustomHeads]") -> "CustomHeads":
        return CustomHeads(tuple(h for part in (self, *others) for h in part.each))


@dataclass(frozen=True)
class CustomReadout:
    """A kind of readout whose `fit` calls the user's `function` once per sample."""

    function: Fit
    name: str = "own fit"

    def fit(self, inner: Tensor, boundary: Tensor, widths: list[int]) -> CustomHeads:
        return CustomHeads(tuple(self.function(i, b) for i, b in zip(inner, boundary, strict=True)))


READOUTS: dict[str, Readout] = {
    "linear": LinearReadout(),
    "ensemble": EnsembleReadout(),
    "prototypes": PrototypeReadout(),
    "neighbours": NeighbourReadout(),
}
"""The built-in readouts by name."""


def as_readout(readout: Any) -> Readout:
    """Return the kind of readout for a built-in name, a `Readout`, or a function that fits a readout.

    >>> as_readout("prototypes").name
    'prototypes'
    """
    if isinstance(readout, str):
        return READOUTS[one_of("a readout", readout, READOUTS)]
    if isinstance(readout, Readout):
        return readout
    if callable(readout):
        return CustomReadout(readout)
    raise InputError(
        expected=f"a readout among {', '.join(READOUTS)}, or a function fit(inner, boundary)",
        got=repr(readout)[:80],
        remedy="Omit `readout` for a linear readout.",
    )
