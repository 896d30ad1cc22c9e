"""The command `brinell benchmark`: measure a model under the rules of a leaderboard."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from brinell.analysis.across_models import ModelResults, across_models, model_folders
from brinell.analysis.intervals import to_plain
from brinell.cli._shared import chosen, load, options
from brinell.cli._shared.run_output import COLOURS, output_seeds, print_run
from brinell.cli._shared.terminal import exit_if_failed, make_table, print_lines, print_report, print_table
from brinell.core.model import Classifier
from brinell.errors import InputError
from brinell.leaderboard import records
from brinell.leaderboard.benchmark import benchmark, benchmark_seeds
from brinell.leaderboard.records import RECORD, Record
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Run, SeedRuns
from brinell.results.format.folders import AUTO
from brinell.untrusted import cleaned, read_json


def command(
    *,
    model: options.Models,
    dataset: Annotated[str, typer.Option(help="cifar10, cifar100, imagenet, or demo.")] = "cifar10",
    threat: Annotated[str, typer.Option(help="Linf, L2, corruptions or corruptions_3d (ImageNet).")] = "Linf",
    n: Annotated[
        int | None, typer.Option("--n", "--n-examples", help="Use only the first n of the leaderboard's samples.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="As for brinell evaluate; default: the data set of the leaderboard."),
    ] = None,
    corrupted: Annotated[
        str | None, typer.Option(help="Folder of the corrupted data set; default: from the cache.")
    ] = None,
    preprocessing: Annotated[
        str | None, typer.Option(help="Image preprocessing, e.g. Res256Crop224; default: that of the model.")
    ] = None,
    eps: Annotated[
        str | None, typer.Option(help="Another radius than the leaderboard's. The record states it.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name in the record; default: the name of the model.")] = None,
    about: Annotated[
        Path | None, typer.Option(help="JSON file with title, link, authors, venue, reported, … for the record.")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Measure a model even if it violates a restriction. The record states this."),
    ] = False,
    out: options.NamedOut = None,
    resume: options.Resume = False,
    seeds: options.Seeds = None,
    plot: options.Plot = None,
    execution: options.ExecutionFlags,
    workers: options.Workers = None,
    ray: options.RayAddress = None,
    output: options.PrintFlags,
) -> None:
    """Measure a model under the rules of a leaderboard, and write its record."""
    check_plot_path(plot)
    only = load.only_model(model)
    if only is None and (name is not None or about is not None):
        raise typer.BadParameter("--name and --about describe one model: omit them for many models.")
    if only is not None and plot is not None:
        raise typer.BadParameter("--plot needs several models: repeat --model, or omit --plot.")
    how: dict[str, Any] = {
        "n": n, "data": data, "corrupted": corrupted, "preprocessing": preprocessing, "eps": eps, "name": name,
        "about": None if about is None else _facts(about), "strict": not anyway, "resume": resume,
        "progress": output.progress, "launch": chosen.launcher(workers, ray), **execution.arguments(),
    }  # fmt: skip

    def measure(m: Classifier, folder: Path | str | None) -> Record | SeedRuns:
        if seeds is None:
            return benchmark(m, dataset, threat, out=folder, **how)
        return benchmark_seeds(m, dataset, threat, seeds=seeds, out=folder, **how)[1]

    if only is None:
        own_folder = model_folders(out)
        show_models(across_models(model, lambda m, _: measure(m, own_folder(m))), plot, output)
        return
    result = measure(load.model(only), AUTO if out is None else out)
    if isinstance(result, SeedRuns):
        output_seeds(result, output)
    else:
        output.print(result.to_json, lambda console: show_record(result, console))


def show_models(results: ModelResults[Any], plot: Path | None, output: options.PrintFlags) -> None:
    """Print a table with one row per model, draw it with --plot, and exit with code 2 if a model failed."""
    findings = results.findings()
    numbers = {
        m.model: m.result.to_json() if isinstance(m.result, Record) else to_plain(m.measures) for m in results.measured
    }
    if plot is not None:
        from brinell.analysis.plot import plot as draw

        draw(findings, plot)
    output.print(
        lambda: {"findings": to_plain(findings), "numbers": numbers},
        lambda console: print_report(findings, console),
    )
    exit_if_failed(results)


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = cleaned(read_json(path))
    except (OSError, ValueError) as error:
        raise InputError(
            expected="a JSON file with facts about the model",
            got=f"{path}: {error}",
            remedy="Write a JSON object into the file.",
        ) from error
    if not isinstance(facts, dict):
        expected = f"a JSON object with {', '.join(records.ABOUT)}"
        raise InputError(expected=expected, got=type(facts).__name__, remedy='Write e.g. {"venue": "ICML 2026"}.')
    return facts


def show_record(record: Record, console: Console) -> None:
    """Print the Run, then a table of the record and, if there is one, the published record of the same name."""
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
