"""Tables and figures of the paper on the binarization test (Zimmermann et al. 2022)."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from brinell.arguments import PlanLike
from brinell.attacks import PGD
from brinell.core.dataset import Problem
from brinell.core.plan import Plan, Stage
from brinell.defences import DEFENCES, find, measure
from brinell.defences.base_networks import held_out_images
from brinell.defences.measure import SAMPLES
from brinell.environment import version
from brinell.evaluation.evaluate import evaluate
from brinell.reliability import AttackTests, test_attack, test_attacks
from brinell.reproduce.exhibit import ONE_MODEL, Exhibit
from brinell.reproduce.setup import Setup
from brinell.results import Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table
from brinell.storage import make_folder, write_atomic

# The weak attack of Figure 1: steps that are 255 times too short, as if pixels went up to 255.
SHORT_STEPS = Plan("pgd-short-steps", (Stage(PGD(20, rel_step=0.25 / 255, random_start=False)),))
ONE_STEP = Plan("pgd-1", (Stage(PGD(1)),))
BOUNDARIES, INNERS, KAPPAS = (1, 3, 10), (49, 99, 199, 499, 999), (0.1, 0.5, 0.9, 0.99, 0.999)


def _share(p: Proportion) -> str:
    """Return a proportion as text: the percentage with its interval and n."""
    return str(p) if p.n else "no sample"


def _common(setup: Setup) -> dict[str, Any]:
    return {"seed": setup.seed, "device": setup.device, "progress": setup.progress}


# ------------------------------------------------------------------------------------------------ tests of given models


def _two_reasons(setup: Setup) -> AnalysisReport:
    """Evaluate every model with a weak and a strong attack, and run the binarization test of both attacks."""
    rows = []
    for name, model in setup.classifiers.items():
        plans: tuple[PlanLike, ...] = (SHORT_STEPS, "apgd")
        tests = test_attacks(model, setup.problem, setup.threat, plans, inner=199, kappa=0.999, **_common(setup)).tests
        for plan, test in zip(plans, tests, strict=True):
            run = evaluate(model, setup.problem, setup.threat, plan, **_common(setup))
            shares = map(_share, (run.robust_accuracy, test.level.score, test.level.rasr))
            rows.append((name, test.attack, *shares, test.verdict))
    columns = ("model", "attack", "robust accuracy", "test score", "R-ASR", "test")
    text = "A high robust accuracy means little where the attack fails the test: the model may be robust or not."
    title = f"a weak and a strong attack, {setup.threat}, kappa = 0.999, 199 inner points"
    return AnalysisReport("binarization", title, text, (Table(title, columns, tuple(rows)),))


def _joined(kind: str, tests: Sequence[AttackTests], text: str) -> AnalysisReport:
    reports = [each.report() for each in tests]
    tables = tuple(table for report in reports for table in report.tables)
    figures = tuple(figure for report in reports for figure in report.figures)
    summary = " ".join([text, *(report.summary for report in reports)])
    return AnalysisReport(kind, text, summary, tables, figures)


def _figure_3(setup: Setup) -> AnalysisReport:
    """Test attacks over κ: the paper's attacks on the gallery's copy of Mustafa et al., or four on the given models."""
    text, common = "Score over the closeness of the decision boundary.", _common(setup)
    if setup != Setup(n=setup.n, seed=setup.seed, device=setup.device, out=setup.out, progress=setup.progress):
        plans: tuple[Any, ...] = (ONE_STEP, "fgsm", "pgd20", "apgd")
        models = setup.classifiers.values()
        common |= {"sweep": "kappa", "values": KAPPAS, "random_queries": 100, "inner": 199}
        tests = [test_attacks(m, setup.problem, setup.threat, plans, **common) for m in models]
        return _joined("binarization", tests, text)
    d = find("separated-features")
    attacked: tuple[PlanLike, ...] = (d.original.plan, "apgd-ce", "fab")
    data = _images(setup)
    swept = test_attacks(d.build(), data, d.threat, attacked, sweep="kappa", inner=d.inner, **common)
    robust = tuple(
        (name, _share(evaluate(d.build(), data, d.threat, plan, **common).robust_accuracy))
        for name, plan in zip(swept.names, attacked, strict=True)
    )
    report = _joined("binarization", [swept], f"{text} The counterpart of Mustafa et al. in the gallery.")
    accuracies = Table(f"robust accuracy of the same network, {d.threat}", ("attack", "robust accuracy"), robust)
    return AnalysisReport(report.kind, report.title, report.summary, (*report.tables, accuracies), report.figures)


def _images(setup: Setup) -> Problem:
    """Return the first n held-out demo images, on which the gallery is measured."""
    return held_out_images(SAMPLES if setup.n is None else setup.n)


def _section_4_3(setup: Setup) -> AnalysisReport:
    """Test attacks over the number of inner points, then over the number of boundary points, at κ = 0.999."""
    model, *_ = setup.classifiers.values()
    data, plans, common = setup.problem, (ONE_STEP, "fgsm", "pgd20", "apgd"), _common(setup)
    common |= {"random_queries": 100}
    swept = test_attacks(model, data, setup.threat, plans, sweep="inner", values=INNERS, **common)
    text = f"Score over the number of inner points, kappa = 0.999. {_inner_effect(swept.report().tables[0].rows)}"
    report = _joined("binarization", [swept], text)
    rows: list[tuple[Cell, ...]] = []
    for count in BOUNDARIES:
        options = {"inner": 199, "boundary": count, "kappa": 0.999, **common}
        tests = test_attacks(model, data, setup.threat, plans, **options)
        rows.append((count, *(_share(t.level.score) for t in tests.tests), _share(tests.tests[0].level.rasr)))
    columns = ("boundary points", *swept.names, "R-ASR")
    table = Table("score over the number of boundary points, 199 inner points, kappa = 0.999", columns, tuple(rows))
    return AnalysisReport(report.kind, report.title, report.summary, (*report.tables, table), report.figures)


def _inner_effect(rows: Sequence[Sequence[Cell]]) -> str:
    """Say whether scores or R-ASR differ between the fewest and the most inner points by more than their intervals.

    >>> _inner_effect([(49, 16, "31.2 [14.2, 55.6]"), (999, 16, "18.8 [6.6, 43.0]")])
    'No effect of 49 to 999 inner points is visible at n = 16: all intervals overlap.'
    """
    ends = [[[float(v) for v in re.findall(r"[\d.]+", str(cell))] for cell in rows[i][2:]] for i in (0, -1)]
    apart = sum(few[1] > many[2] or many[1] > few[2] for few, many in zip(*ends, strict=True))
    counts = f"{rows[0][0]} to {rows[-1][0]} inner points"
    if not apart:
        return f"No effect of {counts} is visible at n = {rows[0][1]}: all intervals overlap."
    return f"From {counts}, {apart} of {len(ends[0])} columns change by more than their intervals."


def _appendix_b(setup: Setup) -> AnalysisReport:
    """Compare boundary points from the corners of the ball with points from its surface, by score and by R-ASR."""
    rows: list[tuple[Cell, ...]] = []
    model, *_ = setup.classifiers.values()
    for corners in (True, False):
        options = {"corners": corners, "inner": 999, "kappa": 0.999, "random_queries": 400, **_common(setup)}
        test = test_attack(model, setup.problem, setup.threat, "pgd20", **options)
        random = [_share(test.level.random[where]) for where in ("corners", "surface")]
        rows.append((test.surface, test.skipped, _share(test.level.score), *random))
    title = f"PGD-20, 999 inner points, 1 boundary point, kappa = 0.999, gap 0.05, 400 random points, {setup.threat}"
    columns = ("boundary points from", "skipped", "score", "R-ASR, inside and corners", "R-ASR, inside and surface")
    text = "Boundary points from the corners make the test harder where R-ASR is lower in the first row."
    return AnalysisReport("binarization", title, text, (Table(title, columns, tuple(rows)),))


# ---------------------------------------------------------------------------------------------------------- the gallery


def _gallery(setup: Setup, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return the results of the defences as JSON: read from the folder of the exhibit if stored, else measured."""
    folder, n = setup.folder("gallery"), SAMPLES if setup.n is None else setup.n
    make_folder(folder)
    rows = []
    for name in [d.name for d in DEFENCES] if names is None else names:
        path = folder / f"{name}-{n}-{setup.seed}-{version()}.json"
        if not path.exists():
            write_atomic(path, json.dumps(measure([name], n, setup.seed)[0].to_json()).encode())
        rows.append(json.loads(path.read_text()))
    return rows


def _proportion(numbers: dict[str, Any]) -> Proportion:
    return Proportion(numbers["k"], numbers["n"])


def _score(row: dict[str, Any], which: str) -> Proportion:
    """Return the score of the original or the stronger evaluation, in the worse of its tests."""
    return _found(row[which]["test"])


def _found(test: dict[str, Any], rate: str = "score") -> Proportion:
    """Return the share of samples that the attack (or, with "rasr", random points) broke in a test."""
    return Proportion(round((test[rate] or 0) * test["n"]), test["n"])


def _accuracy(row: dict[str, Any], which: str) -> Proportion:
    return _proportion(row[which]["robust_accuracy"])


WHICH = ("original", "stronger")


def _figure_2(setup: Setup) -> AnalysisReport:
    rows = _gallery(setup)
    lines = tuple(
        (r["name"], r["imitates"].split(",")[0], f"{r['original']['test']['kappa']:g}",
         *(_share(_score(r, w)) for w in WHICH), *(r[w]["test"]["verdict"] for w in WHICH))
        for r in rows
    )  # fmt: skip
    columns = ("defence", "imitates", "kappa", "score, original", "score, stronger", "test of the original", "stronger")
    names = tuple(r["name"] for r in rows)
    series = tuple(_series(f"{w} evaluation", names, [_score(r, w) for r in rows]) for w in WHICH)
    caught = sum(r["caught"] for r in rows)
    higher = sum(_score(r, "stronger").value > _score(r, "original").value for r in rows)
    text = (
        f"The original evaluation fails the test for {caught} of {len(rows)} defences; the stronger one scores higher "
        f"for {higher}. Measured in {sum(r['seconds'] for r in rows):.0f} s."
    )
    title = "known adversarials found by the original and by a stronger evaluation"
    figure = Figure(title, "bars", "", "test score (%)", series)
    return AnalysisReport("binarization", title, text, (Table(title, columns, lines),), (figure,))


def _series(name: str, x: Sequence[float | str], shares: Sequence[Proportion]) -> Series:
    parts = ([100 * p.value for p in shares], [100 * p.low for p in shares], [100 * p.high for p in shares])
    return Series(name, tuple(x), *map(tuple, parts))


def _figure_4(setup: Setup) -> AnalysisReport:
    rows = _gallery(setup)
    lines = tuple(
        (r["name"], r["threat"], _share(_proportion(r["clean_accuracy"])), *(_share(_accuracy(r, w)) for w in WHICH),
         *(_share(_score(r, w)) for w in WHICH))
        for r in rows
    )  # fmt: skip
    columns = (
        "defence", "threat", "clean accuracy", "robust accuracy, original", "robust accuracy, stronger",
        "score, original", "score, stronger",
    )  # fmt: skip
    series = tuple(
        _series(f"{w} evaluation", [100 * _score(r, w).value for r in rows], [_accuracy(r, w) for r in rows])
        for w in WHICH
    )
    lower = sum(_accuracy(r, "stronger").k < _accuracy(r, "original").k for r in rows)
    text = f"The stronger evaluation reports a lower robust accuracy for {lower} of {len(rows)} defences."
    title = "robust accuracy over the test score"
    figure = Figure("gallery", "points", "test score (%)", "robust accuracy (%)", series)
    return AnalysisReport("binarization", title, text, (Table(title, columns, lines),), (figure,))


def _section_4_1(setup: Setup) -> AnalysisReport:
    rows, lines = _gallery(setup, ("batch-statistics", "leave-one-out")), []
    for r in rows:
        for w in WHICH:
            test = r[w]["test"]
            both = [t for t in (test, test["other"]) if t is not None]
            scores = "; ".join(f"{t['kind']} {_share(_found(t))}" for t in both).replace("plain ", "")
            lines.append((r["imitates"].split(",")[0], w, scores, _share(_accuracy(r, w))))
    columns = ("defence", "evaluation", "test score", "robust accuracy")
    title = "the counterparts in the gallery"
    caught = sum(r["caught"] for r in rows)
    text = f"The original evaluation fails the test for {caught} of {len(rows)} defences."
    return AnalysisReport("binarization", title, text, (Table(title, columns, tuple(lines)),))


def _section_4_2(setup: Setup) -> AnalysisReport:
    """Test the original evaluation of "masking" over κ, and list the defences that the paper discusses."""
    d, common = find("masking"), _common(setup)
    swept = test_attacks(
        d.original.build(), _images(setup), d.threat, [d.original.plan, d.stronger.plan], sweep="kappa", inner=d.inner,
        **common,
    )  # fmt: skip
    report = _joined("binarization", [swept], "The original gradients of the counterpart of Zhang & Wang.")
    names = ("predicted-label", "masking", "mixup", "separated-features", "adversarial-interpolation", "trapdoor")
    lines = tuple(
        (r["name"], r["imitates"].split(",")[0], *(_share(_score(r, w)) for w in WHICH),
         _share(_found(r["stronger"]["test"], "rasr")), *(r[w]["test"]["verdict"] for w in WHICH))
        for r in _gallery(setup, names)
    )  # fmt: skip
    columns = ("defence", "imitates", "score, original", "score, stronger", "R-ASR", "original", "stronger")
    table = Table("the defences of this section in the gallery", columns, lines)
    return AnalysisReport(report.kind, report.title, report.summary, (*report.tables, table), report.figures)


# -------------------------------------------------------------------------------------------------- what the paper says

FAILS, PASSES = "below 0.95", "0.95 or more"
DEFENCE = ("defence", "score, original attack", "score, improved attack")
FIGURE_2 = (
    ("Buckman et al., thermometer encoding", FAILS, PASSES), ("Xiao et al., k-winners", FAILS, PASSES),
    ("Zhang & Wang, feature scattering", "0.95 or more (R-ASR above 0.75)", PASSES),
    ("Mustafa et al., hidden-space restriction", FAILS, FAILS), ("Pang et al., mixup inference", FAILS, FAILS),
    ("Sen et al., EMPIR", "perfect (wrong labels)", PASSES), ("Sarkar et al., curriculum training", "0.04", "1.0"),
    ("Zhang & Xu, adversarial interpolation", FAILS, FAILS), ("Verma & Swami, output codes", FAILS, PASSES),
    ("Pang et al., MMC", FAILS, PASSES), ("Roth et al., detector", FAILS, PASSES),
    ("Shan et al., trapdoor detector", FAILS, FAILS), ("Yang et al., ML-LOO detector", "0.26", "0.99"),
)  # fmt: skip
SECTION_4_1 = (
    ("Sarkar et al.", "original", "0.04", "60.15 %"), ("Sarkar et al.", "improved", "1.0", "at most 1 %"),
    ("Yang et al.", "original", "regular 0.26, inverted 0.63", "99 %"),
    ("Yang et al.", "improved", "0.99", "below 12 %"),
)  # fmt: skip
SECTION_4_2 = (
    ("Sen et al.", "false positive", "the attack was given the predicted labels"),
    ("Zhang & Wang", "false positive", "R-ASR above 0.75 that could not be decreased: the test is too easy"),
    ("Pang et al. (mixup), Mustafa et al., Zhang & Xu, Shan et al.", "improved attack fails", "it is not optimal"),
)  # fmt: skip
FIGURE_3 = (
    ("PGD (original)", "32.32 %", "falls with kappa"), ("AutoPGD", "8.16 %", "falls with kappa"),
    ("FAB", "0.71 %", "stays at 1.0"), ("random points (R-ASR)", "", "falls with kappa"),
)  # fmt: skip
FIGURE_4 = (
    ("Sarkar et al.", "60.15 %", "at most 1 %"), ("Mustafa et al.", "32.32 %", "8.16 % (AutoPGD), 0.71 % (FAB)"),
    ("Yang et al.", "99 %", "below 12 %"), ("all thirteen", "", "at least 12 points lower"),
)  # fmt: skip
APPENDIX_B = (
    ("samples", "512 of CIFAR-10"), ("inner points", "999; 9,999 for Zhang & Wang"),
    ("boundary points", "1, from the corners; 10 for Zhang & Xu"), ("gap of inner points", "0.05"),
    ("reference points of detectors", "at 1.75 eps"), ("closeness kappa", "0.999"),
    ("random points (R-ASR)", "200 inside and 200 corners"), ("radius", "8/255; 0.01 for Shan et al."),
    ("false positives of detectors", "5 %"), ("pass mark", "0.95"),
)  # fmt: skip
IMITATIONS = (
    "The gallery imitates one flaw of each defence on small networks and demo images, and our original evaluations "
    "count every iterate. The paper attacks the authors' own networks for CIFAR-10; only who passes can be compared."
)
GALLERY = "binarization/figure-2"
POINTS = (
    "R-ASR over kappa takes 400 random points; in the gallery it takes as many as the stronger attack may query (FAB: "
    "200), so it is lower there for the same network."
)
OWN = "Ours is another network and another data set, so only the shape of the curves can be compared."


def _about(name: str, columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> tuple[Table, ...]:
    return (Table(name, columns, rows),)


EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "binarization/figure-1", "Two reasons for a high robust accuracy, and a test that separates them", "Figure 1",
        needs="nothing: the figure is a drawing", cost="seconds for 64 demo images",
        published=_about("a drawing without numbers", ("reason", "what the test shows"), (
            ("the model is robust", "the attack finds the adversarial examples that are known to exist"),
            ("the attack is too weak", "it misses them"),
        )),
        measure=_two_reasons,
        differences="The paper's figure is a drawing. Ours gives a weak and a strong attack as numbers.",
    ),
    Exhibit(
        "binarization/section-4.1", "Two defences that were not broken before", "Section 4.1",
        needs="CIFAR-10 and the networks of Sarkar et al. and Yang et al.", cost="a minute for 32 demo images",
        published=_about("CIFAR-10, eps = 8/255", ("defence", "evaluation", "test score", "robust accuracy"),
                         SECTION_4_1),
        measure=_section_4_1, differences=IMITATIONS, source=GALLERY, uses=("n", "seed"),
    ),
    Exhibit(
        "binarization/figure-2", "The test identifies flawed evaluations", "Figure 2",
        needs="CIFAR-10 and the thirteen networks", cost="4 minutes for 32 demo images, all defences",
        published=_about("thirteen defences, CIFAR-10, pass mark 0.95, as the text and the legend say", DEFENCE,
                         FIGURE_2),
        measure=_figure_2, differences=IMITATIONS, uses=("n", "seed"),
    ),
    Exhibit(
        "binarization/section-4.2", "What the test misses, and improved attacks that fail it", "Section 4.2",
        needs="CIFAR-10 and six networks", cost="2 minutes for 32 demo images",
        published=_about("the cases that the paper explains", ("defence", "case", "reason"), SECTION_4_2),
        measure=_section_4_2, uses=("n", "seed", "device"),
        differences=f"{IMITATIONS} Zhang & Wang's network leaves only an easy test; our copy allows a hard one. "
        f"{POINTS}",
    ),
    Exhibit(
        "binarization/figure-3", "Score over the closeness of the decision boundary", "Figure 3",
        needs="CIFAR-10 and the network of Mustafa et al.", cost="minutes for 32 demo images",
        published=_about("Mustafa et al., CIFAR-10, eps = 8/255", ("attack", "robust accuracy", "score"), FIGURE_3),
        measure=_figure_3,
        differences="Without --model: the counterpart of Mustafa et al. in the gallery, a small network whose features "
        f"move in few directions, so that random points succeed at every kappa. {OWN} {POINTS}",
    ),
    Exhibit(
        "binarization/section-4.3", "Score over the number of inner and boundary points", "Section 4.3",
        needs="CIFAR-10 and the network of a defence", cost="minutes for 32 demo images",
        published=_about("what changes the hardness", ("change", "effect"), (
            ("more inner points", "harder"), ("more boundary points", "easier"),
        )),
        measure=_section_4_3, differences=OWN, uses=ONE_MODEL,
    ),
    Exhibit(
        "binarization/appendix-b", "The settings of the test", "Appendix B",
        needs="CIFAR-10 and the thirteen networks", cost="a minute for 32 demo images",
        published=_about("settings of the paper", ("setting", "value"), APPENDIX_B),
        measure=_appendix_b, differences=OWN, uses=ONE_MODEL,
    ),
    Exhibit(
        "binarization/figure-4", "Robust accuracy over the test score", "Figure 4 (appendix C)",
        needs="CIFAR-10 and the thirteen networks", cost="4 minutes for 32 demo images, all defences",
        published=_about("robust accuracies that the text gives", ("defence", "original", "improved"), FIGURE_4),
        measure=_figure_4, differences=IMITATIONS, source=GALLERY, uses=("n", "seed"),
    ),
)  # fmt: skip
