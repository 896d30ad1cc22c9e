"""Iterated FGSM made to transfer to other models: momentum, diverse inputs, translated gradients."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from brinell.attacks._common import FLAT, PointState
from brinell.attacks._parameters import check_loss, check_numbers, check_positive, check_whole
from brinell.core.attack import AnyAttack, Attack, Batch, Response
from brinell.core.threat import Ball
from brinell.ops import rng
from brinell.ops.rowwise import flat, rows, where
from brinell.ops.types import Keys, Mask, Points, Scalars

IMAGE = 4  # dimensions of a batch of images


@dataclass(frozen=True)
class TransferState(PointState):
    """State, per row: the point to query, the iterate that it was made of, the accumulated direction.

    `resized` marks rows that query a resized image, which is no candidate.
    """

    here: Points
    direction: Points
    resized: Mask

    @property
    def exploring(self) -> Mask:
        return self.resized


class _IteratedFGSM(Attack[TransferState]):
    """Steps of length `rel_step · eps` along an accumulated gradient; subclasses change the query or the gradient."""

    steps: int
    rel_step: float
    momentum: float
    density: float

    def _check(self) -> None:
        check_loss(self.loss)
        check_whole(steps=self.steps)
        check_positive(rel_step=self.rel_step)
        check_numbers(self.momentum >= 0, "momentum of at least 0", momentum=self.momentum)

    def smoothed(self, g: Points) -> Points:
        """Return the gradient to accumulate."""
        return g

    def view(self, t: Tensor, p: Batch, ball: Ball) -> "_Resize | None":
        """Return how the image is resized before query t of each row; None: never."""
        return None

    def init(self, p: Batch, ball: Ball) -> TransferState:
        x = p.x if p.start is None else ball.project(p.x, p.start)
        return self._asking(torch.zeros_like(p.y), x, torch.zeros_like(x), p, ball)

    def step(self, s: TransferState, a: Response, p: Batch, ball: Ball) -> TransferState:
        view = self.view(s.t, p, ball)
        g = a.gradient if view is None else where(s.resized, view.back(a.gradient), a.gradient)
        g = self.smoothed(ball.masked(g))
        g = self.momentum * s.direction + g / rows(flat(g).abs().sum(1).clamp(min=FLAT), g)
        x = s.here + self.rel_step * ball.eps_like(g) * ball.steepest(g, self.density)
        return self._asking(s.t + 1, ball.project(p.x, x), g, p, ball)

    def _asking(self, t: Tensor, x: Points, g: Points, p: Batch, ball: Ball) -> TransferState:
        """Return the state that queries x, resized or not; the first and the last query are x itself."""
        view = self.view(t, p, ball)
        if view is None:
            return TransferState(t, x, x, g, torch.zeros_like(t, dtype=torch.bool))
        resized = view.chosen & (t > 0) & (t < self.steps)
        return TransferState(t, where(resized, view.forth(x), x), x, g, resized)


@dataclass(frozen=True)
class MIFGSM(_IteratedFGSM):
    """Iterated FGSM with momentum on gradients whose absolute values sum to 1.

    Method: from the clean input g ← μ g + ∇/‖∇‖₁ and x ← P(x + rel_step · eps · sign(g)); in norms other than Linf the
    step is the steepest one. Every iterate is tested.
    Cost per step: one forward and one backward pass; one more of each for the start. Reference: Dong et al. 2018,
    "Boosting adversarial attacks with momentum" (10 steps of eps / 10, μ = 1).
    Limits: made for images that fool other models (`transfer=True`); on the model itself Auto-PGD is stronger.

    >>> MIFGSM(steps=20).queries
    21
    """

    steps: int = 10
    rel_step: float = 0.1
    momentum: float = 1.0
    loss: str = "ce"
    density: float = 0.01

    def __post_init__(self) -> None:
        self._check()

    @property
    def name(self) -> str:
        return f"mi-fgsm-{self.loss}"


@dataclass(frozen=True)
class DIFGSM(MIFGSM):
    """MI-FGSM on diverse inputs: with a probability the image is shrunk and placed on black before the gradient.

    Method: with `probability` the image is resized bilinearly to a side of `rate` to 1 times its own, drawn anew in
    every step, and padded with zeros at a random place; the gradient is taken through this map. The resized image is
    not a candidate; the first and the last iterate are queried as they are. Noise is keyed by sample and step.
    Reference: Xie et al. 2019, "Improving transferability of adversarial examples with input diversity".
    Different here: the paper enlarges images, for networks that take any size. Under a mask images are not resized.
    Cost per step: one forward and one backward pass.
    Limits: those of MI-FGSM; inputs must be images.

    >>> DIFGSM().name
    'di-fgsm-ce'
    """

    probability: float = 0.5
    rate: float = 0.9

    def __post_init__(self) -> None:
        self._check()
        check_numbers(0 <= self.probability <= 1, "a probability between 0 and 1", probability=self.probability)
        check_numbers(0 < self.rate <= 1, "a rate above 0 and at most 1", rate=self.rate)

    @property
    def name(self) -> str:
        return f"di-fgsm-{self.loss}"

    @property
    def leaves_ball(self) -> bool:
        """Whether resized images are queried, which lie outside the ball."""
        return self.probability > 0

    def without_images(self) -> AnyAttack:
        return MIFGSM(self.steps, self.rel_step, self.momentum, self.loss, self.density)

    def view(self, t: Tensor, p: Batch, ball: Ball) -> "_Resize | None":
        if not self.probability or ball.mask is not None or p.x.ndim != IMAGE:
            return None
        return _Resize.drawn(rng.fold(p.key, t), self.probability, self.rate, p.x)


@dataclass(frozen=True)
class TIFGSM(DIFGSM):
    """DI-FGSM with gradients smoothed by a Gaussian kernel, as if averaged over translated images.

    Method: the gradient is convolved with a kernel of `kernel` pixels that spans three standard deviations, zeros
    outside the image; then as in `DIFGSM`, without diverse inputs by default. Reference: Dong et al. 2019, "Evading
    defenses to transferable adversarial examples by translation-invariant attacks" (15 pixels).
    Cost per step: one forward and one backward pass.
    Limits: those of MI-FGSM; inputs must be images; the kernel of 15 pixels is made for images of 299.

    >>> TIFGSM(kernel=7).name
    'ti-fgsm-ce'
    """

    probability: float = 0.0
    kernel: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(kernel=self.kernel)
        check_numbers(self.kernel % 2 == 1, "an odd number of pixels as kernel", kernel=self.kernel)

    @property
    def name(self) -> str:
        return f"ti-fgsm-{self.loss}"

    def smoothed(self, g: Points) -> Points:
        return smooth(g, gaussian(self.kernel)) if g.ndim == IMAGE else g


SPAN = 3.0  # standard deviations from the middle of the kernel to its end


def gaussian(size: int) -> tuple[float, ...]:
    """Return the weights of a Gaussian over `size` points that span ±3 standard deviations; their sum is 1.

    >>> [round(w, 3) for w in gaussian(3)]
    [0.011, 0.978, 0.011]
    """
    at = [SPAN * (2 * i / max(size - 1, 1) - 1) if size > 1 else 0.0 for i in range(size)]
    weights = [math.exp(-v * v / 2) for v in at]
    return tuple(w / sum(weights) for w in weights)


def smooth(g: Points, weights: tuple[float, ...]) -> Points:
    """Return the images convolved with the product of the weights along height and width, zeros outside.

    Sums of shifted images, since the result of a convolution's row depends on the batch in its last bit.
    """
    reach = len(weights) // 2
    for axis in (2, 3):
        size, total = g.shape[axis], torch.zeros_like(g)
        for k, weight in enumerate(weights):
            shift = k - reach
            if abs(shift) < size:
                part = g.narrow(axis, max(shift, 0), size - abs(shift))
                total.narrow(axis, max(-shift, 0), size - abs(shift)).add_(part, alpha=weight)
        g = total
    return g


@dataclass(frozen=True)
class _Resize:
    """A bilinear map of each row's image to a smaller one, placed on zeros: side lengths and corners per row."""

    chosen: Mask
    sides: tuple[Scalars, Scalars]
    corners: tuple[Scalars, Scalars]

    @staticmethod
    def drawn(key: Keys, probability: float, rate: float, x: Points) -> "_Resize":
        """Draw for each row whether to resize, the share of the side, and the corner."""
        draws = rng.uniform(key, (4,))
        sides, corners = [], []
        for axis, place in ((2, draws[:, 2]), (3, draws[:, 3])):
            size = x.shape[axis]
            least = max(int(size * rate), 1)
            side = least + (draws[:, 1] * (size - least + 1)).floor()
            sides.append(side)
            corners.append((place * (size - side + 1)).floor())
        return _Resize(draws[:, 0] < probability, (sides[0], sides[1]), (corners[0], corners[1]))

    def forth(self, x: Points) -> Points:
        """Return the resized and padded images."""
        for axis, side, corner in zip((2, 3), self.sides, self.corners, strict=True):
            size = x.shape[axis]
            i = torch.arange(size, device=x.device, dtype=torch.float32)[None] - corner[:, None]
            source = ((i + 0.5) * size / side[:, None] - 0.5).clamp(0, size - 1)
            inside = (i >= 0) & (i < side[:, None])
            first = source.floor()
            parts = [(first + k, (1 - (source - first - k).abs()).clamp(min=0) * inside) for k in (0, 1)]
            x = _gathered(x, axis, parts)
        return x

    def back(self, g: Points) -> Points:
        """Return the transposed map of the gradients: what each pixel of the image contributed."""
        for axis, side, corner in zip((3, 2), self.sides[::-1], self.corners[::-1], strict=True):
            size = g.shape[axis]
            j = torch.arange(size, device=g.device, dtype=torch.float32)[None]
            # Pixels of the small image whose source lies within one pixel of j: at most two, three with the ends.
            first = ((j - 0.5) * side[:, None] / size - 0.5).ceil()
            parts = []
            for k in range(3):
                i = first + k
                source = ((i + 0.5) * size / side[:, None] - 0.5).clamp(0, size - 1)
                weight = (1 - (source - j).abs()).clamp(min=0) * ((i >= 0) & (i < side[:, None]))
                parts.append((i + corner[:, None], weight))
            g = _gathered(g, axis, parts)
        return g


def _gathered(x: Points, axis: int, parts: list[tuple[Tensor, Tensor]]) -> Points:
    """Return the sum over `parts` of weight · x at an index along the axis; both have shape (b, size)."""
    total = torch.zeros_like(x)
    for index, weight in parts:
        shape = (len(x), 1, -1, 1) if axis == 2 else (len(x), 1, 1, -1)
        at = index.clamp(0, x.shape[axis] - 1).long().view(shape).expand_as(x)
        total = total + weight.view(shape) * x.gather(axis, at)
    return total
