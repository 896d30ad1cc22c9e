"""Trace attacks: record the best loss so far and the robust accuracy after every iteration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from brinell.arguments import DataLike, ModelLike
from brinell.attacks import APGD, PGD, MomentumPGD
from brinell.core.attack import AnyAttack, Attack
from brinell.core.dataset import Chunk
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.plan import Plan, Stage
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.errors import InputError, one_of
from brinell.evaluation import coerce
from brinell.evaluation.context import PreparedEvaluation
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.evaluation.rows import Clean
from brinell.evaluation.run_stage import run_stage
from brinell.ops import rng
from brinell.ops.losses import LOSSES
from brinell.reliability.probes.indicators import TrajectoryRecorder
from brinell.results import Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table

if TYPE_CHECKING:
    from typing_extensions import Unpack

ATTACKS = ("pgd", "momentum-pgd", "apgd")
# The CW loss of the AutoAttack paper is the margin.
ALIASES = {"cw": "margin"}
STEPS, REL_STEPS = (25, 50, 100), (0.25,)
# Points per curve of a figure.
SHOWN = 100


@dataclass(frozen=True)
class Trace:
    """The trace of an attack: the best loss so far and the number of samples still robust, by step.

    `best_loss` is the mean over correctly classified samples of the largest loss so far; its first value and that of
    `robust` are at the start. `rel_step` is the step size as a multiple of eps, None for adaptive steps. `n` counts all
    samples, misclassified ones too.

    >>> t = Trace("apgd", "ce", None, (0.1, 0.5, 0.7), (9, 6, 5), 10)
    >>> t.steps, str(t.accuracy(1)), t.name
    (2, '60.0 % [31.3, 83.2], n = 10', 'apgd, 2 steps')
    """

    attack: str
    loss: str
    rel_step: float | None
    best_loss: tuple[float, ...]
    robust: tuple[int, ...]
    n: int

    @property
    def steps(self) -> int:
        """The budget: the number of steps after the start."""
        return len(self.best_loss) - 1

    @property
    def name(self) -> str:
        """The name of the attack with its step size or, for adaptive steps, with its number of steps."""
        return f"{self.attack}, {f'{self.steps} steps' if self.rel_step is None else step_text(self.rel_step)}"

    def accuracy(self, step: int) -> Proportion:
        """Return the robust accuracy after step number `step`; 0 is the start."""
        return Proportion(self.robust[step], self.n)


def step_text(rel_step: float) -> str:
    """Return text for a step size that is given as a multiple of eps.

    >>> [step_text(v) for v in (0.25, 2.0, 0.1, 1.0)]
    ['eps/4', '2 eps', 'eps/10', 'eps']
    """
    if rel_step >= 1:
        return "eps" if rel_step == 1 else f"{rel_step:g} eps"
    return f"eps/{1 / rel_step:g}"


@dataclass(frozen=True)
class Traces:
    """Traces of several attacks on the same samples from the same starting points."""

    model: str
    threat: str
    clean: Proportion
    budgets: tuple[int, ...]
    traces: tuple[Trace, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the losses, each once, in the order of the traces."""
        return tuple(dict.fromkeys(t.loss for t in self.traces))

    def at_budget(self, attack: str, loss: str, rel_step: float | None, budget: int) -> Trace | None:
        """Return the trace with these settings and this budget, or None; with fixed steps, cut a longer trace."""
        same = [t for t in self.traces if (t.attack, t.loss, t.rel_step) == (attack, loss, rel_step)]
        if rel_step is None:
            return next((t for t in same if t.steps == budget), None)
        long = next((t for t in same if t.steps >= budget), None)
        cut = slice(budget + 1)
        return None if long is None else replace(long, best_loss=long.best_loss[cut], robust=long.robust[cut])

    def findings(self) -> AnalysisReport:
        """Return tables of loss and accuracy by budget, and two figures per loss over the iterations."""
        keys = list(dict.fromkeys((t.loss, t.attack, t.rel_step) for t in self.traces))
        cells = [[self.at_budget(attack, loss, step, b) for b in self.budgets] for loss, attack, step in keys]
        names = [
            (loss, attack, "adaptive" if rel_step is None else step_text(rel_step)) for loss, attack, rel_step in keys
        ]
        columns = ("loss", "attack", "step size", *(f"{b} steps" for b in self.budgets))
        where = f"{self.threat}, n = {self.clean.n:,}"
        accuracy = [(*key, *map(_accuracy_cell, line)) for key, line in zip(names, cells, strict=True)]
        loss = [(*key, *map(_loss_cell, line)) for key, line in zip(names, cells, strict=True)]
        tables = (
            Table(f"robust accuracy in % by number of steps, {where}", columns, tuple(accuracy)),
            Table(f"mean of the best loss by number of steps, {where}", columns, tuple(loss)),
        )
        return AnalysisReport("trace", "Traces", self._summary(), tables, self._figures())

    def _summary(self) -> str:
        least = min(t.robust[-1] for t in self.traces)
        best = [t for t in self.traces if t.robust[-1] == least]
        lowest = f"Clean accuracy: {self.clean}. The lowest robust accuracy is {best[0].accuracy(-1)}, by "
        if len(best) == len(self.traces) > 1:
            return f"{lowest}all {len(best)} attacks."
        return f"{lowest}{' and by '.join(f'{t.name}, on the loss {t.loss}' for t in best)}."

    def _figures(self) -> tuple[Figure, ...]:
        figures = []
        for loss in self.losses:
            own = [t for t in self.traces if t.loss == loss]
            best = tuple(_series(t, t.best_loss) for t in own)
            accuracy = tuple(_series(t, [100 * k / t.n for k in t.robust]) for t in own)
            figures.append(Figure(f"Best loss so far ({loss})", "steps", "iteration", "mean loss", best))
            figures.append(Figure(f"Robust accuracy ({loss})", "steps", "iteration", "robust accuracy in %", accuracy))
        return tuple(figures)

    def to_csv(self) -> str:
        """Return CSV text, one line per trace and iteration: settings of the trace, best loss, robust samples."""
        lines = ["attack,loss,rel_step,steps,iteration,best_loss,robust,n"]
        for t in self.traces:
            rel = "" if t.rel_step is None else f"{t.rel_step:g}"
            for i, (loss, robust) in enumerate(zip(t.best_loss, t.robust, strict=True)):
                lines.append(f"{t.attack},{t.loss},{rel},{t.steps},{i},{loss:.6g},{robust},{t.n}")
        return "\n".join(lines) + "\n"


def _accuracy_cell(t: Trace | None) -> Cell:
    if t is None:
        return None
    p = t.accuracy(t.steps)
    return f"{100 * p.value:.1f} [{100 * p.low:.1f}, {100 * p.high:.1f}]"


def _loss_cell(t: Trace | None) -> Cell:
    return None if t is None else float(f"{t.best_loss[-1]:.4g}")


def _series(t: Trace, values: Sequence[float]) -> Series:
    """Return the values of a trace as a series for a figure, thinned out to about `SHOWN` values."""
    at = np.unique(np.linspace(0, t.steps, min(t.steps, SHOWN) + 1).round().astype(int)).tolist()
    return Series(t.name, tuple(at), tuple(float(f"{values[i]:.5g}") for i in at))


@dataclass(frozen=True)
class _Traced:
    """An attack to trace, with its name and step size in the result."""

    name: str
    rel_step: float | None
    attack: AnyAttack


def trace(
    classifier: ModelLike, problem: DataLike, threat: Threat, attacks: Sequence[str | AnyAttack] = ATTACKS,
    *, losses: Sequence[str] = ("ce",), steps: Sequence[int] = STEPS, rel_steps: Sequence[int | float] = REL_STEPS,
    progress: bool | None = False, **options: "Unpack[ComputeOptions]",
) -> Traces:  # fmt: skip
    """Return the best loss so far and the robust accuracy after every iteration of several attacks.

    Method: `attacks` are names (pgd, momentum-pgd, apgd) or attack objects. Named attacks run on each loss in `losses`
    (ce, cw, dlr …). Auto-PGD adapts its steps to the budget and runs once for every number in `steps`. PGD and PGD with
    momentum run once for every step size in `rel_steps` (multiples of eps), with the largest budget; their traces
    contain the traces with smaller budgets. All attacks start at the same uniform random points of the ball and run to
    the end of their budgets, on correctly classified samples. `options` are `seed`, `slots` and `device`. Cost: one
    forward and one backward pass per sample and iteration. Reference: Croce & Hein 2020, fig. 1 and sec. 4.2.

    >>> import brinell
    >>> found = trace("demo", brinell.data.load("demo", 8), brinell.Linf(0.1), ["pgd", "apgd"], steps=[5, 10])
    >>> [(t.name, len(t.best_loss)) for t in found.traces]
    [('pgd, eps/4', 11), ('apgd, 5 steps', 6), ('apgd, 10 steps', 11)]
    """
    execution = Execution.from_options(options, ComputeOptions)
    model = coerce.as_classifier(classifier, execution.device)
    bound, budgets = coerce.as_threat(threat), tuple(sorted(set(steps)))
    chosen = [t for one in attacks for loss in losses for t in _expand(one, loss, budgets, rel_steps)]
    chosen = list({(t.name, t.attack): t for t in chosen}.values())
    if not chosen or not budgets:
        raise InputError(
            expected="at least one attack, one loss and one number of steps",
            got=f"attacks {list(attacks)}, losses {list(losses)}, steps {list(steps)}",
            remedy="Omit `attacks`, `losses` and `steps` for the defaults.",
        )
    stages = tuple(Stage(t.attack, label=f"trace-{i}") for i, t in enumerate(chosen))
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(
            model, coerce.as_problem(problem), bound, Plan("trace", stages), execution, listener, early_exit=False
        )
        parts = [_trace_chunk(prepared, chunk) for chunk in prepared.chunks()]
    clean = Proportion(sum(correct for correct, _, _ in parts), sum(n for _, n, _ in parts))
    require_correct(clean)
    made = []
    for i, t in enumerate(chosen):
        loss, broken = (torch.stack([part[i][k] for _, _, part in parts]).sum(0) for k in (0, 1))
        best = tuple((loss / max(clean.k, 1)).tolist())
        robust = tuple(clean.k - int(b) for b in broken)
        made.append(Trace(t.name, t.attack.loss, t.rel_step, best, robust, clean.n))
    own = tuple(t.steps for t, c in zip(made, chosen, strict=True) if c.name not in ATTACKS)
    return Traces(model.name, str(bound), clean, tuple(sorted({*budgets, *own})), tuple(made))


def _expand(
    attack: str | AnyAttack, loss: str, budgets: Sequence[int], rel_steps: Sequence[int | float]
) -> list[_Traced]:
    if isinstance(attack, Attack):
        require_untargeted(attack.loss)
        return [_Traced(attack.name, None, attack)]
    one_of("an attack", attack, ATTACKS)
    loss = ALIASES.get(loss, loss)
    require_untargeted(loss)
    if attack == "apgd":
        return [_Traced(attack, None, APGD(b, loss)) for b in budgets]
    kind = PGD if attack == "pgd" else MomentumPGD
    return [_Traced(attack, rel, kind(max(budgets, default=1), rel, loss)) for rel in rel_steps]


def require_untargeted(loss: str) -> None:
    """Raise an error if the loss is unknown or needs a target, which traces and logit scales do not choose."""
    usable = (name for name, known in LOSSES.items() if not (known.targeted or known.matches))
    one_of("an untargeted loss", loss, [*usable, *ALIASES])


def require_correct(clean: Proportion) -> None:
    """Raise an error if no sample is classified correctly: then there is nothing to attack."""
    if clean.k == 0:
        raise InputError(
            expected="at least one correctly classified sample",
            got=f"0 of {clean.n:,} samples classified correctly",
            remedy="Check the labels, the preprocessing and the weights, or use more samples.",
        )


def _trace_chunk(prepared: PreparedEvaluation, chunk: Chunk) -> tuple[int, int, list[tuple[Tensor, Tensor]]]:
    """Return the numbers of correct and of all samples; per attack, sums of best losses and of broken samples."""
    c = prepared.clean(chunk)
    device, seed = c.logits.device, prepared.context.seed
    key = rng.fold(rng.keys(seed, chunk.ids.to(device)), rng.digest("trace"))
    ball = prepared.context.threat.ball(torch.arange(len(chunk), device="cpu") + chunk.offset, device)
    start = ball.inside(chunk.x.to(device), key)
    return int(c.correct.sum()), len(chunk), [_trace_stage(prepared, s, c, start) for s in prepared.stages]


def _trace_stage(prepared: PreparedEvaluation, stage: Stage, c: Clean, start: Tensor) -> tuple[Tensor, Tensor]:
    at, queries = c.correct.nonzero()[:, 0], stage.attack.queries
    recorder = TrajectoryRecorder(prepared.context, prepared.context.criterion, 1, queries, len(at))
    context = replace(prepared.context, early_exit=False, observe=recorder)
    for _ in run_stage(context, stage, c, at, start):
        pass
    loss, success = recorder.recorded["loss"][:, 0], recorder.recorded["success"][:, 0]
    best = loss.double().nan_to_num(-torch.inf).cummax(1).values
    return best.sum(0), success.int().cummax(1).values.sum(0)
