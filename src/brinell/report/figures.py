"""The figures and tables that a report shows of a Run."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from brinell.errors import InputError
from brinell.report.charts.scales import step
from brinell.report.charts.types import Histogram, ReferenceLine, Waterfall, WaterfallLevel
from brinell.report.outcomes import Bools, Floats, Ints, SampleOutcomes
from brinell.results import CLEAN, Cost, Evidence, Proportion, Run, counted, is_evidence
from brinell.results.analyses import Cell, Figure, Series, Table
from brinell.results.row_queries import cost as cost_of
from brinell.results.row_queries import is_attack
from brinell.results.summary import eps_text

MOST_CLASSES, MOST_IN_MATRIX = 24, 20
BINS, MOST_STEPS = 28, 200
CONFIDENCE = 0.95
SHARE = "accuracy (%)"
# Adversarials this close to the radius lie on the surface of the ball.
SURFACE = 0.99
BREAKS = ("attack", "attacked", "broken", "first", "alone", "passes (median)")
OUTCOMES = ("robust", "broken by an attack", "misclassified")
FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASS_NAMES = {"demo": FASHION, "fashion-mnist": FASHION, "cifar-10-batches-py": CIFAR10, "cifar10": CIFAR10}
"""Class names by the name of the data in the manifest."""


def stages(run: Run) -> Waterfall:
    """Return a waterfall of the clean accuracy and the accuracy after each attack of the plan."""
    after = [(CLEAN, run.clean_accuracy), *((stage.attack, p) for stage, p in run.steps())]
    levels = tuple(WaterfallLevel(name, 100 * p.value, 100 * p.low, 100 * p.high) for name, p in after)
    return Waterfall("Accuracy after each attack", SHARE, levels, "robust")


def classes(s: SampleOutcomes, names: Sequence[str] = ()) -> Figure | None:
    """Return the clean and robust accuracy of every class, or of the 24 least robust; None for a single class."""
    labels = np.unique(s.label)
    if len(labels) < 2:
        return None
    robust = {int(c): _share(s.robust[s.label == c]) for c in labels}
    shown = sorted(sorted(robust, key=lambda c: (robust[c].value, c))[:MOST_CLASSES])
    shown_names = [name_of(c, names) for c in shown]
    clean = [_share(s.correct[s.label == c]) for c in shown]
    series = (bar_series("clean", shown_names, clean), bar_series("robust", shown_names, [robust[c] for c in shown]))
    few = f", the {MOST_CLASSES} least robust of {len(labels)}" if len(labels) > MOST_CLASSES else ""
    return Figure(f"Accuracy by class{few}", "bars", "class", SHARE, series)


def margins(s: SampleOutcomes) -> Histogram | None:
    """Return a histogram of the clean margins of robust, broken and misclassified samples; None without samples."""
    parts = (s.clean_margin[s.robust], s.clean_margin[s.broken], s.clean_margin[~s.correct])
    return _histogram("Margins before the attack", "best wrong logit − true logit", OUTCOMES, parts)


def largest_margins(s: SampleOutcomes) -> Histogram | None:
    """Return a histogram of each sample's largest margin under attack, robust or broken; None without samples."""
    parts = (s.largest_margin[s.robust], s.largest_margin[s.broken])
    return _histogram("Largest margin under attack", "best wrong logit − true logit", OUTCOMES[:2], parts)


def distances(s: SampleOutcomes) -> Histogram | None:
    """Return a histogram of the adversarials' distances; None without adversarials or if nearly all are equal."""
    found = s.distance[s.broken & np.isfinite(s.distance)]
    if not len(found) or (found >= SURFACE * found.max()).mean() > 0.95:
        return None
    return _histogram("Distances of the adversarials", "distance", ("adversarials",), (found,), 0.0)


def count_on_surface(s: SampleOutcomes) -> tuple[int, int]:
    """Return how many adversarials are within 1 % of the largest distance, and how many adversarials there are."""
    found = s.distance[s.broken & np.isfinite(s.distance)]
    return int((found >= SURFACE * found.max()).sum()) if len(found) else 0, len(found)


def curve(many: Sequence[tuple[str, SampleOutcomes]], norm: str) -> Figure:
    """Return the robust accuracy at each radius, for minimum-norm attacks.

    Method: 100 % minus the empirical distribution of the distances, with distance 0 for misclassified samples, thinned
    to a fixed number of steps. The 95 % confidence band holds for all radii at once.
    Reference: Massart, Annals of Probability 18 (1990), 1269-1283.
    """
    series = []
    for name, s in many:
        found = np.sort(np.where(s.correct, np.where(s.broken, s.distance, np.inf), 0.0))
        x, broken = _steps(found)
        y = 100 - broken
        half = 100 * math.sqrt(math.log(2 / (1 - CONFIDENCE)) / (2 * max(len(s), 1)))
        low, high = (np.clip(y + d, 0, 100) for d in (-half, half))
        series.append(Series(name, *(tuple(v.tolist()) for v in (x, y, low, high))))
    return Figure(
        "Robustness curve", "steps", f"size of the perturbation ({norm})", "robust accuracy (%)", tuple(series)
    )


def costs(run: Run, idle: bool = False) -> tuple[Figure, Table]:
    """Return the passes and seconds of every stage, as a figure and as a table; with `idle`, also of unused stages."""
    named = [CLEAN, *(stage.attack for stage in run.stages() if stage.attacked or idle)]
    spent = [_spent(run, name) for name in named]
    sides = (("forward passes", [c.forwards for c in spent]), ("backward passes", [c.backwards for c in spent]))
    series = tuple(Series(side, tuple(named), tuple(map(float, values))) for side, values in sides)
    rows = [_cost_row(name, c) for name, c in zip(named, spent, strict=True)]
    columns = ("stage", "samples", "forwards", "backwards", "seconds", "forwards each")
    rows.append(_cost_row("all", run.cost))
    return Figure("Passes by stage", "bars", "stage", "passes", series), Table("", columns, tuple(rows))


def breaks(run: Run, s: SampleOutcomes) -> Table:
    """Return a table of attacks: how many samples each attacked, broke, broke first, broke alone; median passes."""
    table, rows = run.rows(), []
    verified = counted(table)
    at = np.searchsorted(s.ids, np.asarray(table["sample_id"], dtype=np.int64))
    times = np.bincount(at[verified & is_evidence(table, Evidence.ATTACK)], minlength=len(s))
    soon = np.asarray(table["first_broken_at"].cast("float64"), dtype=np.float64)
    for i, stage in enumerate(run.stages()):
        if not stage.attacked:
            continue
        broken = is_attack(table, stage.attack) & verified
        alone = int((times[at[broken]] == 1).sum())
        passes = soon[broken & np.isfinite(soon)]
        median = float(np.median(passes)) if len(passes) else None
        first = int((s.stage[s.correct] == i).sum())
        rows.append((stage.attack, stage.attacked, stage.broken, first, alone, median))
    return Table("", BREAKS, tuple(rows))


def first_breaks(content: Table) -> Figure | None:
    """Return a figure of how many samples each attack was the first to break; None for a single attack."""
    if len(content.rows) < 2:
        return None
    names, counts = (tuple(row[i] for row in content.rows) for i in (0, BREAKS.index("first")))
    series = Series(OUTCOMES[1], tuple(map(str, names)), tuple(float(str(c)) for c in counts))
    return Figure("First to break", "bars", "attack", "samples", (series,))


def overlap(run: Run) -> Figure | None:
    """Return a matrix of how many samples both attacks of each pair broke; None if no two broke the same sample."""
    table, names = run.rows(), run.attacks
    fallen = counted(table)
    ids = np.unique(np.asarray(table["sample_id"], dtype=np.int64))
    at = np.searchsorted(ids, np.asarray(table["sample_id"], dtype=np.int64))
    broke = np.zeros((len(names), len(ids)), np.int64)
    for i, name in enumerate(names):
        broke[i, at[is_attack(table, name) & fallen]] = 1
    both = broke @ broke.T
    if len(names) < 2 or not (both - np.diag(np.diag(both))).any():
        return None
    series = (
        Series(name, tuple(names), tuple(map(float, row))) for name, row in zip(names, both.tolist(), strict=True)
    )
    return Figure("Samples that both attacks broke", "matrix", "attack", "attack", tuple(series))


def confusion(run: Run, s: SampleOutcomes, names: Sequence[str] = ()) -> Figure | None:
    """Return a matrix that counts broken samples by true class and predicted class; None beyond 20 classes."""
    where = s.row[s.broken & (s.row >= 0)]
    taken = run.rows()["adv_pred"].take(where.tolist()).to_pylist() if len(where) else []
    pairs = [(int(a), int(b)) for a, b in zip(s.label[s.broken & (s.row >= 0)], taken, strict=True) if b is not None]
    labels = sorted({c for pair in pairs for c in pair})
    if not 2 <= len(labels) <= MOST_IN_MATRIX:
        return None
    columns = tuple(name_of(c, names) for c in labels)
    count = Counter(pairs)
    series = (Series(name_of(a, names), columns, tuple(float(count[a, b]) for b in labels)) for a in labels)
    title = "Predicted classes of broken samples (rows: true class)"
    return Figure(title, "matrix", "adversarial class", "true class", tuple(series))


def radius(run: Run) -> ReferenceLine | None:
    """Return the radius of the threat as a reference line; None unless the radius is a single number."""
    eps = run.identity.threat.eps
    return ReferenceLine(float(eps), f"eps = {eps_text(eps)}") if isinstance(eps, int | float) else None


def minimum_norm(run: Run) -> bool:
    """Return whether the threat has no radius, so that the attacks minimise the norm."""
    return run.identity.threat.unbounded


def bar_series(name: str, x: Sequence[str], shares: Sequence[Proportion]) -> Series:
    """Return proportions as bars in per cent, with their 95 % intervals."""
    return Series(name, tuple(x), *(tuple(100 * getattr(p, end) for p in shares) for end in ("value", "low", "high")))


def class_names(run: Run, given: Sequence[str] = (), of_data: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the `given` class names, else those of the data, else (); a Run stores only numbers."""
    count = run.identity.model.classes
    if given and count is not None and len(given) != count:
        raise InputError(
            expected=f"{count} class names",
            got=f"{len(given)} names",
            remedy="Pass one name per class, in the order of the class numbers.",
        )
    known = tuple(of_data) or CLASS_NAMES.get(str(run.identity.data.name), ())
    return tuple(given) or (known if len(known) == count else ())


def name_of(label: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number if it has no name.

    >>> name_of(1, ("cat", "dog")), name_of(7, ("cat", "dog"))
    ('dog', '7')
    """
    return names[label] if 0 <= label < len(names) else str(label)


def _share(marks: Bools) -> Proportion:
    return Proportion(int(marks.sum()), len(marks))


def _histogram(
    title: str, x: str, names: Sequence[str], parts: Sequence[Floats], low: float | None = None
) -> Histogram | None:
    """Return stacked counts in bins with round edges; the outermost bins include all values beyond them."""
    parts = [p[np.isfinite(p)] for p in parts]
    every = np.concatenate(parts)
    if not len(every):
        return None
    ends = np.quantile(every, (0.005, 0.995)) if len(every) > 200 else np.array([every.min(), every.max()])
    first, last = float(ends[0]) if low is None else low, float(ends[1])
    size = step(first, last, BINS) if last > first else 1.0
    begin, end = math.floor(first / size + 1e-9), math.ceil(last / size - 1e-9)
    edges = np.array([float(f"{i * size:.12g}") for i in range(begin, max(end, begin + 1) + 1)])
    counts = [np.histogram(np.clip(p, edges[0], edges[-1]), edges)[0] for p in parts]
    return Histogram(title, x, "samples", tuple(edges.tolist()), tuple(names), tuple(tuple(c.tolist()) for c in counts))


def _steps(found: Floats) -> tuple[Floats, Floats]:
    """Return the radii, from 0, at which the share of broken samples grows, and these shares in %, both thinned."""
    x, count = np.unique(np.concatenate([[0.0], found[np.isfinite(found)]]), return_counts=True)
    count[0] -= 1  # the leading zero is not a sample
    y = 100 * np.cumsum(count) / max(len(found), 1)
    if len(x) <= MOST_STEPS:
        return x, y
    keep: Ints = np.unique(np.linspace(0, len(x) - 1, MOST_STEPS).round().astype(np.int64))
    return x[keep], y[keep]


def _spent(run: Run, stage: str) -> Cost:
    rows = run.numbers().filter(is_attack(run.numbers(), stage))
    return cost_of(rows, over=rows.num_rows)


def _cost_row(name: str, c: Cost) -> tuple[Cell, ...]:
    return name, c.samples, c.forwards, c.backwards, round(c.seconds, 2), round(c.forwards_per_sample, 1)
