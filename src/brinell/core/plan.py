"""Plans: which attacks run, in which order, towards which targets, how often."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from brinell.core.attack import AnyAttack, Attack, Attempt, Requires, call_attack
from brinell.core.ranking import AttackRanking, LogitRanking, MaltRanking, TargetRanking
from brinell.core.references import References
from brinell.core.start_pool import ActivationSearch, StartPool
from brinell.core.surrogate import Surrogate
from brinell.core.threat import Threat, parse_eps
from brinell.errors import PlanError, one_of
from brinell.ops.losses import LOSSES
from brinell.results import CLEAN
from brinell.results.format.manifest import attack_hash
from brinell.results.format.schema import CERTIFICATE

# How many target classes a targeted attack tries by default (Croce & Hein 2020).
DEFAULT_TARGETS = 9
# Of the survivors, about this times r have less than the share r of their clean margin left (docs/design/fast.md).
USUALLY_NEAR = 0.3


@dataclass(frozen=True)
class Stage:
    """One attack of a plan, with its targets and restarts.

    `ranks` are the ranks of the target classes on the clean input (2: the runner-up; empty: untargeted). With
    `ranked_by`, the last iterate of that attack ranks them, in a ball of `radius` (None: the threat's eps), or a
    `MaltRanking` does. `eot` is the number of passes averaged per query. `share` makes the stage an audit: it attacks
    only this share of the samples, drawn by seed and id. With `near`, an audit also attacks every sample whose margin
    the other stages reduced to less than this share of its clean margin. `noise` replaces the attack's name in the
    noise key: stages with equal `noise` have equal random starts. With `via` the attack follows the gradients of a
    surrogate of the model; the model itself judges every point. With `search` the attack starts at the points that a
    search through activation patterns finds, in Linf and for networks of ReLUs.

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
    ranked_by: AnyAttack | MaltRanking | None = None
    radius: float | None = None
    noise: str = ""
    share: float | None = None
    via: Surrogate | None = None
    near: float | None = None
    search: ActivationSearch | None = None

    def __post_init__(self) -> None:
        if self.restarts < 1 or self.eot < 1:
            got = f"restarts = {self.restarts}, eot = {self.eot}"
            remedy = "Leave restarts and eot out for a single run without averaging."
            raise PlanError(expected="restarts and eot of at least 1", got=got, remedy=remedy)
        if any(rank < 2 for rank in self.ranks):
            raise PlanError(
                expected="target ranks of at least 2",
                got=str(self.ranks),
                remedy="Write e.g. ranks=(2, 3): rank 2 is the runner-up class, rank 1 the true one.",
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise PlanError(
                expected="a share above 0 and at most 1",
                got=f"share = {self.share}",
                remedy="Leave share out to attack all samples.",
            )
        if self.near is not None and (self.share is None or not 0 < self.near < 1):
            raise PlanError(
                expected="near between 0 and 1, in a stage with a share",
                got=f"near = {self.near}, share = {self.share}",
                remedy="Write e.g. Stage(attack, share=1/64, near=0.1), or leave near out.",
            )
        _check_ranking(self)
        if self.via is not None and (self.attack.requires is not Requires.GRAD or self.attack.minimum_norm):
            raise PlanError(
                expected="an attack that follows the gradient of a loss inside the ball, for a stage via a surrogate",
                got=self.attack.name,
                remedy="Write e.g. Stage(APGD(), via=Surrogate(networks=('base',))).",
            )

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
        """Return adversarial images, as an attack does: `x_adv = Restarts(PGD(), 5)(model, x, y, threat)`."""
        return call_attack(self, classifier, x, y, threat, targeted=targeted, transfer=transfer, **options)

    @property
    def name(self) -> str:
        """The stage's name in rows and reports: `label`, or else the attack's name."""
        return self.label or self.attack.name

    @property
    def is_audit(self) -> bool:
        """Whether the stage attacks only a random share of the samples, to audit the stages before it."""
        return self.share is not None

    @property
    def sampled_share(self) -> float:
        """The share of the samples that the stage attacks: 1 unless it is an audit."""
        return 1.0 if self.share is None else self.share

    @property
    def usual_share(self) -> float:
        """The share of the samples that the stage usually attacks: those drawn, and those near the boundary."""
        return min(1.0, self.sampled_share + USUALLY_NEAR * (self.near or 0.0))

    @property
    def ranking(self) -> TargetRanking:
        """The rule that ranks the target classes."""
        by = self.ranked_by
        if by is None:
            return LogitRanking()
        return by if isinstance(by, MaltRanking) else AttackRanking(by, self.radius)

    @property
    def ranking_passes(self) -> tuple[int, int]:
        """The numbers of forward and of backward passes per sample that ranking the targets costs."""
        if self.via is not None and self.ranks and self.ranked_by is None:
            return 1, 0  # the surrogate ranks by its own logits
        return self.ranking.passes(self.eot)

    @property
    def queries(self) -> int:
        """The largest number of forward passes that attacking a sample takes; a surrogate is asked beside the model."""
        return self.attack.queries * len(self.attempts()) * self.eot * (1 if self.via is None else 2)

    def attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts on a sample in their order: for each target rank, all restarts."""
        return tuple(Attempt(rank, restart) for rank in self.ranks or (0,) for restart in range(self.restarts))

    def to_json(self) -> dict[str, Any]:
        """Return the stage's entry in the manifest of a Run, with a hash of everything that decides the outcome."""
        body = {
            "name": self.name,
            "attack": _parameters(self.attack),
            "ranks": list(self.ranks),
            "restarts": self.restarts,
            "needs": self.attack.requires.value,
            "eot": self.eot,
            "copy": self.copy,
        }
        # Only where set: Runs made before these fields existed keep their hashes.
        if isinstance(self.ranked_by, MaltRanking):
            body["ranked_by"] = self.ranked_by.to_json()
        elif self.ranked_by is not None:
            body["ranked_by"] = {"attack": _parameters(self.ranked_by), "radius": self.radius}
        if self.noise:
            body["noise"] = self.noise
        if self.share is not None:
            body["share"] = self.share
        if self.via is not None:
            body["via"] = self.via.to_json()
        if self.near is not None:
            body["near"] = self.near
        if self.search is not None:
            body["search"] = self.search.to_json()
        return {**body, "hash": attack_hash(body)}


def _parameters(attack: AnyAttack) -> dict[str, Any]:
    return {"type": attack.stored_type, **{f.name: _plain(getattr(attack, f.name)) for f in fields(attack)}}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    """Return a hyper-parameter as JSON; an attack, references or a pool become a dictionary."""
    if isinstance(value, References | StartPool):
        return value.to_json()
    return _parameters(value) if isinstance(value, Attack) else value


def _check_ranking(s: Stage) -> None:
    attack = s.ranking.attack
    if s.radius is not None and (attack is None or not (s.radius > 0 and math.isfinite(s.radius))):
        raise PlanError(
            expected="a positive radius together with an attack in ranked_by",
            got=f"radius {s.radius}" + (" without an attack" if attack is None else ""),
            remedy="Write Targets(attack, k=3, ranked_by=PGD(steps=20), radius='6/255').",
        )
    if s.ranked_by is None:
        return
    if not s.ranks:
        raise PlanError(
            expected="a targeted attack, since ranked_by ranks its target classes",
            got=f"{s.name}, which has no targets",
            remedy='Use a targeted loss, e.g. APGD(loss="minimum-margin"), or leave ranked_by out.',
        )
    if attack is None:
        return
    if attack.minimum_norm or attack.requires is not Requires.GRAD or LOSSES[attack.loss].targeted:
        raise PlanError(
            expected="as ranked_by an untargeted attack that follows the gradient of a loss inside the ball",
            got=attack.name,
            remedy='Write ranked_by=FGSM(), ranked_by=PGD(steps=20) or ranked_by="malt".',
        )


def stage(part: "AnyAttack | Stage", label: str = "") -> Stage:
    """Return an attack as a stage, with the default number of targets if its loss is targeted."""
    if isinstance(part, Stage):
        return replace(part, label=label) if label else part
    if not isinstance(part, Attack):
        raise PlanError(
            expected="an attack or a stage",
            got=f"the class {part.__name__}" if isinstance(part, type) else repr(part),
            remedy='Write e.g. [brinell.attacks.APGD(steps=100)]; give a named plan without a list: "autoattack".',
        )
    targeted = LOSSES[part.loss].targeted
    return Stage(part, tuple(range(2, DEFAULT_TARGETS + 2)) if targeted else (), 1, label)


def Targets(
    part: "AnyAttack | Stage", k: int = DEFAULT_TARGETS, ranks: Iterable[int] = (),
    ranked_by: AnyAttack | MaltRanking | str | None = None, radius: float | str | None = None,
) -> Stage:  # fmt: skip
    """Return a stage that attacks towards the k likeliest wrong classes of the clean input, or towards given `ranks`.

    Rank 1 is the true class. With an attack as `ranked_by` the classes are ranked at its last iterate, in a ball of
    `radius` (None: the threat's radius). With "malt" or a `MaltRanking` they are ranked by their distance in a linear
    model. Points of `ranked_by` never count as adversarials, but its passes count as cost.

    Reference: Gao et al. 2022, sec. 3.2 and appendix D; Melamed et al. 2024 for "malt".

    >>> from brinell.attacks import APGD, FGSM
    >>> Targets(APGD(loss="dlr-targeted"), k=3).ranks
    (2, 3, 4)
    >>> Targets(APGD(loss="minimum-margin"), k=3, ranked_by=FGSM(), radius="6/255").ranking_passes
    (2, 1)
    >>> Targets(APGD(loss="minimum-margin"), k=3, ranked_by="malt").ranking
    MaltRanking(candidates=100)
    """
    if k < 1:
        remedy = "Write e.g. --targets 3, in Python targets=3 or Targets(attack, k=3)."
        raise PlanError(expected="at least 1 target", got=f"{k} targets", remedy=remedy)
    size = None if radius is None else parse_eps(radius)
    by = ranked_by
    if isinstance(by, str):
        one_of("a ranking", by, [MaltRanking.name])
        by = MaltRanking()
    return replace(stage(part), ranks=tuple(ranks) or tuple(range(2, k + 2)), ranked_by=by, radius=size)


def Restarts(part: "AnyAttack | Stage", n: int) -> Stage:
    """Return a stage that runs the attack up to n times from different random starts, until one run succeeds.

    >>> from brinell.attacks import PGD
    >>> len(Restarts(PGD(), 5).attempts())
    5
    """
    return replace(stage(part), restarts=n)


def Eot(part: "AnyAttack | Stage", n: int = 20) -> Stage:
    """Return a stage that averages every model response over n passes (expectation over transformation).

    >>> from brinell.attacks import APGD
    >>> Eot(APGD(), 20).eot
    20
    """
    return replace(stage(part), eot=n)


Stages = tuple[Stage, ...]


@dataclass(frozen=True)
class Plan:
    """A named chain of stages: samples broken by one stage are not attacked by later stages.

    `stages` is a tuple of stages, or a mapping from norm names to tuples of stages: a norm that is not named gets the
    first tuple. `stages_for(threat)` returns the tuple to run. `strength` "weak" marks a plan whose result is only a
    loose upper bound on robust accuracy, "audited" a plan whose result is as reliable as its audit. `draws` above 1 is
    for randomised models: attacks run to the end of their budget, and a sample counts as broken when more than half of
    `draws` fresh passes are fooled.

    >>> from brinell import L2, Linf
    >>> from brinell.attacks import DDN, FGSM, PGD
    >>> mine = Plan("mine", {"Linf": (Stage(FGSM()), Stage(PGD(steps=50))), "L2": (Stage(DDN()),)})
    >>> [s.name for s in mine.stages_for(Linf(0.1))], [s.name for s in mine.stages_for(L2(1.0))]
    (['fgsm-ce', 'pgd-ce'], ['ddn'])
    """

    name: str
    stages: Stages | Mapping[str, Stages] = field(hash=False)
    description: str = ""
    citation: str = ""
    strength: str = "weak"
    draws: int = 1

    def __post_init__(self) -> None:
        for stages in self._by_norm().values():
            names = [s.name for s in stages]
            reserved = any(name == CLEAN or name.startswith(CERTIFICATE) for name in names)
            if not names or len(set(names)) < len(names) or reserved:
                raise PlanError(
                    expected=f"at least one stage, each with its own name, none called {CLEAN} or {CERTIFICATE}…",
                    got=", ".join(names) or "no stage",
                    remedy="Give equal attacks different labels: Stage(attack, label='second').",
                )
        if self.draws < 1:
            remedy = "Leave draws out unless the model is randomised."
            raise PlanError(expected="draws of at least 1", got=f"draws = {self.draws}", remedy=remedy)

    def _by_norm(self) -> Mapping[str, Stages]:
        """Return the stages by norm name; the first entry serves all norms that are not listed."""
        return self.stages if isinstance(self.stages, Mapping) else {"": self.stages}

    def stages_for(self, threat: Threat) -> Stages:
        """Return the stages that run in the threat's norm."""
        by_norm = self._by_norm()
        return by_norm.get(threat.norm.name, next(iter(by_norm.values())))

    def with_stages(self, change: Callable[[Stages], Stages]) -> "Plan":
        """Return the plan with `change` applied to the tuple of stages of every norm."""
        if isinstance(self.stages, Mapping):
            return replace(self, stages={norm: change(stages) for norm, stages in self.stages.items()})
        return replace(self, stages=change(self.stages))

    def any_stage(self, condition: Callable[[Stage], Any]) -> bool:
        """Return whether a stage for some norm meets the condition."""
        return any(condition(s) for stages in self._by_norm().values() for s in stages)

    @property
    def has_audit(self) -> bool:
        """Whether some stage is an audit."""
        return self.any_stage(lambda s: s.is_audit)

    @property
    def needs_gradients(self) -> bool:
        """Whether some stage uses gradients of the model itself.

        >>> from brinell.attacks import Square
        >>> plan([Square()]).needs_gradients
        False
        """
        return self.any_stage(
            lambda s: s.via is None and (s.attack.requires is not Requires.LOGITS or s.ranking.needs_gradients)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan's entry in the manifest of a Run. It lists only the stages of the plan's first norm."""
        return {
            "name": self.name,
            "description": self.description,
            "citation": self.citation,
            "strength": self.strength,
            "draws": self.draws,
            "stages": [s.to_json() for s in next(iter(self._by_norm().values()))],
        }


def plan(
    parts: "Iterable[AnyAttack | Stage]", name: str = "custom", description: str = "", strength: str = "weak"
) -> Plan:
    """Return the plan that runs these attacks and stages in order.

    >>> from brinell.attacks import APGD, PGD
    >>> [s.name for s in plan([PGD(), APGD(loss="dlr")]).stages]
    ['pgd-ce', 'apgd-dlr']
    """
    given: object = parts
    if isinstance(given, str):
        remedy = f"Pass plan={parts!r} to brinell.evaluate, or call brinell.attacks.catalogue.by_name({parts!r})."
        raise PlanError(expected="a list of attacks and stages", got=f"the text {parts!r}", remedy=remedy)
    return Plan(name, tuple(stage(p) for p in parts), description, strength=strength)
