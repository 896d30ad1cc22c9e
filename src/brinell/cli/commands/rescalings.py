"""brinell rescalings."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from brinell.analysis.rescalings import STEPS, RescalingTable, rescalings
from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import make_table, print_json, print_lines, print_table
from brinell.core.plan import DEFAULT_TARGETS
from brinell.core.threat import threat
from brinell.errors import one_of

BOTH = "both"
COLUMNS = ("ID", "rescaling", "formulation", ">set size", ">ranking", ">diff.", ">A∪B−A", ">A∪B−B")


def command(
    *,
    target: options.Target,
    steps: Annotated[str, typer.Option(help="fixed (20 steps), adaptive (100 steps) or both.")] = "fixed",
    targets: Annotated[int, typer.Option(help="Wrong classes that each attack targets.")] = DEFAULT_TARGETS,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Runs; default: a temporary folder.")
    ] = None,
    resume: options.Resume = False,
    compute: options.Compute,
    output: options.Output,
) -> None:
    """Compare seven rescalings of the logits in the Minimum-Margin attack, and what only each of them breaks."""
    one_of("steps", steps, (*STEPS, BOTH))
    tables = [
        rescalings(
            load.model(target.model),
            load.data(target.data, n, None),
            threat(target.norm, target.eps),
            steps=kind,
            targets=targets,
            out=None if out is None else out / kind,
            resume=resume,
            progress=output.progress,
            **compute.arguments(),
        )
        for kind in (STEPS if steps == BOTH else (steps,))
    ]
    if output.json:
        print_json([t.to_json() for t in tables])
        return
    for t in tables:
        show(t, Console())


def show(t: RescalingTable, console: Console) -> None:
    """Print the table in the layout of the paper, then the sets in sentences."""
    threat_name = f"{t.run.identity.threat.norm}, eps = {t.run.identity.threat.eps_text}"
    title = f"{t.run.identity.model.name} · {threat_name} · {t.steps} steps · n = {t.clean.n}"
    table = make_table(title, COLUMNS)
    for i, s in enumerate(t.lines):
        sets = ("/", "/") if i == 0 else (str(len(s.only_here)), str(len(s.only_natural)))
        cells = (s.rescaling.id, s.rescaling.name, s.rescaling.formula, str(s.size), s.place, str(s.difference), *sets)
        table.add_row(*cells)
    print_table(table, console)
    natural, misclassified = t.lines[0].share, t.clean.n - t.clean.k
    print_lines(
        console,
        f"A set holds all broken samples, with the {misclassified} misclassified ones. Natural logits: {natural}.",
        f"Samples broken by at least one of the seven: {t.union}.",
        *t.run.notes,
        f"Run: {t.run.path}",
    )
