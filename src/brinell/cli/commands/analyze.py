"""The command `brinell analyze`: analyses of a model beyond its robust accuracy."""

import json as json_format
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from brinell import analysis
from brinell.analysis.across_models import ModelResults, across_models, model_folders
from brinell.analysis.calibration import BINS
from brinell.analysis.intervals import to_plain
from brinell.analysis.smoothness import EPS, STEPS
from brinell.attacks import PGD
from brinell.cli._shared import load, options
from brinell.cli._shared.options import expanded
from brinell.cli._shared.terminal import exit_if_failed, print_report
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import threat
from brinell.errors import InputError, check_output_paths
from brinell.reliability import traces
from brinell.reliability.traces.trace import ALIASES, ATTACKS, REL_STEPS
from brinell.reliability.traces.trace import STEPS as TRACE_STEPS
from brinell.report.charts.matplotlib_style import check_plot_path
from brinell.results import Run, open_runs
from brinell.results.analyses import AnalysisReport
from brinell.results.format.manifest import MANIFEST
from brinell.storage import write_output

app = typer.Typer(no_args_is_help=True, help="Measure a model beyond its robust accuracy.")

Csv = Annotated[Path | None, typer.Option("--csv", help="Write the numbers to this .csv file.")]


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
class GivenRuns:
    """The Runs of the models that are analysed."""

    runs: options.RunFolders = None
    run: options.OldRuns = None

    @property
    def paths(self) -> list[Path]:
        """The folders of the Runs, or of folders of Runs."""
        return [*(self.runs or ()), *(self.run or ())]

    def required(self) -> list[Path]:
        """Return the folders; raise an InputError if there are none."""
        if not self.paths:
            raise InputError(expected="the folder of a Run", got="none", remedy="Name it: brinell analyze … RUN.")
        return self.paths


@dataclass(frozen=True)
class AnalysisOutput:
    """Options that say where the findings are written and drawn."""

    json: Annotated[
        Path | None, typer.Option("--json", help="Write findings and numbers to this JSON file, or print them (-).")
    ] = None
    save: Annotated[
        bool, typer.Option("--save", help="Store the findings in the folder of the Run; brinell report shows them.")
    ] = False
    plot: options.Plot = None

    def open(self, *paths: Path | None, many: bool = False) -> list[Run]:
        """Check the options, then open the Runs at `paths`; with `many` a path may be a folder of Runs."""
        check_plot_path(self.plot)
        check_output_paths(self.json)
        given = [path for path in paths if path is not None]
        if self.save and not given:
            raise InputError(expected="--save with a Run", got="--save alone", remedy="Name the Run: … RUN --save.")
        return open_runs(*given) if many else [Run.open(path) for path in given]

    def write(self, result: Any, runs: Sequence[Run]) -> None:
        """Print the findings; with --save store them in `runs`, with --json write a file, with --plot draw figures."""
        for run in runs if self.save else ():
            result.findings().save(run.path)
        self._show(result.findings(), to_plain(result))

    def write_models(self, results: ModelResults[Any]) -> None:
        """Print the table over many models; --save stores findings in each Run. Exit with code 2 if a model failed."""
        for m in results.measured if self.save else ():
            if m.run is not None and m.result is not None:
                m.result.findings().save(m.run.path)
        self._show(results.findings(), {m.model: to_plain(m.result) for m in results.measured})
        exit_if_failed(results)

    def _show(self, findings: AnalysisReport, numbers: Any) -> None:
        text = json_format.dumps({"findings": to_plain(findings), "numbers": numbers}, indent=2)
        if str(self.json) == "-":
            typer.echo(text)
        else:
            print_report(findings, Console())
            if self.json is not None:
                write_output(self.json, text + "\n")
        if self.plot is not None:
            from brinell.analysis.plot import plot as draw

            draw(findings, self.plot)


def _analyse(
    models: Sequence[str], paths: Sequence[Path], measure: Callable[[Classifier, Run | None], Any],
    output: AnalysisOutput,
) -> None:  # fmt: skip
    """Call `measure(model, run)` for the model, or for each of many models, with its Run or None; write the result."""
    only = load.only_model(models)
    if only is None:
        output.open(*paths, many=True)
        output.write_models(across_models(models, measure, runs=paths))
        return
    runs = output.open(*paths)
    output.write(measure(load.model(only), runs[0] if runs else None), runs)


@app.command("calibration")
@expanded
def calibration(
    *,
    model: options.Models,
    data: options.Data,
    given: GivenRuns,
    bins: Annotated[int, typer.Option(help="Number of confidence bins of equal width.")] = BINS,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure whether confidence matches accuracy; with a Run also on adversarial inputs."""
    problem = sampling.problem(data)
    _analyse(
        model, given.paths, lambda m, r: analysis.calibration(m, problem, r, bins=bins, **sampling.arguments()), output
    )


@app.command("ood")
@expanded
def ood(
    *,
    model: options.Models,
    data: options.Data,
    other: Annotated[
        list[str] | None,
        typer.Option(help="Out-of-distribution data as NAME=DATA or DATA. Repeat for several; default: noise."),
    ] = None,
    given: GivenRuns,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure how well low confidence detects out-of-distribution inputs."""
    problem, others = sampling.problem(data), _named(other, sampling) if other else None
    _analyse(model, given.paths, lambda m, _: analysis.detection(m, problem, others, **sampling.arguments()), output)


@app.command("fairness")
@expanded
def fairness(
    *,
    given: GivenRuns,
    names: Annotated[str | None, typer.Option(help="Names of the classes in order: plane,car,…")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    output: AnalysisOutput,
) -> None:
    """Measure clean and robust accuracy of every class, and how unequal the classes are."""
    class_names = () if names is None else tuple(name.strip() for name in names.split(","))
    run = given.required()
    runs = output.open(*run, many=len(run) > 1 or not (run[0] / MANIFEST).exists()) or output.open(*run)
    if len(runs) == 1:
        output.write(analysis.fairness(runs[0], names=class_names, seed=seed), runs)
    else:
        output.write_models(analysis.across_runs(runs, lambda r: analysis.fairness(r, names=class_names, seed=seed)))


@app.command("privacy")
@expanded
def privacy(
    *,
    model: options.Models,
    members: Annotated[str, typer.Option(help="Training data of the model (FILE.npz, a folder or a data set).")],
    others: Annotated[str, typer.Option(help="Held-out data of the same distribution.")],
    given: GivenRuns,
    eps: Annotated[str | None, typer.Option(help="Attack all samples with PGD within this radius.")] = None,
    norm: options.Norm = "Linf",
    steps: Annotated[int, typer.Option(help="Steps of PGD.")] = 10,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Test whether confidence reveals training data; also on adversarial inputs, with --eps or two Runs."""
    only, data = load.only_model(model), (sampling.problem(members), sampling.problem(others))
    run = given.paths
    if only is not None and run and len(run) != 2:
        raise InputError(
            expected="two Runs: on the training members, then on the held-out non-members",
            got=f"{len(run)} Run{'s' * (len(run) != 1)}",
            remedy="Write both: … MEMBERS_RUN OTHERS_RUN.",
        )
    pair = None if only is None or not run else (run[0], run[1])

    def measure(m: Classifier, _: Run | None) -> analysis.Privacy:
        return analysis.privacy(
            m, *data, attack=PGD(steps=steps), runs=pair, threat=None if eps is None else threat(norm, eps),
            **sampling.arguments(),
        )  # fmt: skip

    _analyse(model, given.paths, measure, output)


@app.command("smoothness")
@expanded
def smoothness(
    *,
    model: options.Models,
    data: options.Data,
    eps: Annotated[str, typer.Option(help="Radius of the ball around each sample, e.g. 8/255.")] = EPS,
    norm: Annotated[str, typer.Option(help="Norm of distances between inputs: Linf, L2 or L1.")] = "Linf",
    output_norm: Annotated[str, typer.Option(help="Norm of distances between outputs: L1, L2 or Linf.")] = "L1",
    layer: Annotated[
        list[str] | None, typer.Option(help="Name of a module. Repeat for several; default: the main modules.")
    ] = None,
    angular: Annotated[bool, typer.Option("--angular", help="Compare only the directions of outputs.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of the search.")] = STEPS,
    restarts: Annotated[int, typer.Option(help="Searches per sample and layer, each from another random pair.")] = 2,
    given: GivenRuns,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure lower bounds on the Lipschitz constants of the layers in a ball around each sample."""
    problem = sampling.problem(data)

    def measure(m: Classifier, _: Run | None) -> analysis.Smoothness:
        return analysis.smoothness(
            m, problem, threat(norm, eps), layers=layer, output_norm=output_norm, angular=angular, steps=steps,
            restarts=restarts, **sampling.arguments(),
        )  # fmt: skip

    _analyse(model, given.paths, measure, output)


@app.command("transfer")
@expanded
def transfer(
    *,
    model: Annotated[
        list[str],
        typer.Option("--model", "-m", help="The models of the Runs in the same order, then further models."),
    ],
    data: options.Data,
    given: GivenRuns,
    passes: Annotated[int, typer.Option(help="Passes per input of a randomised model; shows mean and deviation.")] = 1,
    n: options.N = None,
    device: options.Device = None,
    output: AnalysisOutput,
) -> None:
    """Test whether the adversarial examples stored in Runs fool other models; no new attack runs."""
    run = given.required()
    folders = any(not (path / MANIFEST).exists() and path.is_dir() for path in run)
    runs = output.open(*run, many=folders)
    found = across_models(model, lambda m, _: m, device=device)
    if len(runs) > len(found.models) and not folders:
        raise InputError(
            expected="a model for every Run",
            got=f"{len(found.models)} --model and {len(runs)} Runs",
            remedy="Give one --model for each Run, in the same order.",
        )
    models = {m.model: m.result for m in found.measured if m.result is not None}
    if folders:
        first = {r.identity.model.fingerprint: r for r in reversed(runs)}
        prints = {name: m.fingerprint for name, m in models.items()}
        sources = {name: first[key] for name, key in prints.items() if key in first}
    else:
        sources = dict(zip((m.model for m in found.models), runs, strict=False))
    sources = {name: source for name, source in sources.items() if name in models}
    output.write(analysis.transfer(sources, models, load.data(data, n, None), passes=passes, device=device), runs)
    exit_if_failed(found)


@app.command("shift")
@expanded
def shift(
    *,
    model: options.Models,
    data: options.Data,
    other: Annotated[list[str], typer.Option(help="Shifted data as NAME=DATA or DATA. Repeat for several.")],
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="A standard model to compare with. Give at least two, of different accuracy."),
    ] = None,
    eps: Annotated[
        str | None, typer.Option(help="Also measure the robust accuracy on all data within this radius, e.g. 8/255.")
    ] = None,
    norm: options.Norm = "Linf",
    plan: options.Plan = "autoattack",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="With --eps: folder for the Runs.")] = None,
    resume: options.Resume = False,
    given: GivenRuns,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Measure accuracy on shifted data, with --eps also robust accuracy, and compare with the model's own data."""
    baselines = [load.model(spec) for spec in baseline or ()]
    problem, others, one = sampling.problem(data), _named(other, sampling), load.only_model(model) is not None
    folder = model_folders(out)

    def measure(m: Classifier, _: Run | None) -> analysis.Shift:
        return analysis.shift(
            m, problem, others, baselines=baselines, threat=None if eps is None else threat(norm, eps), plan=plan,
            out=out if one else folder(m), resume=resume, **sampling.arguments(),
        )  # fmt: skip

    _analyse(model, given.paths, measure, output)


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
    given: GivenRuns,
    csv: Csv = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Follow the best loss so far and the robust accuracy over the iterations of several attacks."""
    check_output_paths(csv)
    runs = output.open(*given.paths[:1])
    result = traces.trace(
        *target.load(sampling.n), attack or ATTACKS, losses=loss or ("ce",), steps=steps or TRACE_STEPS,
        rel_steps=rel_step or REL_STEPS, progress=None, **sampling.arguments(),
    )  # fmt: skip
    if csv is not None:
        write_output(csv, result.to_csv())
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
    loss: Annotated[str, typer.Option(help="Untargeted loss of the PGD attack.")] = "ce",
    steps: Annotated[int, typer.Option(help="Steps of the PGD attack.")] = traces.logit_scale.ATTACK.steps,
    given: GivenRuns,
    csv: Csv = None,
    sampling: Sampling,
    output: AnalysisOutput,
) -> None:
    """Divide the logits by several numbers, and measure for each the zeros in the gradient and the success of PGD."""
    check_output_paths(csv)
    runs = output.open(*given.paths[:1])
    result = traces.logit_scales(
        *target.load(sampling.n), scale or traces.logit_scale.SCALES,
        attack=PGD(steps=steps, loss=ALIASES.get(loss, loss)), progress=None, **sampling.arguments(),
    )  # fmt: skip
    if csv is not None:
        write_output(csv, result.to_csv())
    output.write(result, runs)


def _named(specs: Sequence[str], sampling: Sampling) -> dict[str, Problem]:
    """Return the problems of --other by name: from NAME=DATA, or from DATA alone, which gets the name of its file."""
    problems: dict[str, Problem] = {}
    for spec in specs:
        name, equals, source = spec.partition("=")
        equals = equals * ("," not in name)  # an = after a comma belongs to an option of the data
        name = name if equals else Path(spec).stem
        if name in problems:
            raise InputError(
                expected="a different name for each --other", got=f"{name} twice", remedy="Write --other NAME=DATA."
            )
        problems[name] = sampling.problem(source if equals else spec)
    return problems
