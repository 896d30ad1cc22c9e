"""Tables as Markdown and LaTeX text."""

import re
from collections.abc import Sequence

from brinell.results.analyses import Cell, Table

# What a character of plain text is in LaTeX.
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "≈": r"$\approx$", "≥": r"$\geq$", "<": r"$<$",
    ">": r"$>$", "|": r"$|$",
}  # fmt: skip


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
