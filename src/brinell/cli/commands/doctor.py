"""brinell doctor."""

import platform
from importlib import metadata, util

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brinell.attacks import APGD
from brinell.core.threat import Linf
from brinell.data.load import load
from brinell.environment import version
from brinell.evaluation.attack import attack

CORE = ("torch", "numpy", "pyarrow", "safetensors", "rich", "typer", "jaxtyping")
EXTRAS = {
    "report": ("jinja2", "matplotlib"),
    "ray": ("ray",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow",),
    "onnx": ("onnx", "onnxruntime"),
    "sklearn": ("sklearn",),
    "zoo": ("timm", "huggingface_hub"),
    "images": ("PIL",),
}


def _devices() -> list[str]:
    found = [f"cpu ({torch.get_num_threads()} threads)"]
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i} {p.name}, {p.total_memory / 2**30:.0f} GiB")
    return found


def _self_test(device: str) -> str | None:
    """A small attack with two numbers of slots: the rows must be equal. Returns what went wrong."""
    problem = load("demo", 16)
    runs = [
        attack("demo", problem, Linf(0.1), APGD(steps=5), slots=slots, device=device).drop_columns(["seconds"])
        for slots in (3, 16)
    ]
    if not runs[0].equals(runs[1]):
        return "outcomes depend on the number of slots"
    return None if any(runs[0]["broken"].to_pylist()) else "the attack broke nothing"


def command() -> None:
    """Tell what is installed, which devices there are, and whether a small self-test passes."""
    console = Console()
    table = Table("part", "state", show_header=False, box=None)
    table.add_row("brinell", version())
    table.add_row("python", platform.python_version())
    for name in CORE:
        table.add_row(name, metadata.version(name))
    for extra, modules in EXTRAS.items():
        missing = [m for m in modules if util.find_spec(m) is None]
        state = "installed" if not missing else f"not installed (pip install 'brinell[{extra}]')"
        table.add_row(f"extra {extra}", Text(state))
    for device in _devices():
        table.add_row("device", device)
    console.print(table)
    failed = False
    for device in ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]:
        wrong = _self_test(device)
        failed |= wrong is not None
        outcome = ("passed", "green") if wrong is None else (f"failed: {wrong}", "red")
        console.print(Text.assemble(f" self-test on {device}: ", outcome))
    if failed:
        raise typer.Exit(1)
