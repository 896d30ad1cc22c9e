"""The command `brinell demo`: evaluate the embedded model and write the report."""

from pathlib import Path
from typing import Annotated

import typer

from brinell.cli._shared import options
from brinell.cli._shared.run_output import next_commands, output_run, print_next
from brinell.core.threat import Linf
from brinell.data.load import load
from brinell.evaluation.evaluate import evaluate
from brinell.results.format.folders import AUTO

EPS, PLAN = 0.1, "fast"
OWN = "brinell evaluate --model my_model.py:make_net --data test.npz --eps 8/255 --plan fast"


def command(
    *,
    n: options.N = None,
    plan: options.Plan = PLAN,
    out: options.NamedOut = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="File for the report; default: the folder of the Run with .html.")
    ] = None,
    output: options.PrintFlags,
) -> None:
    """Evaluate the embedded Fashion-MNIST model on the embedded images (Linf, eps 0.1), and write the report."""
    data = load("demo", n)
    run = evaluate("demo", data, Linf(EPS), plan, out=AUTO if out is None else out, progress=output.progress)
    page = run.report(report or run.path.with_name(f"{run.path.name}.html"), problem=data)
    output_run(run, output)
    if not output.json:
        again = next_commands(run, "demo", "demo")["check again"]
        print_next({"check again": again, "your model": OWN})
        typer.echo(f"Report: {page} (open it in a browser)")
