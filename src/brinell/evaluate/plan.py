"""Attacks combined as data: what runs, in which order, towards how many targets, how often."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from brinell.core.attack import AnyAttack, Needs
from brinell.engine.loop import Leg
from brinell.errors import PlanError
from brinell.ops.losses import LOSSES
from brinell.results import CLEAN

# How many target classes a targeted attack tries unless told otherwise (Croce & Hein 2020).
DEFAULT_TARGETS = 9


@dataclass(frozen=True)
class Stage:
    """One attack of a plan: `ranks` of its target classes on the clean input (2 = runner-up; empty: untargeted).

    >>> from brinell.attacks import APGD
    >>> Stage(APGD(loss="dlr-targeted"), ranks=(2, 3), label="apgd-t").name
    'apgd-t'
    """

    attack: AnyAttack
    ranks: tuple[int, ...] = ()
    restarts: int = 1
    label: str = ""
    eot: int = 1
    copy: int = 0

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.eot < 1:
            got = f"{self.restarts} restarts, {self.eot} draws"
            raise PlanError(expected="at least 1 restart and 1 draw", got=got, remedy="1 means a single run.")
        if any(rank < 2 for rank in self.ranks):
            raise PlanError(
                expected="target ranks of at least 2", got=str(self.ranks), remedy="Rank 2 is the runner-up class."
            )

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.label or self.attack.name

    def legs(self) -> tuple[Leg, ...]:
        """The runs of one sample, in order."""
        return tuple(Leg(rank, restart) for rank in self.ranks or (0,) for restart in range(self.restarts))

    def to_json(self) -> dict[str, Any]:
        """For the manifest, with a hash of everything that decides the outcome."""
        numbers = {f.name: getattr(self.attack, f.name) for f in fields(self.attack)}  # type: ignore[arg-type]
        body = {
            "name": self.name,
            "attack": {"type": type(self.attack).__name__, **numbers},
            "ranks": list(self.ranks),
            "restarts": self.restarts,
            "needs": self.attack.needs.value,
            "eot": self.eot,
            "copy": self.copy,
        }
        text = json.dumps(body, sort_keys=True, default=str)
        return {**body, "hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def stage(part: "AnyAttack | Stage", label: str = "") -> Stage:
    """An attack as a stage; a targeted loss gets the usual number of targets."""
    if isinstance(part, Stage):
        return replace(part, label=label) if label else part
    if not hasattr(part, "step") or not hasattr(part, "init"):
        raise PlanError(
            expected="an attack or a stage", got=repr(part), remedy="Use e.g. brinell.attacks.APGD(steps=100)."
        )
    targeted = LOSSES[part.loss].targeted
    return Stage(part, tuple(range(2, DEFAULT_TARGETS + 2)) if targeted else (), 1, label)


def Targets(part: "AnyAttack | Stage", k: int = DEFAULT_TARGETS, ranks: Iterable[int] = ()) -> Stage:
    """Towards the k classes that rank highest on the clean input after the true one, or towards given ranks (from 2).

    >>> from brinell.attacks import APGD
    >>> Targets(APGD(loss="dlr-targeted"), k=3).ranks
    (2, 3, 4)
    """
    if k < 1:
        raise PlanError(expected="at least 1 target", got=f"{k}", remedy=f"Leave it out for {DEFAULT_TARGETS}.")
    return replace(stage(part), ranks=tuple(ranks) or tuple(range(2, k + 2)))


def Restarts(part: "AnyAttack | Stage", n: int) -> Stage:
    """N runs from different random starts.

    >>> from brinell.attacks import PGD
    >>> len(Restarts(PGD(), 5).legs())
    5
    """
    return replace(stage(part), restarts=n)


def Eot(part: "AnyAttack | Stage", n: int = 20) -> Stage:
    """For randomised models: every answer is the mean over n passes (expectation over transformation).

    >>> from brinell.attacks import APGD
    >>> Eot(APGD(), 20).eot
    20
    """
    return replace(stage(part), eot=n)


@dataclass(frozen=True)
class Plan:
    """A named chain of stages; samples broken by one are not attacked by the next.

    `sparse_stages` replace `stages` in norms with sparse steps (L1). `strength` "weak" marks a plan whose result
    is only an upper bound on robustness. With `draws` above 1, for randomised models, attacks run to the end, and every
    result is judged on so many fresh passes: a sample counts as broken when more than half of them are fooled.

    >>> from brinell.attacks import FGSM, PGD
    >>> Plan("mine", (Stage(FGSM()), Stage(PGD(steps=50)))).needs_gradients
    True
    """

    name: str
    stages: tuple[Stage, ...]
    description: str = ""
    citation: str = ""
    strength: str = "weak"
    sparse_stages: tuple[Stage, ...] | None = None
    draws: int = 1

    def __post_init__(self) -> None:
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names) or CLEAN in names:
            raise PlanError(
                expected=f"at least one stage, each with its own name, none called {CLEAN}",
                got=", ".join(names) or "none",
                remedy="Label equal attacks: Stage(attack, label='second').",
            )

        if self.draws < 1:
            raise PlanError(expected="at least 1 judging pass", got=f"draws = {self.draws}", remedy="Leave it out.")

    @property
    def needs_gradients(self) -> bool:
        """Whether any stage asks for gradients."""
        return any(s.attack.needs is not Needs.LOGITS for s in self.stages)

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "name": self.name,
            "description": self.description,
            "citation": self.citation,
            "strength": self.strength,
            "draws": self.draws,
            "stages": [s.to_json() for s in self.stages],
        }


def plan(
    parts: "Iterable[AnyAttack | Stage]", name: str = "custom", description: str = "", strength: str = "weak"
) -> Plan:
    """A plan of one's own.

    >>> from brinell.attacks import APGD, PGD
    >>> [s.name for s in plan([PGD(), APGD(loss="dlr")]).stages]
    ['pgd-ce', 'apgd-dlr']
    """
    return Plan(name, tuple(stage(p) for p in parts), description, strength=strength)


def adapt(p: Plan, *, classes: int, sparse: bool, image: bool = True) -> tuple[Plan, list[str]]:
    """The plan as it fits the norm, the classes and the inputs, and a sentence for everything that changed."""
    notes: list[str] = []
    stages = p.sparse_stages if sparse and p.sparse_stages is not None else p.stages
    fitted = tuple(_fit(s if image else _flat(s, notes), classes, notes) for s in stages)
    return replace(p, stages=_numbered(fitted), sparse_stages=None), notes


def _numbered(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Equal attacks under different labels get noise of their own: the second is copy 1, and so on."""
    names = [s.attack.name for s in stages]
    return tuple(replace(s, copy=names[:i].count(names[i])) for i, s in enumerate(stages))


def _flat(s: Stage, notes: list[str]) -> Stage:
    """What stands in for an attack that needs images."""
    other = getattr(s.attack, "without_images", None)
    if other is None:
        return s
    notes.append(f"{s.name}: the inputs are not images; {other().name} stands in, which is not the published method.")
    return replace(s, attack=other(), label=s.name)


def _fit(s: Stage, classes: int, notes: list[str]) -> Stage:
    loss = LOSSES[s.attack.loss]
    if classes < loss.classes and loss.instead is not None:
        notes.append(
            f"{s.name}: the {s.attack.loss} loss needs {loss.classes} classes, the model has {classes}; "
            f"{loss.instead} used."
        )
        s = replace(s, attack=replace(s.attack, loss=loss.instead), label=s.name)  # type: ignore[type-var]
    if not s.ranks:
        return s
    kept = tuple(r for r in s.ranks if r <= classes)
    if not kept:
        raise PlanError(
            expected=f"target ranks between 2 and {classes}", got=str(s.ranks), remedy="Rank 2 is the runner-up class."
        )
    if len(kept) < len(s.ranks) and classes <= DEFAULT_TARGETS:
        notes.append(f"{s.name}: {len(kept)} instead of {len(s.ranks)} targets, since the model has {classes} classes.")
    return replace(s, ranks=kept)
