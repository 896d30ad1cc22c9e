"""The threat model: a norm ball around the clean point, intersected with the unit box and an optional mask."""

import base64
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.errors import ThreatError, did_you_mean
from brinell.ops.norms import SIZES, Norm
from brinell.ops.rowwise import flat
from brinell.ops.types import Keys, Mask, Points, Scalars
from brinell.untrusted import parse_number

LO, HI = 0.0, 1.0
# Relative tolerance when float64 distances are compared with eps, for the rounding of x0 + d to float32.
TOLERANCE = 1e-6
# How a threat without a radius is written.
UNLIMITED = "inf"

Eps = float | int | str | Tensor


def parse_eps(eps: float | int | str) -> float:
    """Return eps, a number or the text of a number or of a fraction such as "8/255", as a float.

    >>> round(parse_eps("8/255"), 4)
    0.0314
    """
    if eps == UNLIMITED:
        return math.inf
    try:
        value = parse_number(eps) if isinstance(eps, str) else float(eps)
    except (ValueError, OverflowError, TypeError) as error:
        zero = ", which divides by zero" if str(error).endswith("divides by zero") else ""
        raise ThreatError(
            expected='eps as a number or a fraction such as "8/255"',
            got=repr(eps)[:60] + zero,
            remedy="Write 0.03 or 8/255 (in Python eps=0.03 or eps='8/255').",
        ) from None
    return value


@dataclass(frozen=True)
class Ball:
    """The threat for one batch, as attacks see it: a norm, one radius per row and an optional mask."""

    norm: Norm
    eps: Scalars
    mask: Tensor | None = None

    def _limits(self, x0: Points) -> tuple[Points | float, Points | float]:
        """Return, per coordinate, the smallest and the largest value that box and mask allow."""
        if self.mask is None:
            return LO, HI
        return torch.where(self.mask, LO, x0), torch.where(self.mask, HI, x0)

    def bounds(self, x0: Points) -> tuple[Points, Points]:
        """Return, per coordinate, the smallest and the largest allowed value, as tensors of x0's shape."""
        lo, hi = self._limits(x0)
        return torch.zeros_like(x0) + lo, torch.zeros_like(x0) + hi

    def project(self, x0: Points, x: Points) -> Points:
        """Return the Euclidean projection of x on the allowed set: the ball around x0 within box and mask."""
        return self.norm.nearest(x0, x, self.eps, *self._limits(x0))

    def retract(self, x0: Points, x: Points) -> Points:
        """Return x moved into ball, box and mask as AutoAttack does it (`Norm.retract`)."""
        return self.norm.retract(x0, x, self.eps, *self._limits(x0))

    def span(self, x0: Points) -> Scalars:
        """Return, per row, the distance from x0 to the farthest point that box and mask allow."""
        lo, hi = self.bounds(x0)
        return self.norm.size(torch.maximum(x0 - lo, hi - x0))

    def within_box(self, x0: Points) -> "Ball":
        """Return the ball with every radius limited to `span(x0)`, so that all radii are finite."""
        return Ball(self.norm, torch.minimum(self.eps, self.span(x0)), self.mask)

    def subset(self, index: Tensor) -> "Ball":
        """Return the ball for the rows at `index`."""
        return replace(self, eps=self.eps[index])

    def apply(self, x0: Points, d: Points) -> Points:
        """Return the input that the perturbation d makes of x0: x0 + d, clipped to the box and the mask."""
        return (x0 + d).clamp(*self.bounds(x0))

    def masked(self, g: Points) -> Points:
        """Return g with zeros at the coordinates that may not change."""
        return g if self.mask is None else g * self.mask

    def eps_like(self, x: Points) -> Tensor:
        """Return the radii in a shape that broadcasts over `x`."""
        return self.eps.view(-1, *[1] * (x.ndim - 1))

    def steepest(self, g: Points, density: float | Scalars = 0.0) -> Points:
        """Return the steepest step of size 1 in the allowed coordinates (`Norm.steepest`)."""
        return self.norm.steepest(self.masked(g), density)

    def reach(self, g: Points) -> Scalars:
        """Return, per row, how much a linear function with gradient g can grow within eps, ignoring the box."""
        return self.eps * self.norm.dual_size(self.masked(g))

    def inside(self, x0: Points, key: Keys) -> Points:
        """Draw, per row, a uniform random point of the ball, projected on ball and box."""
        return self.project(x0, x0 + self.norm.inside(key, tuple(x0.shape[1:]), self.eps))

    def start(self, x0: Points, key: Keys) -> Points:
        """Draw AutoAttack's random start, far from the centre of the ball, moved into ball and box by `retract`."""
        d = self.norm.start(key, tuple(x0.shape[1:]), self.eps)
        # Clipping moves every coordinate towards x0, so in Linf and L2 points stay in the ball, as in the reference.
        return self.retract(x0, x0 + d)

    def surface(self, x0: Points, key: Keys, corner: bool = False) -> Points:
        """Draw a point at distance eps, or less where the box ends; `corner` draws corners in Linf."""
        v = self.norm.direction(key, tuple(x0.shape[1:]), corner)
        lo, hi = self.bounds(x0)
        d = self.norm.stretch(self.masked(v), self.eps, lo - x0, hi - x0)
        return self.project(x0, x0 + d)

    def distance(self, x0: Points, x: Points) -> Scalars:
        """Return ‖x − x0‖ per row, computed in float64."""
        d = x.double() - x0.double()
        # A single row is doubled: torch splits the sum over a single long row among threads, which rounds differently.
        return self.norm.size(d) if len(d) != 1 else self.norm.size(torch.cat([d, d]))[:1]

    def allows(self, x0: Points, x: Points) -> Mask:
        """Return, per row, whether x is finite, in the box and unchanged outside the mask, at any distance."""
        # With a NaN in a row both extremes are NaN, and the comparisons fail. (`aminmax` is ten times slower on a CPU.)
        values = flat(x)
        least, greatest = values.amin(1), values.amax(1)
        inside = (least >= LO) & (greatest <= HI)
        return inside if self.mask is None else inside & flat((x == x0) | self.mask).all(1)

    def contains(self, x0: Points, x: Points) -> Mask:
        """Return, per row, whether x is allowed (`allows`) and its float64 distance from x0 is within eps."""
        return self.allows(x0, x) & (self.distance(x0, x) <= self.eps.double() * (1 + TOLERANCE))


@dataclass(frozen=True)
class Threat:
    """A norm, a radius (one, or one per sample) and an optional mask of the coordinates that may change.

    Without a radius (`L2()`) any distance is allowed, and attacks look for the smallest adversarial distance.

    >>> L2(0.5), Linf("8/255"), L2()
    (L2(eps=0.5), Linf(eps=8/255), L2(eps=inf))
    """

    norm: Norm
    eps: float | Tensor
    mask: Tensor | None = None
    # How the radius was written; "8/255" and 8 / 255 are the same threat.
    text: str = field(default="", compare=False)

    def __repr__(self) -> str:
        mask = "" if self.mask is None else f", mask of {int(self.mask.sum())} of {self.mask.numel()} values"
        return f"{self.norm.name}(eps={self.text}{mask})"

    @property
    def unlimited(self) -> bool:
        """Whether the threat has no radius."""
        return not isinstance(self.eps, Tensor) and math.isinf(self.eps)

    def ball(self, rows_: Tensor, device: torch.device) -> Ball:
        """Return the ball for the samples at the positions `rows_` of the dataset."""
        mask = None if self.mask is None else self.mask.to(device)
        if isinstance(self.eps, Tensor):
            eps = self.eps[rows_.to(self.eps.device)].to(device=device, dtype=torch.float32)
        else:
            eps = torch.full((len(rows_),), self.eps, dtype=torch.float32, device=device)
        return Ball(self.norm, eps, mask)

    def subset(self, index: Tensor | slice) -> "Threat":
        """Return the threat for the samples at the positions `index` only, renumbered from 0."""
        return replace(self, eps=self.eps[index]) if isinstance(self.eps, Tensor) else self

    def apply(self, x0: Points, delta: Points) -> Points:
        """Return the inputs that the perturbations make of the samples x0 (`Ball.apply`).

        >>> Linf("8/255").apply(torch.tensor([[0.5, 1.0]]), torch.tensor([[-0.25, 0.25]])).tolist()
        [[0.25, 1.0]]
        """
        return self.ball(torch.arange(len(x0), device="cpu"), x0.device).apply(x0, delta)

    def check(self, shape: tuple[int, ...], n: int | None) -> None:
        """Refuse a radius that covers the whole box, and a per-sample eps or a mask that does not fit the samples.

        `shape` is the shape of one sample, `n` the number of samples (None: unknown).
        """
        size = int(torch.Size(shape).numel())
        largest = float(self.eps.max()) if isinstance(self.eps, Tensor) else self.eps
        if largest >= self.norm.diameter(size) and not self.unlimited:
            raise ThreatError(
                expected=f"{self.norm.name} eps below {self.norm.diameter(size):.4g}, the diameter of [0, 1]^{size}",
                got=f"eps = {largest:.4g}",
                remedy="Inputs lie in [0, 1]: divide an eps in 0-255 units by 255.",
            )
        if isinstance(self.eps, Tensor) and n is not None and len(self.eps) != n:
            raise ThreatError(
                expected=f"one eps, or one per sample ({n})",
                got=f"{len(self.eps)} values",
                remedy=f"Pass one number, or a tensor of shape ({n},).",
            )
        if self.mask is not None and tuple(self.mask.shape) != shape:
            raise ThreatError(
                expected=f"a mask of one sample's shape {shape}",
                got=f"shape {tuple(self.mask.shape)}",
                remedy=f"Pass a boolean tensor of shape {shape}: True where the input may change.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the threat's entry in the manifest of a Run."""
        # JSON has no infinity: None means no radius.
        single = None if self.unlimited else self.eps
        eps = self.eps.tolist() if isinstance(self.eps, Tensor) else single
        out: dict[str, Any] = {"norm": self.norm.name, "eps": eps, "eps_text": self.text, "box": [LO, HI]}
        if self.mask is not None:
            bits = np.packbits(self.mask.cpu().numpy().reshape(-1))
            out["mask"] = {"shape": list(self.mask.shape), "bits": base64.b64encode(bits.tobytes()).decode()}
        return out


def from_json(stored: dict[str, Any]) -> Threat:
    """Return the threat that `to_json` stored in a manifest.

    >>> from_json(Linf("8/255").to_json())
    Linf(eps=8/255)
    """
    eps, mask = stored["eps"], None
    if isinstance(eps, list):
        eps = torch.tensor(eps, dtype=torch.float64, device="cpu")
    if "mask" in stored:
        bits = np.frombuffer(base64.b64decode(stored["mask"]["bits"]), dtype=np.uint8)
        shape = tuple(stored["mask"]["shape"])
        mask = torch.from_numpy(np.unpackbits(bits)[: int(np.prod(shape))].reshape(shape)).bool()
    read = threat(stored["norm"], math.inf if eps is None else eps, mask)
    return replace(read, text=stored.get("eps_text", read.text))


# The p of a norm, as people write it.
ORDERS = {"inf": "Linf", "infty": "Linf", "infinity": "Linf", "∞": "Linf", "2": "L2", "1": "L1", "0": "L0"}


def norm_name(norm: str | int | float) -> str:
    """Return the name of a norm, given the name in any spelling or its p; an unknown norm is returned unchanged.

    >>> [norm_name(norm) for norm in ("linf", "L_2", "inf", math.inf, 2, "L7")]
    ['Linf', 'L2', 'Linf', 'Linf', 'L2', 'L7']
    """
    order = f"{norm:g}" if isinstance(norm, int | float) else str(norm).casefold().replace("_", "").lstrip("lℓ")
    return ORDERS.get(order, str(norm))


def threat(norm: str | int | float, eps: Eps, mask: Tensor | None = None) -> Threat:
    """Return the threat with this norm ("Linf", "L2", "L1" or "L0"; "linf", "inf" and 2 work too), radius and mask.

    >>> threat("L1", 12)
    L1(eps=12)
    """
    norm = norm_name(norm)
    if norm not in SIZES:
        raise ThreatError(
            expected=f"a norm among {', '.join(SIZES)}",
            got=repr(norm),
            remedy=did_you_mean(norm, SIZES, "Other norms are not known."),
        )
    many = isinstance(eps, Tensor)
    value = eps.detach().cpu().double() if isinstance(eps, Tensor) else parse_eps(eps)
    numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    sound = numbers.numel() > 0 and (numbers.ndim == 1 or not many)
    unlimited = not many and value == math.inf
    if not sound or not (unlimited or bool(((numbers > 0) & numbers.isfinite()).all())):
        raise ThreatError(
            expected="eps > 0 (one number, or one per sample)", got=f"{eps}", remedy="Write e.g. eps='8/255'."
        )
    # In Linf the unit box bounds eps for any input size; `Threat.check` does so in the other norms.
    bounded = SIZES[norm].diameter(1) == SIZES[norm].diameter(2)
    if bounded and not unlimited and float(numbers.max()) > HI - LO:
        raise ThreatError(
            expected=f"a {norm} eps of at most 1, since inputs lie in [0, 1]",
            got=f"eps = {float(numbers.max()):.4g}",
            remedy=f"If this eps is in 0-255 units, write '{eps}/255'.",
        )
    text = f"{float(numbers.min()):.4g}…{float(numbers.max()):.4g}" if many else str(eps)
    where = None if mask is None else torch.as_tensor(mask, dtype=torch.bool, device="cpu")
    return Threat(SIZES[norm], value, where, text)


def Linf(eps: Eps = math.inf, mask: Tensor | None = None) -> Threat:
    """Return the threat in which no coordinate changes by more than eps.

    >>> Linf("8/255")
    Linf(eps=8/255)
    """
    return threat("Linf", eps, mask)


def L2(eps: Eps = math.inf, mask: Tensor | None = None) -> Threat:
    """Return the threat in which the Euclidean length of the perturbation is at most eps.

    >>> L2(0.5)
    L2(eps=0.5)
    """
    return threat("L2", eps, mask)


def L1(eps: Eps = math.inf, mask: Tensor | None = None) -> Threat:
    """Return the threat in which the absolute changes of all coordinates sum to at most eps.

    >>> L1(12)
    L1(eps=12)
    """
    return threat("L1", eps, mask)


def L0(eps: Eps = math.inf, mask: Tensor | None = None) -> Threat:
    """Return the threat in which at most eps coordinates change. Only some attacks support it.

    >>> L0(5)
    L0(eps=5)
    """
    return threat("L0", eps, mask)
