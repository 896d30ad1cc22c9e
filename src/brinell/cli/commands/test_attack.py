"""The command `brinell test-attack`: the binarization test of an attack."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from brinell.analysis.across_models import ModelResults, across_models
from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.terminal import exit_if_failed, make_table, percent, print_lines, print_table
from brinell.core.model import Classifier
from brinell.core.threat import threat
from brinell.reliability.binarization.result import PLAIN, BinarizationTest
from brinell.reliability.binarization.several import AttackTests
from brinell.reliability.binarization.several import test_attacks as binarization_tests
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Proportion


def command(
    *,
    target: options.TargetsFlags,
    plan: Annotated[
        list[str] | None,
        typer.Option(help="Plan to test; default: apgd. Repeat, or list with commas, for several."),
    ] = None,
    attacks: options.Attacks = None,
    n: options.N = None,
    kind: Annotated[
        str | None, typer.Option(help="For a model with a detector: regular, inverted or both; default: both.")
    ] = None,
    inner: Annotated[int, typer.Option(help="Inner points per sample; more points make the test harder.")] = 999,
    boundary: Annotated[int, typer.Option(help="Boundary points per sample; more points make the test easier.")] = 1,
    surface: Annotated[
        bool,
        typer.Option("--surface", help="Draw boundary points on the surface of the Linf ball, not at its corners."),
    ] = False,
    gap: Annotated[str, typer.Option(help="Share of eps: inner points lie within radius (1 - gap) eps.")] = "0.05",
    kappa: Annotated[
        float | None, typer.Option(help="Difficulty, from 0 (easy) to 1 (hard); default: chosen by the test.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Test every kappa, also those below the chosen one.")] = (
        False
    ),
    sweep: Annotated[
        str | None, typer.Option(help="Repeat the test at several values of kappa, or of inner (the inner points).")
    ] = None,
    values: Annotated[str | None, typer.Option(help="Values of the sweep, e.g. 0.5,0.9,0.99 or 49,99,499.")] = None,
    readout: Annotated[str, typer.Option(help="Readout: linear, ensemble, prototypes or neighbours.")] = "linear",
    layer: Annotated[str | None, typer.Option(help="Name of the readout layer, or several: head1,head2.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Strong plan that must solve the test; default: chosen for the threat.")
    ] = None,
    random_queries: Annotated[
        int | None, typer.Option(help="Queries of the random baseline; default: the query limit of the plan.")
    ] = None,
    plot: options.Plot = None,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Test attacks on problems with a known adversarial example; exit code 1 unless all attacks pass."""
    if plot is not None and sweep is None:
        raise typer.BadParameter("--plot draws a sweep: add --sweep kappa or --sweep inner.")
    check_plot_path(plot)
    names = [name.strip() for text in plan or ["apgd"] for name in text.split(",")]
    plans = [chosen.plan("", attacks)] if attacks else [chosen.plan(name, None) for name in names]
    problem, ball = load.data(target.data, n, None), threat(target.norm, target.eps)

    def measure(m: Classifier, _: object = None) -> AttackTests:
        return binarization_tests(
            m, problem, ball, plans, sweep=sweep, values=None if values is None else _numbers(values), kind=kind,
            inner=inner, boundary=boundary, corners=False if surface else None, gap=options.share(gap, "--gap"),
            kappa=kappa, curve=curve, readout=readout,
            layer=None if layer is None else [name.strip() for name in layer.split(",")],
            reference=reference, random_queries=random_queries, progress=output.progress, **compute.arguments(),
        )  # fmt: skip

    only = load.only_model(target.model)
    if only is None:
        if plot is not None:
            raise typer.BadParameter("--plot draws the sweep of one model: omit --plot, or give one --model.")
        show_models(across_models(target.model, measure), output)
        return
    result = measure(load.model(only))
    if plot is not None:
        from brinell.analysis.plot import plot as draw

        draw(result.report(), plot)
    alone = result.tests[0] if len(plans) == 1 and sweep is None else None
    if alone is not None:
        output.print(alone.to_json, lambda console: show(alone, console))
    else:
        output.print(result.to_json, lambda console: show_several(result, console))
    if not result.passed:
        raise typer.Exit(1)


def show_models(results: ModelResults[AttackTests], output: options.PrintFlags) -> None:
    """Print the tests of each model; exit with code 2 if a model had an error, with 1 if an attack did not pass."""
    tests = {m.model: m.result for m in results.measured if m.result is not None}
    columns = ("model", "attack", ">kappa", ">n", ">score, %", ">R-ASR, %", "verdict")
    rows = [(model, name, *line) for model, found in tests.items() for name, line in _lines(found)]
    output.print(
        lambda: {model: found.to_json() for model, found in tests.items()},
        lambda console: print_table(make_table("binarization test of many models", columns, rows), console),
    )
    exit_if_failed(results)
    if not all(found.passed for found in tests.values()):
        raise typer.Exit(1)


def _lines(found: AttackTests) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, test in zip(found.names, found.tests, strict=True):
        level = test.level
        yield name, (
            f"{level.kappa:g}", str(level.score.n), _percent(level.score), _percent(level.rasr), str(test.verdict)
        )  # fmt: skip


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--values takes numbers with commas between them, not {text}.") from error


def show_several(result: AttackTests, console: Console) -> None:
    """Print the scores of all attacks in one table, then a paragraph for each attack."""
    for table in result.report().tables:
        columns = [f">{name}" for name in table.columns]
        print_table(make_table(table.title, columns, ([str(c) for c in row] for row in table.rows)), console)
    print_lines(console, *(line for test in result.tests for line in (str(test), *test.notes)))


def show(test: BinarizationTest, console: Console) -> None:
    """Print a table of the difficulties (kappa), hardest first, then the result; of two tests, the worse first."""
    for one in (test,) if test.other is None else (test, test.other):
        if one.curve:
            _print_levels(one, console)
    print_lines(console, str(test), *test.notes)


def _print_levels(test: BinarizationTest, console: Console) -> None:
    kind = "" if test.kind == PLAIN else f" · {test.kind} test"
    wheres = list(test.level.random)
    columns = ("kappa", "n", test.attack, f"{test.reference} (reference)", *(f"random, {where}" for where in wheres))
    rows = []
    for level in test.curve:
        mark = " *" if level is test.level else ""
        shares = [level.score, level.reference, *(level.random.get(where) for where in wheres)]
        rows.append((f"{level.kappa:g}{mark}", f"{level.score.n}", *map(_percent, shares)))
    title = f"{test.model} · {test.threat} · percent [95 % intervals]{kind}"
    print_table(make_table(title, [f">{name}" for name in columns], rows), console)


def _percent(p: Proportion | None) -> str:
    return "" if p is None or not p.n else percent(p)
