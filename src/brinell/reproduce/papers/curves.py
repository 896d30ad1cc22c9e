"""Tables and figures of the paper on robustness curves (Risse et al. 2021)."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files as resources
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn

from brinell.analysis.across_models import distinct
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.curves import (
    ClassDistances,
    Curve,
    curve,
    distances,
    measured_in,
    order_across_norms,
    transfer_across_norms,
)
from brinell.curves.across_norms import TRANSFER
from brinell.errors import InputError
from brinell.models.wrap import wrap
from brinell.reproduce.exhibit import CALCULATED, Exhibit
from brinell.reproduce.setup import Setup, without_folders
from brinell.results import Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table

# The attacks of the paper, and a hundred times faster ones that find distances at least as small in L2.
PAPER, QUICK = "paper-curves", "minimal-quick"
# Points of a stored curve: enough for a picture.
MOST_POINTS = 300
NORMS = ("Linf", "L2", "L1")
SIGNIFICANT = 0.05


def _curve(setup: Setup, model: Classifier, name: str, norm: str, plan: str, data: Problem | None = None) -> Curve:
    """Return the curve of a model, called `name`; a Run stored by an earlier call is continued."""
    folder = setup.folder(f"{name}-{norm}-{plan}".replace("/", "-").replace(" ", "-"))
    found = curve(
        model, setup.problem if data is None else data, norm, plan, out=folder, resume=folder.exists(),
        seed=setup.seed, device=setup.device, progress=setup.progress,
    )  # fmt: skip
    return Curve(norm, found.ids, found.distances, name, found.hashes, found.attacks, found.path, found.notes)


def _share(p: Proportion) -> str:
    return f"{100 * p.value:.1f} % [{100 * p.low:.1f}, {100 * p.high:.1f}]"


def _steps(title: str, curves: Sequence[Curve], end: float | None = None) -> Figure:
    """Return a figure of the curves up to `end` (default: 98 % of the most robust model's broken samples are shown)."""
    finite = [c.distances[np.isfinite(c.distances)] for c in curves]
    last = end or max((float(np.quantile(d, 0.98)) for d in finite if len(d)), default=1.0) or 1.0
    series = []
    for c in curves:
        x, y = c.steps()
        x, y = x[x <= last], y[: int((x <= last).sum())]
        kept = np.unique(np.linspace(0, len(x) - 1, min(MOST_POINTS, len(x))).astype(int))
        at, share = [*x[kept].tolist(), last], [100 * v for v in (*y[kept].tolist(), float(y[-1]))]
        series.append(Series(c.name, tuple(at), tuple(share)))
    return Figure(title, "steps", "size of the perturbation", "samples that can be broken (%)", tuple(series))


def _crossings(curves: Sequence[Curve]) -> Table:
    """Return a table of the radii at which the curves of every two models cross."""
    rows = []
    for a, b in combinations(curves, 2):
        c = a.crossings(b)
        where = "; ".join(f"{r.at:.4g} [{r.low:.4g}, {r.high:.4g}]" for r in c.real)
        better = "; ".join(map(str, c.ranges[:3])) + (" …" if len(c.ranges) > 3 else "")
        rows.append((f"{a.name}, {b.name}", len(c.observed), len(c.real), where, better))
    columns = ("models", "changes of order seen", "significant", "at [between]", "significantly better")
    return Table(f"crossings, {curves[0].norm}, n = {curves[0].n}", columns, tuple(rows))


def _table_1(setup: Setup) -> AnalysisReport:
    eps = float(setup.threat.eps)
    radii = (eps / 8, eps / 2, eps)
    rows = []
    for name, model in setup.classifiers.items():
        paper = _curve(setup, model, name, "Linf", PAPER)
        best = paper.joined(_curve(setup, model, name, "Linf", QUICK))
        rows.append((name, "the paper's", *(_share(paper.at(r)) for r in radii)))
        rows.append((name, "and FMN", *(_share(best.at(r)) for r in radii)))
    title = f"robust error in Linf, n = {len(setup.problem)}"
    columns = ("model", "attack", *(f"eps = {_radius(r)}" for r in radii))
    summary = "The paper's search over the radius of PGD, and the smaller of its distance and that of FMN (100 steps)."
    return AnalysisReport("point-wise measures", title, summary, (Table(title, columns, tuple(rows)),))


def _radius(eps: float) -> str:
    return f"{round(eps * 255)}/255" if abs(eps * 255 - round(eps * 255)) < 1e-6 else f"{eps:.4g}"


def _figure_1(setup: Setup) -> AnalysisReport:
    """Return the two curves of the toy data, computed from closed forms at 2,000 equidistant quantiles."""
    q = (np.arange(2000) + 0.5) / 2000
    wave = np.arccos(1 - 2 * (2 * q % 1)) / np.pi
    smooth = Curve("L2", np.arange(2000), np.where(q < 0.5, wave, 2 + wave), "smooth boundary")
    squiggly = Curve("L2", np.arange(2000), 1 + np.arccos(1 - 2 * q) / np.pi, "squiggly boundary")
    rows = tuple((f"{k} eps", smooth.at(k).value, squiggly.at(k).value) for k in (1, 2, 3))
    title = "robust error of two classifiers of the toy data"
    table = Table(title, ("perturbation", smooth.name, squiggly.name), rows)
    both = (smooth, squiggly)
    figures = (_steps("toy data, distance in multiples of eps", both),)
    summary = "Which classifier is more robust depends on the radius."
    return AnalysisReport("toy curves", title, summary, (table, _crossings(both)), figures)


def _figure_2(setup: Setup) -> AnalysisReport:
    models = setup.classifiers
    linf = [_curve(setup, m, name, "Linf", PAPER) for name, m in models.items()]
    l2 = [_curve(setup, m, name, "L2", QUICK) for name, m in models.items()]
    figures = (_steps("Linf", linf), _steps("L2", l2))
    medians = Table(
        f"median distances, n = {linf[0].n}", ("model", "clean error", "median in Linf", "median in L2"),
        tuple(
            (a.name, _share(a.clean_error), f"{a.median:.4g}", f"{b.median:.4g}")
            for a, b in zip(linf, l2, strict=True)
        ),
    )  # fmt: skip
    tables = (medians, *((_crossings(linf), _crossings(l2)) if len(linf) > 1 else ()))
    return AnalysisReport("curves of training methods", "Robustness curves", _count(linf, l2), tables, figures)


def _count(*groups: Sequence[Curve]) -> str:
    found = [sum(len(a.crossings(b).real) for a, b in combinations(g, 2)) for g in groups]
    parts = [
        f"{k} significant crossing{'' if k == 1 else 's'} in {g[0].norm}" for k, g in zip(found, groups, strict=True)
    ]
    return f"{', '.join(parts)} of {len(groups[0])} models."


def _figure_3(setup: Setup) -> AnalysisReport:
    """Return curves and slopes: the first model on --data, each further model on the next data set of --other."""
    eps = float(setup.threat.eps)
    models, data = setup.classifiers, {without_folders(setup.data): setup.problem}
    data |= {distinct(name, data): problem for name, problem in setup.others.items()}
    if len(models) != len(data):
        raise InputError(
            expected="one data set for each model: the first model on --data, the others on --other, in their order",
            got=f"{len(models)} models and {len(data)} data sets",
            remedy="Give one --other for each model after the first.",
        )
    found = [
        _curve(setup, model, f"{name}, {label}", "Linf", PAPER, problem)
        for (name, model), (label, problem) in zip(models.items(), data.items(), strict=True)
    ]
    rows = []
    for c in found:
        s = c.slope(eps)
        rows.append((c.name, _share(c.at(eps)), s.below, s.above, f"{s.p_value:.2g}"))
    title = f"samples that break within {eps / 2:.4g} below and above eps = {_radius(eps)}, n = {found[0].n}"
    table = Table(title, ("model, data", "robust error at eps", "just below", "just above", "p-value"), tuple(rows))
    return AnalysisReport("slopes", "Change of slope", _slopes(rows), (table,), (_steps("Linf", found),))


def _slopes(rows: Sequence[Sequence[Any]]) -> str:
    """Return what the p-values of the table of Figure 3 say: in which curves the slope changes significantly.

    >>> _slopes([("a", "10 %", 3, 30, "1e-05"), ("b", "10 %", 9, 8, "1")])
    'More samples break just above the radius of training than just below in 1 of 2 curves (p < 0.05): a, p = 1e-05; ...
    """
    steeper = [row[3] > row[2] and float(row[4]) < SIGNIFICANT for row in rows]
    cases = "; ".join(
        f"{'' if yes else 'not shown for '}{row[0]}, p = {row[4]}" for yes, row in zip(steeper, rows, strict=True)
    )
    counted = f"in {sum(steeper)} of {len(rows)} curve{'' if len(rows) == 1 else 's'} (p < {SIGNIFICANT})"
    return f"More samples break just above the radius of training than just below {counted}: {cases}."


def _figure_4(setup: Setup) -> AnalysisReport:
    models, data = setup.classifiers, setup.problem
    linf, l2 = ([_curve(setup, m, name, p, QUICK) for name, m in models.items()] for p in ("Linf", "L2"))
    moved = transfer_across_norms([*linf, *l2], data)
    transfer = Table(
        f"adversarial examples of one norm in the other, n = {len(data)}",
        TRANSFER,
        tuple(t.cells for t in moved),
    )
    order = order_across_norms(linf, l2)
    kept = Table(
        f"order of two models by the area below their curves, n = {len(data)}",
        ("models", "difference in Linf", "difference in L2", "order", "significant crossings in Linf",
         "significant crossings in L2"),
        tuple(
            (f"{o.name_a} − {o.name_b}", str(o.in_first), str(o.in_second), o.verdict,
             *(len(c.real) for c in o.crossings))
            for o in order
        ),
    )  # fmt: skip
    as_drawn = [replace(measured_in(c, data, "Linf"), name=c.name) for c in l2]
    figures = (_steps("Linf", linf), _steps("L2", l2), _steps("attacked in L2, measured in Linf", as_drawn))
    same = sum(o.verdict == "kept" for o in order)
    summary = f"The order holds for certain in {same} of {len(order)} pairs of models." if order else "One model."
    return AnalysisReport(
        "norms", "Transfer across norms", summary, (transfer, kept) if order else (transfer,), figures
    )


def _measured_distances(setup: Setup) -> list[ClassDistances]:
    return [distances(p, NORMS, device=setup.device) for p in (setup.problem, *setup.others.values())]


TABLE_2_COLUMNS = (
    *("data", "samples", "classes", "dimensions"),
    *("smallest Linf", "smallest L2", "smallest L1", "largest Linf", "largest L2", "largest L1"),
)


def _table_2(setup: Setup) -> AnalysisReport:
    rows: list[tuple[Cell, ...]] = []
    for d in _measured_distances(setup):
        least, most = ([round(getattr(d[p], end), 2) for p in NORMS] for end in ("smallest", "largest"))
        rows.append((d.name, d.n, d.classes, " × ".join(map(str, d.shape)), *least, *most))
    title = "smallest and largest distance to the nearest sample of another class"
    return AnalysisReport("distances", title, "Exact distances.", (Table(title, TABLE_2_COLUMNS, tuple(rows)),))


def _figure_5(setup: Setup) -> AnalysisReport:
    found = _measured_distances(setup)
    as_curves = {p: [Curve(p, np.arange(len(d[p].kept)), d[p].kept, d.name) for d in found] for p in NORMS}
    figures = tuple(
        Figure(f"{p}, n = {found[0].n}", "steps", f"distance in {p}", "samples with a nearer other class (%)", f.series)
        for p, f in ((p, _steps(p, as_curves[p], max(float(c.distances.max()) for c in as_curves[p]))) for p in NORMS)
    )
    rows = []
    for d in found:
        for p in NORMS:
            median = float(np.median(d[p].kept))
            rows.append(
                (d.name, p, round(d[p].smallest, 2), round(median, 2), " and ".join(map(str, d.nearest_classes(p))))
            )
    title = "distance to the nearest sample of another class"
    table = Table(title, ("data", "norm", "smallest", "median", "nearest classes"), tuple(rows))
    return AnalysisReport("distances", title, "Exact distances; duplicates are left out.", (table,), figures)


def _figure_6(setup: Setup) -> AnalysisReport:
    """Compare two linear classifiers whose curves cross in L2 but not in Linf, by attacks and by the closed form."""
    # In units around the centre of the box; the first coordinate decides for blue, the sum of both for orange.
    points = torch.tensor([(1.0, 0.8 * math.sqrt(2) - 1), (1.0, 1.2 * math.sqrt(2) - 1)]).repeat(20, 1)
    x, y = torch.cat([points, -points]), torch.cat([torch.ones(40), torch.zeros(40)]).long()
    data = Problem(0.5 + 0.2 * x, y, name="Example 1")
    normals = {"blue": torch.tensor([1.0, 0.0]), "orange": torch.tensor([1.0, 1.0]) / math.sqrt(2)}
    rows, groups = [], {}
    for p, dual in (("Linf", 1), ("L2", 2)):
        groups[p] = [_curve(setup, _half_planes(w, name), name, p, QUICK, data) for name, w in normals.items()]
        for c, w in zip(groups[p], normals.values(), strict=True):
            exact = (0.2 * x @ w).abs() / float(torch.linalg.vector_norm(w, dual))
            rows.append(
                (c.name, p, *(f"{v:.4g}" for v in (c.distances.min(), exact.min(), c.distances.max(), exact.max())))
            )
    columns = ("classifier", "norm", "smallest distance", "closed form", "largest distance", "closed form")
    tables = (Table("distances by attack and by Lemma 1", columns, tuple(rows)), *map(_crossings, groups.values()))
    figures = tuple(_steps(p, g) for p, g in groups.items())
    return AnalysisReport("example 1", "Linear classifiers in two norms", _count(*groups.values()), tables, figures)


def _half_planes(w: torch.Tensor, name: str) -> Classifier:
    """Return the linear classifier in the plane with class 1 where w·(x − ½) is positive."""
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.stack([-w, w]))
        net.bias.copy_(torch.tensor([0.5, -0.5]) * float(w.sum()))
    return wrap(net.eval().requires_grad_(False), name=name)


def _figure_7(setup: Setup) -> AnalysisReport:
    (name, model), *_ = setup.classifiers.items()
    found = _curve(setup, model, name, "Linf", PAPER)
    able = np.where(np.isfinite(found.distances), found.distances, -1.0)
    rows = tuple((int(found.ids[i]), f"{255 * able[i]:.1f}/255") for i in np.argsort(-able, kind="stable")[:4])
    title = f"the four largest smallest perturbations in Linf among n = {found.n}"
    summary = "brinell report RUN draws the images beside their adversarial examples."
    return AnalysisReport("examples", title, summary, (Table(title, ("sample", "size"), rows),))


def _figure_8(setup: Setup) -> AnalysisReport:
    eps = float(setup.threat.eps)
    found = [_curve(setup, m, name, "Linf", QUICK) for name, m in setup.classifiers.items()]
    radii = (eps / 8, eps / 2, eps, 0.04)
    columns = ("model", "clean error", *(f"eps = {_radius(r)}" for r in radii), "median")
    rows = tuple((c.name, _share(c.clean_error), *(_share(c.at(r)) for r in radii), f"{c.median:.4g}") for c in found)
    tables = (Table(f"robust error in Linf, n = {found[0].n}", columns, rows),)
    more = (_crossings(found),) if len(found) > 1 else ()
    return AnalysisReport(
        "large models", "Curves of large models", _count(found), (*tables, *more), (_steps("Linf", found),)
    )


SMALL = "CIFAR-10 and the networks cifar10/Linf/Croce2019Provable_* and Croce2020Provable_MMR_UNIV of the zoo"
SETS = "MNIST, Fashion-MNIST, GTSRB, CIFAR-10, Tiny-ImageNet and HAR"


def _exhibit(name: str, place: str, title: str, uses: str, **about: Any) -> Exhibit:
    """Return an exhibit with the paper's numbers from the file curves.json."""
    t = _PUBLISHED[name]
    published = (Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"]))),)
    return Exhibit(f"curves/{name}", title, place, published=published, uses=tuple(uses.split()), **about)


_PUBLISHED = json.loads((resources("brinell.reproduce.papers") / "curves.json").read_text(encoding="utf-8"))
EXHIBITS: tuple[Exhibit, ...] = (
    _exhibit(
        "figure-1", "Figure 1", "Curves of a smooth and a squiggly boundary of toy data",
        needs="nothing", cost="seconds", measure=_figure_1, uses="", source=CALCULATED,
        differences="None: both curves are computed from the closed forms of the paper's code.",
    ),
    _exhibit(
        "table-1", "Table 1", "Robust error at three radii", needs=SMALL, cost="about 900 steps per sample",
        measure=_table_1, uses="models data eps n seed device",
        differences="MMR-UNIV on CIFAR-10 is the paper's own network: its row should agree up to the attack and n. The "
        "paper has no rows for other data; there the radii, an eighth, a half and the whole of --eps, are ours. The "
        "paper takes the value of the sample whose distance is nearest to eps; here it is the share of samples with a "
        "distance of at most eps.",
    ),
    _exhibit(
        "figure-2", "Figure 2", "Curves of several training methods in Linf and L2", needs=SMALL,
        cost="about 900 steps per sample", measure=_figure_2, uses="models data n seed device",
        differences="L2 distances come from FMN instead of C&W, which takes a hundred times the passes. The code of "
        "the paper measures the L2 perturbations in Linf; here they are measured in L2.",
    ),
    _exhibit(
        "figure-3", "Figure 3", "Change of slope at the radius of training",
        needs="MNIST, Fashion-MNIST, GTSRB, CIFAR-10 and the networks DATA/Linf/Croce2019Provable_MMR_AT of the zoo",
        cost="about 900 steps per sample", measure=_figure_3, uses="models data other eps n seed device",
        differences="The paper looks at the curves; here the samples on both sides of the radius are counted and "
        "tested. Each --model runs on the --data or --other of the same position.",
    ),
    _exhibit(
        "figure-4", "Figure 4", "The same networks in Linf and L2",
        needs="CIFAR-10 and the networks cifar10/*/Croce2019Provable_MMR_AT, Croce2020Provable_MMR_UNIV of the zoo",
        cost="200 steps per sample", measure=_figure_4, uses="models data n seed device",
        differences="Distances come from FMN in both norms. The third panel measures the L2 perturbations in Linf, as "
        "the code of the paper does in its right plot.",
    ),
    _exhibit(
        "figure-5", "Figure 5", "Distribution of the distances between classes", needs=SETS,
        cost="minutes per data set", measure=_figure_5, uses="data other n device",
        differences="None in the definition: exact distances, duplicates left out.",
    ),
    _exhibit(
        "table-2", "Table 2", "Smallest and largest distances between classes", needs=SETS,
        cost="minutes per data set", measure=_table_2, uses="data other n device",
        differences="None in the definition: exact distances, duplicates left out.",
    ),
    _exhibit(
        "figure-6", "Figure 6", "Curves that cross in L2 but not in Linf (Example 1)", needs="nothing",
        cost="seconds", measure=_figure_6, uses="seed device",
        differences="The paper does not print its points; these two classifiers and 80 points have the same property.",
    ),
    _exhibit(
        "figure-7", "Figure 7", "Large perturbations that are hard to see",
        needs="CIFAR-10 and the network cifar10/Linf/Croce2019Provable_MMR_AT of the zoo",
        cost="about 900 steps per sample", measure=_figure_7, uses="model data n seed device",
        differences="The paper shows four chosen images; here they are those with the largest distances.",
    ),
    _exhibit(
        "figure-8", "Figure 8", "Curves of large models",
        needs="CIFAR-10 and the networks cifar10/Linf/Sehwag2020Hydra and Wu2020Adversarial_extra of the zoo",
        cost="100 steps per sample of a WideResNet-28-10", measure=_figure_8, uses="models data eps n seed device",
        differences="Distances come from FMN (100 steps) instead of the paper's search over the radius of PGD, which "
        "takes nine times the passes.",
    ),
)  # fmt: skip
