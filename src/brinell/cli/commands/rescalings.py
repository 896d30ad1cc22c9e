"""The command `brinell rescalings`: compare seven rescalings of the logits."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from brinell.analysis.rescalings import RESCALINGS, STEPS, RescalingTable, rescalings
from brinell.cli._shared import options
from brinell.cli._shared.terminal import make_table, print_lines, print_table
from brinell.core.plan import DEFAULT_TARGETS
from brinell.errors import one_of

BOTH = "both"
COLUMNS = ("ID", "rescaling", "formulation", ">set size", ">ranking", ">diff.", ">A∪B−A", ">A∪B−B")


def show_rescalings(console: Console) -> None:
    """Print the ID, the name the formula and the loss of every rescaling."""
    rows = [(r.id, r.name, r.formula, r.loss) for r in RESCALINGS]
    print_table(make_table("", ("!ID", "!rescaling", "formulation", "!loss"), rows), console)


def command(
    *,
    list: Annotated[bool, options.listing(show_rescalings, "List the seven rescalings; measure nothing.")] = False,
    target: options.TargetFlags,
    steps: Annotated[str, typer.Option(help="fixed (20 steps), adaptive (100 steps) or both.")] = "fixed",
    targets: Annotated[int, typer.Option(help="Number of wrong classes that each attack targets.")] = DEFAULT_TARGETS,
    n: options.N = None,
    out: options.Out = None,
    resume: options.Resume = False,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Compare which samples the Minimum-Margin attack breaks under each of seven rescalings of the logits."""
    one_of("steps", steps, (*STEPS, BOTH))
    tables = [
        rescalings(
            *target.load(n), steps=kind, targets=targets, out=None if out is None else out / kind, resume=resume,
            progress=output.progress, **compute.arguments(),
        )
        for kind in (STEPS if steps == BOTH else (steps,))
    ]  # fmt: skip
    output.print(lambda: [t.to_json() for t in tables], lambda console: show(tables, console))


def show(tables: Sequence[RescalingTable], console: Console) -> None:
    """Print each table in the layout of Gao et al. 2022, then sentences about the broken samples."""
    for t in tables:
        identity = t.run.identity
        threat_name = f"{identity.threat.norm}, eps = {identity.threat.eps_text}"
        rows = []
        for i, s in enumerate(t.lines):
            sets = ("/", "/") if i == 0 else (str(len(s.only_here)), str(len(s.only_natural)))
            name = (s.rescaling.id, s.rescaling.name, s.rescaling.formula)
            rows.append((*name, str(s.size), s.place, str(s.difference), *sets))
        title = f"{identity.model.name} · {threat_name} · {t.steps} steps · n = {t.clean.n}"
        print_table(make_table(title, COLUMNS, rows), console)
        natural, misclassified = t.lines[0].share, t.clean.n - t.clean.k
        print_lines(
            console,
            f"A set holds all broken samples, with the {misclassified} misclassified ones. Natural logits: {natural}.",
            f"Samples broken by at least one of the seven: {t.union}.",
            *t.run.notes,
            f"Run: {t.run.path}",
        )
