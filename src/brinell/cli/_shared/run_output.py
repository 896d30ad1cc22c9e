"""Print a Run, or the estimated cost of a Run, as text or as JSON."""

import shlex
from pathlib import Path

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from brinell.cli._shared.options import PrintFlags
from brinell.cli._shared.terminal import add_row, interval, make_table, print_lines, print_report, print_table
from brinell.cost.budget import Estimate, duration, rounded
from brinell.errors import BrinellError
from brinell.report.facts import facts
from brinell.results import Proportion, Run, SeedRuns
from brinell.results.evidence import in_short
from brinell.results.format.manifest import EVADE, MANIFEST, decode, differences
from brinell.results.summary import mask_text

COLOURS = {"reliable": "green", "upper bound": "bold", "suspicious": "yellow", "invalid": "red"}


def output_run(run: Run, output: PrintFlags) -> None:
    """Print a Run as JSON, or as tables and sentences."""
    output.print(lambda: facts(run), lambda console: print_run(run, console))


def output_seeds(found: SeedRuns, output: PrintFlags) -> None:
    """Print Runs with different seeds as JSON, or as a table with mean and standard deviation."""

    def plain() -> dict[str, object]:
        p, mean = found.worst, found.robust_accuracy
        return {
            "mean": found.mean, "interval": [mean.low, mean.high],
            "deviation": found.deviation if len(found.runs) > 1 else None, "worst": p.value, "n": p.n,
            "runs": [facts(run) for run in found.runs],
        }  # fmt: skip

    def text(console: Console) -> None:
        print_report(found.findings(), console)
        print_lines(console, *(f"Run: {run.path}" for run in found.runs))

    output.print(plain, text)


def print_run(run: Run, console: Console) -> None:
    """Print the accuracy after each attack, the cost, the verdict, and the sentence for a paper."""
    print_table(_stages(run), console)
    if run.idle:
        print_lines(console, run.idle)
    print_table(Panel(_summary(run), box=box.ROUNDED, expand=False), console)
    print_lines(console, run.sentence(), f"Run: {run.path}")


def next_commands(run: Run, model: str, data: str) -> dict[str, str]:
    """Return what one does next with a Run, and the command for it; `model` and `data` are as on the command line.

    If the folder of the Run has another Run on the same data, the newest of them is there to compare with.
    """
    folder, given = shlex.quote(str(run.path)), f"--model {shlex.quote(model)} --data {shlex.quote(data)}"
    other = neighbour(run)
    both = "" if other is None else f"{shlex.quote(str(other))} {folder}"
    pair = {"compare": f"brinell compare {both}", "LaTeX": f"brinell report {both} --format tex-table --out table.tex"}
    return {
        **(pair if both else {}),
        "report": f"brinell report {folder} --data {shlex.quote(data)} --out report.html",
        "check again": f"brinell verify {folder} {given}",
        "share": f"brinell submit {folder} --out bundle.zip",
    }


def neighbour(run: Run) -> Path | None:
    """Return the newest other finished Run beside a Run that is of the same data and threat; None without one."""
    found = []
    for file in run.path.parent.glob(f"*/{MANIFEST}"):
        try:
            other = decode(file.parent)
        except (BrinellError, OSError):
            continue
        same = other.identity.data.fingerprint == run.identity.data.fingerprint
        same &= not differences(other.identity.threat.raw, run.identity.threat.raw)
        if same and other.finished and file.parent.resolve() != run.path.resolve():
            found.append((other.created or "", file.parent))
    return max(found, default=("", None))[1]


def print_next(commands: dict[str, str]) -> None:
    """Print commands to run next, one line each."""
    console, width = Console(), max(map(len, commands))
    console.print(Text("Next:", "bold"))
    for what, command in commands.items():
        console.print(Text(f"  {what:<{width}}  {command}"), soft_wrap=True)


def output_estimate(estimate: Estimate, output: PrintFlags) -> None:
    """Print an estimated cost as JSON, or as a table with one row per stage."""
    output.print(estimate.to_json, lambda console: _print_estimate(estimate, console))


def _print_estimate(estimate: Estimate, console: Console) -> None:
    rows = [(s.stage, s.samples, s.forwards, s.backwards, s.seconds) for s in estimate.stages]
    total = ("total", estimate.samples, estimate.forwards, estimate.backwards, estimate.seconds)
    table = make_table("estimated cost; nothing was written", ("stage", ">samples", ">forwards", ">backwards", ">time"))
    for name, *counts, seconds in (*rows, total):
        if name == "total":
            table.add_section()
        add_row(table, (name, *(rounded(int(c)) for c in counts), duration(seconds)))
    print_table(table, console)
    print_lines(console, f"Estimated cost: {estimate}.", *estimate.notes)


def _stages(run: Run) -> Table:
    identity, threat = run.identity, run.identity.threat
    threat_name = f"{threat.norm}{mask_text(threat.mask)}, eps = {threat.eps_text}"
    title = f"{identity.model.name} · {threat_name} · plan {identity.plan.name}"
    clean, own = run.clean_accuracy, dict(run.accuracy_alone()) if identity.individual else {}
    rows = [("clean", *_accuracy(clean), *([""] * 2 if own else []), "", "")]
    for s, p in run.steps():
        alone = _accuracy(own.get(s.attack)) if own else ()
        rows.append((s.attack, *_accuracy(p), *alone, f"{s.attacked:,}", f"{s.broken:,}"))
    alone_columns = (">alone", "95 % interval") if own else ()
    return make_table(title, ("after", ">accuracy", "95 % interval", *alone_columns, ">attacked", ">broken"), rows)


def _accuracy(p: Proportion | None) -> tuple[str, str]:
    return ("", "") if p is None else (f"{100 * p.value:.1f} %", interval(p))


def _summary(run: Run) -> Table:
    """Return a two-column table of a Run's results: names on the left, values and sentences on the right."""
    robust, cost, verdict, audit = run.robust_accuracy, run.cost, run.verdict, run.audit
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    accuracy = Text.assemble((f"{100 * robust.value:.1f} %", "bold cyan"), f"  {interval(robust)}, n = {robust.n:,}")
    add_row(grid, ("robust accuracy", accuracy))
    if run.bracket is not None:
        low = run.bracket.certified
        text = Text.assemble((f"{100 * low.value:.1f} %", "bold cyan"), f"  {interval(low)}, {run.bracket.open:,} open")
        add_row(grid, ("certified accuracy", text))
        add_row(grid, ("bracket", run.bracket.short))
        for method in run.bracket.methods:
            add_row(grid, ("", str(method)))
    if run.repeats is not None:
        add_row(grid, ("single passes", str(run.repeats)))
    if run.identity.criterion == EVADE:
        add_row(grid, ("criterion", "misclassified and accepted by the detector; clean: correct and accepted"))
    add_row(grid, ("verdict", Text(verdict.level, COLOURS[verdict.level])))
    for reason in verdict.reasons or (verdict.ground,):
        add_row(grid, ("", reason))
    for i, line in enumerate(in_short(run)):
        add_row(grid, ("" if i else "evidence", line))
    add_row(grid, ("not tested", " ".join(verdict.untested)))
    passes = f"{cost.forwards:,} forward and {cost.backwards:,} backward passes"
    per_sample = f"{cost.forwards_per_sample:.0f} and {cost.backwards_per_sample:.0f} per sample"
    add_row(grid, ("cost", f"{passes} ({per_sample}), {cost.seconds:.1f} s"))
    if audit is not None and audit.cost.forwards:
        names = ", ".join(s.attack for s, _ in run.steps() if s.attack in audit.attacks)
        add_row(grid, ("", f"of which {names}: {audit.cost.forwards:,} and {audit.cost.backwards:,}"))
    for i, note in enumerate(run.notes):
        add_row(grid, ("" if i else "notes", note))
    return grid
