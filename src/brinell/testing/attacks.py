"""The conformance check of attacks. It raises AssertionError that names the broken rule."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.attack import AnyAttack, Attack, Batch, Requires, Response
from brinell.core.threat import TOLERANCE, Ball
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.ops.losses import LOSSES
from brinell.ops.norms import Norm
from brinell.ops.rowwise import flat, rows, take
from brinell.testing.norms import require

CLASSES = 5


class _SmoothNet(nn.Module):
    """A small smooth nonlinear network with fixed weights, in which every class is predicted somewhere."""

    def __init__(self, size: int) -> None:
        super().__init__()
        noise = rng.normal(rng.keys(3, torch.arange(CLASSES + 16, device="cpu")), (size + 16,))
        self.hidden = nn.Tanh()
        self.first, self.second = nn.Parameter(noise[:16, :size], False), nn.Parameter(noise[16:, size:], False)

    def forward(self, x: Tensor) -> Any:
        return self.hidden((flat(x) - 0.5) @ self.first.T) @ self.second.T


def _detector_score(x: Tensor) -> Tensor:
    """Return the score of a smooth detector, which is high where every second coordinate is near ½."""
    return torch.cos(3 * (flat(x)[:, ::2] - 0.5)).mean(1) - 0.7


@dataclass(frozen=True)
class _Trial:
    """An attack under test and an oracle that calls the model on one row at a time."""

    attack: AnyAttack
    oracle: Oracle
    steps: int

    def respond(self, s: Any, p: Batch) -> Response:
        turns, chosen = self.attack.query_pattern, s.aim
        target = p.target if chosen is None else chosen
        # All rows have had the same number of responses, except those that are finished.
        return self.oracle.query(s.x, p.y, target, self.attack.loss, turns[int(s.t.min()) % len(turns)])

    def follow(self, p: Batch, ball: Ball, spoil: "Callable[[Response], Response]" = lambda a: a) -> "list[Any]":
        """Return the states after 0, 1, … responses, changed by `spoil`, until all rows have used their queries."""
        states = [self.attack.init(p, ball)]
        for _ in range(self.steps):
            if bool((states[-1].t >= self.attack.queries).all()):
                break
            states.append(self.attack.step(states[-1], spoil(self.respond(states[-1], p)), p, ball))
        return states


def check_attack(
    attack: AnyAttack,
    norms: Iterable[Norm] | None = None,
    shape: tuple[int, ...] = (1, 6, 6),
    *,
    samples: int = 6,
    steps: int = 12,
    eps: float = 0.1,
) -> None:
    """Check that an attack keeps the contract of `brinell.core.attack.Attack` in the given norms, or in all its norms.

    The contract: members are valid; the state has one row per sample; `init` and `step` are pure, treat every row
    independently, draw noise only through the key, count their responses, respect box, ball and mask, use an explicit
    start, and tolerate NaN and inf in responses. `eps` is the Linf radius; other norms get a radius of roughly the
    same volume. A minimum-norm attack must also work without a radius.

    >>> from brinell.attacks import PGD
    >>> check_attack(PGD(steps=3))
    """
    _check_description(attack)
    size = int(torch.Size(shape).numel())
    # One row per model call, so that the response to a row cannot depend on other rows.
    net = _SmoothNet(size).eval()
    trial = _Trial(attack, Oracle(wrap(net, detector=_detector_score, features="hidden"), 1), steps)
    p = _rows(attack, trial.oracle, samples, shape)
    mask = rng.uniform(rng.keys(5, torch.arange(1, device="cpu")), shape)[0] < 0.7
    for norm in attack.norms if norms is None else norms:
        largest = eps * {"L2": size**0.5 / 2, "L1": size / 4, "L0": size}.get(norm.name, 1.0)
        radius = torch.full((samples,), largest, dtype=torch.float32, device="cpu")
        radius = radius * torch.linspace(0.5, 1.5, samples, dtype=torch.float32, device="cpu")
        balls = [Ball(norm, radius), Ball(norm, radius, mask)]
        if attack.minimum_norm:
            balls.append(Ball(norm, torch.full_like(radius, torch.inf)))
        for ball in balls:
            _check_states(attack, [attack.init(p, ball)], p, ball)
            states = trial.follow(p, ball)
            _check_states(attack, states, p, ball)
            _check_purity(trial, states, p, ball)
            _check_rows(trial, states, p, ball)
            _check_start(attack, p, ball)
            _check_spoiled(trial, states, p, ball)


def _check_description(attack: AnyAttack) -> None:
    require(isinstance(attack, Attack), f"{attack!r} is not a brinell.core.attack.Attack")
    frozen = is_dataclass(attack) and type(attack).__dataclass_params__.frozen
    require(frozen, "an attack must be a frozen dataclass")
    require(attack.name and attack.name == attack.name.lower(), f"the name {attack.name!r} must be lower case")
    require(attack.loss in LOSSES, f"the loss {attack.loss!r} is not in brinell.ops.losses.LOSSES")
    require(isinstance(attack.requires, Requires), f"requires must be a Requires, not {attack.requires!r}")
    require(isinstance(attack.queries, int) and attack.queries >= 1, f"queries must be at least 1: {attack.queries}")
    require(isinstance(attack.minimum_norm, bool), "minimum_norm must be True or False")


def _rows(attack: AnyAttack, oracle: Oracle, n: int, shape: tuple[int, ...]) -> Batch:
    key = rng.keys(7, torch.arange(n, device="cpu"))
    # Some coordinates lie on the boundary of the box.
    x = (1.4 * rng.uniform(rng.fold(key, 1), shape) - 0.2).clamp(0, 1)
    order = oracle.output(x).logits.argsort(1, descending=True)
    target = order[:, 1] if LOSSES[attack.loss].targeted else torch.full((n,), -1, dtype=torch.long, device="cpu")
    return Batch(x, order[:, 0], key, target, None, torch.arange(n, device="cpu") % 2)


def _each_tensor(state: Any) -> "list[tuple[str, Tensor]]":
    """Return (name, tensor) for every tensor of a state, also of its nested dataclasses."""
    tensors: list[tuple[str, Tensor]] = []
    for f in fields(state):
        value = getattr(state, f.name)
        if isinstance(value, Tensor):
            tensors.append((f.name, value))
        elif value is not None:
            require(is_dataclass(value), f"the state's field {f.name} is neither a tensor, a dataclass nor None")
            tensors += [(f"{f.name}.{name}", v) for name, v in _each_tensor(value)]
    return tensors


def _check_states(attack: AnyAttack, states: Sequence[Any], p: Batch, ball: Ball) -> None:
    where = f"{attack.name} in {ball.norm.name}" + ("" if ball.mask is None else " with a mask")
    beyond = attack.minimum_norm or attack.leaves_ball
    wide = replace(ball, eps=torch.full_like(ball.eps, torch.inf)) if beyond else ball
    last = torch.full_like(p.y, -1)
    for i, s in enumerate(states):
        for name, value in _each_tensor(s):
            require(len(value) == len(p.y), f"{where}: {name} has {len(value)} rows for {len(p.y)} samples")
        one_more, at_the_end = s.t == last + 1, s.t == attack.queries
        require(
            (one_more | at_the_end).all(),
            f"{where}: step must add 1 to t, but t went from {last.tolist()} to {s.t.tolist()}",
        )
        last = s.t
        asking = s.t < attack.queries
        require(s.x.shape == p.x.shape and s.x.dtype == p.x.dtype, f"{where}: points changed shape or dtype")
        require(s.x.isfinite().all(), f"{where}: points of step {i} are not finite")
        require((wide.allows(p.x, s.x) | ~asking).all(), f"{where}: points of step {i} leave the box or the mask")
        require((wide.contains(p.x, s.x) | ~asking).all(), f"{where}: points of step {i} leave the ball")


def _frozen(*values: Any) -> "list[Tensor]":
    """Return copies of all tensors in these dataclasses, to detect later changes."""
    return [t.clone() for v in values for _, t in _each_tensor(v)]


def _equal(a: Any, b: Any) -> bool:
    pairs = zip(_each_tensor(a), _each_tensor(b), strict=True)
    return all(torch.equal(u.nan_to_num(), v.nan_to_num()) for (_, u), (_, v) in pairs)


def _check_purity(trial: _Trial, states: Sequence[Any], p: Batch, ball: Ball) -> None:
    attack, where = trial.attack, f"{trial.attack.name} in {ball.norm.name}"
    generator = torch.get_rng_state()
    before = _frozen(p), ball.eps.clone()
    require(_equal(attack.init(p, ball), states[0]), f"{where}: init returns different states when called twice")
    for s, after in pairwise(states):
        a = trial.respond(s, p)
        inputs = _frozen(s, a)
        require(_equal(attack.step(s, a, p, ball), after), f"{where}: step returns different states when called twice")
        kept = all(torch.equal(u, v) for u, v in zip(inputs, _frozen(s, a), strict=True))
        require(kept, f"{where}: step changes its inputs in place")
    same = all(torch.equal(u, v) for u, v in zip(before[0], _frozen(p), strict=True))
    require(same and torch.equal(before[1], ball.eps), f"{where}: the batch or the radius was changed in place")
    untouched = torch.equal(generator, torch.get_rng_state())
    require(untouched, f"{where}: noise was drawn from a global generator instead of the key")


def _check_rows(trial: _Trial, states: Sequence[Any], p: Batch, ball: Ball) -> None:
    where, n = f"{trial.attack.name} in {ball.norm.name}", len(p.y)
    shuffled, some = torch.arange(n, device="cpu").flip(0).roll(1), torch.arange(0, n, 2, device="cpu")
    for how, index in (("a batch in another order", shuffled), ("a smaller batch", some)):
        others = trial.follow(take(p, index), ball.subset(index))
        for i, s in enumerate(others):
            require(_equal(s, take(states[i], index)), f"{where}: the state of a row after step {i} differs in {how}")


def _check_start(attack: AnyAttack, p: Batch, ball: Ball) -> None:
    d = ball.norm.inside(rng.fold(p.key, 9), tuple(p.x.shape[1:]), ball.within_box(p.x).eps / 2)
    start = ball.project(p.x, p.x + d)
    first = attack.init(replace(p, start=start), ball).x
    off = float((first - start).abs().max())
    require(
        off <= TOLERANCE,
        f"{attack.name} in {ball.norm.name}: the first point is not the explicit start (it differs by {off:.2g})",
    )


def _check_spoiled(trial: _Trial, states: Sequence[Any], p: Batch, ball: Ball) -> None:
    """Check that NaN responses (with zero gradients, as in the engine) in the first row do not affect other rows."""
    where, first = f"{trial.attack.name} in {ball.norm.name}", torch.arange(len(p.y), device="cpu") == 0

    def spoil(a: Response) -> Response:
        grad, jacobian = (None if g is None else torch.where(rows(first, g), 0.0, g) for g in (a.grad, a.jacobian))
        logits, loss = torch.where(first[:, None], torch.nan, a.logits), torch.where(first, torch.nan, a.loss)
        score = None if a.reject is None else torch.where(first, torch.nan, a.reject)
        towards = None if a.reject_grad is None else torch.where(rows(first, a.reject_grad), 0.0, a.reject_grad)
        return Response(logits, loss, grad, jacobian, score, towards)

    rest = torch.arange(1, len(p.y), device="cpu")
    for i, s in enumerate(trial.follow(p, ball, spoil)[: len(states)]):
        require(
            s.x.isfinite().all(),
            f"{where}: responses that are not finite lead to points that are not finite in step {i}",
        )
        alike = _equal(take(s, rest), take(states[i], rest))
        require(alike, f"{where}: responses that are not finite affect other rows")
