"""The command `brinell benchmark`: measure a model under the rules of a leaderboard."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.run_output import COLOURS, print_run
from brinell.cli._shared.terminal import make_table, print_lines, print_table
from brinell.errors import InputError
from brinell.leaderboard import records
from brinell.leaderboard.benchmark import benchmark
from brinell.leaderboard.records import RECORD, Record
from brinell.results import Run


def command(
    *,
    model: options.Model,
    dataset: Annotated[str, typer.Option(help="cifar10, cifar100, imagenet, or demo.")] = "cifar10",
    threat: Annotated[str, typer.Option(help="Linf, L2, corruptions or corruptions_3d (ImageNet).")] = "Linf",
    n: Annotated[int | None, typer.Option("--n", help="Use only the first n of the leaderboard's samples.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Data as in evaluate; default: the data set of the leaderboard.")
    ] = None,
    corrupted: Annotated[
        str | None, typer.Option(help="Folder of the corrupted data set; default: from the cache.")
    ] = None,
    preprocessing: Annotated[
        str | None, typer.Option(help="Image preprocessing, e.g. Res256Crop224; default: the model's own.")
    ] = None,
    eps: Annotated[str | None, typer.Option(help="Radius instead of the leaderboard's. The record states it.")] = None,
    name: Annotated[str | None, typer.Option(help="Name in the record; default: the name of the model.")] = None,
    about: Annotated[
        Path | None, typer.Option(help="JSON file with title, link, authors, venue, reported, … for the record.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Measure a model that violates a restriction. The record states it.")
    ] = False,
    out: options.Out = None,
    resume: options.Resume = False,
    execution: options.ExecutionFlags,
    workers: options.Workers = None,
    ray: options.RayAddress = None,
    output: options.PrintFlags,
) -> None:
    """Measure a model under the rules of a leaderboard, and write its record."""
    record = benchmark(
        load.model(model), dataset, threat, n=n, data=data, corrupted=corrupted, preprocessing=preprocessing, eps=eps,
        name=name, about=None if about is None else _facts(about), strict=not anyway, out=out, resume=resume,
        progress=output.progress, launch=chosen.launcher(workers, ray), **execution.arguments(),
    )  # fmt: skip
    output.print(record.to_json, lambda console: show_record(record, console))


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json_format.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a JSON file with facts about the model", got=f"{path}: {error}", remedy="Correct the file."
        ) from error
    if not isinstance(facts, dict):
        expected = f"a JSON object with {', '.join(records.ABOUT)}"
        raise InputError(expected=expected, got=type(facts).__name__, remedy='Write e.g. {"venue": "ICML 2026"}.')
    return facts


def show_record(record: Record, console: Console) -> None:
    """Print the Run and the record, beside the published record of the same name if there is one."""
    if record.run is not None and record.autoattack is not None:
        print_run(Run.open(record.run), console)
    known = records.published_record(record)
    table = make_table(record.key, ("", ">measured", ">95 % interval", *((">published",) if known else ())))
    fields = {
        "clean, %": ("clean", record.clean_interval),
        "robust, %": ("autoattack", record.interval),
        "best known, %": ("external", None),
        "corruptions, %": ("corruptions", record.interval),
        "mean corruption error, %": ("corruptions_mce", None),
        "3D corruptions, %": ("corruptions_3d", record.interval),
        "mean 3D corruption error, %": ("corruptions_mce_3d", None),
        "reported, %": ("reported", None),
    }
    for title, (field, interval) in fields.items():
        measured, published = getattr(record, field), None if known is None else getattr(known, field)
        if measured is None and published is None:
            continue
        cells = [_percent(measured), "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"]
        table.add_row(title, *cells, *((_percent(published),) if known else ()))
    print_table(table, console)
    level = "" if record.verdict is None else f", {record.verdict}"
    console.print(Text.assemble("status: ", (record.status + level, COLOURS.get(record.verdict or "", ""))))
    print_lines(console, *(f"violated: {restriction}" for restriction in record.restrictions))
    if record.run is not None:
        console.print(Text(f"Record: {Path(record.run) / RECORD}"), soft_wrap=True)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
