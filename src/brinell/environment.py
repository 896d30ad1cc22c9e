"""The description of where an evaluation ran, for the manifest: versions, hardware, commit."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "numpy", "pyarrow", "safetensors")


def version() -> str:
    """Return the version of Brinell."""
    try:
        return metadata.version("brinell")
    except metadata.PackageNotFoundError:
        return "unknown"


def _commit() -> str | None:
    """Return the git commit of the working directory; None if it is no git checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, cwd=Path.cwd())
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def environment(device: "torch.device") -> dict[str, Any]:
    """Return versions, hardware and git commit of this process as a dictionary for the manifest of a Run."""
    import torch  # here: the version is read without it

    cuda = device.type == "cuda"
    return {
        "brinell": version(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "git_commit": _commit(),
    }
