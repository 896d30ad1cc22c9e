"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

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
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; default: where the model is.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Folder = Annotated[Path, typer.Argument(help="Folder of a Run.")]
