"""The command `brinell demo`: evaluate the embedded model."""

from brinell.cli._shared import options
from brinell.cli._shared.run_output import output_run
from brinell.core.threat import Linf
from brinell.data.load import load
from brinell.evaluation.evaluate import evaluate

EPS, PLAN = 0.1, "mm9"


def command(
    *, n: options.N = None, plan: options.Plan = PLAN, out: options.Out = None, output: options.PrintFlags
) -> None:
    """Evaluate the embedded Fashion-MNIST model on the embedded images (Linf, eps 0.1)."""
    run = evaluate("demo", load("demo", n), Linf(EPS), plan, out=out, progress=output.progress)
    output_run(run, output)
