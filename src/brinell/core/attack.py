"""The protocol of an attack: frozen hyper-parameters and two pure functions of a state with one row per sample."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

from brinell.core.keywords import refuse_keywords
from brinell.core.references import References
from brinell.core.threat import Ball
from brinell.ops.norms import NORMS, Norm
from brinell.ops.types import Keys, Labels, Logits, Mask, Points, Scalars


class Requires(Enum):
    """What an attack needs from the model at a point besides the logits: nothing, or some gradients."""

    LOGITS = "logits"
    GRAD = "gradient"
    JACOBIAN = "jacobian"
    DETECTOR = "gradient and detector"


@dataclass(frozen=True)
class Attempt:
    """One run of an attack on a sample: the target's rank on the clean input (0: no target) and the restart number."""

    rank: int = 0
    restart: int = 0


@dataclass(frozen=True)
class Batch:
    """A batch of samples: clean points, labels, noise keys, target classes (−1: none) and explicit starts, if any.

    `restart` numbers the restarts from 0; None counts as 0. `id` are sample ids, which some classifiers read.
    """

    x: Points
    y: Labels
    key: Keys
    target: Labels
    start: Points | None = None
    restart: Labels | None = None
    id: Labels | None = None


@dataclass(frozen=True)
class Response:
    """The response of the model to a query: logits, the attack's loss, and the gradients that the attack requires.

    `grad` is the gradient of the loss (`Requires.GRAD`), `jacobian` the gradient of every logit, (b, k, *shape)
    (`Requires.JACOBIAN`). `reject` is the score of a detector, positive for rejected inputs, and `reject_grad` its
    gradient (`Requires.DETECTOR`).
    """

    logits: Logits
    loss: Scalars
    grad: Points | None = None
    jacobian: Tensor | None = None
    reject: Scalars | None = None
    reject_grad: Points | None = None
    tolerance: Scalars | None = None

    @property
    def backwards(self) -> int:
        """The number of backward passes per row."""
        if self.jacobian is not None:
            return self.jacobian.shape[1]
        return int(self.grad is not None) + int(self.reject_grad is not None)

    @property
    def gradient(self) -> Points:
        """The gradient of the loss, for attacks that require it."""
        assert self.grad is not None, "this attack did not ask for gradients"
        return self.grad

    @property
    def score(self) -> Scalars:
        """The detector's score, for attacks on models with a detector."""
        assert self.reject is not None, "this model has no detector"
        return self.reject

    @property
    def score_gradient(self) -> Points:
        """The gradient of the detector's score, for attacks that require it."""
        assert self.reject_grad is not None, "this attack did not ask for the detector's gradient"
        return self.reject_grad


class AttackState:
    """The state of an attack: a frozen dataclass of row tensors with at least `x` and `t`.

    `x` are the points to query next, `t` counts the responses so far, per row.
    """

    if TYPE_CHECKING:  # fields of the subclass, or properties of it

        @property
        def x(self) -> Points: ...
        @property
        def t(self) -> Labels: ...

    @property
    def aim(self) -> Tensor | None:
        """The target classes, or values to match, that the attack chose. None: the loss uses the batch's targets."""
        return None

    @property
    def exploring(self) -> Mask | None:
        """Mask of rows whose current point must not be kept as an adversarial. None: every point is a candidate."""
        return None


S = TypeVar("S", bound=AttackState)


def call_attack(attack: Any, classifier: Any, x: Any, y: Any, threat: Any, **options: Any) -> Tensor:
    """Return the adversarial images of an attack or stage."""
    # The only upward import of this module, made when an attack is called.
    from brinell.evaluation.attack import perturb

    return perturb(attack, classifier, x, y, threat, **options)


class Attack(Generic[S]):
    """An attack: frozen hyper-parameters and two pure functions of a state with one row per sample.

    `init` proposes the first points; `step` takes the model's response and proposes the next points. Neither calls the
    model, loops over samples, depends on other rows, or draws noise except through `Batch.key`. Subclass it with a
    frozen dataclass whose fields are the hyper-parameters. Members with a default below may be left out.
    """

    minimum_norm: bool = False
    """Whether the attack looks for the smallest distance rather than for the largest loss inside the ball."""
    abandons_early: bool = False
    """Whether most samples end long before their budget, so that large model calls would soon be half empty."""
    needs_float32: bool = False
    """Whether the attack queries in float32 (TF32 on CUDA) even if the evaluation uses a lower precision."""
    parts: tuple[str, ...] = ()
    """Names of the fields that hold the attacks which this attack wraps."""
    parallel_restarts: bool = False
    """Whether the attack ends with independent internal restarts, which accelerators may run side by side.

    Five methods below, from `before_restarts` to `restart`, describe them. Run one after another, the restarts give the
    same result.
    """

    def __new__(cls, *values: Any, **hyperparameters: Any) -> "Attack[S]":
        """Refuse hyper-parameters under the names of other libraries, with an error that names those of this attack."""
        known = getattr(cls, "__dataclass_fields__", {})
        refuse_keywords(cls.__name__, hyperparameters, [name for name, f in known.items() if f.init])
        return super().__new__(cls)

    def __call__(
        self,
        classifier: Any,
        x: Any,
        y: Any,
        threat: Any = None,
        *,
        targeted: bool = False,
        transfer: bool = False,
        **options: Any,
    ) -> Tensor:
        """Return adversarial images: `x_adv = attack(model, x, y, threat)`.

        Inputs that the attack does not break are returned unchanged. With `targeted=True`, `y` are the classes that the
        model shall predict. With `transfer=True` every input is moved to the point of the largest margin, for other
        models. `options` are `seed`, `slots` and `device`. `brinell.attack` also returns the rows: cost,
        distance and margin of every sample.
        """
        return call_attack(self, classifier, x, y, threat, targeted=targeted, transfer=transfer, **options)

    @property
    def name(self) -> str:
        """The attack's name: short, lower case, unique within a plan. It is part of the noise key."""
        raise NotImplementedError

    @property
    def loss(self) -> str:
        """The name of the loss that the attack maximises, a key of `brinell.ops.losses.LOSSES`."""
        raise NotImplementedError

    @property
    def queries(self) -> int:
        """The largest number of responses per attempt; by default one for the start and one per step."""
        if self.step_count is None:
            raise NotImplementedError
        return self.step_count + 1

    @property
    def requires(self) -> Requires:
        """What the engine must compute at every point; the gradient of the loss by default."""
        return Requires.GRAD

    @property
    def query_pattern(self) -> tuple[Requires, ...]:
        """The requirements of successive queries, repeated cyclically; by default every query needs `requires`."""
        return (self.requires,)

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The norms in which the attack works: Linf, L2 and L1 by default."""
        return tuple(NORMS.values())

    @property
    def usual_queries(self) -> int:
        """The usual number of responses for a surviving sample, for cost estimates; `queries` by default."""
        return self.queries

    @property
    def leaves_ball(self) -> bool:
        """Whether the attack visits points outside the ball on purpose."""
        return False

    @property
    def joins_detector(self) -> bool:
        """Whether the attack also tries to evade a detector."""
        return self.requires is Requires.DETECTOR

    @property
    def lacks_references(self) -> bool:
        """Whether the attack imitates natural inputs and has none yet (see `with_references`)."""
        return False

    def with_references(self, references: References) -> "AnyAttack":
        """Return the attack with these natural inputs to imitate; unchanged if it imitates no inputs."""
        return self

    @property
    def step_count(self) -> int | None:
        """The value of the field `steps`; None if the attack has no such field."""
        steps: int | None = vars(self).get("steps")
        return steps

    def with_steps(self, steps: int) -> "AnyAttack":
        """Return a copy with another number of steps; only for attacks whose `step_count` is not None."""
        return replace(self, steps=steps)  # type: ignore[type-var]

    @property
    def stored_type(self) -> str:
        """The class name in manifests and in the hashes of stages. It never changes, even if the class is renamed."""
        return type(self).__name__

    def without_images(self) -> "AnyAttack | None":
        """Return the attack to use instead if inputs are not images; None: this attack works on any input."""
        return None

    def before_restarts(self, s: S) -> S:
        """Return the state `s` changed so that the attack ends before its internal restarts (those it makes itself)."""
        raise NotImplementedError

    def restart_seed(self, s: S) -> Any:
        """Return the seed, one row per sample: what internal restarts need from the final state `s`."""
        raise NotImplementedError

    def no_seed(self, y: Labels) -> Any:
        """Return a placeholder seed for samples with labels y that have not been attacked yet."""
        raise NotImplementedError

    def restart_count(self, seed: Any) -> Labels:
        """Return the number of internal restarts of each sample, given its seed."""
        raise NotImplementedError

    def restart(self, seed: Any, which: Labels, p: Batch, ball: Ball) -> S:
        """Return the state at the beginning of internal restart `which` (one number per sample, from 0)."""
        raise NotImplementedError

    def init(self, p: Batch, ball: Ball) -> S:
        """Return the state before the first response, with the first points to query."""
        raise NotImplementedError

    def step(self, s: S, a: Response, p: Batch, ball: Ball) -> S:
        """Return the state after the response `a` to the query at `s.x`, with the next points to query."""
        raise NotImplementedError


AnyAttack = Attack[Any]
