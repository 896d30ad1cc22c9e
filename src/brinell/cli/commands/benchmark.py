"""brinell benchmark."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.show import COLOURS, show
from brinell.cli._shared.terminal import put, tell
from brinell.errors import InputError
from brinell.leaderboard import records
from brinell.leaderboard.benchmark import benchmark
from brinell.leaderboard.records import RECORD, Record
from brinell.results import Run


def command(
    model: options.Model,
    dataset: Annotated[str, typer.Option(help="cifar10, cifar100, imagenet, or demo.")] = "cifar10",
    threat: Annotated[str, typer.Option(help="Linf, L2 or corruptions.")] = "Linf",
    n: Annotated[int | None, typer.Option("--n", help="Only the first n points of the leaderboard.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="A file or folder of the points, where the name does not do.")
    ] = None,
    corrupted: Annotated[
        str | None, typer.Option(help="Folder of the corrupted set, where its name does not do.")
    ] = None,
    preprocessing: Annotated[
        str | None, typer.Option(help="How pictures become inputs, e.g. Res256Crop224; default: the model's own.")
    ] = None,
    eps: Annotated[str | None, typer.Option(help="Another radius than the leaderboard's; the record tells.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the model in the record; default: what it is called.")] = None,
    about: Annotated[
        Path | None, typer.Option(help="JSON file with title, link, authors, venue, reported … for the record.")
    ] = None,
    anyway: Annotated[bool, typer.Option("--anyway", help="Measure a model that violates a restriction too.")] = False,
    out: options.Out = None,
    resume: options.Resume = False,
    seed: options.Seed = 0,
    slots: options.Slots = None,
    precision: options.Precision = "float32",
    execution: options.Execution = "auto",
    device: options.Device = None,
    workers: options.Workers = None,
    ray: options.RayAddress = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a model as the leaderboard of a data set and a threat does, and write a record of it."""
    record = benchmark(
        load.model(model),
        dataset,
        threat,
        n=n,
        data=data,
        corrupted=corrupted,
        preprocessing=preprocessing,
        eps=eps,
        name=name,
        about=None if about is None else _facts(about),
        strict=not anyway,
        out=out,
        resume=resume,
        seed=seed,
        slots=slots,
        precision=precision,
        execution=execution,
        device=device,
        progress=False if quiet else None,
        launch=chosen.launcher(workers, ray),
    )
    if json:
        typer.echo(json_format.dumps(record.to_json(), indent=2))
        return
    console = Console()
    if record.run is not None and record.corruptions is None:
        show(Run.open(record.run), console)
    show_record(record, console)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json_format.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a JSON file with facts about the model", got=f"{path}: {error}", remedy="Check the file."
        ) from error
    if not isinstance(facts, dict):
        raise InputError(
            expected=f"an object with {', '.join(records.ABOUT)}",
            got=type(facts).__name__,
            remedy='E.g. {"venue": "ICML 2026"}.',
        )
    return facts


def show_record(record: Record, console: Console) -> None:
    """The record, beside the published one of the same name where there is one."""
    known = records.find(records.published(), record.key)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(record.key), title_justify="left")
    for column in ("", "measured", "95 % interval", *(("published",) if known else ())):
        table.add_column(column, justify="left" if not column else "right")
    rows = {
        "clean, %": ("clean", record.clean_interval),
        "robust, %": ("autoattack", record.interval),
        "best known, %": ("external", None),
        "corruptions, %": ("corruptions", record.interval),
        "reported, %": ("reported", None),
    }
    for what, (field, interval) in rows.items():
        mine, theirs = getattr(record, field), None if known is None else getattr(known, field)
        if mine is None and theirs is None:
            continue
        cells = [_percent(mine), "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"]
        table.add_row(what, *cells, *((_percent(theirs),) if known else ()))
    put(table, console)
    level = "" if record.verdict is None else f", {record.verdict}"
    status = Text.assemble("status: ", (record.status + level, COLOURS.get(record.verdict or "", "")))
    console.print(status)
    tell(console, *(f"violated: {violated}" for violated in record.restrictions))
    if record.run is not None:
        console.print(Text(f"Record: {Path(record.run) / RECORD}"), soft_wrap=True)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
