"""Fit the plan of an evaluation: set targets, steps, ranking, audit, query limit; adapt to norm, classes, inputs."""

from dataclasses import replace

from brinell.core.attack import AnyAttack, Requires
from brinell.core.plan import Plan, Stage, Stages, Targets
from brinell.core.ranking import MaltRanking
from brinell.core.threat import Threat
from brinell.errors import PlanError
from brinell.ops.losses import LOSSES


def ranked(p: Plan, by: AnyAttack | MaltRanking, radius: float | str | None = None) -> Plan:
    """Return the plan with target classes ranked by `by`: a `MaltRanking`, or an attack within `radius`.

    An attack ranks by the logits at its last iterate.

    >>> from brinell.attacks import APGD, FGSM
    >>> from brinell.core.plan import plan
    >>> ranked(plan([APGD(loss="minimum-margin")], name="mine"), FGSM(), "6/255").name
    'mine, targets ranked by fgsm-ce at 6/255'
    """
    if not p.any_stage(lambda s: s.ranks):
        raise PlanError(
            expected="a plan with target classes, for rank_by",
            got=f"{p.name}, which has no target classes",
            remedy="Use the plan mm3 or apgd-t, or leave rank_by out.",
        )

    def change(stages: Stages) -> Stages:
        return tuple(Targets(s, ranks=s.ranks, ranked_by=by, radius=radius) if s.ranks else s for s in stages)

    name = f"{p.name}, targets ranked by {by.name}" + ("" if radius is None else f" at {radius}")
    return replace(p.with_stages(change), name=name)


def with_targets(p: Plan, k: int) -> Plan:
    """Return the plan with its targeted attacks aimed at the k likeliest wrong classes.

    >>> from brinell.attacks import APGD
    >>> from brinell.core.plan import plan
    >>> mine = with_targets(plan([APGD(loss="minimum-margin")], name="mine"), 2)
    >>> mine.name, mine.stages[0].ranks
    ('mine, 2 targets', (2, 3))
    """
    _require_free(p, "targets")
    if not p.any_stage(lambda s: s.ranks):
        raise PlanError(
            expected="a plan with targets", got=f"{p.name}, which has no targets", remedy="Use the plan mm3."
        )

    def change(stages: Stages) -> Stages:
        return tuple(Targets(s, k, ranked_by=s.ranked_by, radius=s.radius) if s.ranks else s for s in stages)

    return replace(p.with_stages(change), name=f"{p.name}{_target_text(k)}")


def _target_text(k: int) -> str:
    """Return the end of the name of a plan with k targets."""
    return f", {k} target{'s' * (k != 1)}"


def with_steps(p: Plan, steps: int | None = None, rel_step: float | None = None) -> Plan:
    """Return the plan with `steps` steps per attack, each `rel_step` times eps long; None leaves a value as it is.

    >>> from brinell.attacks import PGD
    >>> from brinell.core.plan import plan
    >>> with_steps(plan([PGD()], name="mine"), 40, 0.125).name
    'mine, 40 steps of 0.125 eps'
    """
    changes = {k: v for k, v in (("steps", steps), ("rel_step", rel_step)) if v is not None}
    for option in changes:
        _require_free(p, option)
        if p.any_stage(lambda s, option=option: not _has(s.attack, option)):  # type: ignore[misc]
            fixed = "" if option == "steps" else " of fixed length"
            raise PlanError(
                expected=f"a plan of gradient attacks with steps{fixed}, since {option} was given",
                got=f"{p.name}, which has attacks of another kind",
                remedy=f"Use e.g. the plan {'mm3' if option == 'steps' else 'mm3-f20'}, or leave {option} out.",
            )

    def change(stages: Stages) -> Stages:
        return tuple(replace(s, attack=replace(s.attack, **changes)) for s in stages)  # type: ignore[type-var]

    number = "" if steps is None else f"{steps} "
    return replace(
        p.with_stages(change), name=f"{p.name}, {number}steps" + ("" if rel_step is None else f" of {rel_step:g} eps")
    )


def _has(attack: AnyAttack, option: str) -> bool:
    return option in vars(attack) and attack.requires is Requires.GRAD and not (attack.minimum_norm or attack.parts)


def _require_free(p: Plan, option: str) -> None:
    """Raise a PlanError if the plan is not weak: a stronger plan has fixed settings, which `option` would change."""
    if p.strength != "weak":
        raise PlanError(
            expected=f"a plan of strength weak for {option}, since plans of other strengths are fixed ensembles",
            got=f"{p.name}, which has the strength {p.strength}",
            remedy="Use e.g. the plan mm9 or apgd, or make a plan of your own: brinell.plan([…]).",
        )


def audited(p: Plan, share: float | int) -> Plan:
    """Return the plan with an audit of this share of the survivors; 0 removes all evidence, also a black-box search.

    >>> from brinell.attacks import FGSM, PGD
    >>> mine = Plan("mine", (Stage(FGSM()), Stage(PGD(), share=0.1)), strength="audited")
    >>> [s.sampled_share for s in audited(mine, 0.5).stages], len(audited(mine, 0).stages)
    ([1.0, 0.5], 1)
    """
    if not p.has_audit:
        raise PlanError(
            expected="a plan with an audit",
            got=f"{p.name}, which has no audit",
            remedy="Use the plan fast, or leave audit out.",
        )
    if not 0 <= share <= 1:
        raise PlanError(
            expected="audit between 0 and 1", got=f"{share}", remedy="Write audit=0.1 for 10 % of the survivors."
        )

    def change(stages: Stages) -> Stages:
        if share > 0:
            return tuple(replace(s, share=share) if s.is_audit else s for s in stages)
        rest = (s for s in stages[1:] if not s.is_audit and s.attack.requires is not Requires.LOGITS)
        return (stages[0], *rest)

    return p.with_stages(change)


def limited(p: Plan, queries: int) -> Plan:
    """Return the plan with a limit of queries per sample, divided equally among its black-box stages.

    Only the attacks' queries count, one per sample and step; the clean pass and the verification are not counted.

    >>> from brinell.attacks import HopSkipJump, Square
    >>> from brinell.core.plan import plan
    >>> [s.attack.queries for s in limited(plan([Square(), HopSkipJump()]), 1000).stages]
    [500, 500]
    """

    def change(stages: Stages) -> Stages:
        return tuple(_limit_stage(s, queries // len(stages), queries) for s in stages)

    return replace(p.with_stages(change), name=f"{p.name}, {queries} queries")


def _limit_stage(s: Stage, share: int, queries: int) -> Stage:
    runs = len(s.attempts()) * s.eot
    steps = s.attack.step_count
    if s.attack.requires is not Requires.LOGITS or steps is None or s.attack.queries != steps + 1:
        raise PlanError(
            expected="black-box attacks only, since the number of queries is limited",
            got=f"{s.name}, which needs gradients or has no number of steps",
            remedy="Use the plan blackbox or square, or leave queries out.",
        )
    if share // runs < 2:
        raise PlanError(
            expected="at least 2 queries per sample for every attempt of every stage",
            got=f"queries={queries}, which leaves {share // runs} for an attempt of {s.name}",
            remedy="Pass a larger number, e.g. queries=1000.",
        )
    return replace(s, attack=s.attack.with_steps(share // runs - 1), label=s.name)


def require_suitable(p: Plan, threat: Threat) -> None:
    """Raise a PlanError if an attack does not work in the threat's norm, or needs a radius that the threat lacks."""
    for s in p.stages_for(threat):
        if threat.norm not in s.attack.norms:
            raise PlanError(
                expected=f"attacks that work in {threat.norm.name}",
                got=f"{s.name}, which works only in {', '.join(n.name for n in s.attack.norms)}",
                remedy="Use the plan minimal, which has attacks for every norm.",
            )
        if s.search is not None and (threat.unlimited or not threat.norm.corners):
            raise PlanError(
                expected="the threat Linf with a radius for a search through activation patterns",
                got=str(threat),
                remedy="Use the plan autoattack or fast in this norm.",
            )
        if threat.unlimited and not (s.attack.minimum_norm and (s.ranking.attack is None or s.radius is not None)):
            raise PlanError(
                expected="a threat with a radius, or minimum-norm attacks",
                got=f"{s.name} and a threat without a radius",
                remedy=f"Write {threat.norm.name}(eps), or find a radius with brinell.attacks.Bisect(attack).",
            )


def adapt(p: Plan, threat: Threat, *, classes: int, image: bool = True) -> tuple[Plan, list[str]]:
    """Return the plan fitted to norm, number of classes and inputs (`image` or not), and a note for every change."""
    notes: list[str] = []
    stages = (s if image else _flat(s, notes) for s in p.stages_for(threat))
    fitted = tuple(_fit(s, classes, notes) for s in stages)
    asked, kept = (max((len(s.ranks) for s in part), default=0) for part in (p.stages_for(threat), fitted))
    # The name that `with_targets` gave tells the number of targets that are attacked.
    name = p.name if asked == kept else p.name.replace(_target_text(asked), _target_text(kept))
    return replace(p, stages=_numbered(fitted), name=name), notes


def _numbered(stages: Stages) -> Stages:
    """Return the stages with repeated attacks numbered (`copy` 0, 1, …), so that each repetition has its own noise."""
    names = [s.noise or s.attack.name for s in stages]
    # Stages that set `noise` keep it.
    return tuple(s if s.noise else replace(s, copy=names[:i].count(names[i])) for i, s in enumerate(stages))


def _flat(s: Stage, notes: list[str]) -> Stage:
    """Return the stage for inputs that are not images: replace an attack that needs images, and add a note."""
    other = s.attack.without_images()
    if other is None:
        return s
    notes.append(f"{s.name}: the inputs are not images, so {other.name}, not the published method, replaces it.")
    return replace(s, attack=other, label=s.name)


def _fit_loss(attack: AnyAttack, name: str, classes: int, notes: list[str]) -> AnyAttack:
    if attack.parts:  # a wrapper uses the losses of the attacks inside it
        fitted = {part: _fit_loss(getattr(attack, part), name, classes, notes) for part in attack.parts}
        changed = any(fitted[part] is not getattr(attack, part) for part in attack.parts)
        return replace(attack, **fitted) if changed else attack  # type: ignore[type-var]
    loss = LOSSES[attack.loss]
    if classes >= loss.classes or loss.instead is None:
        return attack
    notes.append(
        f"{name}: the {attack.loss} loss needs {loss.classes} classes, the model has {classes}; {loss.instead} is used."
    )
    return replace(attack, loss=loss.instead)  # type: ignore[type-var]


def _fit(s: Stage, classes: int, notes: list[str]) -> Stage:
    fitted = _fit_loss(s.attack, s.name, classes, notes)
    if fitted is not s.attack:
        s = replace(s, attack=fitted, label=s.name)
    if isinstance(s.ranked_by, MaltRanking):
        s = replace(s, ranked_by=s.ranked_by.fitted(classes))
    elif s.ranked_by is not None:
        s = replace(s, ranked_by=_fit_loss(s.ranked_by, f"{s.name}, ranking", classes, notes))
    if not s.ranks:
        return s
    kept = tuple(r for r in s.ranks if r <= classes)
    if not kept:
        raise PlanError(
            expected=f"target ranks between 2 and {classes}, the number of classes",
            got=f"the ranks {s.ranks}",
            remedy="Write ranks=(2,) for the most likely wrong class.",
        )
    if len(kept) < len(s.ranks):
        notes.append(f"{s.name}: {len(kept)} instead of {len(s.ranks)} targets, since the model has {classes} classes.")
    return replace(s, ranks=kept)
