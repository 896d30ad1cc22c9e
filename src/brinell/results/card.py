"""A Run in a notebook, as plain HTML."""

import math
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brinell.results.run import Run

COLOURS = {"reliable": "#0f6b4a", "suspicious": "#8a4b00", "invalid": "#a3211b"}


def card(run: "Run") -> str:
    """Return a Run as a small piece of HTML without scripts or external styles.

    >>> from brinell.results import Run
    >>> "33.3 %" in card(Run.open("tests/results/golden_run_v1"))
    True
    """
    robust, verdict, state = run.robust_accuracy, run.verdict, "" if run.finished else ", unfinished"
    name = run.identity.model.name or run.path.name
    level = f'<b style="color:{COLOURS[verdict.level]}">{verdict.level}</b>'
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    after = [("clean", run.clean_accuracy), *run.accuracy_after()]
    rows = "".join(
        f'<tr><td style="text-align:left">{escape(stage)}</td><td>{100 * p.value:.1f} %</td>'
        f"<td>[{100 * p.low:.1f}, {100 * p.high:.1f}]</td><td>{_bar(p.value)}</td></tr>"
        for stage, p in after
    )
    return (
        '<div style="border:1px solid #8886;border-radius:8px;padding:.8em 1em;max-width:44em;line-height:1.45">'
        f"<div><b>{escape(name)}</b>, plan {escape(run.identity.plan.name)}{state}</div>"
        f'<div style="font-size:2em;font-weight:650">{100 * robust.value:.1f} %</div>'
        f"<div>robust accuracy, 95 % interval [{100 * robust.low:.1f}, {100 * robust.high:.1f}], n = {robust.n:,}</div>"
        f'<table style="margin:.6em 0"><thead><tr><th style="text-align:left">after</th><th>accuracy</th><th>interval'
        f"</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
        f'<div>verdict: {level}</div><ul style="margin:.2em 0 0;padding-left:1.2em">{reasons}</ul></div>'
    )


def _bar(share: float) -> str:
    width = 0.0 if math.isnan(share) else 100 * share
    return (
        '<div style="width:12em;background:#8883;border-radius:3px"><div style="height:.7em;border-radius:3px;'
        f'background:#0072b2;width:{width:.1f}%"></div></div>'
    )
