"""Reports as LaTeX: floats with caption and label, ready for a paper; every number is in math mode."""

from collections.abc import Sequence
from dataclasses import replace

from brinell.report.paper_text import labels
from brinell.report.text_tables import latex_text
from brinell.results import CLEAN, Comparison, Proportion, Run
from brinell.results.bracket import CERTIFIED
from brinell.results.statistics import Difference
from brinell.results.summary import eps_text, mask_text

NORMS = {"Linf": r"$\ell_\infty$", "L2": r"$\ell_2$", "L1": r"$\ell_1$", "L0": r"$\ell_0$"}
HEAD = "% Needs \\usepackage{booktabs}.\n"
INTERVALS = r"accuracy in \%, with 95\,\% Wilson intervals"


def as_latex(runs: Sequence[Run], pairs: Sequence[tuple[int, int, Comparison | str]]) -> str:
    """Return LaTeX tables: accuracies of all Runs, accuracies after every attack, and the paired differences."""
    names = labels(list(runs))
    tables = [_accuracies(runs, names)]
    tables += [_stages(run, name, f"stages-{i + 1}") for i, (run, name) in enumerate(zip(runs, names, strict=True))]
    for i, j, c in pairs:
        if isinstance(c, Comparison):
            tables.append(_comparison(replace(c, name_a=names[i], name_b=names[j]), f"paired-{i + 1}-{j + 1}"))
    return HEAD + "\n".join(tables)


def comparison_as_latex(c: Comparison) -> str:
    """Return the comparison of two Runs as a LaTeX table."""
    return HEAD + _comparison(c, "paired")


def share(p: Proportion | None) -> str:
    r"""Return a share and its interval in per cent.

    >>> print(share(Proportion(1, 4)))
    $25.0\ [4.6, 69.9]$
    """
    return "--" if p is None or not p.n else rf"${100 * p.value:.1f}\ [{100 * p.low:.1f}, {100 * p.high:.1f}]$"


def threat(run: Run) -> str:
    r"""Return the threat of a Run.

    >>> print(threat(Run.open("tests/results/golden_run_v1")))
    $\ell_\infty$, $\varepsilon = 8/255$
    """
    norm, eps = run.identity.threat.norm, run.identity.threat.eps
    name = NORMS.get(str(norm), latex_text(norm or "unnamed")) + latex_text(mask_text(run.identity.threat.mask))
    if eps is None:
        return f"{name}, smallest distances"
    size = eps_text(eps)
    return f"{name}, " + (rf"$\varepsilon = {size}$" if size[0].isdigit() else latex_text(size))


def _accuracies(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Return the table of all Runs; what is the same for all of them is said once, in the caption."""
    about = {
        "threat": [threat(run) for run in runs],
        "plan": [latex_text(run.identity.plan.name or "unnamed") for run in runs],
        "data": [latex_text(run.identity.data.name or "unnamed") for run in runs],
        "$n$": [f"${run.robust_accuracy.n}$" for run in runs],
    }
    same = [f"{head} {values[0]}" for head, values in about.items() if len(set(values)) == 1]
    shown = {"model": list(map(latex_text, names))}
    shown |= {head: values for head, values in about.items() if len(set(values)) > 1}
    shown["clean"] = [share(run.clean_accuracy) for run in runs]
    if any(run.bracket is not None for run in runs):
        shown["certified accuracy"] = [share(run.certified_accuracy) for run in runs]
    shown["robust"] = [share(run.robust_accuracy) for run in runs]
    shown["verdict"] = [run.verdict.level for run in runs]
    caption = f"Clean and robust {INTERVALS}: {', '.join(same)}." if same else f"Clean and robust {INTERVALS}."
    return _float(list(shown), list(zip(*shown.values(), strict=True)), caption, "robust")


def _stages(run: Run, name: str, label: str) -> str:
    rows = [(CLEAN, share(run.clean_accuracy), "")]
    rows += [(latex_text(s.attack), share(p), f"${s.broken}$ of ${s.attacked}$") for s, p in run.steps()]
    caption = f"{latex_text(name)}, {threat(run)}: {INTERVALS}, after each attack ($n = {run.robust_accuracy.n}$)."
    return _float(("after", "accuracy", "broken"), rows, caption, label)


def _comparison(c: Comparison, label: str) -> str:
    a, b = latex_text(c.name_a), latex_text(c.name_b)
    rows = [
        (a, share(c.robust_a), f"${c.only_a}$", c.verdicts[0]),
        (b, share(c.robust_b), f"${c.only_b}$", c.verdicts[1]),
        *((f"{CERTIFIED}, {name}", share(p), "", "") for name, p in zip((a, b), c.certified, strict=True) if p),
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
