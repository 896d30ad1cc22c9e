"""The command `brinell test-attack`: the binarization test of an attack."""

from typing import Annotated

import typer
from rich.console import Console

from brinell.cli._shared import chosen, options
from brinell.cli._shared.terminal import make_table, percent, print_lines, print_table
from brinell.reliability.binarization.result import PLAIN, BinarizationTest
from brinell.reliability.binarization.test import test_attack as binarization_test
from brinell.results import Proportion


def command(
    *,
    target: options.TargetFlags,
    plan: Annotated[str, typer.Option(help="Plan to test. brinell plans lists all plans.")] = "apgd",
    attacks: options.Attacks = None,
    n: options.N = None,
    kind: Annotated[
        str | None, typer.Option(help="For a model with a detector: regular, inverted or both; default: both.")
    ] = None,
    inner: Annotated[int, typer.Option(help="Inner points per sample; more points make the test harder.")] = 999,
    boundary: Annotated[int, typer.Option(help="Boundary points per sample; more make the test easier.")] = 1,
    surface: Annotated[
        bool, typer.Option("--surface", help="Linf: draw from the whole surface of the ball, not its corners.")
    ] = False,
    gap: Annotated[float, typer.Option(help="Inner points lie within (1 - gap) eps.")] = 0.05,
    kappa: Annotated[
        float | None, typer.Option(help="Difficulty, from 0 (easy) to 1 (hard); default: chosen by the test.")
    ] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Test every kappa, not only down to the chosen one.")] = (
        False
    ),
    readout: Annotated[str, typer.Option(help="Readout: linear, ensemble, prototypes or neighbours.")] = "linear",
    layer: Annotated[str | None, typer.Option(help="Name of the readout layer, or several: head1,head2.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Strong plan that must solve the test; default: chosen for the threat.")
    ] = None,
    random_queries: Annotated[
        int | None, typer.Option(help="Queries of the random baseline; default: the query limit of the plan.")
    ] = None,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Test an attack on problems with a known adversarial example; exit code 1 unless the attack passes."""
    test = binarization_test(
        *target.load(n), chosen.plan(plan, attacks), kind=kind, inner=inner, boundary=boundary,
        corners=False if surface else None, gap=gap, kappa=kappa, curve=curve, readout=readout,
        layer=None if layer is None else [name.strip() for name in layer.split(",")], reference=reference,
        random_queries=random_queries, progress=output.progress, **compute.arguments(),
    )  # fmt: skip
    output.print(test.to_json, lambda console: show(test, console))
    if not test.passed:
        raise typer.Exit(1)


def show(test: BinarizationTest, console: Console) -> None:
    """Print a table of the difficulties (kappa), the hardest first, then the result; the worse of two tests first."""
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
