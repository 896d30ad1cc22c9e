"""Options that several commands share: single options, and groups that commands take as one parameter."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console

from brinell.cli._shared import completion
from brinell.cli._shared.terminal import print_json
from brinell.errors import InputError

if TYPE_CHECKING:
    from brinell.core.dataset import Problem
    from brinell.core.model import Classifier
    from brinell.core.threat import Threat

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="FILE.py:FACTORY, package.module:FACTORY, a folder of brinell train, a model of the zoo, timm:NAME, "
        "FILE.onnx, or demo.",
        autocompletion=completion.models,
    ),
]
Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        "-m",
        help="As for brinell evaluate. For many models repeat -m, or write zoo:cifar10/Linf/*, a .txt file with one "
        "model per line, or a folder of Runs.",
        autocompletion=completion.models,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        "-d",
        help="FILE.npz or FILE.safetensors with x and y, a folder, a data set such as cifar10, or demo.",
        autocompletion=completion.data,
    ),
]
N = Annotated[int | None, typer.Option("--n", "--n-examples", help="Use only the first n samples.")]
RunFolder = Annotated[Path, typer.Argument(help="Folder of a Run.")]
RunFolders = Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of Runs.")]
# The option that named Runs before they became arguments.
OldRuns = Annotated[list[Path] | None, typer.Option("--run", hidden=True)]

Eps = Annotated[str, typer.Option(help="Radius of the threat, e.g. 8/255, for inputs in [0, 1].")]
Norm = Annotated[
    str,
    typer.Option(help="Norm of the threat: Linf, L2 or L1 (also linf, inf, 2).", autocompletion=completion.norms),
]
Plan = Annotated[str, typer.Option(help="Attack plan. brinell plans lists all plans.", autocompletion=completion.plans)]
Attacks = Annotated[str | None, typer.Option(help="Run these attacks instead of --plan, e.g. apgd-ce,fab-t.")]
Seed = Annotated[int, typer.Option(help="Random seed. A sample's noise depends on the seed and its id.")]

Slots = Annotated[
    int | None,
    typer.Option("--slots", "--batch-size", help="Samples attacked at a time. The number changes speed, not results."),
]
Precision = Annotated[
    str,
    typer.Option(
        help="Precision of the attack: float32, tf32, bfloat16, or auto (float32 on a CPU; on a GPU what ends soonest)."
    ),
]
Mode = Annotated[str, typer.Option(help="Execution mode: auto, eager, graph (CUDA graphs) or compile.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, …; default: the device of the model.")]
Workers = Annotated[
    str | None, typer.Option(help="Worker processes: 4 (on the CPU), gpu (one per GPU) or gpu:4 (on four GPUs).")
]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of a Ray cluster, or auto; default: RAY_ADDRESS, or a new cluster.")
]

Seeds = Annotated[
    int | None, typer.Option(help="Repeat with this many seeds, from --seed on; show mean and standard deviation.")
]

Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the Run; default: a temporary folder.")]
NamedOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the Run; default: runs/MODEL-DATA-NORM-EPS-PLAN, numbered."),
]
ModelName = Annotated[
    str | None, typer.Option("--name", help="Name of the model in reports; default: its own, or FILE.py:FACTORY.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted Run.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw the figures into a .svg, .png or .pdf file; needs the extra report."),
]


@dataclass(frozen=True)
class TargetFlags:
    """Options that say what is attacked: the model, the data and the threat."""

    model: Model
    data: Data
    eps: Eps
    norm: Norm = "Linf"

    def load(self, n: int | None, part: str | None = None) -> "tuple[Classifier, Problem, Threat]":
        """Return the model, the first n samples (or one part of them, e.g. "2/4") and the threat."""
        # Imported here: the help and the list of plans do without torch.
        from brinell.cli._shared import load
        from brinell.core.threat import threat

        model = load.model(self.model)
        return model, load.data(self.data, n, part, model), threat(self.norm, self.eps)


@dataclass(frozen=True)
class TargetsFlags:
    """Options that say what is attacked: one or many models, the data and the threat."""

    model: Models
    data: Data
    eps: Eps
    norm: Norm = "Linf"


@dataclass(frozen=True)
class ComputeFlags:
    """Options for the seed, the slots and the device."""

    seed: Seed = 0
    slots: Slots = None
    device: Device = None

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of functions such as `brinell.evaluate`."""
        return asdict(self)


@dataclass(frozen=True)
class ExecutionFlags(ComputeFlags):
    """Options for the seed, the slots, the device, the precision and the execution mode."""

    precision: Precision = "auto"
    execution: Mode = "auto"


@dataclass(frozen=True)
class PrintFlags:
    """Options that say how the result is printed."""

    json: Json = False
    quiet: Quiet = False

    @property
    def progress(self) -> bool | None:
        """The argument `progress` of functions such as `brinell.evaluate`: False with --quiet, else None (shown)."""
        return False if self.quiet else None

    def print(self, as_json: Callable[[], object], as_text: Callable[[Console], None]) -> None:
        """Print a result: with --json the value of `as_json()`, else call `as_text(console)`, which prints text."""
        if self.json:
            print_json(as_json())
        else:
            as_text(Console())


def listing(show: Callable[[Console], None], what: str) -> Any:
    """Return the option --list, which calls `show(console)` and ends the command, whatever else is given."""

    def shown(value: bool) -> None:
        if value:
            show(Console())
            raise typer.Exit

    return typer.Option("--list", help=what, is_eager=True, callback=shown)


def share(text: str, option: str) -> float:
    """Return the share that a text of this option names: all options read shares alike.

    >>> share("1/8", "--audit") == share("0.125", "--audit") == share("12.5%", "--audit")
    True
    """
    # Imported here: the program starts without numpy.
    from brinell.untrusted import parse_share

    try:
        return parse_share(text)
    except ValueError:
        remedy = "Write e.g. 1/8, 0.125 or 12.5%: all three are the same share."
        raise InputError(expected=f"a share from 0 to 100 % for {option}", got=repr(text[:60]), remedy=remedy) from None


def percent(text: str | None, option: str) -> float | None:
    """Return the share that a text of this option names in per cent; None without a text.

    >>> percent("0.29", "--fail-under"), percent("45", "--fail-under"), percent(None, "--fail-under")
    (29.0, 45.0, None)
    """
    # Rounded: 100 * 0.29 is slightly less than 29.
    return None if text is None else round(100 * share(text, option), 9)


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with every dataclass parameter (a group of options) replaced by one option per field."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)}
    parameters = [q for p in signature.parameters.values() for q in _fields(p, groups.get(p.name))]

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    # Typer reads both.
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _fields(parameter: inspect.Parameter, group: Any) -> list[inspect.Parameter]:
    if group is None:
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    hints = get_type_hints(group, include_extras=True)
    empty, kind = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(f.name, kind, default=empty if f.default is MISSING else f.default, annotation=hints[f.name])
        for f in fields(group)
    ]
