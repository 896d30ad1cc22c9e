"""Certify samples with a cascade of methods, from cheap to exact."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from brinell.certification.branch_and_bound import ROOT_STEPS, STEPS, Searched, branch_and_bound, tightened
from brinell.certification.interval import Ranges, Region, interval_ranges
from brinell.certification.large.deviations import deviation_ranges
from brinell.certification.linear_bounds import MEMORY, Expired, crown_ranges, differences, margins, never
from brinell.certification.milp import exact
from brinell.certification.network import TracedNetwork
from brinell.certification.relaxation.slopes import RangeTable, optimise, roots
from brinell.certification.trace import trace
from brinell.certification.undecided import Undecided, reduce, reducible
from brinell.core.certificate import Certificate
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.errors import InputError, ModelError, one_of
from brinell.finding import n_samples
from brinell.models.wrap import TorchClassifier

METHODS = ("interval", "crown", "optimised", "branch-and-bound", "milp")
DEFAULT_METHODS = ("interval", "crown", "optimised", "branch-and-bound")
PRECISION = "float64"
# Neurons beyond which the passes of CROWN stop before they reach the input.
LARGE = 2**17
NOT_POSITIVE = "the bound is not above 0"


class TimeLimit(Exception):  # noqa: N818
    """The time for a method is over."""


@dataclass
class ProofState:
    """What the methods so far proved about one sample: the best margin, its method, the cost, why they stopped."""

    margin: float = -torch.inf
    method: str = ""
    passes: int = 0
    seconds: float = 0.0
    stopped: str = ""
    counterexample: Tensor | None = None

    @property
    def finished(self) -> bool:
        """Whether the class cannot change, or a counterexample was found."""
        return self.margin > 0 or self.counterexample is not None

    def add(self, method: str, margin: float, passes: int, stopped: str) -> None:
        """Note the result of a method."""
        self.passes += passes
        if margin > self.margin or not self.method or math.isnan(self.margin):
            self.margin, self.method = margin, method
        if math.isnan(margin):
            stopped = "the bound is not a number: weights are infinite or NaN, or float32 overflows"
        self.stopped = "" if self.margin > 0 else f"{method}: {stopped or NOT_POSITIVE}"


@dataclass(eq=False)
class SampleBatch:
    """A batch under proof: the traced network, the region, the model's logits, true classes, states, and what later
    methods reuse.

    `unbounded` are the samples for which the time of CROWN was too short.
    """

    network: TracedNetwork
    region: Region
    logits: Tensor
    y: Tensor
    states: list[ProofState]
    ranges: dict[int, Ranges] = field(default_factory=dict)
    lowest: dict[int, Tensor] = field(default_factory=dict)
    reduced: dict[int, Undecided] = field(default_factory=dict)
    unbounded: set[int] = field(default_factory=set)


def _silent(text: str) -> None:
    """Report nothing."""


@dataclass(eq=False)
class Bounds:
    """Certify with interval arithmetic, CROWN, optimised slopes, branch and bound, and integer programming.

    `methods` run in this order on the samples that are still open. `seconds` limits the time per sample of each method;
    `clock` measures it, and `report` is called with what is done next, in words.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> from brinell import Linf
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> Bounds(net).certify(x, net(x).argmax(1), Linf(1e-6))[0].certified
    True
    """

    model: Classifier | nn.Module
    methods: Sequence[str] = DEFAULT_METHODS
    seconds: float = 10.0
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)
    report: Callable[[str], None] = field(default=_silent, repr=False)
    _networks: dict[tuple[int, ...], TracedNetwork] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for method in self.methods:
            one_of("a method", method, METHODS)
        if not self.seconds > 0:
            raise InputError(expected="seconds above 0", got=str(self.seconds), remedy="Write e.g. seconds=10.")

    def network(self, shape: tuple[int, ...]) -> TracedNetwork:
        """Return the traced network for samples of this shape."""
        if shape not in self._networks:
            self._networks[shape] = trace(self.model, shape)
        return self._networks[shape]

    def certify(self, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        """Return one certificate per sample for the threat's radius; the samples are classified correctly.

        Raise a ModelError if the logits of a sample differ from those of the traced network by more than rounding.
        """
        network = self.network(tuple(x.shape[1:]))
        _require_samples(x, y, network.classes, threat)
        size = max(1, MEMORY // (8 * max(network.widest * network.classes, network.values_per_row)))
        parts = torch.arange(len(x), device=x.device).split(size) if len(x) else ()
        return [c for part in parts for c in self._batch(network, x[part], y[part], threat.subset(part.cpu()))]

    @torch.no_grad()
    def _batch(self, network: TracedNetwork, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        model = TorchClassifier(self.model) if isinstance(self.model, nn.Module) else self.model
        logits = model.forward(x).logits.to(x.device)
        batch = SampleBatch(network, Region.of(x, threat), logits, y, [ProofState() for _ in x])
        _require_logits(logits, interval_ranges(network, batch.region.clean))
        for method in self.methods:
            if RUNNERS[method].whole_batch:
                self._together(method, batch)
            else:
                self._one_by_one(method, batch)
        radii = threat.eps.tolist() if isinstance(threat.eps, Tensor) else [threat.eps] * len(x)
        return [_certificate(p, r) for p, r in zip(batch.states, radii, strict=True)]

    def _together(self, method: str, batch: SampleBatch) -> None:
        """Run a method on all open samples at once."""
        left = [i for i, p in enumerate(batch.states) if not p.finished]
        if left:
            before = self.clock()
            self.report(f"{method}, {n_samples(len(left))} together")
            RUNNERS[method].run(batch, left, partial(self._left, before + self.seconds * len(left)))
            for i in left:
                batch.states[i].seconds += (self.clock() - before) / len(left)

    def _one_by_one(self, method: str, batch: SampleBatch) -> None:
        """Run a method on every open sample by itself, each within its time."""
        left = [i for i, state in enumerate(batch.states) if not state.finished]
        for k, i in enumerate(left):
            state = batch.states[i]
            if not state.finished:
                before = self.clock()
                self.report(f"{method}, sample {k + 1} of {len(left)}")
                RUNNERS[method].run(batch, [i], partial(self._left, before + self.seconds))
                state.seconds += self.clock() - before

    def _left(self, end: float) -> float:
        """Return the seconds until `end`."""
        return end - self.clock()


def _require_samples(x: Tensor, y: Tensor, classes: int, threat: Threat) -> None:
    """Refuse what no certificate speaks of: points outside of the box, and classes that the network does not have."""
    if len(x) != len(y) or not bool(((y >= 0) & (y < classes)).all()):
        raise InputError(
            expected=f"one class from 0 to {classes - 1} per sample",
            got=f"{len(y)} classes for {len(x)} samples, {y.tolist()[:5]} …",
            remedy="Pass the true classes of the samples.",
        )
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise InputError(
            expected="samples in [0, 1]", got="values outside, or NaN", remedy="Put the normalisation into the model."
        )
    if threat.unlimited:
        raise InputError(expected="a threat with a radius", got=repr(threat), remedy="Write e.g. Linf('8/255').")


def _require_logits(logits: Tensor, ranges: Ranges) -> None:
    """Refuse a model whose logits are not those of the traced network, up to the rounding errors of float32."""
    lower, upper = ranges.lower[-1], ranges.upper[-1]
    known = (lower.isfinite() & upper.isfinite()).all(1)
    for row in (known & ~((logits >= lower) & (logits <= upper)).all(1)).nonzero()[:1, 0].tolist():
        raise ModelError(
            expected=f"the logits of the traced network, between {_few(lower[row])} and {_few(upper[row])}",
            got=f"{_few(logits[row])} for sample {row}",
            remedy="Switch off TensorFloat-32 and reduced precision; after a change of the model, make new Bounds.",
        )


def _few(values: Tensor) -> str:
    return ", ".join(f"{v:.6g}" for v in values[:3].tolist()) + (", …" if len(values) > 3 else "")


@dataclass(frozen=True)
class Runner:
    """A method: what it does to some samples of a batch, and whether it takes all of them at once."""

    run: Callable[..., None]
    whole_batch: bool = False


def _interval(batch: SampleBatch, which: list[int], left: Callable[[], float]) -> None:
    _propagate(batch, which, "interval", lambda region: interval_ranges(batch.network, region))


def _crown(batch: SampleBatch, which: list[int], left: Callable[[], float]) -> None:
    """Bound samples by CROWN; those that are open when the time is over have that as their reason.

    The last tenth of the time remains for the bound on the logits: neurons that are not refined by then keep intervals.
    """
    bounded = deviation_ranges if batch.network.neurons > LARGE else crown_ranges
    rest = left() / 10

    def expired() -> bool:
        if left() <= 0:
            raise TimeLimit
        return left() <= rest

    try:
        _propagate(batch, which, "crown", lambda region: bounded(batch.network, region, expired), expired)
    except TimeLimit:
        batch.unbounded.update(which)
        for i in which:
            batch.states[i].add("crown", -torch.inf, 0, "time limit")
        return
    if left() <= rest:
        for i in which:
            if not batch.states[i].finished:
                batch.states[i].stopped = "crown: time limit, some neurons may have intervals"


def _propagate(
    batch: SampleBatch, which: list[int], method: str, bounded: Callable[[Region], Ranges], expired: Expired = never
) -> None:
    index = torch.tensor(which, dtype=torch.long, device=batch.y.device)
    region = batch.region.rows(index)
    ranges = bounded(region)
    _require_logits(batch.logits[index], ranges)
    lowest = margins(batch.network, ranges, region, batch.y[index], through=method == "crown", expired=expired)
    for row, i in enumerate(which):
        batch.states[i].add(method, float(lowest[row].min()), 1, "")
        # What was reduced to undecided neurons rests on margins that are proved already.
        known = batch.lowest.get(i, lowest[row])
        batch.ranges[i], batch.lowest[i] = ranges.rows(_single(row, batch.y)), torch.fmax(known, lowest[row])


def _single(i: int, like: Tensor) -> Tensor:
    return torch.tensor([i], dtype=torch.long, device=like.device)


def _undecided(batch: SampleBatch, i: int, method: str, left: Callable[[], float]) -> Undecided | None:
    """Return the undecided neurons of a sample; None, with the reason noted, if there are none or no reduction to them.

    CROWN bounds the sample first, unless it did already, or had too little time.
    """
    if i in batch.reduced:
        return batch.reduced[i]
    index = _single(i, batch.y)
    if i not in batch.unbounded and (i not in batch.ranges or batch.states[i].method == "interval"):
        _crown(batch, [i], left)
    if i in batch.unbounded or batch.states[i].finished:
        return None
    reason = reducible(batch.network, batch.ranges[i])
    if reason:
        batch.states[i].add(method, -torch.inf, 0, reason)
        return None
    targets = (~(batch.lowest[i] > 0)).nonzero()[:, 0]
    a = differences(batch.y[index], batch.network.classes)[0, targets]
    batch.reduced[i] = reduce(batch.network, batch.ranges[i], batch.region.rows(index), a, targets)
    return batch.reduced[i]


def _optimised(batch: SampleBatch, which: list[int], left: Callable[[], float]) -> None:
    i = which[0]
    net = _undecided(batch, i, "optimised", left)
    if net is None:
        return
    net, passes = tightened(net, STEPS, lambda: left() <= 0)
    batch.reduced[i] = net
    best, _, made = optimise(net, RangeTable.of(net), net.margins, roots(net, len(net.targets)), ROOT_STEPS)
    proved = batch.lowest[i][batch.lowest[i] > 0]
    least = min([float(best.value.min()), *proved.tolist()])
    batch.states[i].add("optimised", least, passes + made, "")


def _branch_and_bound(batch: SampleBatch, which: list[int], left: Callable[[], float]) -> None:
    def search(net: Undecided, left: Callable[[], float], misclassified: Callable[[Tensor], Tensor]) -> Searched:
        return branch_and_bound(net, lambda: left() <= 0, lambda x, _: (x, misclassified(x)))

    _decide(batch, which[0], "branch-and-bound", search, left)


def _milp(batch: SampleBatch, which: list[int], left: Callable[[], float]) -> None:
    _decide(batch, which[0], "milp", exact, left)


def _decide(batch: SampleBatch, i: int, method: str, search: Callable[..., Searched], left: Callable[[], Any]) -> None:
    """Run a search that ends with a proof, a counterexample or the reason why it stopped."""
    net = _undecided(batch, i, method, left)
    if net is None:
        return

    def misclassified(x: Tensor) -> Tensor:
        return batch.network.single.values(x)[-1].argmax(1) != batch.y[i]

    result = search(net, left, misclassified)
    proved = batch.lowest[i][batch.lowest[i] > 0]
    batch.states[i].add(method, min([result.value, *proved.tolist()]), result.passes, result.stopped)
    batch.states[i].counterexample = None if result.counterexample is None else result.counterexample.float()


RUNNERS = {
    "interval": Runner(_interval, whole_batch=True),
    "crown": Runner(_crown, whole_batch=True),
    "optimised": Runner(_optimised),
    "branch-and-bound": Runner(_branch_and_bound),
    "milp": Runner(_milp),
}


def _certificate(p: ProofState, radius: float) -> Certificate:
    certified = p.margin > 0
    return Certificate(
        p.method, certified, radius, p.margin, p.passes, p.seconds, PRECISION, p.stopped, p.counterexample
    )
