"""The description of where an evaluation ran, for the manifest: versions, hardware, commit."""

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

PACKAGES = ("torch", "numpy", "pyarrow", "safetensors")
# What can change the last digits of a model's answers, and with them the outcome of a sample at the decision boundary.
MOVING = (
    "brinell", "torch", "device", "cuda", "cudnn", "threads", "cpu_capability", "onednn", "memory_format",
    "default_dtype", "default_device", "deterministic",
)  # fmt: skip


@cache  # each reading parses a file
def _installed(package: str) -> str:
    return metadata.version(package)


def version() -> str:
    """Return the version of Brinell."""
    try:
        return _installed("brinell")
    except metadata.PackageNotFoundError:
        return "unknown"


def _commit() -> str | None:
    """Return the git commit of the working directory; None if it is no git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd())
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two environments that can move an outcome, such as "threads 1, now 4".

    >>> moved({"threads": 1, "git_commit": "a"}, {"threads": 4, "git_commit": "b", "onednn": True})
    ['threads 1, now 4']
    """
    both = [key for key in MOVING if key in before and key in now]
    return [f"{key} {before[key]}, now {now[key]}" for key in both if before[key] != now[key]]


def _memory_format(module: "nn.Module | None") -> str:
    """Return how the filters of a module lie in memory: "contiguous" or "channels_last"."""
    import torch

    filters = [p for p in (() if module is None else module.parameters()) if p.ndim == 4]
    last = any(p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous() for p in filters)
    return "channels_last" if last else "contiguous"


def environment(device: "torch.device", module: "nn.Module | None" = None) -> dict[str, Any]:
    """Return versions, hardware, settings and git commit of this process, for the manifest of a Run of `module`."""
    import torch  # here: the version is read without it

    cuda = device.type == "cuda"
    return {
        "brinell": version(),
        "python": platform.python_version(),
        **{name: _installed(name) for name in PACKAGES},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": bool(torch.backends.mkldnn.enabled and torch.backends.mkldnn.is_available()),
        "memory_format": _memory_format(module),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "default_device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "git_commit": _commit(),
    }
