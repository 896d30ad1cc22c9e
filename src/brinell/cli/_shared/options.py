"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

# What is looked at.
Model = Annotated[
    str, typer.Option("--model", "-m", help="FILE.py:FACTORY, a folder of brinell train, a model of the zoo, or demo.")
]
Data = Annotated[
    str,
    typer.Option(
        "--data", "-d", help="FILE.npz or FILE.safetensors with x and y, a folder, a data set such as cifar10, or demo."
    ),
]
N = Annotated[int | None, typer.Option("--n", help="Only the first n samples.")]
Folder = Annotated[Path, typer.Argument(help="Folder of a Run.")]

# What is tried.
Eps = Annotated[str, typer.Option(help="Radius, e.g. 8/255; inputs live in [0, 1].")]
Norm = Annotated[str, typer.Option(help="Linf, L2 or L1.")]
Plan = Annotated[str, typer.Option(help="See brinell plans.")]
Attacks = Annotated[str | None, typer.Option(help="A chain instead of a plan, e.g. apgd-ce,fab-t.")]
Seed = Annotated[int, typer.Option(help="A sample's outcome depends on this and its id.")]

# How and where it is computed.
Slots = Annotated[int | None, typer.Option(help="Samples in flight; changes speed, not outcomes.")]
Precision = Annotated[str, typer.Option(help="Of the attack's questions: float32, tf32, bfloat16, or auto.")]
Execution = Annotated[str, typer.Option(help="auto, eager, graph (CUDA) or compile.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; default: where the model is.")]
Workers = Annotated[
    str | None, typer.Option(help="Processes on the CPU, e.g. 4; gpu: one per GPU; gpu:4: on four GPUs.")
]
RayAddress = Annotated[
    str | None, typer.Option(help="Address of a running Ray cluster, e.g. auto; default: RAY_ADDRESS, or a new one.")
]

# What is kept and told.
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the Run; default: a temporary one.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted Run.")]
ResumeAll = Annotated[bool, typer.Option("--resume", help="Go on with interrupted Runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
