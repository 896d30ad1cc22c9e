"""The command `brinell corruptions`: accuracy under common corruptions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.analysis.corruptions import CorruptionReport, corruption_accuracy
from brinell.analysis.corruptions.baselines import Baseline
from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import make_table, percent, print_lines, print_table, progress_bar
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.errors import InputError, check_output_paths


def command(
    *,
    model: options.Models,
    data: options.Data,
    only: Annotated[list[str] | None, typer.Option(help="Only this corruption, e.g. fog. Repeat for several.")] = None,
    severity: Annotated[list[int] | None, typer.Option(help="Only this severity, 1 to 5. Repeat for several.")] = None,
    n: options.N = None,
    baseline: Annotated[
        str | None, typer.Option(help="Baseline of the mCE: alexnet, alexnet-robustbench, FILE.csv or FILE.csv:ROW.")
    ] = None,
    clean_error: Annotated[
        str | None,
        typer.Option(
            help="Clean error of the baseline, e.g. 43.5%, for the relative mCE. AlexNet's clean error is built in."
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row of accuracies per model into this CSV table.")] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    output: options.PrintFlags,
) -> None:
    """Measure accuracy under common corruptions (noise, blur, weather, digital) at five severities."""
    check_output_paths(csv)
    baseline_errors, problem = _baseline(baseline, clean_error), load.data(data, n, None)
    reports = []
    for spec in model:
        classifier, kinds, levels = load.model(spec), only or COMMON, severity or SEVERITIES
        with progress_bar(spec, output.quiet) as update:
            report = corruption_accuracy(classifier, problem, kinds, levels, seed, device=device, on_progress=update)
        if csv is not None:
            report.save(csv)
        reports.append(report)
    output.print(
        lambda: [report.to_json(baseline_errors) for report in reports],
        lambda console: show(reports, baseline_errors, console),
    )


def _baseline(spec: str | None, clean_error: str | None) -> Baseline | None:
    if spec is None:
        if clean_error is not None:
            raise InputError(
                expected="--clean-error together with --baseline",
                got=f"--clean-error {clean_error} alone",
                remedy="Add --baseline FILE.csv or FILE.csv:ROW.",
            )
        return None
    file, _, row = spec.rpartition(":")
    source, chosen = (file, row) if file and not Path(spec).exists() else (spec, None)
    return Baseline.named(source, chosen, None if clean_error is None else options.share(clean_error, "--clean-error"))


def show(reports: Sequence[CorruptionReport], baseline: Baseline | None, console: Console) -> None:
    """Print one line per corruption: its accuracy at every severity, and the mean with its interval."""
    for report in reports:
        accuracy = report.accuracy
        widest = max(50 * (p.high - p.low) for p in accuracy.values())
        title = f"{report.model or 'model'} · accuracy (%), n = {report.mean.n}, each severity ± {widest:.1f} at most"
        rows = []
        for name in report.names:
            shares = (accuracy.get((name, s)) for s in report.severities)
            cells = ("" if p is None else f"{100 * p.value:.1f}" for p in shares)
            rows.append((name, *cells, percent(report.mean_of(name))))
        columns = ("corruption", *(f">{s}" for s in report.severities), ">mean")
        print_table(make_table(title, columns, rows), console)
        print_lines(console, report.summary(baseline))
