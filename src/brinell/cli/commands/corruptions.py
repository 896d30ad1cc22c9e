"""brinell corruptions."""

import json as json_format
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from brinell.analysis.corruptions import CorruptionReport, corruption_accuracy
from brinell.analysis.corruptions.baselines import Baseline
from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import WIDTH
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.errors import InputError


def command(
    model: Annotated[list[str], typer.Option("--model", "-m", help="As in evaluate; several for a comparison.")],
    data: options.Data,
    only: Annotated[list[str] | None, typer.Option(help="Only this corruption, e.g. fog; several are allowed.")] = None,
    severity: Annotated[list[int] | None, typer.Option(help="Only this severity, 1 to 5; several are allowed.")] = None,
    n: options.N = None,
    baseline: Annotated[
        str | None, typer.Option(help="For the mean corruption error: alexnet, FILE.csv or FILE.csv:ROW.")
    ] = None,
    clean_error: Annotated[
        float | None,
        typer.Option(
            help="Per cent the baseline gets wrong without corruption, for the relative error. AlexNet's is known."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="A table of accuracies to add each model's row to.")] = None,
    seed: Annotated[int, typer.Option(help="With a sample's id it decides the noise.")] = 0,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure accuracy under common corruptions: noise, blur, weather and digital ones at five severities."""
    beside, problem = _baseline(baseline, clean_error), load.data(data, n, None)
    reports = []
    for spec in model:
        with _progress(spec, quiet) as told:
            found = corruption_accuracy(
                load.model(spec), problem, only or COMMON, severity or SEVERITIES, seed, device=device, told=told
            )
        if csv is not None:
            found.save(csv)
        reports.append(found)
    if json:
        typer.echo(json_format.dumps([found.to_json(beside) for found in reports], indent=2))
    else:
        for found in reports:
            show(found, beside, Console())


def _baseline(spec: str | None, clean_error: float | None) -> Baseline | None:
    if spec is None:
        if clean_error is not None:
            raise InputError(
                expected="--baseline beside --clean-error, which is an error of the baseline",
                got=f"--clean-error {clean_error:g} alone",
                remedy="Add --baseline FILE.csv or FILE.csv:ROW.",
            )
        return None
    file, _, row = spec.rpartition(":")
    source, chosen = (file, row) if file and not Path(spec).exists() else (spec, None)
    return Baseline.named(source, chosen, None if clean_error is None else clean_error / 100)


@contextmanager
def _progress(name: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, where somebody looks at it."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(found: CorruptionReport, baseline: Baseline | None, console: Console) -> None:
    """One line per corruption: its accuracy at every severity, and the mean with its interval."""
    accuracy = found.accuracy
    widest = max(50 * (p.high - p.low) for p in accuracy.values())
    title = f"{found.model or 'model'} · accuracy (%), n = {found.mean.n}, each severity ± {widest:.1f} at most"
    table = Table(title=Text(title), box=box.ROUNDED, title_justify="left")
    for name in ("corruption", *map(str, found.severities), "mean"):
        table.add_column(name, justify="left" if name == "corruption" else "right")
    for name in found.names:
        cells = (accuracy.get((name, s)) for s in found.severities)
        mean = found.mean_of(name)
        interval = f"{100 * mean.value:.1f} [{100 * mean.low:.1f}, {100 * mean.high:.1f}]"
        table.add_row(name, *("" if p is None else f"{100 * p.value:.1f}" for p in cells), Text(interval))
    console.print(table, width=min(console.width, WIDTH))
    console.print(Text(found.summary(baseline)), soft_wrap=not console.is_terminal)
