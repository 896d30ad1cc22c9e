"""brinell verify."""

import json as json_format

import typer

from brinell.cli import load, options
from brinell.evaluate.evaluate import verify
from brinell.results import Run


def command(
    run: options.Folder, model: options.Model, data: options.Data, n: options.N = None, json: options.Json = False
) -> None:
    """Re-check every adversarial example of a Run on the model; exit code 1 if any fails."""
    result = verify(Run.open(run), load.model(model), load.data(data, n, None))
    if json:
        typer.echo(
            json_format.dumps({"checked": result.checked, "failures": {str(k): v for k, v in result.failures.items()}})
        )
    else:
        typer.echo(str(result))
    if not result.ok:
        raise typer.Exit(1)
