"""What a Run looks like on a terminal and as JSON."""

import json
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from brinell.results import Proportion, Run

COLOURS = {"reliable": "green", "suspicious": "yellow", "invalid": "red"}


def _percent(p: Proportion) -> dict[str, Any]:
    return {"value": p.value, "low": p.low, "high": p.high, "n": p.n, "k": p.k}


def as_json(run: Run) -> str:
    """Everything a script needs, computed from the rows."""
    identity = run.manifest["identity"]
    return json.dumps(
        {
            "path": str(run.path),
            "clean_accuracy": _percent(run.clean_accuracy),
            "robust_accuracy": _percent(run.robust_accuracy),
            "stages": [{"attack": name, **_percent(p)} for name, p in run.accuracy_after()],
            "cost": {"forwards": run.cost.forwards, "backwards": run.cost.backwards, "seconds": run.cost.seconds},
            "verdict": {"level": run.verdict.level, "reasons": list(run.verdict.reasons)},
            "notes": run.manifest["notes"],
            "threat": identity["threat"],
            "plan": identity["plan"]["name"],
            "seed": identity["seed"],
            "sentence": run.sentence(),
        },
        indent=2,
    )


def show(run: Run, console: Console) -> None:
    """Accuracy stage by stage, cost, verdict, and the sentence for a paper."""
    identity = run.manifest["identity"]
    threat = identity["threat"]
    table = Table(
        title=f"{identity['model']['name']} · {threat['norm']} eps = {threat['eps_text']} · {identity['plan']['name']}"
    )
    for name, side in [
        ("after", "left"),
        ("accuracy", "right"),
        ("95 % interval", "left"),
        ("attacked", "right"),
        ("broken", "right"),
    ]:
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_row("clean", f"{100 * run.clean_accuracy.value:.1f} %", _interval(run.clean_accuracy), "", "")
    counts = {s.attack: s for s in run.stages()}
    for name, p in run.accuracy_after():
        s = counts[name]
        table.add_row(name, f"{100 * p.value:.1f} %", _interval(p), str(s.attacked), str(s.broken))
    console.print(table)
    r, cost = run.robust_accuracy, run.cost
    headline = Text.assemble(
        ("robust accuracy  ", "bold"), (f"{100 * r.value:.1f} %", "bold cyan"), f"  {_interval(r)}, n = {r.n}"
    )
    colour = COLOURS[run.verdict.level]
    verdict = Text.assemble(("verdict  ", "bold"), (str(run.verdict), colour))
    passes = Text(
        f"cost     {cost.forwards:,} forwards, {cost.backwards:,} backwards "
        f"({cost.forwards_per_sample:.0f} and {cost.backwards_per_sample:.0f} per sample), {cost.seconds:.1f} s"
    )
    console.print(Panel(Text("\n").join([headline, verdict, passes]), expand=False))
    for note in run.manifest["notes"]:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    console.print(run.sentence(), highlight=False, soft_wrap=True)


def _interval(p: Proportion) -> str:
    return f"[{100 * p.low:.1f}, {100 * p.high:.1f}]"
