"""Extend a plan by attacks that still break a model whose gradients mislead, and say what was added."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.attacks import APGD, HopSkipJump, OnGrid, SmallerBall, Square
from brinell.checks.model import SAME, relative_difference
from brinell.checks.walks import GROWING, Survivors, walk_growing
from brinell.core.attack import Requires
from brinell.core.criterion import Misclassified
from brinell.core.dataset import Chunk
from brinell.core.plan import Eot, Plan, Stage, Stages, Targets
from brinell.core.surrogate import Surrogate
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.evaluation.adaptive.modules import Probed, misleading_modules
from brinell.evaluation.adaptive.networks import Found, find_networks
from brinell.finding import Finding
from brinell.models.wrap import TorchClassifier
from brinell.ops import rng
from brinell.ops.rowwise import rows

NAME = "adaptive"
# Single surrogates of a kind, and networks in a mean.
SINGLE, IN_MEAN = 2, 8
STEPS, TARGETS = 50, 4
CE = Stage(APGD(steps=STEPS, loss="ce"), label="apgd-ce")
MARGIN = replace(Targets(APGD(steps=STEPS, loss="minimum-margin"), TARGETS), label="apgd-mm")
# Randomised models: passes averaged per query, and passes that judge a point.
AVERAGED, JUDGED = 8, 5
LEVELS = 255
# A move off the 8-bit grid changes the logits by this many times the change of a larger move on the grid.
GRID_EFFECT = 3.0
# The most smaller balls to attack, and how many more of the first samples each must break than the whole ball.
SMALLER, MORE_BROKEN = 3, 2
# A step along the gradient should lower the margin of at least this share of the samples.
FALLS, STEP = 0.8, 0.25


@dataclass(frozen=True)
class Adapted:
    """The extended plan, and a finding that says what was added and why."""

    plan: Plan
    finding: Finding


@dataclass(frozen=True)
class _Seen:
    """What the probes of a model found on the first samples."""

    surrogates: tuple[Surrogate, ...]
    misleading: tuple[Probed, ...]
    random: bool
    on_grid: bool
    gradients: bool
    masked: bool
    radii: tuple[float, ...]


def adapt_to_masking(oracle: Oracle, plan: Plan, threat: Threat, first: Chunk, logits: Tensor) -> Adapted:
    """Return the plan with the attacks that the model needs, before its audit; unchanged if it needs none.

    Method: the first samples show which submodules have misleading gradients, which networks inside the model can be
    attacked in its place, whether the model draws noise, whether it answers differently off the 8-bit grid, whether it
    is weaker in smaller balls, and whether its margin falls along its own gradient. Attacks through surrogates,
    averages, rounded points, smaller balls and, where nothing else is left, black-box attacks are added. Cost: a few
    passes of the model and of each of its submodules.
    """
    if threat.unlimited or oracle.output(first.x[:1].to(logits.device)).reject is not None:
        why = "the threat has no radius" if threat.unlimited else "the model has a detector"
        return Adapted(plan, Finding(NAME, "info", f"nothing was added to the plan: {why}."))
    n = min(len(first), oracle.checked)
    seen = _look(oracle, threat, first.x[:n].to(logits.device), first.y[:n].to(logits.device), logits[:n])
    return _extended(plan, threat, seen)


def _look(oracle: Oracle, threat: Threat, x: Tensor, y: Tensor, logits: Tensor) -> _Seen:
    ball = threat.ball(torch.arange(len(x), device="cpu"), x.device)
    key = rng.fold(rng.keys(0, torch.arange(len(x), device=x.device)), rng.digest(NAME))
    nearby = ball.inside(x, key)
    random = max(relative_difference(logits, oracle.output(x).logits) for _ in range(3)) > SAME
    model, misleading, found = oracle.classifier, [], []
    if isinstance(model, TorchClassifier):
        misleading, found = misleading_modules(model, x, nearby), find_networks(model, x, nearby, logits, random)
        # Inside a pass of a randomised model every output has the noise of the model.
        found = [f for f in found if f.how.networks] or found if random else found
    grad = _gradient(oracle, nearby, y) if model.differentiable else None
    replaced = [Surrogate(through=tuple(p.name for p in misleading if not p.width))]
    replaced += [Surrogate(secants=tuple((p.name, p.width) for p in misleading if p.width))]
    return _Seen(
        _choose(found, replace(replaced[0], secants=replaced[1].secants)),
        tuple(misleading),
        random,
        not random and _differs_off_grid(oracle, x, logits, key),
        grad is not None,
        grad is None or not _margin_falls(oracle, ball, nearby, y, grad),
        () if random or grad is None else _weaker_radii(oracle, Survivors(x, y, ball)),
    )


def _weaker_radii(oracle: Oracle, s: Survivors) -> tuple[float, ...]:
    """Return the smaller radii, as shares of eps, at which a walk breaks more samples than at eps itself."""
    broken = [int(hits.sum()) for hits in walk_growing(oracle, Misclassified(), s).broken]
    more = [step for step in range(GROWING - 1) if broken[step] >= broken[-1] + MORE_BROKEN]
    best = sorted(more, key=lambda step: -broken[step])[:SMALLER]
    return tuple((step + 1) / GROWING for step in sorted(best))


def _choose(found: list[Found], replaced: Surrogate) -> tuple[Surrogate, ...]:
    """Return the surrogates to attack: the most similar of each kind, their means, and the model straight through."""
    chosen: list[Surrogate] = []
    for kind in ("networks", "outputs"):
        of_kind = [f.how for f in found if getattr(f.how, kind)]
        chosen += of_kind[:SINGLE]
        alike = [how for how in of_kind if how.columns == 1][:IN_MEAN]
        if len(alike) > 1:
            names = tuple(name for how in alike for name in getattr(how, kind))
            chosen.append(Surrogate(networks=names) if kind == "networks" else Surrogate(outputs=names))
    if replaced != Surrogate():
        chosen.append(replaced)
        # What lies behind the last misleading module is left out as well.
        outputs = [how for how in chosen if how.outputs][:SINGLE]
        chosen += [replace(how, through=replaced.through, secants=replaced.secants) for how in outputs]
    return tuple(chosen)


def _gradient(oracle: Oracle, x: Tensor, y: Tensor) -> Tensor | None:
    """Return the gradient of the margin of the wrong classes, or None if the model has no gradients at all."""
    try:
        return oracle.query(x, y, torch.full_like(y, -1), "margin", Requires.GRAD).gradient
    except RuntimeError:
        return None


def _margin_falls(oracle: Oracle, ball: Ball, x: Tensor, y: Tensor, grad: Tensor) -> bool:
    """Return whether a short step along the gradient brings most samples closer to another class."""
    way = grad.sign() if ball.norm.name == "Linf" else grad
    size = ball.norm.size(way)
    moved = x + rows(STEP * ball.eps / size.clamp(min=1e-30), x) * way
    before, after = (_wrong_margin(oracle, point, y) for point in (x, moved))
    standing = before < 0
    return not bool(standing.any()) or float((after > before)[standing].float().mean()) >= FALLS


def _wrong_margin(oracle: Oracle, x: Tensor, y: Tensor) -> Tensor:
    return oracle.query(x, y, torch.full_like(y, -1), "margin", Requires.LOGITS).loss


def _differs_off_grid(oracle: Oracle, x: Tensor, logits: Tensor, key: Tensor) -> bool:
    """Return whether the model answers differently off the 8-bit grid: more than a larger move on the grid explains."""
    if float((LEVELS * x - (LEVELS * x).round()).abs().max()) > 1e-2:
        return False
    sign = rng.signs(key, tuple(x.shape[1:]))
    inwards = torch.where(x > 0.5, -sign.abs(), torch.where(x < 0.5, sign.abs(), sign))
    off, on = (oracle.output((x + levels / LEVELS * inwards).clamp(0, 1)).logits for levels in (0.4, 1.0))
    change, usual = ((z - logits).abs().amax(1).median() for z in (off, on))
    return float(change) > GRID_EFFECT * float(usual)


def _extended(plan: Plan, threat: Threat, seen: _Seen) -> Adapted:
    added: list[Stage] = []
    said: list[str] = []
    eot = AVERAGED if seen.random else 1
    if seen.random:
        said.append(f"the model draws noise: gradients are means over {AVERAGED} passes, {JUDGED} fresh passes judge")
        added += [Eot(stage, AVERAGED) for stage in (CE, MARGIN)] if plan.draws == 1 and seen.gradients else []
    if seen.on_grid:
        said.append("the model answers differently off the 8-bit grid: points are rounded to it")
        added += _rounded(None) if seen.gradients else []
        added += [stage for how in seen.surrogates[:SINGLE] for stage in _rounded(how)]
    for module in seen.misleading:
        instead = f"the slope over {module.width:.2g}" if module.width else "the identity"
        said.append(f"the module {module.name} misleads ({module.sentence}): its backward pass is {instead}")
    for how in seen.surrogates:
        added += [replace(s, label=f"{s.name} via {how.label}", via=how, eot=eot) for s in (CE, MARGIN)]
    if seen.surrogates:
        said.append(f"the attacks follow the gradients of {'; '.join(map(str, seen.surrogates))}")
    if seen.radii:
        said.append(f"a walk breaks more at {', '.join(f'{r:g}' for r in seen.radii)} of the radius: attacks there")
        added += [_within(stage, r) for r in seen.radii for stage in (CE, MARGIN)]
    if not seen.gradients:
        said.append("the model has no gradients of its own: attacks that need them are left out")
    if not seen.surrogates and seen.masked and not seen.random:
        said.append("the margin does not fall along the gradient: black-box attacks on all survivors")
        hop = HopSkipJump()
        added += [Stage(Square(), label="square, all survivors")]
        added += [Stage(hop, label="hop-skip-jump, all survivors")] * (threat.norm in hop.norms)
    if not added:
        return Adapted(plan, Finding(NAME, "info", "found nothing to work around: the plan is unchanged."))
    return Adapted(_with(plan, tuple(added), seen), Finding(NAME, "info", f"{'; '.join(said)}."))


def _within(stage: Stage, share: float) -> Stage:
    return replace(stage, attack=SmallerBall(stage.attack, share), label=f"{stage.name}, within {share:g}")


def _rounded(how: Surrogate | None) -> list[Stage]:
    end = "" if how is None else f" via {how.label}"
    return [replace(s, attack=OnGrid(s.attack), label=f"{s.name}, 8-bit{end}", via=how) for s in (CE, MARGIN)]


def _with(plan: Plan, added: Stages, seen: _Seen) -> Plan:
    """Return the plan with stages before its audit, and without those that the model has no gradients for."""
    turned = seen.random and plan.draws == 1

    def change(stages: Stages) -> Stages:
        kept = [s for s in stages if not turned and (seen.gradients or s.attack.requires is Requires.LOGITS)]
        at = next((i for i, s in enumerate(kept) if s.is_audit), len(kept))
        return (*kept[:at], *added, *kept[at:])

    changed = replace(plan.with_stages(change), name=f"{plan.name}, {NAME}")
    # A plan that was made for deterministic models says nothing about the strength against randomised ones.
    return replace(changed, draws=JUDGED, strength="weak") if turned else changed
