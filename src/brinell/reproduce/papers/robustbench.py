"""Tables and figures of the RobustBench paper (Croce et al. 2021)."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from brinell import analysis
from brinell.analysis.across_models import ModelResults, across_models
from brinell.analysis.corruptions import Baseline, corruption_accuracy
from brinell.analysis.intervals import interval_series, percent
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.data.catalogue import SETS
from brinell.data.corruptions import corrupted
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.evaluate import evaluate, evaluate_seeds
from brinell.leaderboard import records
from brinell.models import zoo
from brinell.reproduce.exhibit import MODELS, RECORDS, Exhibit
from brinell.reproduce.setup import Setup
from brinell.results import Run
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table
from brinell.results.format.files import file_name

# The plan that measures the robust accuracies of the models at hand; the paper uses AutoAttack.
PLAN = "mm3"
SEED_PLAN, SEEDS = "autoattack", 5
# Shifted data if none is given: corruptions of the data, at this severity.
SHIFTS, SEVERITY = ("gaussian_noise", "fog", "jpeg_compression"), 3
BOARD = "cifar10/Linf/"

MANY = "The paper's points are 33 or more models of its zoo; ours are the networks at hand"
ATTACK = "the robust accuracies come from MM3, which is cheaper than AutoAttack and leaves a few samples more"


def _runs(setup: Setup) -> list[Run]:
    """Return one Run per model on the data of the setup; Runs stored by an earlier call are continued."""
    found = []
    for name, model in setup.classifiers.items():
        folder = setup.folder(file_name(name))
        found.append(
            evaluate(
                model, setup.problem, setup.threat, PLAN, out=folder, resume=folder.exists(),
                execution=setup.execution, progress=setup.progress,
            )
        )  # fmt: skip
    return found


def _points(setup: Setup, measure: Callable[[Classifier, Run | None], Any]) -> ModelResults[Any]:
    return across_models(setup.models, measure, runs=_runs(setup), device=setup.device)


def _report(setup: Setup, found: ModelResults[Any], note: str = "") -> AnalysisReport:
    """Return the table and figures of all models, with threat, plan and number of samples in the title."""
    report, n = found.findings(), len(setup.problem)
    title = f"{report.title}, {setup.threat}, plan {PLAN}, n = {n:,}{note}"
    return replace(report, title=title, tables=(replace(report.tables[0], title=title), *report.tables[1:]))


def _others(setup: Setup) -> dict[str, Problem]:
    """Return the data sets of --other by name or, if none are given, three corruptions of the data."""
    return setup.others or {
        f"{name} {SEVERITY}": corrupted(setup.problem, name, SEVERITY, setup.seed) for name in SHIFTS
    }


def _figure_1(setup: Setup) -> AnalysisReport:
    board = records.ranked(r for r in records.published() if r.key.startswith(BOARD))
    rows = [
        (then[0], board.index(r) + 1, r.name, r.clean, r.best, "yes" if r.extra_data else "no", r.architecture, r.venue)
        for then in FIGURE_1
        for r in [next(r for r in board if (r.clean, r.best) == (then[2], then[3]))]
    ]
    columns = ("rank then", "rank now", "model", "clean, %", "robust, %", "extra data", "architecture", "venue")
    return AnalysisReport(
        "figure-1", "Leaderboard",
        f"The three models of the paper among today's {len(board)} records; nothing was measured.",
        (Table("The paper's top 3 in the stored leaderboard cifar10/Linf", columns, tuple(rows)),),
    )  # fmt: skip


def _figure_2(setup: Setup) -> AnalysisReport:
    board = [r for r in records.published() if r.key.startswith(BOARD) and r.best is not None]
    venues = Counter(re.split(r",|<br>|\d{4}", r.venue)[0].strip() for r in board).most_common()
    over = [r for r in board if r.overestimation is not None]
    worst = sorted(over, key=lambda r: -(r.overestimation or 0))
    tables = (
        Table(f"{len(board)} models by venue", ("venue", "models"), tuple(venues)),
        Table(
            "The largest differences between reported and measured robust accuracy",
            ("model", "reported, %", "measured, %", "difference"),
            tuple((r.name, r.reported, r.best, round(r.overestimation or 0, 2)) for r in worst[:8]),
        ),
    )

    def points(name: str, extra: bool) -> Series:
        of = [r for r in board if bool(r.extra_data) == extra and r.clean is not None]
        return Series(name, tuple(r.clean or 0.0 for r in of), tuple(r.best or 0.0 for r in of))

    figures = (
        Figure("Venues", "bars", "venue", "models",
               (Series("models", tuple(v for v, _ in venues[:8]), tuple(float(k) for _, k in venues[:8])),)),
        Figure("Reported and measured", "points", "reported robust accuracy, %", "robust accuracy, %",
               (Series("models", tuple(r.reported or 0.0 for r in over), tuple(r.best or 0.0 for r in over)),), True),
        Figure("Trade-off", "points", "clean accuracy, %", "robust accuracy, %",
               (points("no extra data", False), points("extra data", True))),
    )  # fmt: skip
    share = sum((r.overestimation or 0) > 0 for r in over)
    summary = (
        f"{share} of {len(over)} models with a reported number were reported too robust, by up to "
        f"{worst[0].overestimation:.1f} points. These are the stored records; nothing was measured."
    )
    return AnalysisReport("figure-2", "Progress of defences", summary, tables, figures)


def _table_1(setup: Setup) -> AnalysisReport:
    rows: list[tuple[Cell, ...]] = []
    listed = {r.key for r in records.published()}  # the zoo has models of other papers too
    for threat in ("Linf", "L2", "corruptions"):
        line: list[Cell] = [threat]
        for data in ("cifar10", "cifar100", "imagenet"):
            cards = [c for c in zoo.cards().values() if (c.data, c.threat) == (data, threat) and c.name in listed]
            line += [len(cards), sum((r.dataset, r.threat) == (data, threat) for r in records.published())]
        rows.append(tuple(line))
    columns = ("threat", *(f"{d}, {w}" for d in ("CIFAR-10", "CIFAR-100", "ImageNet") for w in ("zoo", "leaderboard")))
    table = Table("Models in the zoo and records on the leaderboards", columns, tuple(rows))
    return AnalysisReport("table-1", "Models", "The counts of the stored cards and records.", (table,))


def _shift(setup: Setup, robust: bool = False) -> AnalysisReport:
    others = _others(setup)

    def measure(model: Classifier, run: Run | None) -> analysis.Shift:
        folder = setup.folder(f"shift-{file_name(model.name)}")
        return analysis.shift(
            model, setup.problem, others, threat=setup.threat if robust else None, plan=PLAN, out=folder,
            resume=folder.exists(), progress=setup.progress, seed=setup.seed, device=setup.device,
        )  # fmt: skip

    if robust:
        return _report(setup, across_models(setup.models, measure, device=setup.device))
    return _report(setup, _points(setup, measure))


def _calibration(setup: Setup) -> AnalysisReport:
    data = setup.problem
    return _report(setup, _points(setup, lambda m, _: analysis.calibration(m, data, seed=setup.seed)))


def _ood(setup: Setup) -> AnalysisReport:
    data, others = setup.problem, _others(setup) if setup.other else None
    return _report(setup, _points(setup, lambda m, _: analysis.detection(m, data, others, seed=setup.seed)))


def _fairness(setup: Setup) -> AnalysisReport:
    found = analysis.across_runs(_runs(setup), lambda run: analysis.fairness(run, seed=setup.seed))
    report = _report(setup, found)
    classes = [c.name for c in found.measured[0].result.classes]  # type: ignore[union-attr]
    rows = tuple(
        (m.model, what, *(percent(getattr(c, what)) for c in m.result.classes))
        for m in found.measured
        if m.result is not None
        for what in ("clean", "robust")
    )
    sizes = [f"{c.name}, n = {c.clean.n}" for c in found.measured[0].result.classes]  # type: ignore[union-attr]
    lines = tuple(
        interval_series(m.model, classes, [c.robust for c in m.result.classes])
        for m in found.measured
        if m.result is not None
    )
    by_class = Figure("Robust accuracy by class", "bars", "class", "robust accuracy, %", lines)
    table = Table("Accuracy by class, % [95 % interval]", ("model", "accuracy", *sizes), rows)
    return replace(report, tables=(*report.tables, table), figures=(by_class, *report.figures))


def _privacy(setup: Setup) -> AnalysisReport:
    if setup.data not in SETS:
        raise InputError(
            expected="data with a training split, because the training samples are the members",
            got=setup.data,
            remedy="Give --data cifar10 or another data set of brinell data list.",
        )
    members, others = coerce.as_problem(f"{setup.data},split=train", setup.n), setup.problem
    return _report(
        setup,
        _points(setup, lambda m, _: analysis.privacy(m, members, others, threat=setup.threat, seed=setup.seed)),
        f"; {len(members):,} members and {len(others):,} others",
    )


def _seeds(setup: Setup) -> AnalysisReport:
    rows, summaries = [], []
    for name, model in setup.classifiers.items():
        folder = setup.folder(f"seeds-{file_name(name)}")
        found = evaluate_seeds(
            model, setup.problem, setup.threat, SEED_PLAN, seeds=SEEDS, seed=setup.seed, out=folder,
            resume=folder.exists(), device=setup.device, progress=setup.progress,
        )  # fmt: skip
        clean, seconds = found.runs[0].clean_accuracy, sum(run.cost.seconds for run in found.runs) / SEEDS
        each = ", ".join(f"{100 * a:.2f}" for a in found.accuracies)
        mean = f"{100 * found.mean:.2f} ± {100 * found.deviation:.2f}"
        rows.append((name, percent(clean), mean, each, percent(found.worst), clean.n, round(seconds, 1)))
        summaries.append(f"{name}: {found}.")
    columns = (
        "model",
        "clean, %",
        "robust, %: mean ± deviation",
        "by seed",
        "under every seed",
        "n",
        "seconds",
    )
    title = f"{SEED_PLAN} with {SEEDS} seeds, {setup.threat}"
    return AnalysisReport("appendix-c", title, " ".join(summaries), (Table(title, columns, tuple(rows)),))


def _transfer(setup: Setup) -> AnalysisReport:
    names = list(setup.classifiers)
    runs = dict(zip(names, _runs(setup), strict=True))
    found = analysis.transfer(runs, setup.classifiers, setup.problem, device=setup.device)
    return found.findings()


def _smoothness(setup: Setup) -> AnalysisReport:
    data = setup.problem[:32]

    def measure(model: Classifier, _: Run | None) -> analysis.Smoothness:
        return analysis.smoothness(model, data, setup.threat, layers=(), steps=setup.steps or 50, seed=setup.seed)

    return _report(setup, _points(setup, measure), f"; constants on {len(data)} of them")


def _corruptions(setup: Setup) -> AnalysisReport:
    data = setup.problem
    reports = {
        name: corruption_accuracy(model, data, seed=setup.seed, device=setup.device)
        for name, model in setup.classifiers.items()
    }
    last_name, last = list(reports.items())[-1]
    clean = None if last.clean is None else 1 - last.clean.value
    errors = {setting: 1 - p.value for setting, p in last.accuracy.items()}
    baseline = Baseline(last_name, {}, errors, clean)
    rows: list[tuple[Cell, ...]] = []
    kinds = last.names
    for name, r in reports.items():
        mce = r.mce(baseline)
        cells = (percent(r.clean) if r.clean else "", percent(r.mean), None if mce is None else round(100 * mce, 1))
        rows.append((name, *cells, *(percent(r.mean_of(kind)) for kind in kinds)))
    columns = ("model", "clean, %", "mean of 75 settings, %", f"mCE against {last_name}, %", *kinds)
    bars = tuple(interval_series(name, kinds, [r.mean_of(k) for k in kinds]) for name, r in reports.items())
    title = f"Accuracy under 15 corruptions at 5 severities, n = {len(data):,}"
    return AnalysisReport(
        "corruptions", title, " ".join(f"{name}: {r.mean}." for name, r in reports.items()),
        (Table(f"{title}; mCE without interval", columns, tuple(rows)),),
        (Figure(title, "bars", "corruption", "mean accuracy, %", bars),),
    )  # fmt: skip


# The paper's numbers.
FIGURE_1 = (
    (1, "Fixing Data Augmentation to Improve Adversarial Robustness", 92.23, 66.56, "yes", "WideResNet-70-16",
     "arXiv, Mar 2021"),
    (2, "Uncovering the Limits of Adversarial Training against Norm-Bounded Adversarial Examples", 91.10, 65.87, "yes",
     "WideResNet-70-16", "arXiv, Oct 2020"),
    (3, "Fixing Data Augmentation to Improve Adversarial Robustness", 88.50, 64.58, "no", "WideResNet-106-16",
     "arXiv, Mar 2021"),
)  # fmt: skip
TABLE_1 = (("Linf, 8/255", 33, 55, 12, 12), ("L2, 0.5", 14, 14, None, None), ("corruptions", 7, 12, 2, 4))
NO_APPENDIX = "the figures of the appendix were not at hand, only the sentences of the main text about them"


def _says(*sentences: str) -> tuple[Table, ...]:
    return (Table("what the text says", ("finding",), tuple((s,) for s in sentences)),)


ZOO = "CIFAR-10 and the Linf models of the zoo"
L2_ZOO = "the L2 models of the zoo (networks trained in L2) and CIFAR-10"

EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "robustbench/figure-1", "The top 3 of the leaderboard CIFAR-10, Linf", "Figure 1",
        needs="nothing: stored records", cost="seconds",
        published=(Table("CIFAR-10, Linf, 8/255", ("rank", "method", "clean, %", "robust, %", "extra data",
                                                   "architecture", "venue"), FIGURE_1),),
        measure=_figure_1, source=RECORDS, uses=(),
        differences="The leaderboard has grown since the paper, so the ranks differ. The records are copied, not run.",
    ),
    Exhibit(
        "robustbench/figure-2", "Venues, over-estimation and trade-off of 54 models", "Figure 2",
        needs="nothing: stored records", cost="seconds",
        published=_says(
            "54 models of the CIFAR-10 Linf leaderboard, 8/255",
            "for multiple published defences the reported robust accuracy is highly overestimated",
            "extra data alleviates the trade-off between robustness and accuracy",
            "all models with high robustness have a lower clean accuracy than standard models",
        ),
        measure=_figure_2, source=RECORDS, uses=(),
        differences="The records are those of today, with more models than the paper's 54. Venues are updated there.",
    ),
    Exhibit(
        "robustbench/table-1", "Models in the zoo and on the leaderboards", "Table 1",
        needs="nothing: stored cards and records", cost="seconds",
        published=(Table("models", ("threat", "CIFAR-10, zoo", "CIFAR-10, leaderboard", "CIFAR-100, zoo",
                                    "CIFAR-100, leaderboard"), TABLE_1),),
        measure=_table_1, source=RECORDS, uses=(),
        differences="Zoo and leaderboards have grown since the paper. Cards without loadable weights are counted.",
    ),
    Exhibit(
        "robustbench/section-3.1", "Mean accuracy over common corruptions", "Section 3.1",
        needs="CIFAR-10-C and the models of the zoo", cost="75 forwards per sample and model",
        published=_says("the score is the mean accuracy over corruption types and severities"),
        measure=_corruptions, uses=("models", "data", "n", "seed", "device"),
        differences="The corruptions are generated from the first n images, keyed by the seed, not read from "
        "CIFAR-10-C. The mean corruption error is relative to the last model given, since AlexNet's is for ImageNet.",
    ),
    Exhibit(
        "robustbench/figure-3", "Accuracy under distribution shift", "Figure 3",
        needs=f"{ZOO}; CIFAR-10-C, CIFAR-10.1 and CINIC-10", cost="a Run and 4 forwards per sample and model",
        published=_says(
            "higher robust accuracy on CIFAR-10 goes with higher standard accuracy on shifted data",
            "robust models, particularly in L2, improve clearly on CIFAR-10-C",
        ),
        measure=_shift, uses=(*MODELS, "other"),
        differences=f"{MANY}, and {ATTACK}. Without --other the shifted data are three corruptions of the same images.",
    ),
    Exhibit(
        "robustbench/figure-4", "Calibration error before and after temperature scaling", "Figure 4",
        needs=ZOO, cost="a Run and 1 forward per sample and model",
        published=_says(
            "without scaling the ECE is up to 70 % (Pang et al.) and 21 % on average, 4 % for the standard model",
            "the best temperature is below 1 for most robust models: they are underconfident",
            "only the standard model and that of Ding et al. are overconfident",
        ),
        measure=_calibration, differences=f"{MANY}, and {ATTACK}. The error of few samples is biased upwards.",
    ),
    Exhibit(
        "robustbench/figure-5", "Detection of out-of-distribution inputs", "Figure 5",
        needs=f"{ZOO}; CIFAR-100, SVHN and Describable Textures", cost="a Run and 4 forwards per sample and model",
        published=_says("robust training lowers the AUROC, compared with standard training",
                        "extra data do not help as they do in standard training"),
        measure=_ood, uses=(*MODELS, "other"),
        differences=f"{MANY}, and {ATTACK}. Without --other the foreign data are three kinds of noise.",
    ),
    Exhibit(
        "robustbench/figure-6", "Robust accuracy by class, and its relative deviation", "Figure 6",
        needs=ZOO, cost="a Run per model",
        published=_says("better robust accuracy generally goes with a lower RSD over classes",
                        "MART has a higher RSD than others of similar robustness (about 57 %)",
                        "the class deer loses most in Linf"),
        measure=_fairness, differences=f"{MANY}, and {ATTACK}. With n samples a class has about n / 10.",
    ),
    Exhibit(
        "robustbench/figure-7", "Membership inference over robustness and generalisation gap", "Figure 7",
        needs=f"{ZOO}; training and test data", cost="a Run and 10 steps of PGD on 2 n samples per model",
        published=_says("not every robust model leaks more than a standard one",
                        "leakage does not correlate strongly with robust accuracy",
                        "it is largely determined by the generalisation gap"),
        measure=_privacy, differences=f"{MANY}, and {ATTACK}. The best threshold of few samples is biased upwards.",
    ),
    Exhibit(
        "robustbench/appendix-c", "Robust accuracy over random seeds, and runtime", "Appendix C",
        needs="models of the zoo and a GPU", cost="5 times AutoAttack",
        published=_says(f"small variability over seeds ({NO_APPENDIX})"),
        measure=_seeds, differences=f"Another network and fewer samples; {NO_APPENDIX}. Seconds are of this machine.",
    ),
    Exhibit(
        "robustbench/figure-10", "Robust accuracy under distribution shift", "Appendix D, Figure 10",
        needs=f"{ZOO}; CIFAR-10-C, CIFAR-10.1 and CINIC-10", cost="a Run per model and data set",
        published=_says("robust accuracies on CIFAR-10 and on its variations correlate clearly"),
        measure=lambda setup: _shift(setup, robust=True), uses=(*MODELS, "other"),
        differences=f"{MANY}, and {ATTACK}. Without --other the shifted data are three corruptions of the same images.",
    ),
    Exhibit(
        "robustbench/appendix-d-calibration", "Calibration of L2-robust models", "Appendix D, calibration",
        needs=L2_ZOO, cost="a Run and 1 forward per sample and model",
        published=_says("L2-robust models can be better calibrated by default; after scaling the advantage vanishes"),
        measure=_calibration, differences=f"Give models trained in L2 with --norm L2 --eps 0.5; {NO_APPENDIX}.",
    ),
    Exhibit(
        "robustbench/figure-12", "Detection of out-of-distribution inputs by L2-robust models", "Appendix D, Figure 12",
        needs=f"{L2_ZOO}; CIFAR-100, SVHN and Describable Textures",
        cost="a Run and 4 forwards per sample and model",
        published=_says("L2-robust models detect about as well as standard ones; that of Augustin et al. does better"),
        measure=_ood, uses=(*MODELS, "other"),
        differences=f"Give models trained in L2 with --norm L2 --eps 0.5; {NO_APPENDIX}.",
    ),
    Exhibit(
        "robustbench/appendix-d-fairness", "Robust accuracy by class of L2-robust models", "Appendix D, fairness",
        needs=L2_ZOO, cost="a Run per model",
        published=_says("in L2 the class deer does not lose as much as in Linf"),
        measure=_fairness, differences=f"Give models trained in L2 with --norm L2 --eps 0.5; {NO_APPENDIX}.",
    ),
    Exhibit(
        "robustbench/appendix-d-transfer", "Transfer of adversarial examples between models", "Appendix D, transfer",
        needs=ZOO, cost="a Run per model and 1 forward per sample and pair",
        published=_says("strong transfer from robust to robust, from non-robust to robust and among non-robust models",
                        "poor transfer from robust to non-robust models"),
        measure=_transfer, differences=f"{MANY}, all trained to be robust. Small perturbations seldom transfer.",
    ),
    Exhibit(
        "robustbench/appendix-d-smoothness", "Smoothness and robustness", "Appendix D, smoothness",
        needs=ZOO, cost="about 400 forwards and backwards for each of 32 samples and model",
        published=_says("for a fixed architecture, standard training gives much less smooth classifiers"),
        measure=_smoothness, uses=(*MODELS, "steps"),
        differences="The networks at hand have different architectures, and the constants grow with the scale of the "
        "logits. Only the output is measured, on 32 samples.",
    ),
)  # fmt: skip
