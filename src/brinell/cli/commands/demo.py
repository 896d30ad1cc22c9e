"""brinell demo."""

import typer
from rich.console import Console

from brinell.cli._shared import options
from brinell.cli._shared.show import as_json, show
from brinell.core.threat import Linf
from brinell.data.load import load
from brinell.evaluation.evaluate import evaluate

EPS, PLAN = 0.1, "mm9"


def command(
    n: options.N = None,
    plan: options.Plan = PLAN,
    out: options.Out = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Evaluate the embedded Fashion-MNIST model on the embedded images (Linf, eps 0.1)."""
    run = evaluate("demo", load("demo", n), Linf(EPS), plan, out=out, progress=False if quiet else None)
    if json:
        typer.echo(as_json(run))
    else:
        show(run, Console())
