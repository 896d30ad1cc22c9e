"""The command `brinell doctor`: check the installation."""

import platform
from importlib import metadata, util

import torch
import typer
from rich.console import Console
from rich.text import Text

from brinell.attacks import APGD
from brinell.cli._shared.terminal import print_facts
from brinell.core.threat import Linf
from brinell.data.load import load
from brinell.environment import version
from brinell.evaluation.attack import attack

CORE = ("torch", "numpy", "pyarrow", "safetensors", "rich", "typer", "jinja2")
EXTRAS = {
    "report": ("matplotlib",),
    "ray": ("ray",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow",),
    "onnx": ("onnx", "onnxruntime"),
    "sklearn": ("sklearn",),
    "zoo": ("timm", "huggingface_hub"),
    "images": ("PIL",),
}


def _devices() -> list[str]:
    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        devices.append(f"cuda:{i} {p.name}, {p.total_memory / 2**30:.0f} GiB")
    return devices


def _self_test(device: str) -> str | None:
    """Attack 16 samples with 3 and with 16 slots; return what went wrong, e.g. unequal rows, or None."""
    problem = load("demo", 16)
    runs = [
        attack("demo", problem, Linf(0.1), APGD(steps=5), slots=slots, device=device).drop_columns(["seconds"])
        for slots in (3, 16)
    ]
    if not runs[0].equals(runs[1]):
        return "results depend on the number of slots"
    return None if any(runs[0]["broken"].to_pylist()) else "the attack broke nothing"


def command() -> None:
    """Show installed packages and devices, and run a small self-test."""
    console = Console()
    facts = {"brinell": version(), "python": platform.python_version(), **{n: metadata.version(n) for n in CORE}}
    for extra, modules in EXTRAS.items():
        installed = all(util.find_spec(module) is not None for module in modules)
        facts[f"extra {extra}"] = (
            "installed" if installed else f"not installed (pip install 'brinell[{extra}]', in a clone '.[{extra}]')"
        )
    print_facts({**facts, "devices": "\n".join(_devices())}, console)
    failed = False
    for device in ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]:
        problem = _self_test(device)
        failed |= problem is not None
        outcome = ("passed", "green") if problem is None else (f"failed: {problem}", "red")
        console.print(Text.assemble(f" self-test on {device}: ", outcome))
    if failed:
        raise typer.Exit(1)
