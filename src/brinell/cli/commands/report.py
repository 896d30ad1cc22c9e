"""The command `brinell report`: write a report of Runs."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import load, options
from brinell.core.dataset import Problem
from brinell.errors import InputError
from brinell.finding import n_samples
from brinell.report.gate import check_gate, required_verdict
from brinell.report.text_tables import known_format
from brinell.report.write import FORMATS, format_of, save, text
from brinell.results import Run
from brinell.results.format.shards import NO_CHECKSUMS

PAGE = Path("report.html")


def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of one or several Runs.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write; default: report.html, standard output for other formats, none with a gate alone.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="html, md, tex (or latex), tex-table (one table), json, csv, model-card or junit; default: by the "
            "ending of --out."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="Data of the Runs, to show the originals beside the adversarials."),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="Names of the classes in order: cat,dog,…")] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    label: Annotated[
        str | None,
        typer.Option(help="End of the labels of LaTeX tables; default: models, data, threats and plans of the Runs."),
    ] = None,
    fail_under: Annotated[
        str | None,
        typer.Option(
            help="Required robust accuracy, e.g. 0.45 or 45%. Exit code 1 if the lower bound of a Run is smaller, a "
            "Run is unfinished, or a verdict is worse than --require."
        ),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            help="Worst accepted verdict: reliable, upper-bound or suspicious; exit code 1 for a worse verdict. "
            "Default with --fail-under: reliable, which needs 100 samples or more."
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name of the model in the report; once per Run, in their order."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="First compare every file of the Runs with its checksum."),
    ] = False,
) -> None:
    """Write a report of one or several Runs: a self-contained page, or Markdown, LaTeX, JSON, CSV or JUnit."""
    least = options.percent(fail_under, "--fail-under")
    required_verdict(least, require)
    chosen = known_format(format or (format_of(out) if out is not None else "html"), FORMATS)
    opened = [Run.open(path) for path in runs]
    for run in opened if strict else ():
        run.shards.check_hashes()
        if run.shards.listed is None:
            typer.echo(f"{run.path}: {NO_CHECKSUMS}", err=True)
    opened = renamed(opened, name or [])
    if (out, format, data) == (None, None, None) and required_verdict(least, require) is not None:
        _gate(opened, least, require)
        return
    made = text(
        opened, chosen, problem=_problem(data, opened) if chosen == "html" else None,
        classes=[name.strip() for name in classes.split(",")] if classes else (), title=title, fail_under=least,
        require=require, label=label,
    )  # fmt: skip
    if out is None and chosen != "html":
        typer.echo(made, nl=False)
    else:
        path = save(out or PAGE, made)
        typer.echo(f"{path}, {path.stat().st_size / 1e3:,.0f} kB")
    _gate(opened, least, require, quiet=True)


def renamed(runs: list[Run], names: list[str]) -> list[Run]:
    """Return the Runs with these names of their models; without names, as they are."""
    if names and len(names) != len(runs):
        raise InputError(
            expected=f"one --name for each of the {n_samples(len(runs), kind='Run')}",
            got=f"{len(names)}",
            remedy="Repeat --name in the order of the Runs.",
        )
    return [run.named(name) for run, name in zip(runs, names, strict=True)] if names else runs


def _gate(runs: list[Run], least: float | None, require: str | None, quiet: bool = False) -> None:
    """Print why Runs do not pass the release gate, and which pass unless `quiet`; exit with code 1 if one does not."""
    failed = {run.path: check_gate(run, least, require) for run in runs}
    for run in runs:
        for failure in failed[run.path]:
            typer.echo(f"{failure.message} {failure.remedy}".strip(), err=True)
        if not failed[run.path] and not quiet:
            typer.echo(f"{run.path}: passes, robust accuracy {run.robust_accuracy}, verdict {run.verdict.level}")
    if any(failed.values()):
        raise typer.Exit(1)


def _problem(spec: str | None, runs: list[Run]) -> Problem | None:
    """Return the data of --data or, without --data, the embedded images if all Runs evaluated these, else None."""
    if spec is not None:
        return load.data(spec, None, None)
    if {run.identity.data.name for run in runs} != {"demo"}:
        return None
    demo = load.data("demo", None, None)
    stored = [run.identity.data for run in runs]
    same = all(demo[: d.n].fingerprint() == d.fingerprint for d in stored if d.n is not None)
    return demo if same else None
