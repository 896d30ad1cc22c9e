"""Check after the attacks: short attacks of another kind on a few survivors, and earlier answers asked for again."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from brinell.checks.model import SAME, relative_difference
from brinell.checks.walks import EXCUSED, Survivors, check_gradients, check_growing_radii, check_runner_up, gradient_at
from brinell.core.criterion import Criterion
from brinell.core.dataset import Chunk
from brinell.core.model import Output
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.finding import Finding, n_samples
from brinell.ops import rng
from brinell.ops.rowwise import head, rows, where

# Survivors and adversarials that are looked at, and gradient steps of the short attacks.
SAMPLES, STEPS = 16, 6
LEVELS = 255
# An input is on the 8-bit grid if every value is this close to a level, in levels.
ON_GRID = 0.01
Ids = npt.NDArray[np.int64]
REVERSED, GRID, AGAIN = "reversed loss", "8-bit grid", "asked again"


class Kept:
    """A few adversarials, kept while rows are stored: the same ones in whatever order they come.

    >>> kept = Kept(seed=0)
    >>> kept.add(np.array([7]), np.zeros((1, 3), dtype=np.float32))
    >>> sorted(kept.points)
    [7]
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.points: dict[int, Tensor] = {}

    def add(self, ids: Ids | None, x: npt.NDArray[np.float32] | None) -> None:
        """Keep the adversarials x of the samples `ids` that come first in the keyed order."""
        if ids is None or x is None or not len(ids):
            return
        for i, point in zip(ids.tolist(), x, strict=True):
            self.points.setdefault(i, torch.as_tensor(point, device="cpu"))
        first = first_ids(self.seed, np.asarray(list(self.points), dtype=np.int64))
        # Copies: a point would hold the memory of its whole batch.
        self.points = {i: self.points[i].clone() for i in first}


def first_ids(seed: int, ids: Ids) -> list[int]:
    """Return a few of the ids, sorted: the same ones in whatever order they are given.

    >>> first_ids(0, np.arange(100)) == first_ids(0, np.arange(100)[::-1].copy())
    True
    """
    key = rng.fold(rng.keys(seed, torch.as_tensor(ids, device="cpu")), rng.digest("examination"))
    order = rng.uniform(key, (1,))[:, 0].argsort()[:SAMPLES]
    return sorted(torch.as_tensor(ids, device="cpu")[order].tolist())


def check_reversed_loss(oracle: Oracle, criterion: Criterion, s: Survivors, ends: Tensor) -> Finding:
    """Check that no survivor breaks when the margin of its true class is raised instead of lowered.

    If one does, confidence grows as the decision comes near, and every attack on the logits walks away from it. It may
    do so just before the decision, so the margin is raised from the clean points and from `ends`, where a walk that
    lowers it ends. From there one sample may break (`EXCUSED`).
    """
    hits = [_walk(oracle, criterion, s, -1.0, start=at) for at in (s.x, ends)]
    broken = int((hits[0] | hits[1]).sum())
    if broken <= EXCUSED and not bool(hits[0].any()):
        what = f"raising the margin broke {broken or 'none'} of {n_samples(len(s.x), kind='survivor')}"
        return Finding(REVERSED, "ok", what, value=broken / len(s.x))
    return Finding(
        REVERSED,
        "warn",
        f"{broken} of {len(s.x)} survivors broke when the margin of the true class was raised: the model becomes more "
        "confident as the decision comes near, so attacks on its logits walk away from it",
        "Attack the logits before the part that changes them, or use decisions alone (hop-skip-jump).",
        value=broken / len(s.x),
        threshold=0.0,
    )


def check_grid(oracle: Oracle, criterion: Criterion, s: Survivors) -> Finding:
    """Check that no survivor breaks at points rounded to the levels of 8 bits, like its clean input."""
    levels = s.x * LEVELS
    if bool(((levels - levels.round()).abs() > ON_GRID).any()):
        return Finding(GRID, "ok", "not checked: the inputs do not have the levels of 8 bits")
    broken = int(_walk(oracle, criterion, s, 1.0, rounded=True).sum())
    if not broken:
        return Finding(
            GRID, "ok", f"points rounded to 8 bits broke none of {n_samples(len(s.x), kind='survivor')}", value=0.0
        )
    return Finding(
        GRID,
        "warn",
        f"{broken} of {len(s.x)} survivors broke at points rounded to 8 bits, where {STEPS} gradient steps sufficed: "
        "the attacks missed them",
        "The model may answer differently between the levels of 8 bits: remove what depends on them, or use a stronger "
        "plan.",
        value=broken / len(s.x),
        threshold=0.0,
    )


def _walk(
    oracle: Oracle, criterion: Criterion, s: Survivors, sign: float, rounded: bool = False, start: Tensor | None = None
) -> Tensor:
    """Return a mask of the survivors that a few gradient steps break, verified with a fresh pass.

    The walk begins at `start` (default: the clean points). `sign` −1 lowers the loss.
    `rounded` moves every point to the 8-bit grid, towards the clean point.
    """
    none = torch.full_like(s.y, -1)
    x = found = s.x if start is None else start
    hit = torch.zeros_like(s.y, dtype=torch.bool)
    for step in range(STEPS):
        r = gradient_at(oracle, x, s.y)
        now = criterion.reached(Output(r.logits, r.reject), s.y, none) & ~hit
        found, hit = where(now, x, found), hit | now
        length = sign * s.ball.eps * (1 - step / STEPS)
        x = s.ball.project(s.x, x + rows(length, x) * s.ball.steepest(r.gradient))
        x = on_grid(s.x, x) if rounded else x
    found = where(hit, found, x)
    return criterion.reached(oracle.output(found), s.y, none) & s.ball.contains(s.x, found)


def on_grid(x0: Tensor, x: Tensor) -> Tensor:
    """Return x with every value moved towards x0, which is on the 8-bit grid, to the next level.

    >>> (255 * on_grid(torch.tensor([0.2]), torch.tensor([0.25]))).round(decimals=3)
    tensor([63.])
    """
    whole = (x0 * LEVELS).round()
    moved = x * LEVELS - whole
    # What lies just below a level, by rounding, counts as at the level.
    return (whole + (moved + ON_GRID * moved.sign()).trunc()) / LEVELS


def check_again(
    oracle: Oracle, criterion: Criterion, clean: tuple[Tensor, Tensor], adversarial: tuple[Tensor, Tensor]
) -> Finding:
    """Check that clean inputs get the same logits as before, and that adversarials fool the model again.

    `clean` are inputs and their logits, `adversarial` are points and their labels. Both are asked for in reversed
    order, so that every row has other neighbours.
    """
    (x, logits), (points, y) = clean, adversarial
    answers = oracle.output(torch.cat([points.flip(0), x.flip(0)]))
    drift = relative_difference(logits, answers.logits[len(points) :].flip(0))
    lost = int((~criterion.reached(head(answers, len(points)), y.flip(0), torch.full_like(y, -1))).sum())
    if drift <= SAME and not lost:
        what = f"{n_samples(len(x), 'clean ', 'input')} and {n_samples(len(points), kind='adversarial')}"
        return Finding(AGAIN, "ok", f"{what} got the same answers again", value=0.0)
    return Finding(
        AGAIN,
        "warn",
        f"asked again after the attacks, {lost} of {len(points)} adversarials no longer fool the model, and the "
        f"logits of clean inputs differ by {drift:.2g} of their spread: answers depend on earlier queries or the batch",
        "Remove state and randomness from forward, or use the plan autoattack-rand.",
        value=lost / max(len(points), 1),
        threshold=0.0,
    )


def run_survivor_checks(
    oracle: Oracle, criterion: Criterion, threat: Threat, first: Chunk, logits: Tensor, survivors: Ids, kept: Kept,
    gradients: bool,
) -> list[Finding]:  # fmt: skip
    """Run every check of this file on samples of the first chunk, which is in memory, with its clean `logits`.

    `survivors` are ids of the samples that no attack broke. `gradients` says whether the plan uses gradients; without
    them, survivors are not attacked. Cost: up to 16 · 60 forward and 16 · 40 backward passes.
    """
    device = oracle.classifier.device
    rows_of = {i: row for row, i in enumerate(first.ids.tolist())}
    known = [i for i in sorted(kept.points) if i in rows_of]
    points = torch.stack([kept.points[i] for i in known]) if known else first.x[:0]
    labels = first.y[torch.tensor([rows_of[i] for i in known], dtype=torch.long, device="cpu")]
    n = min(len(first), SAMPLES)
    clean = (first.x[:n].to(device), logits[:n])
    checks = [check_again(oracle, criterion, clean, (points.to(device), labels.to(device)))]
    standing = np.asarray([i for i in survivors.tolist() if i in rows_of], dtype=np.int64)
    if not len(standing) or not gradients or threat.unlimited:
        return checks
    at = torch.tensor([rows_of[i] for i in first_ids(kept.seed, standing)], dtype=torch.long, device="cpu")
    chosen = Survivors(first.x[at].to(device), first.y[at].to(device), threat.ball(at, device))
    smaller, ends = check_growing_radii(oracle, criterion, chosen)
    return [
        *checks,
        check_reversed_loss(oracle, criterion, chosen, ends),
        check_grid(oracle, criterion, chosen),
        smaller,
        check_gradients(oracle, chosen),
        *check_runner_up(oracle, chosen),
    ]
