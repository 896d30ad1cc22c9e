"""The command `brinell curve`: robustness curves."""

import json as json_format
from dataclasses import replace
from itertools import combinations, count
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from brinell.analysis.across_models import across_models
from brinell.cli._shared import load, options
from brinell.cli._shared.terminal import exit_if_failed, interval, make_table, print_lines, print_table
from brinell.core.model import Classifier
from brinell.core.threat import norm_name, parse_eps
from brinell.curves import Curve, NormTransfer, curve, order_across_norms, transfer_across_norms
from brinell.curves.across_norms import TRANSFER
from brinell.curves.measure import require_norms
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Proportion
from brinell.storage import make_folder, write_output

# The default radii of the table, as multiples of the largest median distance.
MULTIPLES = (0.25, 0.5, 1.0, 2.0)


def command(
    *,
    model: options.Models,
    data: options.Data,
    norm: Annotated[list[str] | None, typer.Option(help="Linf, L2, L1 or L0. Repeat for several; default: L2.")] = None,
    plan: options.Plan = "minimal",
    eps: Annotated[
        list[str] | None, typer.Option(help="A radius for the table and the plot. Repeat for several.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Reuse Runs of the same --model.")
    ] = None,
    known: Annotated[list[Path] | None, typer.Option(hidden=True)] = None,
    n: options.N = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the Runs, curves.json and .csv files.")
    ] = None,
    plot: options.Plot = None,
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer",
            help="Measure the adversarial examples of each --norm in the other norms; compare the order of models.",
        ),
    ] = False,
    certify: Annotated[
        bool, typer.Option("--certify", help="Also prove radii within which samples are robust.")
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="The last method of --certify: interval, crown (default), optimised, …")
    ] = None,
    resume: options.Resume = False,
    compute: options.ComputeFlags,
    output: options.PrintFlags,
) -> None:
    """Measure the smallest perturbation that breaks each sample, and draw the robustness curve."""
    check_plot_path(plot)
    reused = [*(runs or ()), *(known or ())]
    if reused and len(model) > 1:
        raise typer.BadParameter(
            "RUN needs exactly one --model, because a Run belongs to one model: omit the other models."
        )
    radii, norms = [parse_eps(e) for e in eps or ()], list(dict.fromkeys(map(norm_name, norm or ["L2"])))
    if transfer and len(norms) < 2:
        raise typer.BadParameter("--transfer needs at least two norms: --norm Linf --norm L2.")
    problem = load.data(data, n, None)
    require_norms(plan, norms, problem)
    places = count()

    def measure(m: Classifier, _: object) -> list[Curve]:
        i = next(places)
        return [
            curve(
                m, problem, p, plan, known=reused, out=None if out is None else out / f"{i}-{p}",
                resume=resume, progress=output.progress, certify=method or certify, **compute.arguments(),
            )
            for p in norms
        ]  # fmt: skip

    found = across_models(model, measure)
    curves = [c for m in found.measured for c in m.result or ()]
    # Fresh names, so that two models of the same name stay apart.
    moved = transfer_across_norms(named_apart(curves, len(norms)), problem) if transfer else ()
    every = [*curves, *(t.transferred for t in moved)]
    if out is not None:
        make_folder(out)
        write_output(out / "curves.json", json_format.dumps([c.to_json(out) for c in every]))
        for i, c in enumerate(curves):
            c.save(out / f"{i // len(norms)}-{c.norm}.csv")
        each = len(norms) * (len(norms) - 1)
        for i, t in enumerate(moved):
            t.transferred.save(out / f"{i // each}-{t.found_in}-in-{t.direct.norm}.csv")
    if plot is not None:
        every[0].plot(plot, every[1:], marks=radii)
    output.print(lambda: [c.to_json() for c in every], lambda console: show(curves, radii, console, moved))
    exit_if_failed(found)


def named_apart(curves: list[Curve], each: int) -> list[Curve]:
    """Return the curves; names that several models share get a number. `each` is the number of curves per model."""
    names = [c.name for c in curves[::each]]
    twice = {name for name in names if names.count(name) > 1}
    return [replace(c, name=f"{c.name} ({i // each + 1})") if c.name in twice else c for i, c in enumerate(curves)]


def show(curves: list[Curve], radii: list[float], console: Console, moved: tuple[NormTransfer, ...] = ()) -> None:
    """Print one table per norm with robust accuracies at the radii, then the radii at which curves of models cross."""
    for norm in dict.fromkeys(c.norm for c in curves):
        of_norm = [c for c in curves if c.norm == norm]
        largest = max((c.median for c in of_norm if 0 < c.median < float("inf")), default=None)
        at = radii or ([] if largest is None else [s * largest for s in MULTIPLES])
        columns = ("model", ">clean", *(f">eps = {e:.4g}" for e in at), ">median", ">unresolved")
        rows = (
            (c.name, _share(c.accuracy(0)), *(_share(c.accuracy(e)) for e in at), f"{c.median:.4g}", str(c.unresolved))
            for c in of_norm
        )
        print_table(make_table(f"robust accuracy, {norm}, n = {of_norm[0].n}", columns, rows), console)
        if any(c.certified is not None for c in of_norm):
            _show_certified([c for c in of_norm if c.certified is not None], at, console)
        if not at:
            print_lines(console, "No radius is shown, since every median is 0 or infinite: choose radii with --eps.")
        print_lines(console, *(str(a.crossings(b)) for a, b in combinations(of_norm, 2)))
    if moved:
        show_transfer(moved, console)
    for path in dict.fromkeys(c.path for c in curves):
        console.print(Text(f"Run: {path}"), soft_wrap=True)


def _show_certified(curves: list[Curve], at: list[float], console: Console) -> None:
    """Print lower bounds on the robust accuracy: the shares of samples that are proved to be robust."""
    rows = ((c.name, *(_share(c.certified_accuracy(e)) for e in at)) for c in curves)
    columns = ("model", *(f">eps = {e:.4g}" for e in at))
    print_table(make_table(f"certified accuracy, {curves[0].norm}", columns, rows), console)


def show_transfer(moved: tuple[NormTransfer, ...], console: Console) -> None:
    """Print how large each norm's adversarial examples are in other norms, and whether models keep their order."""
    columns = [name if i < 3 else f">{name}" for i, name in enumerate(TRANSFER)]
    rows = (t.cells for t in moved)
    print_table(make_table("adversarial examples of one norm in another", columns, rows), console)
    by_norm: dict[str, dict[str, Curve]] = {}
    for t in moved:
        by_norm.setdefault(t.direct.norm, {})[t.name] = t.direct
    for first, second in combinations(by_norm, 2):
        pairs = order_across_norms(list(by_norm[first].values()), list(by_norm[second].values()))
        print_lines(console, *map(str, pairs))


def _share(p: Proportion) -> str:
    return f"{100 * p.value:.1f} % {interval(p)}"
