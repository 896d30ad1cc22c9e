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
    DETECTOR = "gradient and detector"


@dataclass(frozen=True)
class Leg:
    """One run of an attack on a sample: the rank of the target class on the clean input (0: none) and the restart."""

    rank: int = 0
    restart: int = 0


@dataclass(frozen=True)
class Rows:
    """The samples in the slots: clean point, label, noise key, target class (−1: none), explicit start (or None).

    `restart` is the number of the restart, from 0; None counts as 0. `id` is the sample's id, for classifiers that are
    another one for every sample.
    """

    x: Points
    y: Labels
    key: Keys
    target: Labels
    start: Points | None = None
    restart: Labels | None = None
    id: Labels | None = None


@dataclass(frozen=True)
class Answer:
    """What the model said about the points asked: logits, the attack's loss, and what else it needs.

    Either the gradient of that loss, or (`Needs.JACOBIAN`) the gradient of every logit, of shape (b, k, *shape). Of a
    model with a detector also its score, positive where the input is rejected, and (`Needs.DETECTOR`) the gradient of
    that score beside the loss's.
    """

    logits: Logits
    loss: Scalars
    grad: Points | None = None
    jacobian: Tensor | None = None
    reject: Scalars | None = None
    reject_grad: Points | None = None

    @property
    def backwards(self) -> int:
        """How many backward passes every row cost."""
        if self.jacobian is not None:
            return self.jacobian.shape[1]
        return int(self.grad is not None) + int(self.reject_grad is not None)

    @property
    def gradient(self) -> Points:
        """The gradient, for attacks that asked for it."""
        assert self.grad is not None, "this attack did not ask for gradients"
        return self.grad

    @property
    def score(self) -> Scalars:
        """The detector's score, for attacks on models that have one."""
        assert self.reject is not None, "this model has no detector"
        return self.reject

    @property
    def score_gradient(self) -> Points:
        """Its gradient, for attacks that asked for it."""
        assert self.reject_grad is not None, "this attack did not ask for the detector's gradient"
        return self.reject_grad


@runtime_checkable
class State(Protocol):
    """At least: `x`, the points to ask about next, and `t`, the number of answers received.

    A state may also have `aside`, a mask of rows whose point only serves to find the way and is not to be recorded, and
    `target`, what the loss aims at now where the attack chooses it itself: classes, or the values a loss is to match.
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


@runtime_checkable
class Branching(Protocol):
    """An attack whose samples end with runs that do not depend on one another, so that they may be made side by side.

    One after another, in the sample's own row, they give the same.
    """

    def alone(self, s: Any) -> Any:
        """The same samples, to end before these runs."""

    def seed(self, s: Any) -> Any:
        """What these runs have to know of samples that have ended so, one row each."""

    def unseeded(self, y: Labels) -> Any:
        """The same for samples of which nothing is known."""

    def branches(self, seed: Any) -> Labels:
        """How many of these runs the samples want."""

    def branch(self, seed: Any, which: Labels, p: Rows, ball: Ball) -> Any:
        """The state at the beginning of one of them per sample, counted from 0."""


def branching(attack: AnyAttack) -> Branching | None:
    """The attack, if it is one of those."""
    return attack if isinstance(attack, Branching) else None


def cycle(attack: AnyAttack) -> tuple[Needs, ...]:
    """What the attack needs of its answers in turn, over and over: its own `cycle`, else always `needs`.

    An attack that has a `cycle` tells by `Answer` itself which answer it got: one without gradients serves to look. An
    attack around another one passes its cycle on.
    """
    own: tuple[Needs, ...] = getattr(attack, "cycle", (attack.needs,))
    return own


def uneven(attack: AnyAttack) -> bool:
    """Whether most samples leave early and a few take very long, so that calls about many rows would soon be empty."""
    return bool(getattr(attack, "uneven", False))


def norms_of(attack: AnyAttack) -> tuple[Norm, ...]:
    """The norms an attack works in."""
    norms: tuple[Norm, ...] = getattr(attack, "norms", tuple(NORMS.values()))
    return norms
