"""The command `brinell analyze`: analyses of a model beyond its robust accuracy."""

import json as json_format
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from brinell import analysis
from brinell.analysis.calibration import BINS
from brinell.analysis.intervals import to_plain
from brinell.analysis.smoothness import EPS, STEPS
from brinell.attacks import PGD
from brinell.cli._shared import load, options
from brinell.cli._shared.options import expanded
from brinell.cli._shared.terminal import make_table, print_lines, print_table
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import threat
from brinell.errors import InputError
from brinell.reliability import traces
from brinell.reliability.traces.trace import ATTACKS, REL_STEPS
from brinell.reliability.traces.trace import STEPS as TRACE_STEPS
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Run
from brinell.results.analyses import AnalysisReport, Cell

app = typer.Typer(no_args_is_help=True, help="Measure a model beyond its robust accuracy.")

Csv = Annotated[Path | None, typer.Option("--csv", help="Write the numbers to this .csv file.")]
RunOption = Annotated[Path | None, typer.Option("--run", help="Folder of a Run of this model.")]


@dataclass(frozen=True)
class Sampling:
    """Options of most analyses: the number of samples, the seed and the device."""

    n: options.N = None
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0
    device: options.Device = None

    def problem(self, spec: str) -> Problem:
        """Load the first n samples of the data."""
        return load.data(spec, self.n, None)

    def arguments(self) -> dict[str, Any]:
        """Return the seed and the device as keyword arguments."""
        return {"seed": self.seed, "device": self.device}


@dataclass(frozen=True)
class AnalysisOutput:
    """Options that say where the findings are written and drawn."""

    json: Annotated[
        Path | None, typer.Option("--json", help="Write findings and numbers to this JSON file; - prints them.")
    ] = None
    save: Annotated[
        bool, typer.Option("--save", help="Store the findings in the folder of --run; brinell report shows them.")
    ] = False
    plot: options.Plot = None

    def open(self, *paths: Path | None) -> list[Run]:
        """Open the given Runs; before that, raise an error for an invalid --plot or for --save without --run."""
        check_plot_path(self.plot)
        if self.save and not any(paths):
            raise InputError(expected="--save with --run", got="--save alone", remedy="Add --run FOLDER.")
        return [Run.open(path) for path in paths if path is not None]

    def write(self, result: Any, runs: Sequence[Run]) -> None:
        """Print the findings; with --save store them in the Runs, with --json write them, with --plot draw them."""
        findings: AnalysisReport = result.findings()
        for run in runs if self.save else ():
            findings.save(run.path)
        text = json_format.dumps({"findings": to_plain(findings), "numbers": to_plain(result)}, indent=2)
        if str(self.json) == "-":
            typer.echo(text)
        else:
            show(findings, Console())
            if self.json is not None:
                self.json.write_text(text + "\n")
        if self.plot is not None:
            from brinell.analysis.plot import plot as draw

            draw(findings, self.plot)


@app.command("calibration")
@expanded
def calibration(
    *,
    model: options.Model,
    data: options.Data,
    run: RunOption = None,
    bins: Annotated[int, typer.Option(help="Number of confidence bins of equal width.")] = BINS,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure whether confidence matches accuracy; with --run also on adversarial inputs."""
    runs = output.open(run)
    result = analysis.calibration(load.model(model), sampling.problem(data), *runs, bins=bins, **sampling.arguments())
    output.write(result, runs)


@app.command("ood")
@expanded
def ood(
    *,
    model: options.Model,
    data: options.Data,
    other: Annotated[
        list[str] | None,
        typer.Option(help="Out-of-distribution data as NAME=DATA or DATA. Repeat for several; default: noise."),
    ] = None,
    run: RunOption = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure how well low confidence detects out-of-distribution inputs."""
    runs = output.open(run)
    others = _named(other, sampling) if other else None
    result = analysis.detection(load.model(model), sampling.problem(data), others, **sampling.arguments())
    output.write(result, runs)


@app.command("fairness")
@expanded
def fairness(
    *,
    run: Annotated[Path, typer.Option("--run", help="Folder of a Run.")],
    names: Annotated[str | None, typer.Option(help="Names of the classes in order: plane,car,…")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    output: AnalysisOutput,
) -> None:
    """Measure clean and robust accuracy of every class, and how unequal the classes are."""
    runs = output.open(run)
    class_names = () if names is None else tuple(name.strip() for name in names.split(","))
    output.write(analysis.fairness(runs[0], names=class_names, seed=seed), runs)


@app.command("privacy")
@expanded
def privacy(
    *,
    model: options.Model,
    members: Annotated[str, typer.Option(help="Training data of the model (FILE.npz, a folder or a data set).")],
    others: Annotated[str, typer.Option(help="Held-out data of the same distribution.")],
    run: Annotated[list[Path] | None, typer.Option("--run", help="Run on --members, then on --others.")] = None,
    eps: Annotated[str | None, typer.Option(help="Attack all samples with PGD within this radius.")] = None,
    norm: options.Norm = "Linf",
    steps: Annotated[int, typer.Option(help="Steps of PGD.")] = 10,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Test whether confidence reveals training data; also on adversarial inputs with --eps or two --run."""
    if run is not None and len(run) != 2:
        raise InputError(
            expected="two Runs: on the training members, then on the held-out non-members",
            got=f"{len(run)} Run{'s' * (len(run) != 1)}",
            remedy="Write --run MEMBERS_RUN --run OTHERS_RUN.",
        )
    runs = output.open(*run or ())
    result = analysis.privacy(
        load.model(model), sampling.problem(members), sampling.problem(others), attack=PGD(steps=steps),
        runs=(runs[0], runs[1]) if runs else None, threat=None if eps is None else threat(norm, eps),
        **sampling.arguments(),
    )  # fmt: skip
    output.write(result, runs)


@app.command("smoothness")
@expanded
def smoothness(
    *,
    model: options.Model,
    data: options.Data,
    eps: Annotated[str, typer.Option(help="Radius of the ball around each sample, e.g. 8/255.")] = EPS,
    norm: Annotated[str, typer.Option(help="Norm of distances between inputs: Linf, L2 or L1.")] = "Linf",
    output_norm: Annotated[str, typer.Option(help="Norm of distances between outputs: L1, L2 or Linf.")] = "L1",
    layer: Annotated[
        list[str] | None, typer.Option(help="Name of a module. Repeat for several; default: the main modules.")
    ] = None,
    angular: Annotated[bool, typer.Option("--angular", help="Compare directions of outputs, not lengths.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = STEPS,
    restarts: Annotated[int, typer.Option(help="Searches per sample and layer, each from another random pair.")] = 2,
    run: RunOption = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure lower bounds on the local Lipschitz constants of the layers around the samples."""
    runs = output.open(run)
    result = analysis.smoothness(
        load.model(model), sampling.problem(data), threat(norm, eps), layers=layer, output_norm=output_norm,
        angular=angular, steps=steps, restarts=restarts, **sampling.arguments(),
    )  # fmt: skip
    output.write(result, runs)


@app.command("transfer")
@expanded
def transfer(
    *,
    model: Annotated[
        list[str],
        typer.Option("--model", "-m", help="The model of each --run in order, then further models."),
    ],
    data: options.Data,
    run: Annotated[list[Path], typer.Option("--run", help="Folder of a Run. Repeat for several.")],
    passes: Annotated[int, typer.Option(help="Passes per input, for randomised models: mean and deviation.")] = 1,
    n: options.N = None,
    device: options.Device = None,
    output: AnalysisOutput,
) -> None:
    """Test whether the adversarial examples stored in Runs fool other models; no new attack runs."""
    if len(run) > len(model):
        raise InputError(
            expected="a model for every Run",
            got=f"{len(model)} --model and {len(run)} --run",
            remedy="Give one --model for each --run, in the same order.",
        )
    runs = output.open(*run)
    models = _apart([load.model(spec) for spec in model])
    sources = dict(zip(models, runs, strict=False))
    output.write(analysis.transfer(sources, models, load.data(data, n, None), passes=passes, device=device), runs)


@app.command("shift")
@expanded
def shift(
    *,
    model: options.Model,
    data: options.Data,
    other: Annotated[list[str], typer.Option(help="Shifted data as NAME=DATA or DATA. Repeat for several.")],
    baseline: Annotated[
        list[str] | None, typer.Option(help="A standard model to compare with. Give two or more of different accuracy.")
    ] = None,
    run: RunOption = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure the accuracy on shifted data, and compare it with the accuracy on the model's own data."""
    runs = output.open(run)
    baselines = [load.model(spec) for spec in baseline or ()]
    result = analysis.shift(
        load.model(model), sampling.problem(data), _named(other, sampling), baselines=baselines, **sampling.arguments()
    )
    output.write(result, runs)


@app.command("trace")
@expanded
def trace(
    *,
    target: options.TargetFlags,
    attack: Annotated[
        list[str] | None, typer.Option(help="pgd, momentum-pgd or apgd. Repeat for several; default: all three.")
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="ce, cw or dlr. Repeat for several; default: ce.")] = None,
    steps: Annotated[
        list[int] | None, typer.Option(help="Budget: number of steps. Repeat for several; default: 25, 50, 100.")
    ] = None,
    rel_step: Annotated[
        list[float] | None,
        typer.Option(help="Step size of pgd and momentum-pgd as a multiple of eps. Repeat for several; default: 0.25."),
    ] = None,
    run: RunOption = None,
    csv: Csv = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Follow the best loss so far and the robust accuracy over the iterations of several attacks."""
    runs = output.open(run)
    result = traces.trace(
        *target.load(sampling.n), attack or ATTACKS, losses=loss or ("ce",), steps=steps or TRACE_STEPS,
        rel_steps=rel_step or REL_STEPS, progress=None, **sampling.arguments(),
    )  # fmt: skip
    if csv is not None:
        csv.write_text(result.to_csv())
    output.write(result, runs)


@app.command("logit-scale")
@expanded
def logit_scale(
    *,
    target: options.TargetFlags,
    scale: Annotated[
        list[float] | None,
        typer.Option(help="Divide the logits by this number. Repeat for several; default: 1, 10, 100, 1000."),
    ] = None,
    loss: Annotated[str, typer.Option(help="Loss of the PGD attack.")] = "ce",
    steps: Annotated[int, typer.Option(help="Steps of the PGD attack.")] = traces.logit_scale.ATTACK.steps,
    run: RunOption = None,
    csv: Csv = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure the zeros in the gradient, and what PGD finds, with the logits divided by several numbers."""
    runs = output.open(run)
    result = traces.logit_scales(
        *target.load(sampling.n), scale or traces.logit_scale.SCALES, attack=PGD(steps=steps, loss=loss), progress=None,
        **sampling.arguments(),
    )  # fmt: skip
    if csv is not None:
        csv.write_text(result.to_csv())
    output.write(result, runs)


def _named(specs: Sequence[str], sampling: Sampling) -> dict[str, Problem]:
    """Return the problems of --other by name: NAME=DATA, or DATA alone, which is named after its file."""
    problems: dict[str, Problem] = {}
    for spec in specs:
        name, equals, source = spec.partition("=")
        name = name if equals else Path(spec).stem
        if name in problems:
            raise InputError(
                expected="a different name for each --other", got=f"{name} twice", remedy="Write --other NAME=DATA."
            )
        problems[name] = sampling.problem(source if equals else spec)
    return problems


def _apart(models: Sequence[Classifier]) -> dict[str, Classifier]:
    """Return models by name; a repeated name gets a number."""
    named: dict[str, Classifier] = {}
    for model in models:
        base = name = model.name or "model"
        count = 1
        while name in named:
            count += 1
            name = f"{base} ({count})"
        named[name] = model
    return named


def show(findings: AnalysisReport, console: Console) -> None:
    """Print the tables of an analysis, then its summary."""
    for table in findings.tables:
        columns = (table.columns[0], *(f">{name}" for name in table.columns[1:])) if table.columns else ()
        rows = ([_cell(value) for value in row] for row in table.rows)
        print_table(make_table(table.title, columns, rows), console)
    print_lines(console, findings.summary)


def _cell(value: Cell) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
