"""brinell analyze."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell import analysis
from brinell.analysis.calibration_error import BINS
from brinell.analysis.intervals import to_plain
from brinell.analysis.smoothness import EPS, STEPS
from brinell.attacks import PGD
from brinell.cli._shared import load, options
from brinell.cli._shared.pictures import drawable
from brinell.cli._shared.terminal import put, tell, titled
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import threat
from brinell.errors import InputError
from brinell.results import Run
from brinell.results.analyses import AnalysisReport, Cell
from brinell.results.analyses import Table as Found

app = typer.Typer(no_args_is_help=True, help="Look at a model beyond its robust accuracy.")

Folder = Annotated[Path | None, typer.Option("--run", help="Folder of a Run of this model.")]
Folders = Annotated[list[Path] | None, typer.Option("--run", help="Folder of a Run; several are allowed.")]
Seed = Annotated[int, typer.Option(help="Decides what is drawn at random.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write findings and numbers to this file; - prints them.")]
Save = Annotated[bool, typer.Option("--save", help="Keep the findings in the Run's folder, for its report.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw the figures: a .svg, .png or .pdf file.")]


@app.command("calibration")
def calibration(
    model: options.Model,
    data: options.Data,
    run: Folder = None,
    bins: Annotated[int, typer.Option(help="Bins of equal width.")] = BINS,
    n: options.N = None,
    seed: Seed = 0,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Whether probabilities mean what they say; with --run on adversarial inputs too."""
    runs = _ready(run, save, plot)
    found = analysis.calibration(
        load.model(model), load.data(data, n, None), *runs, bins=bins, seed=seed, device=device
    )
    _finish(found, runs, json, save, plot)


@app.command("ood")
def ood(
    model: options.Model,
    data: options.Data,
    other: Annotated[
        list[str] | None, typer.Option(help="Foreign data as NAME=DATA or DATA; several are allowed. Default: noise.")
    ] = None,
    run: Folder = None,
    n: options.N = None,
    seed: Seed = 0,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Whether low confidence gives away inputs that belong to no class."""
    runs = _ready(run, save, plot)
    sets = _named(other or (), n) if other else None
    found = analysis.detection(load.model(model), load.data(data, n, None), sets, seed=seed, device=device)
    _finish(found, runs, json, save, plot)


@app.command("fairness")
def fairness(
    run: Annotated[Path, typer.Option("--run", help="Folder of a Run.")],
    names: Annotated[str | None, typer.Option(help="Names of the classes in order: plane,car,…")] = None,
    seed: Seed = 0,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Clean and robust accuracy class by class, and how unequal they are."""
    runs = _ready(run, save, plot)
    called = () if names is None else tuple(name.strip() for name in names.split(","))
    _finish(analysis.fairness(runs[0], names=called, seed=seed), runs, json, save, plot)


@app.command("privacy")
def privacy(
    model: options.Model,
    members: Annotated[str, typer.Option(help="The data the model was trained on, as in --data elsewhere.")],
    others: Annotated[str, typer.Option(help="Data of the same kind that it was not trained on.")],
    run: Folders = None,
    eps: Annotated[str | None, typer.Option(help="Attack every sample within this radius, e.g. 8/255.")] = None,
    norm: options.Norm = "Linf",
    steps: Annotated[int, typer.Option(help="Steps of that attack.")] = 10,
    n: options.N = None,
    seed: Seed = 0,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Whether confidences tell training samples from others; --eps, or a --run of each, for adversarial inputs."""
    if run is not None and len(run) != 2:
        raise InputError(
            expected="two Runs, that of the members first", got=f"{len(run)}", remedy="Write --run A --run B."
        )
    runs = _ready(run, save, plot)
    found = analysis.privacy(
        load.model(model),
        load.data(members, n, None),
        load.data(others, n, None),
        runs=(runs[0], runs[1]) if runs else None,
        threat=None if eps is None else threat(norm, eps),
        attack=PGD(steps=steps),
        seed=seed,
        device=device,
    )
    _finish(found, runs, json, save, plot)


@app.command("smoothness")
def smoothness(
    model: options.Model,
    data: options.Data,
    eps: Annotated[str, typer.Option(help="Radius around the samples.")] = EPS,
    norm: Annotated[str, typer.Option(help="Linf, L2 or L1, of distances between inputs.")] = "Linf",
    output_norm: Annotated[str, typer.Option(help="L1, L2 or Linf, of differences between answers.")] = "L1",
    layer: Annotated[
        list[str] | None, typer.Option(help="A module to look at; several are allowed. Default: the network's parts.")
    ] = None,
    angular: Annotated[bool, typer.Option("--angular", help="Look at the direction of the answers alone.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = STEPS,
    restarts: Annotated[int, typer.Option(help="Searches per sample; 1 climbs the ratio alone.")] = 2,
    run: Folder = None,
    n: options.N = None,
    seed: Seed = 0,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """How fast answers change around the samples, layer by layer: lower bounds."""
    runs = _ready(run, save, plot)
    found = analysis.smoothness(
        load.model(model),
        load.data(data, n, None),
        threat(norm, eps),
        layers=layer,
        output_norm=output_norm,
        angular=angular,
        steps=steps,
        restarts=restarts,
        seed=seed,
        device=device,
    )
    _finish(found, runs, json, save, plot)


@app.command("transfer")
def transfer(
    model: Annotated[
        list[str], typer.Option("--model", "-m", help="The model of each Run in turn, then further ones that see all.")
    ],
    data: options.Data,
    run: Annotated[list[Path], typer.Option("--run", help="Folder of a Run; several are allowed.")],
    n: options.N = None,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Whether the adversarials of Runs fool other models; no attack is made."""
    if len(run) > len(model):
        raise InputError(
            expected="a model for every Run", got=f"{len(model)} and {len(run)}", remedy="Give --model for each --run."
        )
    runs = _ready(run, save, plot)
    models = _apart([load.model(spec) for spec in model])
    named = dict(zip(models, runs, strict=False))
    _finish(analysis.transfer(named, models, load.data(data, n, None), device=device), runs, json, save, plot)


@app.command("shift")
def shift(
    model: options.Model,
    data: options.Data,
    other: Annotated[list[str], typer.Option(help="Data from elsewhere as NAME=DATA or DATA; several are allowed.")],
    baseline: Annotated[
        list[str] | None, typer.Option(help="An ordinary model to compare with; two or more, from weak to strong.")
    ] = None,
    run: Folder = None,
    n: options.N = None,
    seed: Seed = 0,
    device: options.Device = None,
    json: Json = None,
    save: Save = False,
    plot: Plot = None,
) -> None:
    """Accuracy on data from elsewhere, beside that on the model's own."""
    runs = _ready(run, save, plot)
    ordinary = [load.model(spec) for spec in baseline or ()]
    found = analysis.shift(
        load.model(model), load.data(data, n, None), _named(other, n), baselines=ordinary, seed=seed, device=device
    )
    _finish(found, runs, json, save, plot)


def _ready(run: "Path | Sequence[Path] | None", save: bool, plot: Path | None) -> list[Run]:
    """The Runs, and refusals before any work is done."""
    drawable(plot)
    paths = [] if run is None else [run] if isinstance(run, Path) else list(run)
    if save and not paths:
        raise InputError(expected="a Run to save in", got="--save alone", remedy="Name its folder: --run FOLDER.")
    return [Run.open(path) for path in paths]


def _named(specs: Sequence[str], n: int | None) -> dict[str, Problem]:
    """Problems by name from NAME=DATA, or DATA alone, which is then called by its file's name."""
    found: dict[str, Problem] = {}
    for spec in specs:
        name, equals, source = spec.partition("=")
        name = name if equals else Path(spec).stem
        if name in found:
            raise InputError(expected="names that differ", got=f"{name} twice", remedy="Write NAME=DATA.")
        found[name] = load.data(source if equals else spec, n, None)
    return found


def _apart(models: Sequence[Classifier]) -> dict[str, Classifier]:
    """Models by name; a name that is taken gets a number."""
    found: dict[str, Classifier] = {}
    for model in models:
        base = name = model.name or "model"
        count = 1
        while name in found:
            count += 1
            name = f"{base} ({count})"
        found[name] = model
    return found


def _finish(result: Any, runs: Sequence[Run], json: Path | None, save: bool, plot: Path | None) -> None:
    findings: AnalysisReport = result.findings()
    for run in runs if save else ():
        findings.save(run.path)
    text = json_format.dumps({"findings": to_plain(findings), "numbers": to_plain(result)}, indent=2)
    if str(json) == "-":
        typer.echo(text)
    else:
        show(findings, Console())
        if json is not None:
            json.write_text(text + "\n")
    if plot is not None:
        from brinell.analysis.plot import plot as draw

        draw(findings, plot)


def show(findings: AnalysisReport, console: Console) -> None:
    """The tables, then the sentence."""
    for found in findings.tables:
        put(_table(found), console)
    tell(console, findings.summary)


def _table(found: Found) -> Table:
    table = titled(found.title)
    for i, name in enumerate(found.columns):
        table.add_column(Text(name), justify="right" if i else "left")
    for row in found.rows:
        table.add_row(*map(_cell, row))
    return table


def _cell(value: Cell) -> Text:
    return Text("" if value is None else f"{value:g}" if isinstance(value, float) else str(value))
