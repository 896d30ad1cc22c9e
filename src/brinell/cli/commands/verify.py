"""The command `brinell verify`: check Runs and adversarial examples again."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import print_json
from brinell.core.threat import Threat, threat
from brinell.errors import InputError
from brinell.results import Run
from brinell.verification.adversarials import Verification
from brinell.verification.review import certify, review
from brinell.verification.submission import open_submission
from brinell.verification.verify import verify

# The exit code if no check failed, and the adversarial examples were not checked.
UNCHECKED = 3


def command(
    submissions: Annotated[
        list[Path],
        typer.Argument(help="Folders of Runs, bundles of brinell submit, or .npz and .safetensors files (ids, x)."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="As for brinell evaluate; without it only rows are checked.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="As for brinell evaluate; default: the data that the Runs name.")
    ] = None,
    n: options.N = None,
    norm: Annotated[str, typer.Option(help="Norm of the threat if no Run states it: Linf, L2 or L1.")] = "Linf",
    eps: Annotated[str | None, typer.Option(help="Radius of the threat if no Run states it, e.g. 8/255.")] = None,
    rerun: Annotated[
        int | None, typer.Option(help="Survivors of each Run to attack again; 0 for none. Default: see --hidden.")
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            help="Attack as many as it takes to find this many hidden broken samples; default: half interval."
        ),
    ] = None,
    confidence: Annotated[str, typer.Option(help="Probability to find --hidden samples.")] = "95%",
    seed: Annotated[
        int | None, typer.Option(help="Seed that selects the samples to attack; default: random, and printed.")
    ] = None,
    full_plan: Annotated[
        bool, typer.Option("--full-plan", help="Attack them by all stages of the plan, not only by those of the Run.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Write the verified record of the first submission to this .json file or folder."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Check rows and adversarial examples, and attack random survivors again; exit code 1 if a check fails.

    Without --model, only rows and manifest are compared, and the exit code is 3: nothing failed, but no adversarial
    example was checked.
    """
    sampling: dict[str, Any] = {
        "rerun": rerun,
        "hidden": hidden,
        "confidence": options.share(confidence, "--confidence"),
        "seed": seed,
        "full_plan": full_plan,
    }
    alone = len(submissions) == 1 and record is None
    result: Any
    if model is None:
        result = _without_model(submissions)
    elif alone and submissions[0].is_dir():
        classifier, run = load.model(model), Run.open(submissions[0])
        problem = load.data_of(run, data, n)
        result = verify(run, classifier, problem, progress=False if json else None, **sampling)
    else:
        classifier, given = load.model(model), None if data is None else load.data(data, n, None)
        ball: Threat | None = None if eps is None else threat(norm, eps)
        result = review(submissions, classifier, given, ball, progress=False if json else None, **sampling)
    summary = result.to_json()
    if record is not None and result.ok:
        place = certify(submissions[0], result, classifier, given).write(record)
        summary["record"] = str(place)
    if json:
        print_json(summary)
    else:
        typer.echo(str(result))
    if record is not None and result.ok and not json:
        typer.echo(f"Record: {summary['record']}")
    if not result.ok or model is None:
        raise typer.Exit(UNCHECKED if result.ok else 1)


def _without_model(submissions: list[Path]) -> Verification:
    with ExitStack() as stack:
        opened = [open_submission(path, stack) for path in submissions]
        if len(opened) != 1 or not isinstance(opened[0], Run):
            raise InputError(
                expected="--model, to check adversarial examples or several submissions",
                got="no --model",
                remedy="Add --model MODEL, or pass a single Run or bundle.",
            )
        return verify(opened[0])
