"""The command `brinell certify`: prove that survivors of a Run are robust."""

from typing import Annotated

import typer

from brinell.cli._shared import load, options
from brinell.cli._shared.run_output import next_commands, output_run, print_next
from brinell.core.certificate import Certifier
from brinell.evaluation import coerce
from brinell.evaluation.certificates.certifiers import SECONDS, SMOOTHING
from brinell.evaluation.certificates.certify import certify
from brinell.models import Smoothed, Smoothing
from brinell.results import Run


def command(
    run: options.RunFolder,
    model: options.Model,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="As for brinell evaluate; default: the data that the Run names.")
    ] = None,
    n: options.N = None,
    method: Annotated[
        str | None,
        typer.Option(help="The last method to try: interval, crown, optimised, branch-and-bound, exact; or smoothing."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit per sample and method.")] = SECONDS,
    draws: Annotated[
        int | None, typer.Option(help="Draws per sample of smoothing; default: 10,000.", show_default=False)
    ] = None,
    device: options.Device = None,
    *,
    output: options.PrintFlags,
) -> None:
    """Prove that survivors of a finished Run are robust. Call it again to continue or to try another method."""
    opened, classifier = Run.open(run), coerce.as_classifier(model, device)
    chosen: str | Certifier | None = method
    if draws is not None:
        if not isinstance(classifier, Smoothed) or method not in (None, SMOOTHING):
            raise typer.BadParameter("--draws needs a model of brinell.models.smoothed and the method smoothing.")
        chosen = Smoothing(classifier, opened.identity.seed or 0, n=draws)
    problem = load.data_of(opened, data, load.size_of(opened) if n is None else n)
    found = certify(opened, classifier, problem, method=chosen, seconds=seconds, progress=output.progress)
    output_run(found, output)
    if not output.json:
        print_next(next_commands(found, model, data or str(opened.identity.data.name)))
