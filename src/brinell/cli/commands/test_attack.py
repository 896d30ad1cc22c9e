"""brinell test-attack."""

import json as json_format
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.terminal import WIDTH
from brinell.core.threat import threat
from brinell.reliability.binarization.result import PLAIN, BinarizationTest, KappaLevel, bracketed
from brinell.reliability.binarization.test import test_attack as binarization_test
from brinell.results import Proportion


def command(
    model: options.Model,
    data: options.Data,
    eps: options.Eps,
    norm: options.Norm = "Linf",
    plan: Annotated[str, typer.Option(help="What is tested; see brinell plans.")] = "apgd",
    attacks: options.Attacks = None,
    n: options.N = None,
    kind: Annotated[
        str | None, typer.Option(help="Of a model with a detector: regular, inverted or both; default: both.")
    ] = None,
    inner: Annotated[int, typer.Option(help="Inner points per sample; more make the test harder.")] = 999,
    boundary: Annotated[int, typer.Option(help="Boundary points per sample; more make it easier.")] = 1,
    surface: Annotated[bool, typer.Option("--surface", help="Linf: from the whole surface, not its corners.")] = False,
    gap: Annotated[float, typer.Option(help="Inner points lie within (1 - gap) eps.")] = 0.05,
    kappa: Annotated[float | None, typer.Option(help="Closeness of the boundary; default: found.")] = None,
    curve: Annotated[bool, typer.Option("--curve", help="Look at every closeness, not only down to the found one.")] = (
        False
    ),
    readout: Annotated[str, typer.Option(help="linear, ensemble, prototypes or neighbours.")] = "linear",
    layer: Annotated[str | None, typer.Option(help="The readout's name, or several: head1,head2.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="The strong plan that says how hard is too hard; default: one that suits.")
    ] = None,
    random_queries: Annotated[int | None, typer.Option(help="Random points; default: what the plan may ask.")] = (None),
    seed: options.Seed = 0,
    slots: options.Slots = None,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Test an attack where an adversarial is known to exist; exit code 1 unless it passes."""
    test = binarization_test(
        load.model(model),
        load.data(data, n, None),
        threat(norm, eps),
        chosen.plan(plan, attacks),
        kind=kind,
        inner=inner,
        boundary=boundary,
        corners=False if surface else None,
        gap=gap,
        kappa=kappa,
        curve=curve,
        readout=readout,
        layer=None if layer is None else [name.strip() for name in layer.split(",")],
        reference=reference,
        random_queries=random_queries,
        seed=seed,
        slots=slots,
        device=device,
        progress=False if quiet else None,
    )
    if json:
        typer.echo(json_format.dumps(test.to_json(), indent=2))
    else:
        show(test, Console())
    if not test.passed:
        raise typer.Exit(1)


def show(test: BinarizationTest, console: Console) -> None:
    """The levels, the hardest first, then the paragraph; of two tests the one that went worse comes first."""
    for one in (test,) if test.other is None else (test, test.other):
        _table(one, console)
    for text in (str(test), *test.notes):
        console.print(Text(text), soft_wrap=not console.is_terminal)


def _table(test: BinarizationTest, console: Console) -> None:
    if test.curve:
        kind = "" if test.kind == PLAIN else f" · {test.kind} test"
        title = Text(f"{test.model} · {test.threat} · percent [95 % intervals]{kind}")
        table = Table(title=title, box=box.ROUNDED, title_justify="left")
        for name in ("kappa", "n", test.attack, f"{test.reference} (reference)", *_wheres(test.level)):
            table.add_column(name, justify="right")
        for level in test.curve:
            mark = " *" if level is test.level else ""
            cells = [level.score, level.reference, *(level.random.get(w) for w in test.level.random)]
            table.add_row(f"{level.kappa:g}{mark}", f"{level.score.n}", *map(_percent, cells))
        console.print(table, width=min(console.width, WIDTH))


def _wheres(level: KappaLevel) -> list[str]:
    return [f"random, {where}" for where in level.random]


def _percent(p: Proportion | None) -> str:
    return "" if p is None or not p.n else bracketed(p).replace(" %", "")
