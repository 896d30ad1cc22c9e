"""The hyperparameters of a training, except those of the attack."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from brinell.errors import InputError, one_of
from brinell.train.schedule import ANNEALS, SCHEDULES, learning_rate

PRECISIONS = ("float32", "bfloat16")
# Default peak learning rate and weight decay: from the papers for SGD, from torch for AdamW.
DEFAULTS = {"sgd": (0.1, 2e-4), "adamw": (1e-3, 1e-2)}


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training: optimiser, schedule, augmentation, precision and seed.

    The defaults are as in the papers (Madry et al. 2018, Zhang et al. 2019, Gao et al. 2022), except that weights are
    averaged. `lr` is the peak learning rate. `clip` limits the norm of the gradient (0: no limit). `ramp` is the number
    of epochs over which the radius grows from zero, `average` the decay of the moving average of the weights (0: none),
    `crop` the padding of random crops in pixels. Training stops after `patience` epochs without a better robust
    accuracy.

    >>> Recipe(epochs=30, schedule="one-cycle").lr_at(step=89, total=300)
    0.1
    """

    epochs: int = 100
    batch: int = 128
    optimiser: str = "sgd"
    lr: float | None = None
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float | None = None
    schedule: str = "multistep"
    anneal: str = "cosine"
    label_smoothing: float = 0.0
    clip: float = 0.0
    ramp: float = 0.0
    average: float = 0.999
    crop: int = 0
    flip: bool = False
    precision: str = "float32"
    compile: bool = False
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("an optimiser", self.optimiser, DEFAULTS)
        one_of("a schedule", self.schedule, SCHEDULES)
        one_of("anneal", self.anneal, ANNEALS)
        one_of("a precision", self.precision, PRECISIONS)
        _whole(1, epochs=self.epochs, batch=self.batch, patience=1 if self.patience is None else self.patience)
        _whole(0, crop=self.crop)
        _whole(-(2**63), seed=self.seed)
        for name, value in (("clip", self.clip), ("ramp", self.ramp), ("weight_decay", self.decay)):
            _check(0 <= value < float("inf"), f"{name} of at least 0", f"{name} = {value}")
        for name in ("label_smoothing", "average", "momentum"):
            value = getattr(self, name)
            _check(0 <= value < 1, f"{name} of at least 0 and below 1", f"{name} = {value}")
        _check(0 < self.peak < float("inf"), "lr above 0", f"lr = {self.peak}")

    @property
    def peak(self) -> float:
        return DEFAULTS[self.optimiser][0] if self.lr is None else self.lr

    @property
    def decay(self) -> float:
        return DEFAULTS[self.optimiser][1] if self.weight_decay is None else self.weight_decay

    def lr_at(self, step: int, total: int) -> float:
        """Return the learning rate at step number `step` (counted from 0) of `total` steps."""
        return learning_rate(self.schedule, self.anneal, self.peak, step, total)

    def make_optimiser(self, module: nn.Module) -> torch.optim.Optimizer:
        """Return an optimiser for the module's trainable parameters."""
        weights = [w for w in module.parameters() if w.requires_grad]
        if self.optimiser == "adamw":
            return torch.optim.AdamW(weights, self.peak, weight_decay=self.decay)
        return torch.optim.SGD(weights, self.peak, self.momentum, weight_decay=self.decay, nesterov=self.nesterov)

    def to_json(self) -> dict[str, Any]:
        """Return all hyperparameters as a dict; `lr` and `weight_decay` have their defaults filled in."""
        return {**asdict(self), "lr": self.peak, "weight_decay": self.decay}


def _whole(least: int, **numbers: int) -> None:
    for name, value in numbers.items():
        valid = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63
        _check(valid, f"{name} as a whole number of at least {least}", f"{name} = {value!r}")


def _check(valid: bool, expected: str, got: str) -> None:
    if not valid:
        raise InputError(expected=expected, got=got, remedy="Omit this parameter for its default.")
