"""brinell verify."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from brinell.cli._shared import load, options
from brinell.core.dataset import Problem
from brinell.core.threat import Threat, threat
from brinell.errors import InputError
from brinell.results import Run
from brinell.verification.review import RERUN, certify, review
from brinell.verification.verify import verify


def command(
    submissions: Annotated[
        list[Path],
        typer.Argument(help="Folders of Runs, bundles of brinell submit, or .npz and .safetensors files (ids, x)."),
    ],
    model: options.Model,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="As for brinell evaluate; default: what the Runs name.")
    ] = None,
    n: options.N = None,
    norm: Annotated[str, typer.Option(help="Where no Run tells the threat: Linf, L2 or L1.")] = "Linf",
    eps: Annotated[str | None, typer.Option(help="Where no Run tells the threat: the radius, e.g. 8/255.")] = None,
    rerun: Annotated[
        int | None, typer.Option(help=f"Samples of each Run to attack again; default: {RERUN} of a bundle.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides which; default: drawn, so that nobody knows it before, and told.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the verified record of the first submission: a .json file, or a folder.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Re-check rows, manifest and every adversarial example on the model; exit code 1 if anything fails."""
    classifier, problem = load.model(model), None if data is None else load.data(data, n, None)
    alone = len(submissions) == 1 and submissions[0].is_dir() and rerun is None and record is None
    if alone:
        run = Run.open(submissions[0])
        result: Any = verify(run, classifier, _named(run, n) if problem is None else problem)
        told = {
            "ok": result.ok,
            "checked": result.checked,
            "held": result.held,
            "failures": {str(k): v for k, v in result.failures.items()},
            "objections": list(result.objections),
            "notes": list(result.notes),
        }
    else:
        ball: Threat | None = None if eps is None else threat(norm, eps)
        result = review(submissions, classifier, problem, ball, rerun=RERUN if rerun is None else rerun, seed=seed)
        told = result.to_json()
    if record is not None and result.ok:
        place = certify(submissions[0], result, classifier, problem).write(record)
        told["record"] = str(place)
    typer.echo(json_format.dumps(told) if json else str(result))
    if record is not None and result.ok and not json:
        typer.echo(f"Record: {told['record']}")
    if not result.ok:
        raise typer.Exit(1)


def _named(run: Run, n: int | None) -> Problem:
    """The data a Run names."""
    stored = run.identity.data
    if not stored.name:
        raise InputError(expected="--data, since the Run does not name its data", got="none", remedy="Add it.")
    return load.data(stored.name, stored.n if n is None else n, None)
