"""Arithmetic while the engine runs: float32 as written, whatever the caller's own settings are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from brinell.errors import PlanError

PRECISIONS = ("float32",)


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """True float32: no autocast, TF32 or bfloat16, deterministic cuDNN kernels; the caller's settings come back."""
    with torch.autocast(device.type, enabled=False), _cuda() if device.type == "cuda" else _cpu():
        yield


@contextmanager
def _cpu() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _cuda() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before = (cudnn.conv.fp32_precision, matmul.fp32_precision, cudnn.deterministic, cudnn.benchmark)
    _set(cudnn, matmul, ("ieee", "ieee", True, False))
    try:
        yield
    finally:
        _set(cudnn, matmul, before)


def _set(cudnn: Any, matmul: Any, values: tuple[str, str, bool, bool]) -> None:
    cudnn.conv.fp32_precision, matmul.fp32_precision = values[:2]
    cudnn.deterministic, cudnn.benchmark = values[2:]


def check(precision: str) -> None:
    """Refuse a precision the engine does not have."""
    if precision not in PRECISIONS:
        raise PlanError(
            expected=f"precision among {', '.join(PRECISIONS)}", got=repr(precision), remedy="Leave it out for float32."
        )
