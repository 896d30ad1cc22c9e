"""Tables as Markdown and LaTeX text, and Runs as LaTeX tables for a paper, with captions and numbers in math mode."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from brinell.errors import one_of
from brinell.report.paper_text import labels
from brinell.results import CLEAN, Comparison, Proportion, Run
from brinell.results.analyses import Cell, Table
from brinell.results.bracket import CERTIFIED
from brinell.results.statistics import Difference
from brinell.results.summary import eps_text, mask_text

# What a character of plain text is in LaTeX.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "≈": r"$\approx$", "≥": r"$\geq$", "<": r"$<$",
    ">": r"$>$", "|": r"$|$",
}  # fmt: skip
NORMS = {"Linf": r"$\ell_\infty$", "L2": r"$\ell_2$", "L1": r"$\ell_1$", "L0": r"$\ell_0$"}
# Other names that people give to formats.
ALIASES = {"latex": "tex", "markdown": "md"}
HEAD = "% Needs \\usepackage{booktabs}.\n"
INTERVALS = r"accuracy in \%, with 95\,\% Wilson intervals"


def known_format(name: str, known: Iterable[str]) -> str:
    """Return the name of a format, which may be an alias; raise a PlanError for an unknown one.

    >>> known_format("latex", ["md", "tex"])
    'tex'
    """
    return one_of("a format", ALIASES.get(name, name), known)


def latex_text(text: str) -> str:
    r"""Return plain text as LaTeX, with special characters escaped.

    >>> print(latex_text("50 % of A&B_1"))
    50 \% of A\&B\_1
    """
    return "".join(LATEX.get(c, c) for c in text)


def markdown_text(text: str) -> str:
    r"""Return plain text as one line of Markdown for the cell of a table, with special characters escaped.

    >>> print(markdown_text("a|b"))
    a\|b
    """
    return " ".join(re.sub(r"([\\|*_`<>\[\]])", r"\\\1", text).split())


def as_markdown_table(table: Table, escaped: Sequence[int] = ()) -> str:
    """Return the table as Markdown; the columns `escaped` (by position) are Markdown already.

    >>> print(as_markdown_table(Table("", ("net", "acc"), (("a", 1.5),))), end="")
    | net | acc |
    |---|---:|
    | a | 1.50 |
    """
    rows = [[_cell(c) if i in escaped else markdown_text(_cell(c)) for i, c in enumerate(row)] for row in table.rows]
    rule = "|".join("---:" if right else "---" for right in _numeric(table))
    lines = [f"| {' | '.join(table.columns)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def as_latex_table(table: Table, escaped: Sequence[int] = ()) -> str:
    r"""Return the table as a LaTeX tabular with the rules of booktabs; the columns `escaped` are LaTeX already.

    >>> print(as_latex_table(Table("Nets", ("net", "acc"), (("a_1", 1.5),))), end="")
    % Nets. Needs \usepackage{booktabs}.
    \begin{tabular}{lr}
    \toprule
    net & acc \\
    \midrule
    a\_1 & 1.50 \\
    \bottomrule
    \end{tabular}
    """
    rows = [[_cell(c) if i in escaped else latex_text(_cell(c)) for i, c in enumerate(row)] for row in table.rows]
    columns = "".join("r" if right else "l" for right in _numeric(table))
    lines = [
        f"% {' '.join(table.title.split())}. Needs \\usepackage{{booktabs}}.", f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule", f"{' & '.join(map(latex_text, table.columns))} \\\\", "\\midrule",
        *(f"{' & '.join(row)} \\\\" for row in rows), "\\bottomrule", "\\end{tabular}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _numeric(table: Table) -> list[bool]:
    """Return for every column whether it holds only numbers."""
    cells = [[row[i] for row in table.rows if row[i] is not None] for i in range(len(table.columns))]
    return [bool(column) and all(isinstance(c, int | float) for c in column) for column in cells]


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def runs_as_latex(
    runs: Sequence[Run], pairs: Sequence[tuple[int, int, Comparison | str]], label: str | None = None
) -> str:
    """Return LaTeX tables: accuracies of all Runs, accuracies after every attack, and the paired differences.

    Their labels end in `label`, by default in models, data, threats and plans, so that tables of several reports fit
    into one paper.
    """
    names, key = labels(list(runs)), latex_key(runs) if label is None else label
    numbers = [""] if len(runs) == 1 else [f"-{i + 1}" for i in range(len(runs))]
    tables = [_accuracies(runs, names, f"robust-{key}")]
    tables += [
        _stages(*each) for each in zip(runs, names, (f"stages-{key}{number}" for number in numbers), strict=True)
    ]
    for i, j, c in pairs:
        if isinstance(c, Comparison):
            named = replace(c, name_a=names[i], name_b=names[j])
            tables.append(_comparison(named, f"paired-{key}{numbers[i]}{numbers[j]}"))
    return HEAD + "\n".join(tables)


def latex_key(runs: Sequence[Run]) -> str:
    """Return models, data, threats and plans of Runs as the end of a LaTeX label.

    >>> latex_key([Run.open("tests/results/golden_run_v1")])
    'toy-net-toys-linf-8-255-golden'
    """
    columns: list[list[str]] = [[], [], [], []]
    for run in runs:
        i, norm = run.identity, str(run.identity.threat.norm).lower()
        size = "" if i.threat.eps is None else f"-{eps_text(i.threat.eps)}"
        for column, part in zip(columns, (i.model.name, i.data.name, f"{norm}{size}", i.plan.name), strict=True):
            column.append(re.sub(r"[^\w.]+", "-", part or "", flags=re.ASCII).strip("-"))
    return "-".join(part for column in columns for part in dict.fromkeys(column) if part)


def comparison_as_latex(c: Comparison, label: str | None = None) -> str:
    """Return the comparison of two Runs as a LaTeX table; its label ends in `label`, by default in both names."""
    names = (re.sub(r"[^\w.]+", "-", name, flags=re.ASCII).strip("-") for name in (c.name_a, c.name_b))
    return HEAD + _comparison(c, f"paired-{'-'.join(names) if label is None else label}")


def latex_share(p: Proportion | None) -> str:
    r"""Return a share and its interval in per cent.

    >>> print(latex_share(Proportion(1, 4)))
    $25.0\ [4.6, 69.9]$
    """
    return "--" if p is None or not p.n else rf"${100 * p.value:.1f}\ [{100 * p.low:.1f}, {100 * p.high:.1f}]$"


def latex_threat(run: Run) -> str:
    r"""Return the threat of a Run.

    >>> print(latex_threat(Run.open("tests/results/golden_run_v1")))
    $\ell_\infty$, $\varepsilon = 8/255$
    """
    norm, eps = run.identity.threat.norm, run.identity.threat.eps
    name = NORMS.get(str(norm), latex_text(norm or "unnamed")) + latex_text(mask_text(run.identity.threat.mask))
    if eps is None:
        return f"{name}, smallest distances"
    size = eps_text(eps)
    return f"{name}, " + (rf"$\varepsilon = {size}$" if size[0].isdigit() else latex_text(size))


def _accuracies(runs: Sequence[Run], names: Sequence[str], label: str) -> str:
    """Return the table of all Runs; what is the same for all of them is said once, in the caption."""
    about = {
        "threat": [latex_threat(run) for run in runs],
        "plan": [latex_text(run.identity.plan.name or "unnamed") for run in runs],
        "data": [latex_text(run.identity.data.name or "unnamed") for run in runs],
        "$n$": [f"${run.robust_accuracy.n}$" for run in runs],
    }
    once = {head: values[0] for head, values in about.items() if len(set(values)) == 1}
    same = [f"$n = {value[1:]}" if head == "$n$" else f"{head} {value}" for head, value in once.items()]
    shown = {"model": list(map(latex_text, names))}
    shown |= {head: values for head, values in about.items() if head not in once}
    shown["clean"] = [latex_share(run.clean_accuracy) for run in runs]
    if any(run.bracket is not None for run in runs):
        shown["certified accuracy"] = [latex_share(run.certified_accuracy) for run in runs]
    shown["robust"] = [latex_share(run.robust_accuracy) for run in runs]
    shown["verdict"] = [run.verdict.level for run in runs]
    caption = f"Clean and robust {INTERVALS}: {', '.join(same)}." if same else f"Clean and robust {INTERVALS}."
    return _float(list(shown), list(zip(*shown.values(), strict=True)), caption, label)


def _stages(run: Run, name: str, label: str) -> str:
    rows = [(CLEAN, latex_share(run.clean_accuracy), "")]
    rows += [(latex_text(s.attack), latex_share(p), f"${s.broken}$ of ${s.attacked}$") for s, p in run.steps()]
    caption = (
        f"{latex_text(name)}, {latex_threat(run)}: {INTERVALS}, after each attack ($n = {run.robust_accuracy.n}$)."
    )
    return _float(("after", "accuracy", "broken"), rows, caption, label)


def _comparison(c: Comparison, label: str) -> str:
    a, b = latex_text(c.name_a), latex_text(c.name_b)
    rows = [
        (a, latex_share(c.robust_a), f"${c.only_a}$", c.verdicts[0]),
        (b, latex_share(c.robust_b), f"${c.only_b}$", c.verdicts[1]),
        *((f"{CERTIFIED}, {name}", latex_share(p), "", "") for name, p in zip((a, b), c.certified, strict=True) if p),
        ("difference", _points(c.difference), "", ""),
    ]
    test = rf"95\,\% intervals, exact McNemar test: $p = {_p_value(c.p_value)}$"
    return _float(
        ("model", r"robust accuracy (\%)", "robust only here", "verdict"), rows,
        f"Paired comparison on $n = {c.n}$ samples, {test}.", label,
    )  # fmt: skip


def _points(d: Difference) -> str:
    return rf"${100 * d.value:+.1f}\ [{100 * d.low:+.1f}, {100 * d.high:+.1f}]$ points"


def _p_value(p: float) -> str:
    mantissa, _, exponent = f"{p:.3g}".partition("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa


def _float(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str) -> str:
    """Return a table whose cells are LaTeX already."""
    lines = [
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", f"{' & '.join(heads)} \\\\", r"\midrule",
        *(f"{' & '.join(row)} \\\\" for row in rows), r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
