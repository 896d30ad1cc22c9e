"""Arithmetic while the engine runs: float32 as written, or less for the attack's own questions to the model."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from brinell.errors import PlanError

# Without it, on some processors, Intel's library rounds rows of one product differently by their place in it. It reads
# this with its first product, and is as fast so.
os.environ.setdefault("MKL_CBWR", "AUTO")
# How NVIDIA's library chooses its convolutions: by its better model of their speed, which, unlike timing them, chooses
# the same ones every time. Read with the first convolution.
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")

FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "tf32", "bfloat16")
# Twice the rounding of one number, as a share of the spread of the logits. Fixed, not measured on the data: a sample's
# outcome must not depend on which others there are.
SLACK = {FLOAT32: 0.0, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
AUTO = "auto"
"""The fastest of these that loses nothing in a probe."""


def candidates(device: torch.device) -> tuple[str, ...]:
    """The precisions that are something of their own on this kind of device, float32 first.

    >>> candidates(torch.device("cpu"))
    ('float32', 'bfloat16')
    """
    return tuple(p for p in PRECISIONS if p != "tf32" or device.type == "cuda")


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


@contextmanager
def lower(precision: str, device: torch.device) -> Iterator[None]:
    """Inside `exact`: the arithmetic of a question whose answer only steers. Devices without TF32 answer in float32."""
    if precision == "bfloat16":
        # Without its cache of converted weights, which would outlive neither a recording nor a change of weights.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield
    elif precision == "tf32" and device.type == "cuda":
        cudnn: Any = torch.backends.cudnn
        matmul: Any = torch.backends.cuda.matmul
        _set(cudnn, matmul, ("tf32", "tf32", True, False))
        try:
            yield
        finally:
            _set(cudnn, matmul, ("ieee", "ieee", True, False))
    else:
        yield


def backward(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """The same for the way back, where autocast has no place: each step takes the kind of its forward step."""
    return nullcontext() if precision == "bfloat16" else lower(precision, device)


def _set(cudnn: Any, matmul: Any, values: tuple[str, str, bool, bool]) -> None:
    cudnn.conv.fp32_precision, matmul.fp32_precision = values[:2]
    cudnn.deterministic, cudnn.benchmark = values[2:]


def check(precision: str) -> None:
    """Refuse a precision the engine does not have."""
    names = (*PRECISIONS, AUTO)
    if precision not in names:
        raise PlanError(
            expected=f"precision among {', '.join(names)}", got=repr(precision), remedy="Leave it out for float32."
        )
