"""Run the binarization test of several attacks on the same classifiers, at one hardness or at several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.core.threat import Threat
from brinell.errors import InputError, one_of
from brinell.reliability.binarization.result import BinarizationTest, KappaLevel, bracketed
from brinell.reliability.binarization.test import KAPPAS, run_tests
from brinell.reliability.binarization.trials import POINTS
from brinell.results import Proportion
from brinell.results.analyses import AnalysisReport, Cell, Figure, Series, Table

KAPPA, INNER = "kappa", "inner"
SWEEPS = (KAPPA, INNER)
# Numbers of inner points of a sweep, as far as they are below the one of the test.
INNERS = (49, 99, 199, 499, 999, 1999, 4999)
# Zimmermann et al. 2022, appendix B: the closeness of a sweep over inner points.
PAPER_KAPPA = 0.999
AXIS = {KAPPA: "closeness κ of the decision boundary", INNER: "inner points per sample"}


@dataclass(frozen=True)
class HardnessPoint:
    """The outcomes of all attacks (`levels`) at one hardness: a closeness κ and a number of inner points."""

    kappa: float
    inner: int
    levels: tuple[KappaLevel, ...]

    @property
    def rasr(self) -> Proportion:
        """R-ASR with the largest number of random points among the attacks."""
        return max(self.levels, key=lambda level: level.queries).rasr

    def to_json(self) -> dict[str, Any]:
        return {"kappa": self.kappa, "inner": self.inner, "levels": [level.to_json() for level in self.levels]}


@dataclass(frozen=True)
class AttackTests:
    """The binarization tests of several attacks on the same classifiers.

    `tests` has one test per attack, which decides if the attack passes. `sweep` is the quantity that was varied,
    "kappa", "inner" or None, and `points` are the outcomes at each hardness, easiest first.
    """

    tests: tuple[BinarizationTest, ...]
    sweep: str | None = None
    points: tuple[HardnessPoint, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every attack passes its test."""
        return all(test.passed for test in self.tests)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the attacks; a name that occurs twice gets a number."""
        plain = [test.attack for test in self.tests]
        counts = [plain[: i + 1].count(name) for i, name in enumerate(plain)]
        return tuple(name if k == 1 else f"{name} ({k})" for name, k in zip(plain, counts, strict=True))

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed, "sweep": self.sweep, "attacks": list(self.names),
            "tests": [test.to_json() for test in self.tests], "points": [point.to_json() for point in self.points],
        }  # fmt: skip

    def report(self) -> AnalysisReport:
        """Return a table of the scores and, after a sweep, a figure of the scores over the hardness."""
        first, names = self.tests[0], self.names
        title = f"{first.model}, {first.threat}: known adversarials found, % [95 % interval]"
        summary = "; ".join(
            f"{name}: {test.verdict}, {test.level.score}" for name, test in zip(names, self.tests, strict=True)
        )
        if self.sweep is None:
            columns = ("attack", "kappa", "n", "score", "R-ASR", "verdict")
            table = Table(title, columns, tuple(self._line(i) for i in range(len(names))))
            return AnalysisReport("binarization", title, f"{summary}.", (table,))
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (self._at(p), p.levels[0].score.n, *(_share(level.score) for level in p.levels), _share(p.rasr))
            for p in self.points
        )
        table = Table(title, (self.sweep, "n", *names, "R-ASR"), rows)
        curves = [*([level.score for level in column] for column in zip(*(p.levels for p in self.points), strict=True))]
        drawn = [*zip(names, curves, strict=True), ("random points", [p.rasr for p in self.points])]
        x = tuple(self._at(p) for p in self.points)
        series = tuple(_series(name, x, shares) for name, shares in drawn)
        figure = Figure(first.model, "line", f"{AXIS[self.sweep]}, {first.threat}", "score (%)", series)
        return AnalysisReport("binarization", title, f"{summary}.", (table,), (figure,))

    def _line(self, i: int) -> tuple[Cell, ...]:
        test = self.tests[i]
        shares = (_share(test.level.score), _share(test.level.rasr))
        return (self.names[i], f"{test.kappa:g}", test.n, *shares, test.verdict)

    def _at(self, p: HardnessPoint) -> str:
        return f"{p.kappa:g}" if self.sweep == KAPPA else str(p.inner)


def _share(p: Proportion) -> str:
    return bracketed(p).replace(" %", "") if p.n else ""


def _series(name: str, x: tuple[str, ...], shares: Sequence[Proportion]) -> Series:
    kept = [(at, p) for at, p in zip(x, shares, strict=True) if p.n]
    values = ([100 * v for v in (p.value, p.low, p.high)] for _, p in kept)
    y, low, high = zip(*values, strict=True) if kept else ((), (), ())
    return Series(name, tuple(at for at, _ in kept), y, low, high)


def test_attacks(
    classifier: ModelLike, problem: DataLike, threat: Threat, attacks: Iterable[PlanLike],
    *, sweep: str | None = None, values: Sequence[int | float] | None = None, inner: int = 999,
    kappa: float | None = None, curve: bool = False, random_queries: int | None = None, **options: Any,
) -> AttackTests:  # fmt: skip
    """Run the binarization test of several attacks on the same classifiers, at one hardness or at several.

    Method: every attack is tested as by `brinell.test_attack`, which explains the other arguments; readouts are fitted
    once. `sweep="kappa"` tests all attacks at every κ in `values` (default: the usual κ); the κ that `test_attack`
    would choose decides the verdict. `sweep="inner"` repeats the test with 49, 99, 199, … up to `inner` points (or the
    numbers in `values`) at κ = 0.999 unless `kappa` is given; the test with most inner points decides. In a sweep,
    R-ASR uses 400 random points for every attack unless `random_queries` is given. Reference: Zimmermann et al. 2022,
    sec. 4.3, Figure 3.

    >>> import brinell
    >>> data, threat = brinell.data.load("demo", 4), brinell.Linf(0.1)
    >>> two = test_attacks("demo", data, threat, ["fgsm", "pgd20"], inner=49, kappa=0.9, progress=False)
    >>> two.names, two.tests[1].score
    (('fgsm', 'pgd20'), 1.0)
    """
    plans = list(attacks)
    if not plans:
        raise InputError(expected="at least one attack", got="no attack", remedy='Pass e.g. ["pgd20", "apgd"].')
    if sweep is None:
        if values is not None:
            raise InputError(
                expected="`values` together with `sweep`", got="only `values`", remedy="Add sweep='kappa' or 'inner'."
            )
        levels: Sequence[int | float] = KAPPAS if kappa is None else (kappa,)
        common = {"levels": levels, "curve": curve, "random_queries": random_queries, **options}
        return AttackTests(tuple(run_tests(classifier, problem, threat, plans, inner=inner, **common)))
    one_of("a sweep", sweep, SWEEPS)
    common = {"random_queries": POINTS if random_queries is None else random_queries, "curve": True, **options}
    if sweep == KAPPA:
        if kappa is not None:
            raise InputError(
                expected="a sweep over kappa without a fixed kappa", got=f"kappa={kappa:g}", remedy="Omit `kappa`."
            )
        levels = KAPPAS if values is None else tuple(sorted(values, reverse=True))
        tests = run_tests(classifier, problem, threat, plans, inner=inner, levels=levels, **common)
        return AttackTests(tuple(tests), sweep, _by_kappa(tests))
    wrong = [v for v in values or () if v < 1 or not float(v).is_integer()]
    if wrong:
        raise InputError(
            expected="whole numbers of inner points, at least 1",
            got=", ".join(f"{v:g}" for v in wrong),
            remedy="Pass e.g. values=[49, 99, 499] (--values 49,99,499).",
        )
    counts = sorted({int(v) for v in values} if values is not None else {*(i for i in INNERS if i < inner), inner})
    points = []
    for count in counts:
        level = (PAPER_KAPPA if kappa is None else kappa,)
        tests = run_tests(classifier, problem, threat, plans, inner=count, levels=level, **common)
        points.append(HardnessPoint(level[0], count, tuple(test.level for test in tests)))
    return AttackTests(tuple(tests), sweep, tuple(points))


# Keep pytest from collecting this function as a test.
setattr(test_attacks, "__test__", False)  # noqa: B010


def _by_kappa(tests: Sequence[BinarizationTest]) -> tuple[HardnessPoint, ...]:
    """Return one HardnessPoint per κ, easiest first, with the levels of all attacks."""
    columns = zip(*(test.curve for test in tests), strict=True)
    return tuple(HardnessPoint(levels[0].kappa, tests[0].inner, levels) for levels in columns)[::-1]
