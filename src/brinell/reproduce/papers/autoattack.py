"""Tables and figures of the AutoAttack paper (Croce & Hein 2020)."""

from collections.abc import Callable, Sequence
from statistics import mean

from brinell.analysis.intervals import percent
from brinell.attacks import PGD
from brinell.core.model import Classifier
from brinell.evaluation.evaluate import evaluate
from brinell.leaderboard import records
from brinell.reliability.traces import Trace, Traces, logit_scales, trace
from brinell.reliability.traces.logit_scale import ATTACK
from brinell.reliability.traces.trace import step_text
from brinell.reproduce.exhibit import MODELS, ONE_MODEL, Exhibit
from brinell.reproduce.setup import Setup
from brinell.results import Proportion, Run
from brinell.results.analyses import AnalysisReport, Cell, Table
from brinell.results.repeats import RepeatedAccuracy, repeated

# Section 3.2: step sizes of PGD with momentum as multiples of eps, and budgets of Auto-PGD.
FIGURE_1_STEPS = (2.0, 1.0, 0.5, 0.25, 0.1, 0.04, 0.01)
FIGURE_1_BUDGETS = (25, 50, 100, 200, 400, 1000)
# Figure 2 divides the logits by 1 to 1000. Smaller numbers enlarge them, for networks whose gradients do not vanish.
FIGURE_2_SCALES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
SECTION_4_STEPS, SECTION_4_BUDGETS = (0.1, 0.25, 2.0), (25, 50, 100)
LOSSES = {"ce": "CE", "margin": "CW", "dlr": "DLR"}
BETTER = "networks on which APGD is better than all PGD"
PLAIN, RAND, PLUS = "autoattack-paper", "autoattack-rand", "autoattack-plus"
TARGETED = ("apgd-t", "fab-t")


def _budgets(budgets: Sequence[int], setup: Setup) -> list[int]:
    """Return the budgets below `setup.steps` and this number itself; if it is None, all budgets."""
    if setup.steps is None:
        return list(budgets)
    return sorted({setup.steps, *(b for b in budgets if b < setup.steps)})


def _figure_1(setup: Setup) -> AnalysisReport:
    found = trace(
        setup.classifier, setup.problem, setup.threat, ["momentum-pgd", "apgd"], losses=["ce"],
        steps=_budgets(FIGURE_1_BUDGETS, setup), rel_steps=FIGURE_1_STEPS, seed=setup.seed, device=setup.device,
        progress=setup.progress,
    )  # fmt: skip
    rows, losses, accuracies = [], [], []
    for b in found.budgets:
        adaptive = found.at_budget("apgd", "ce", None, b)
        fixed = [t for s in FIGURE_1_STEPS if (t := found.at_budget("momentum-pgd", "ce", s, b)) is not None]
        loss, lowest = max(fixed, key=_loss), min(fixed, key=_robust)
        assert adaptive is not None
        losses.append((-_loss(adaptive), -_loss(loss)))
        accuracies.append((_robust(adaptive), _robust(lowest)))
        values = (_loss(adaptive), f"{_loss(loss):.4f} ({_step(loss)})")
        rows.append((b, round(values[0], 4), values[1], _accuracy(adaptive), f"{_accuracy(lowest)} ({_step(lowest)})"))
    columns = ("iterations", "loss, APGD", "loss, best PGD", "robust acc., APGD", "robust acc., best PGD")
    title = f"Auto-PGD beside the best of seven step sizes of PGD with momentum, {setup.threat}, n = {found.clean.n:,}"
    report = found.findings()
    summary = (
        f"{report.summary} Auto-PGD has a higher loss than the best step size for {_tally(losses)} budgets, and a "
        f"lower robust accuracy for {_tally(accuracies)}."
    )
    return AnalysisReport(
        "figure-1", title, summary, (Table(title, columns, tuple(rows)), *report.tables), report.figures
    )


def _tally(pairs: Sequence[tuple[float, float]]) -> str:
    """Return for how many pairs the first number is lower, with ties apart.

    >>> _tally([(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)])
    '1 of 3 (1 tie)'
    """
    ties = sum(ours == theirs for ours, theirs in pairs)
    counted = f"{sum(ours < theirs for ours, theirs in pairs)} of {len(pairs)}"
    return f"{counted} ({ties} tie{'' if ties == 1 else 's'})" if ties else counted


def _loss(t: Trace) -> float:
    return t.best_loss[-1]


def _robust(t: Trace) -> int:
    return t.robust[-1]


def _accuracy(t: Trace) -> str:
    return percent(t.accuracy(t.steps))


def _step(t: Trace) -> str:
    return step_text(t.rel_step or 0.0)


def _figure_2(setup: Setup) -> AnalysisReport:
    return logit_scales(
        setup.classifier, setup.problem, setup.threat, FIGURE_2_SCALES, attack=PGD(setup.steps or ATTACK.steps),
        seed=setup.seed, device=setup.device, progress=setup.progress,
    ).findings()  # fmt: skip


def _section_4_2(setup: Setup) -> AnalysisReport:
    budgets = _budgets(SECTION_4_BUDGETS, setup)
    found = {
        name: trace(
            model, setup.problem, setup.threat, losses=list(LOSSES), steps=budgets, rel_steps=SECTION_4_STEPS,
            seed=setup.seed, device=setup.device, progress=setup.progress,
        )
        for name, model in setup.classifiers.items()
    }  # fmt: skip
    versions: list[tuple[str, float | None]] = [(a, s) for a in ("pgd", "momentum-pgd") for s in SECTION_4_STEPS]
    rows = [_version_row(list(found.values()), *version, budgets[-1]) for version in (*versions, ("apgd", None))]
    best = [_tally([_apgd_and_pgd(t, versions, loss, budgets[-1]) for t in found.values()]) for loss in LOSSES]
    rows.append((BETTER, *best))
    title = f"robust accuracy in % after {budgets[-1]} steps, {setup.threat}"
    title += f", mean over {len(found)} networks" if len(found) > 1 else f", n = {len(setup.problem):,}"
    tables = [Table(title, ("attack", *LOSSES.values()), tuple(rows))]
    reports = {name: t.findings() for name, t in found.items()}
    for name, report in reports.items():
        tables.append(Table(f"{name}: {report.tables[0].title}", report.tables[0].columns, report.tables[0].rows))
    summary = " ".join(f"{name}: {report.summary}" for name, report in reports.items())
    figures = tuple(f for f in next(iter(reports.values())).figures if f.y.startswith("robust"))
    return AnalysisReport("section-4.2", title, summary, tuple(tables), figures)


def _version_row(found: Sequence[Traces], attack: str, rel_step: float | None, budget: int) -> tuple[Cell, ...]:
    name = "APGD" if rel_step is None else f"{attack}, {step_text(rel_step)}"
    cells: list[Cell] = []
    for loss in LOSSES:
        ends = [t for f in found if (t := f.at_budget(attack, loss, rel_step, budget)) is not None]
        shares = [t.accuracy(t.steps) for t in ends]
        cells.append(percent(shares[0]) if len(shares) == 1 else round(100 * mean(p.value for p in shares), 2))
    return (name, *cells)


def _apgd_and_pgd(
    found: Traces, versions: Sequence[tuple[str, float | None]], loss: str, budget: int
) -> tuple[int, int]:
    """Return how many samples withstand APGD, and how many withstand the best version of PGD."""
    adaptive = found.at_budget("apgd", loss, None, budget)
    assert adaptive is not None
    others = [t for a, s in versions if (t := found.at_budget(a, loss, s, budget)) is not None]
    return _robust(adaptive), min(_robust(t) for t in others)


def _run(setup: Setup, name: str, model: Classifier, plan: str) -> Run:
    folder = setup.folder(name.replace(" ", "-"))
    return evaluate(
        model, setup.problem, setup.threat, plan, out=folder, resume=folder.exists(), execution=setup.execution,
        progress=setup.progress, individual=True, images=False,
    )  # fmt: skip


def _reported(setup: Setup, name: str) -> float | None:
    """Return the robust accuracy in per cent that the authors of a published model report, or None if unknown."""
    known = records.find(records.published(), f"{setup.data.partition(',')[0]}/{setup.norm}/{name}")
    return None if known is None else known.reported


def _rows(
    setup: Setup, plan: str, columns: Sequence[str], cells: Callable[[Run], Sequence[Proportion]], kind: str
) -> AnalysisReport:
    """Return a table with one row per model: the accuracies in `cells`, the reported accuracy, and their difference."""
    rows, notes = [], []
    for name, model in setup.classifiers.items():
        run, reported = _run(setup, name, model, plan), _reported(setup, name)
        reduction = None if reported is None else round(100 * run.robust_accuracy.value - reported, 2)
        rows.append((name, run.clean_accuracy.n, *map(percent, cells(run)), reported, reduction))
        notes.append(f"{name}: {run.sentence()}")
    title = f"accuracies in % under each attack alone and together, {setup.threat}"
    table = Table(title, ("model", "n", *columns, "reported", "reduct."), tuple(rows))
    return AnalysisReport(kind, title, " ".join(notes), (table,))


def _table_1(setup: Setup) -> AnalysisReport:
    def cells(run: Run) -> list[Proportion]:
        return [run.clean_accuracy, *(p for _, p in run.accuracy_alone()), run.robust_accuracy]

    return _rows(setup, PLAIN, TABLE_1_COLUMNS[1:-2], cells, "table-1")


def _table_3(setup: Setup) -> AnalysisReport:
    def cells(run: Run) -> list[Proportion]:
        alone, after = dict(run.accuracy_alone()), dict(run.accuracy_after())
        return [run.clean_accuracy, after["square"], *(alone[name] for name in TARGETED), run.robust_accuracy]

    return _rows(setup, PLUS, TABLE_3_COLUMNS[1:-2], cells, "table-3")


def _table_2(setup: Setup) -> AnalysisReport:
    rows, notes = [], []
    for name, model in setup.classifiers.items():
        run = _run(setup, name, model, RAND)
        all_of_them, alone = run.repeats, [repeated(run, [attack]) for attack in run.attacks]
        ce, dlr, square = ("" if r is None else _spread(r.robust) for r in alone)
        ends = ("", "") if all_of_them is None else (_spread(all_of_them.clean), _spread(all_of_them.robust))
        rows.append((name, run.clean_accuracy.n, ends[0], ce, dlr, "-", square, ends[1], _reported(setup, name)))
        notes.append(f"{name}: {run.repeats}; counted by the majority of the passes: {run.robust_accuracy}.")
    title = f"accuracies in %, mean (standard deviation) over 5 passes, {setup.threat}, n = {len(setup.problem):,}"
    table = Table(title, ("model", "n", *TABLE_2_COLUMNS[1:-1]), tuple(rows))
    return AnalysisReport("table-2", title, " ".join(notes), (table,))


def _spread(a: RepeatedAccuracy) -> str:
    return f"{100 * a.mean:.2f} ({100 * a.deviation:.2f})"


TABLE_1_COLUMNS = ("paper", "clean", "APGD_CE", "APGD_DLR", "FAB", "Square", "AA", "reported", "reduct.")
# Table 1, some of 49 rows: the strongest, Madry et al., and those where an attack fails.
CIFAR_1 = (
    ("Carmon et al., 2019", 89.69, 61.47, 60.64, 60.62, 66.63, 59.65, 62.5, -2.85),
    ("Alayrac et al., 2019", 86.46, 59.86, 62.03, 58.20, 66.37, 56.92, 56.30, 0.62),
    ("Hendrycks et al., 2019", 87.11, 57.00, 56.96, 55.40, 61.99, 54.99, 57.4, -2.41),
    ("Rice et al., 2020", 85.34, 56.76, 55.72, 54.13, 61.37, 53.60, 58.0, -4.40),
    ("Engstrom et al., 2019", 87.03, 51.52, 52.62, 50.38, 58.00, 49.58, 53.29, -3.71),
    ("Madry et al., 2018", 87.14, 44.56, 46.03, 45.37, 53.10, 44.29, 47.04, -2.75),
    ("Wong et al., 2020", 83.34, 45.60, 46.64, 44.03, 53.32, 43.38, 46.06, -2.68),
    ("Zhang & Wang, 2019", 89.98, 62.03, 48.96, 40.84, 59.12, 38.78, 60.6, -21.82),
    ("Wang & Zhang, 2019", 92.82, 67.77, 36.72, 31.92, 66.67, 29.07, 66.9, -37.83),
    ("Mustafa et al., 2019", 89.16, 4.48, 4.54, 1.10, 33.91, 0.55, 32.32, -31.77),
    ("Chan et al., 2020", 93.79, 1.90, 1.20, 15.58, 71.76, 0.18, 15.5, -15.32),
    ("Pang et al., 2020", 93.52, 85.58, 0.49, 0.03, 35.83, 0.00, 31.4, -31.40),
)
MNIST_1 = (
    ("Zhang et al., 2020", 98.38, 94.58, 94.82, 95.61, 93.97, 93.95, 96.38, -2.43),
    ("Zhang et al., 2019b", 99.48, 93.14, 93.89, 94.14, 92.99, 92.76, 95.60, -2.84),
    ("Gowal et al., 2019a", 98.34, 93.81, 93.87, 94.76, 92.81, 92.75, 93.88, -1.13),
    ("Ding et al., 2020", 98.95, 93.51, 93.86, 94.26, 91.39, 91.35, 92.59, -1.24),
    ("Atzmon et al., 2019", 99.35, 98.79, 94.54, 94.15, 90.86, 90.85, 97.35, -6.50),
    ("Madry et al., 2018", 98.53, 89.40, 89.74, 92.22, 88.58, 88.43, 89.62, -1.19),
    ("Jang et al., 2019", 98.47, 92.45, 92.15, 93.24, 88.00, 87.99, 94.61, -6.62),
    ("Wong et al., 2020", 98.50, 84.74, 85.39, 87.36, 83.07, 82.88, 88.77, -5.89),
    ("Taghanaki et al., 2019", 98.86, 23.83, 0.00, 0.02, 0.00, 0.00, 64.25, -64.25),
)
TABLE_2_COLUMNS = ("model", "clean", "APGD_CE", "APGD_DLR", "FAB", "Square", "AutoAttack", "reported", "reduct.")
CIFAR_2 = (
    ("En5RN (Wang et al., 2019), 8/255", "82.39 (0.14)", 48.81, 49.37, None, 78.61, "45.56 (0.20)", 51.48, -5.9),
    ("with AT (Yang et al., 2019), 8/255", "84.9 (0.6)", 30.1, 31.9, None, None, "26.3 (0.85)", 52.8, -26.5),
    ("pure (Yang et al., 2019), 8/255", "87.2 (0.3)", 21.5, 24.3, None, None, "18.2 (0.82)", 40.8, -22.6),
    ("JEM-10 (Grathwohl et al., 2020), 8/255", "90.99 (0.03)", 11.69, 15.88, 63.07, 79.32, "9.92 (0.03)", 47.6, -37.7),
    ("JEM-1 (Grathwohl et al., 2020), 8/255", "92.31 (0.04)", 9.15, 13.85, 62.71, 79.25, "8.15 (0.05)", 41.8, -33.6),
    ("JEM-0 (Grathwohl et al., 2020), 8/255", "92.82 (0.05)", 7.19, 12.63, 66.48, 73.12, "6.36 (0.06)", 19.8, -13.4),
    ("JEM-10 (Grathwohl et al., 2020), 4/255", "91.03 (0.05)", 49.10, 52.55, 78.87, 89.32, "47.97 (0.05)", 72.6, -24.6),
    ("JEM-1 (Grathwohl et al., 2020), 4/255", "92.34 (0.04)", 46.08, 49.71, 78.93, 90.17, "45.49 (0.04)", 67.1, -21.6),
    ("JEM-0 (Grathwohl et al., 2020), 4/255", "92.82 (0.02)", 42.98, 47.74, 82.92, 89.52, "42.55 (0.07)", 50.8, -8.2),
)
TABLE_3_COLUMNS = ("paper", "clean", "AA", "APGD_T", "FAB_T", "AA+", "reported", "reduct.")
CIFAR_3 = (
    ("Carmon et al., 2019", 89.69, 59.65, 59.54, 60.16, 59.50, 62.5, -3.00),
    ("Alayrac et al., 2019", 86.46, 56.92, 56.27, 57.06, 56.01, 56.30, -0.29),
    ("Hendrycks et al., 2019", 87.11, 54.99, 54.94, 55.25, 54.86, 57.4, -2.54),
    ("Rice et al., 2020", 85.34, 53.60, 53.43, 53.83, 53.35, 58.0, -4.65),
    ("Engstrom et al., 2019", 87.03, 49.58, 49.32, 49.81, 49.20, 53.29, -4.09),
    ("Madry et al., 2018", 87.14, 44.29, 44.28, 44.70, 44.01, 47.04, -3.03),
    ("Wong et al., 2020", 83.34, 43.38, 43.22, 43.72, 43.18, 46.06, -2.88),
    ("Ding et al., 2020", 84.36, 45.57, 41.74, 42.37, 41.41, 47.18, -5.77),
    ("Zhang & Wang, 2019", 89.98, 38.78, 37.29, 38.48, 36.42, 60.6, -24.18),
    ("Wang & Zhang, 2019", 92.82, 29.07, 29.73, 29.10, 26.53, 66.9, -40.37),
    ("Chan et al., 2020", 93.79, 0.18, 1.42, 58.72, 0.11, 15.5, -15.39),
    ("Pang et al., 2020", 93.52, 0.00, 0.00, 0.00, 0.00, 31.4, -31.40),
)
MNIST_3 = (
    ("Zhang et al., 2020", 98.38, 93.95, 94.88, 96.84, 93.95, 96.38, -2.43),
    ("Ding et al., 2020", 98.95, 91.32, 94.62, 95.37, 91.32, 92.59, -1.27),
    ("Atzmon et al., 2019", 99.35, 90.85, 94.16, 95.25, 90.85, 97.35, -6.50),
    ("Madry et al., 2018", 98.53, 88.43, 90.57, 92.61, 88.43, 89.62, -1.19),
    ("Wong et al., 2020", 98.50, 82.88, 86.34, 88.28, 82.87, 88.77, -5.90),
)
SECTION_4_2 = (
    ("PGD with momentum, eps/4: the best version of PGD", "54.84", "50.42", "50.47"),
    ("APGD", "54.00", "49.46", "48.53"),
    ("models on which APGD is better than all PGD", "32 of 43", "37 of 43", "35 of 43"),
)
SAME_CODE = "The networks are others, and so are the random starts."

EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "aa/figure-1", "PGD with momentum and Auto-PGD: loss and accuracy over iterations", "Figure 1",
        needs="MNIST and CIFAR-10 with the models of Madry et al. 2018 and TRADES",
        cost="8,800 steps per sample, fewer with --steps",
        published=(
            Table("the figure, in words: four models, 1,000 samples, CE loss", ("what", "outcome"), (
                ("best loss so far", "APGD is the highest for every budget"),
                ("robust accuracy", "APGD is almost always the lowest"),
                ("larger budgets of APGD", "the loss grows more slowly and ends higher"),
                ("PGD with momentum", "the loss plateaus at lower values for every step size"),
            )),
        ),
        measure=_figure_1, uses=(*ONE_MODEL, "steps"),
        differences=f"{SAME_CODE} Here all attacks start at the same points, and losses are means over correctly "
        "classified samples.",
    ),
    Exhibit(
        "aa/figure-2", "Zeros in the gradient and accuracy of PGD over the scale of the logits", "Figure 2",
        needs="CIFAR-10 and the model of Atzmon et al. 2019", cost="700 steps per sample, fewer with --steps",
        published=(
            Table("the figure in words: eps = 0.031, 100 steps of PGD, n = 1,000", ("logits divided by", "outcome"), (
                ("1", "the gradient is zero in almost every coordinate, and PGD finds almost nothing"),
                ("10, 100, 1000", "few zeros, and a much lower robust accuracy"),
            )),
        ),
        measure=_figure_2, uses=(*ONE_MODEL, "steps"),
        differences="A network whose logits are small has no zero gradients at scale 1, so logits are also enlarged "
        "(divided by numbers below 1). The step size of the figure is not given; here it is eps/4.",
    ),
    Exhibit(
        "aa/section-4.2", "Three losses in PGD, PGD with momentum and Auto-PGD", "Section 4.2",
        needs="the 43 Linf models of the paper", cost="2,300 steps per sample and model, fewer with --steps",
        published=(Table("mean robust accuracy in % over 43 models", ("attack", *LOSSES.values()), SECTION_4_2),),
        measure=_section_4_2, uses=(*MODELS, "steps"),
        differences=f"{SAME_CODE} The paper averages over 43 models with and without gradient masking.",
    ),
    Exhibit(
        "aa/table-1", "Each attack of AutoAttack alone, and all together", "Table 1",
        needs="the 49 models of the paper, all test samples", cost="7,000 forwards, 6,000 backwards per robust sample",
        published=(
            Table("CIFAR-10, Linf, eps = 8/255, 12 of 25 models", TABLE_1_COLUMNS, CIFAR_1),
            Table("MNIST, Linf, eps = 0.3", TABLE_1_COLUMNS, MNIST_1),
        ),
        measure=_table_1,
        differences="The networks are others, and n is smaller. Restarts stop once a sample is broken, which changes "
        "no outcome.",
    ),
    Exhibit(
        "aa/table-2", "AutoAttack for randomised defences", "Table 2",
        needs="the 9 randomised models of the paper", cost="24,000 forwards and 4,000 backwards per sample",
        published=(Table("CIFAR-10, Linf", TABLE_2_COLUMNS, CIFAR_2),),
        measure=_table_2,
        differences="The networks are others. Which attack counts for a sample is decided on five passes and measured "
        "on five fresh ones, so AutoAttack can come out above one attack alone. The paper uses the same passes.",
    ),
    Exhibit(
        "aa/table-3", "AutoAttack+: AutoAttack with targeted attacks", "Table 3",
        needs="the 49 models of the paper, all test samples", cost="table 1 and about 3,600 steps per robust sample",
        published=(
            Table("CIFAR-10, Linf, eps = 8/255, 12 of 25 models", TABLE_3_COLUMNS, CIFAR_3),
            Table("MNIST, Linf, eps = 0.3, 5 of 9 models", TABLE_3_COLUMNS, MNIST_3),
        ),
        measure=_table_3,
        differences="The networks are others, and n is smaller. The targeted attacks run once per target, as in the "
        "code of the paper.",
    ),
)  # fmt: skip
