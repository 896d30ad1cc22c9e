"""The command `brinell verify`: check Runs and adversarial examples again."""

from pathlib import Path
from typing import Annotated, Any

import typer

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import print_json
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
        str | None, typer.Option("--data", "-d", help="As for brinell evaluate; default: the data that the Runs name.")
    ] = None,
    n: options.N = None,
    norm: Annotated[str, typer.Option(help="Norm of the threat if no Run states it: Linf, L2 or L1.")] = "Linf",
    eps: Annotated[str | None, typer.Option(help="Radius of the threat if no Run states it, e.g. 8/255.")] = None,
    rerun: Annotated[
        int | None, typer.Option(help=f"Samples of each Run to attack again; default: {RERUN} for a bundle.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed that selects the samples of --rerun; default: random, and printed.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write the verified record of the first submission to this .json file or folder."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Check rows and manifest, and every adversarial example on the model; exit code 1 if a check fails."""
    classifier, problem = load.model(model), None if data is None else load.data(data, n, None)
    alone = len(submissions) == 1 and submissions[0].is_dir() and rerun is None and record is None
    if alone:
        run = Run.open(submissions[0])
        result: Any = verify(run, classifier, _named(run, n) if problem is None else problem)
        summary = {
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
        summary = result.to_json()
    if record is not None and result.ok:
        place = certify(submissions[0], result, classifier, problem).write(record)
        summary["record"] = str(place)
    if json:
        print_json(summary)
    else:
        typer.echo(str(result))
    if record is not None and result.ok and not json:
        typer.echo(f"Record: {summary['record']}")
    if not result.ok:
        raise typer.Exit(1)


def _named(run: Run, n: int | None) -> Problem:
    """Load the data that the Run's manifest names: n samples, by default as many as the Run has."""
    stored = run.identity.data
    if not stored.name:
        raise InputError(
            expected="--data, because the Run does not name its data", got="no --data", remedy="Add --data DATA."
        )
    return load.data(stored.name, stored.n if n is None else n, None)
