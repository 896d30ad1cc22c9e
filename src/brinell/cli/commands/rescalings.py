"""brinell rescalings."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.analysis.rescalings import STEPS, RescalingTable, rescalings
from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import put, tell, titled
from brinell.core.plan import DEFAULT_TARGETS
from brinell.core.threat import threat
from brinell.errors import one_of

BOTH = "both"


def command(
    model: options.Model,
    data: options.Data,
    eps: options.Eps,
    norm: options.Norm = "Linf",
    steps: Annotated[str, typer.Option(help="fixed (20), adaptive (100) or both.")] = "fixed",
    targets: Annotated[int, typer.Option(help="How many wrong classes each attack tries.")] = DEFAULT_TARGETS,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Runs, one per kind of steps; default: temporary.")
    ] = None,
    resume: options.ResumeAll = False,
    seed: options.Seed = 0,
    slots: options.Slots = None,
    device: options.Device = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare seven rescalings of the logits in the Minimum-Margin attack: what each breaks, and the others do not."""
    one_of("steps", steps, (*STEPS, BOTH))
    tables = [
        rescalings(
            load.model(model),
            load.data(data, n, None),
            threat(norm, eps),
            steps=kind,
            targets=targets,
            out=None if out is None else out / kind,
            resume=resume,
            seed=seed,
            slots=slots,
            device=device,
            progress=False if quiet else None,
        )
        for kind in (STEPS if steps == BOTH else (steps,))
    ]
    if json:
        typer.echo(json_format.dumps([t.to_json() for t in tables], indent=2))
        return
    for t in tables:
        show(t, Console())


def show(t: RescalingTable, console: Console) -> None:
    """The paper's layout: sizes, ranking, difference to the natural logits, and both differences of the sets."""
    threat = t.run.identity.threat
    setting = f"{threat.norm}, eps = {threat.eps_text} · {t.steps} steps · n = {t.clean.n}"
    table = titled(f"{t.run.identity.model.name} · {setting}")
    for name in ("ID", "rescaling", "formulation"):
        table.add_column(name)
    for name in ("set size", "ranking", "diff.", "A∪B−A", "A∪B−B"):
        table.add_column(name, justify="right")
    for i, s in enumerate(t.lines):
        sets = ("/", "/") if i == 0 else (str(len(s.only_here)), str(len(s.only_natural)))
        cells = (s.rescaling.id, s.rescaling.name, s.rescaling.formula, str(s.size), s.place, str(s.difference), *sets)
        table.add_row(*map(Text, cells))
    put(table, console)
    natural, wrong = t.lines[0].share, t.clean.n - t.clean.k
    tell(
        console,
        f"The set is every sample that falls, the {wrong} misclassified ones included. Natural logits: {natural}.",
        f"Samples that fall to any of the seven: {t.union}.",
        *t.run.notes,
        f"Run: {t.run.path}",
    )
