"""What a Run looks like on a terminal and as JSON."""

import json

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from brinell.cli._shared.terminal import put, tell, titled
from brinell.cost.budget import Estimate, duration, rounded
from brinell.report.facts import facts
from brinell.results import Proportion, Run
from brinell.results.format.manifest import EVADE
from brinell.results.summary import mask_text

COLOURS = {"reliable": "green", "suspicious": "yellow", "invalid": "red"}


def as_json(run: Run) -> str:
    """Everything a script needs, computed from the rows."""
    return json.dumps(facts(run), indent=2)


def show(run: Run, console: Console) -> None:
    """Accuracy stage by stage, cost, verdict, and the sentence for a paper."""
    put(_stages(run), console)
    put(Panel(_facts(run), box=box.ROUNDED, expand=False), console)
    tell(console, run.sentence(), f"Run: {run.path}")


def show_estimate(e: Estimate, console: Console, as_json: bool) -> None:
    """Samples, passes and time stage by stage, and a sentence; or all of it as JSON."""
    if as_json:
        console.file.write(json.dumps(e.to_json(), indent=2) + "\n")
        return
    table = titled("expected cost; nothing was written")
    for name in ("stage", "samples", "forwards", "backwards", "time"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for s in e.stages:
        table.add_row(Text(s.stage), *map(rounded, (s.samples, s.forwards, s.backwards)), duration(s.seconds))
    table.add_section()
    table.add_row("together", *map(rounded, (e.samples, e.forwards, e.backwards)), duration(e.seconds))
    put(table, console)
    tell(console, f"Expected: {e}.", *e.notes)


def _stages(run: Run) -> Table:
    identity, threat = run.identity, run.identity.threat
    radius = f"{threat.norm}{mask_text(threat.mask)}, eps = {threat.eps_text}"
    table = titled(f"{identity.model.name} · {radius} · plan {identity.plan.name}")
    table.add_column("after")
    table.add_column("accuracy", justify="right")
    table.add_column("95 % interval")
    table.add_column("attacked", justify="right")
    table.add_column("broken", justify="right")
    table.add_row("clean", f"{100 * run.clean_accuracy.value:.1f} %", _interval(run.clean_accuracy), "", "")
    for s, (name, p) in zip(run.stages(), run.accuracy_after(), strict=True):
        table.add_row(Text(name), f"{100 * p.value:.1f} %", _interval(p), f"{s.attacked:,}", f"{s.broken:,}")
    return table


def _facts(run: Run) -> Table:
    """Names on the left, sentences on the right: a long one stays in its column."""
    r, cost, verdict = run.robust_accuracy, run.cost, run.verdict
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    accuracy = Text.assemble((f"{100 * r.value:.1f} %", "bold cyan"), f"  {_interval(r).plain}, n = {r.n:,}")
    grid.add_row("robust accuracy", accuracy)
    if run.repeats is not None:
        grid.add_row("single passes", Text(str(run.repeats)))
    if run.identity.criterion == EVADE:
        grid.add_row("goal", Text("misclassified and accepted by the detector; clean: right and accepted"))
    found = run.audit
    if found is not None:
        grid.add_row("audit", Text(str(found)))
    reasons = list(verdict.reasons) or [str(verdict).partition(": ")[2]]
    grid.add_row("verdict", Text(verdict.level, COLOURS[verdict.level]))
    for reason in reasons:
        grid.add_row("", Text(reason))
    passes = f"{cost.forwards:,} forwards, {cost.backwards:,} backwards"
    each = f"{cost.forwards_per_sample:.0f} and {cost.backwards_per_sample:.0f} per sample"
    grid.add_row("cost", Text(f"{passes} ({each}), {cost.seconds:.1f} s"))
    if found is not None:
        grid.add_row("", Text(f"of this the audit {found.cost.forwards:,} and {found.cost.backwards:,}"))
    for i, note in enumerate(run.notes):
        grid.add_row("" if i else "notes", Text(note))
    return grid


def _interval(p: Proportion) -> Text:
    return Text(f"[{100 * p.low:.1f}, {100 * p.high:.1f}]")
