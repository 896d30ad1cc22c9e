"""The number formats of model passes: exact float32, or lower precision for the queries of attacks."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from brinell.errors import one_of
from brinell.ops.memory import keep_freed_memory

# NVIDIA's library then chooses convolutions by its better model of their speed. Unlike timing, it always chooses the
# same ones. It reads the setting at the first convolution.
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")

FLOAT32 = "float32"
PRECISIONS = (FLOAT32, "tf32", "bfloat16")
# Twice the rounding error of one number, relative to the spread of the logits. Fixed, not measured on the data: the
# outcome of a sample must not depend on other samples.
SLACK = {FLOAT32: 0.0, "tf32": 2.0**-10, "bfloat16": 2.0**-7}
AUTO = "auto"
"""float32 on a CPU; on a GPU the precision with which the evaluation ends soonest (`brinell.cost.settings`)."""


def candidates(device: torch.device) -> tuple[str, ...]:
    """Return the precisions that differ from each other on this type of device, float32 first.

    >>> candidates(torch.device("cpu"))
    ('float32', 'bfloat16')
    """
    return tuple(p for p in PRECISIONS if p != "tf32" or device.type == "cuda")


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """Use true float32 inside the context: no autocast, no TF32, deterministic cuDNN; then restore the settings.

    Gradients can be computed inside even if the caller is in torch.inference_mode.
    """
    settings = _cuda("ieee") if device.type == "cuda" else _cpu()
    with torch.inference_mode(False), torch.autocast(device.type, enabled=False), settings:
        yield


@contextmanager
def _cpu() -> Iterator[None]:
    keep_freed_memory()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _cuda(fp32_precision: str) -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before = (cudnn.conv.fp32_precision, matmul.fp32_precision, cudnn.deterministic, cudnn.benchmark)

    def use(convolution: str, product: str, deterministic: bool, benchmark: bool) -> None:
        cudnn.conv.fp32_precision, matmul.fp32_precision = convolution, product
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark

    use(fp32_precision, fp32_precision, True, False)
    try:
        yield
    finally:
        use(*before)


def lower(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context, used inside `exact`, for passes in lower precision. Devices without TF32 use float32."""
    if precision == "bfloat16":
        # Without the cache of converted weights, which is valid neither in CUDA graphs nor after a change of weights.
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    return _cuda("tf32") if precision == "tf32" and device.type == "cuda" else nullcontext()


def backward(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context for the backward pass in lower precision, without autocast: each operation keeps its dtype."""
    return nullcontext() if precision == "bfloat16" else lower(precision, device)


def check(precision: str) -> None:
    """Refuse an unknown precision."""
    one_of("precision", precision, (*PRECISIONS, AUTO))
