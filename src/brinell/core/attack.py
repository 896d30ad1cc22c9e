"""The protocol of an attack: frozen numbers and two pure functions over a state with one row per sample."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from brinell.core.threat import Ball
from brinell.ops.norms import NORMS, Norm
from brinell.ops.types import Keys, Labels, Logits, Points, Scalars


class Needs(Enum):
    """What an attack wants to know about its current points."""

    LOGITS = "logits"
    GRAD = "gradient"
    JACOBIAN = "jacobian"


@dataclass(frozen=True)
class Rows:
    """The samples in the slots: clean point, label, noise key, target class (−1: none), explicit start (or None).

    `restart` is the number of the restart, from 0; None counts as 0.
    """

    x: Points
    y: Labels
    key: Keys
    target: Labels
    start: Points | None = None
    restart: Labels | None = None


@dataclass(frozen=True)
class Answer:
    """What the model said about the points asked: logits, the attack's loss, and what else it needs.

    Either the gradient of that loss, or (`Needs.JACOBIAN`) the gradient of every logit, of shape (b, k, *shape).
    """

    logits: Logits
    loss: Scalars
    grad: Points | None = None
    jacobian: Tensor | None = None

    @property
    def backwards(self) -> int:
        """How many backward passes every row cost."""
        return self.jacobian.shape[1] if self.jacobian is not None else int(self.grad is not None)

    @property
    def gradient(self) -> Points:
        """The gradient, for attacks that asked for it."""
        assert self.grad is not None, "this attack did not ask for gradients"
        return self.grad


@runtime_checkable
class State(Protocol):
    """At least: `x`, the points to ask about next, and `t`, the number of answers received.

    A state may also have `aside`, a mask of rows whose point only serves to find the way and is not to be recorded, and
    `target`, the classes the loss aims at now, where the attack chooses them itself.
    """

    @property
    def x(self) -> Points:
        """The next points."""

    @property
    def t(self) -> Labels:
        """Answers so far, per row."""


S = TypeVar("S", bound=State)


@runtime_checkable
class Attack(Protocol[S]):
    """`init` proposes the first points, `step` takes the model's answer and proposes the next ones.

    Neither calls the model, loops over samples, looks at other rows or draws noise except through `Rows.key`. An attack
    may also have `norms`, those it works in; without it these are Linf, L2 and L1.
    """

    @property
    def name(self) -> str:
        """Short, lower case, unique within a plan: part of the noise key."""

    @property
    def loss(self) -> str:
        """A name in `brinell.ops.losses.LOSSES`."""

    @property
    def needs(self) -> Needs:
        """What the engine must compute."""

    @property
    def queries(self) -> int:
        """How many answers one run takes at most."""

    @property
    def minimises(self) -> bool:
        """Whether the attack looks for the smallest distance rather than the largest loss inside the ball."""

    def init(self, p: Rows, ball: Ball) -> S:
        """The state before the first answer."""

    def step(self, s: S, a: Answer, p: Rows, ball: Ball) -> S:
        """The state after one more answer."""


AnyAttack = Attack[Any]


def norms_of(attack: AnyAttack) -> tuple[Norm, ...]:
    """The norms an attack works in."""
    norms: tuple[Norm, ...] = getattr(attack, "norms", tuple(NORMS.values()))
    return norms
