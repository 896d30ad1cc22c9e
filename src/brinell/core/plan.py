"""Attacks combined as data: what runs, in which order, towards how many targets, how often."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from brinell.core.attack import AnyAttack, Attempt, Requires
from brinell.core.threat import Threat, parse_eps
from brinell.errors import PlanError
from brinell.ops.losses import LOSSES
from brinell.results import CLEAN
from brinell.results.format.manifest import attack_hash

# How many target classes a targeted attack tries unless told otherwise (Croce & Hein 2020).
DEFAULT_TARGETS = 9


@dataclass(frozen=True)
class Stage:
    """One attack of a plan: `ranks` of its target classes on the clean input (2 = runner-up; empty: untargeted).

    `share` below 1 attacks only so large a part of the samples, chosen at random by seed and id: the audit of a plan.
    `ranked_by` ranks the classes at the last iterate of another attack instead, in a ball of `radius` (None: the
    threat's own). `noise` stands for the attack's name in the noise key: stages with equal ones start alike.

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
    ranked_by: AnyAttack | None = None
    radius: float | None = None
    noise: str = ""
    share: float | None = None

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.eot < 1:
            got = f"{self.restarts} restarts, {self.eot} draws"
            raise PlanError(expected="at least 1 restart and 1 draw", got=got, remedy="1 means a single run.")
        if any(rank < 2 for rank in self.ranks):
            raise PlanError(
                expected="target ranks of at least 2", got=str(self.ranks), remedy="Rank 2 is the runner-up class."
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise PlanError(
                expected="a share above 0 and at most 1", got=f"{self.share}", remedy="Leave the audit out instead."
            )
        _check_ranking(self)

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.label or self.attack.name

    @property
    def ranking_passes(self) -> tuple[int, int]:
        """Forwards and backwards that ranking the targets of one sample costs."""
        if self.ranked_by is None:
            return 0, 0
        return self.ranked_by.queries * self.eot, (self.ranked_by.queries - 1) * self.eot

    def ranking_threat(self, threat: Threat) -> Threat:
        """Where the reference attack may go: the threat's norm, with a radius of its own if it has one."""
        return threat if self.radius is None else replace(threat, eps=self.radius, text=f"{self.radius:.6g}")

    def attempts(self) -> tuple[Attempt, ...]:
        """The runs of one sample, in order."""
        return tuple(Attempt(rank, restart) for rank in self.ranks or (0,) for restart in range(self.restarts))

    def to_json(self) -> dict[str, Any]:
        """For the manifest, with a hash of everything that decides the outcome."""
        body = {
            "name": self.name,
            "attack": _numbers(self.attack),
            "ranks": list(self.ranks),
            "restarts": self.restarts,
            "needs": self.attack.requires.value,
            "eot": self.eot,
            "copy": self.copy,
        }
        # Only where set: Runs made before these existed keep their hashes.
        if self.ranked_by is not None:
            body["ranked_by"] = {"attack": _numbers(self.ranked_by), "radius": self.radius}
        if self.noise:
            body["noise"] = self.noise
        if self.share is not None:
            body["share"] = self.share
        return {**body, "hash": attack_hash(body)}


def _numbers(attack: AnyAttack) -> dict[str, Any]:
    return {"type": attack.stored_type, **{f.name: _plain(getattr(attack, f.name)) for f in fields(attack)}}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Parts of an attack that are attacks or data themselves, as numbers."""
    if hasattr(value, "to_json"):
        return value.to_json()
    return _numbers(value) if hasattr(value, "step") else value


def _check_ranking(s: Stage) -> None:
    if s.radius is not None and (s.ranked_by is None or not (s.radius > 0 and math.isfinite(s.radius))):
        raise PlanError(
            expected="a positive radius for a reference attack",
            got=f"radius {s.radius}" + (" without one" if s.ranked_by is None else ""),
            remedy="Write Targets(attack, k=3, ranked_by=PGD(steps=20), radius='6/255').",
        )
    if s.ranked_by is None:
        return
    if not s.ranks:
        raise PlanError(
            expected="a targeted attack to rank the targets of",
            got=f"{s.name}, which has no targets",
            remedy="Use a targeted loss, e.g. minimum-margin, or leave the ranking out.",
        )
    wrong = s.ranked_by.minimum_norm or s.ranked_by.requires is not Requires.GRAD or LOSSES[s.ranked_by.loss].targeted
    if wrong:
        raise PlanError(
            expected="an untargeted attack that follows the gradient of a loss inside the ball, to rank the targets",
            got=s.ranked_by.name,
            remedy="Use FGSM() or PGD(steps=20).",
        )


def stage(part: "AnyAttack | Stage", label: str = "") -> Stage:
    """An attack as a stage; a targeted loss gets the usual number of targets."""
    if isinstance(part, Stage):
        return replace(part, label=label) if label else part
    if not hasattr(part, "step") or not hasattr(part, "init") or isinstance(part, type):
        raise PlanError(
            expected="an attack or a stage",
            got=f"the class {part.__name__}" if isinstance(part, type) else repr(part),
            remedy="Use e.g. brinell.attacks.APGD(steps=100); a named plan stands alone, without a list.",
        )
    targeted = LOSSES[part.loss].targeted
    return Stage(part, tuple(range(2, DEFAULT_TARGETS + 2)) if targeted else (), 1, label)


def Targets(
    part: "AnyAttack | Stage",
    k: int = DEFAULT_TARGETS,
    ranks: Iterable[int] = (),
    ranked_by: AnyAttack | None = None,
    radius: float | str | None = None,
) -> Stage:
    """Towards the k classes that rank highest on the clean input after the true one, or towards given ranks (from 2).

    With `ranked_by` the classes are ranked where that attack ends, in a ball of `radius` (None: that of the threat).
    The points it finds only rank and never count; its passes are part of the cost.

    Reference: Gao et al. 2022, sec. 3.2 and appendix D.

    >>> from brinell.attacks import APGD, FGSM
    >>> Targets(APGD(loss="dlr-targeted"), k=3).ranks
    (2, 3, 4)
    >>> Targets(APGD(loss="minimum-margin"), k=3, ranked_by=FGSM(), radius="6/255").ranking_passes
    (2, 1)
    """
    if k < 1:
        raise PlanError(expected="at least 1 target", got=f"{k}", remedy=f"Leave it out for {DEFAULT_TARGETS}.")
    own = None if radius is None else parse_eps(radius)
    return replace(stage(part), ranks=tuple(ranks) or tuple(range(2, k + 2)), ranked_by=ranked_by, radius=own)


def Restarts(part: "AnyAttack | Stage", n: int) -> Stage:
    """N runs from different random starts.

    >>> from brinell.attacks import PGD
    >>> len(Restarts(PGD(), 5).attempts())
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

    `sparse_stages` replace `stages` in norms with sparse steps (L1), `norm_stages` in the norms they name. `strength`
    "weak" marks a plan whose result is only an upper bound on robustness, "audited" one that is as good as its audit.
    With `draws` above 1, for randomised models, attacks run to the end, and every result is judged on so many fresh
    passes: a sample counts as broken when more than half of them are fooled.

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
    norm_stages: tuple[tuple[str, tuple[Stage, ...]], ...] = ()

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

    def stages_in(self, norm: str, sparse: bool) -> tuple[Stage, ...]:
        """The stages that are for a norm, by its name and whether its steps are sparse."""
        usual = self.sparse_stages if sparse and self.sparse_stages is not None else self.stages
        return dict(self.norm_stages).get(norm, usual)

    def changed(self, change: Callable[[tuple[Stage, ...]], tuple[Stage, ...]]) -> "Plan":
        """The plan with its stages changed, those for certain norms likewise."""
        return replace(
            self,
            stages=change(self.stages),
            sparse_stages=None if self.sparse_stages is None else change(self.sparse_stages),
            norm_stages=tuple((norm, change(stages)) for norm, stages in self.norm_stages),
        )

    @property
    def needs_gradients(self) -> bool:
        """Whether any stage asks for gradients."""
        return any(s.attack.requires is not Requires.LOGITS or s.ranked_by is not None for s in self.stages)

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
