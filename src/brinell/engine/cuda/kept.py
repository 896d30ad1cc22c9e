"""What is kept for the process: the fast copies, compiled networks and captured steps of models evaluated before.

A second evaluation of the same model then starts at once. Only what reads a copy of the model's weights and nothing of
the user's is kept, and only while the model lives, half of the device's memory is free and little of it is reserved.
"""

import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from brinell.core.attack import Requires
from brinell.core.model import Classifier
from brinell.engine.cuda.graphs import DeviceMicroBatch, GraphCache, StepKey, memory_short
from brinell.engine.cuda.oracle import AcceleratedOracle, Networks
from brinell.engine.oracle import Oracle
from brinell.ops import rng

# Rows of noise on which a model must answer as before.
ROWS = 8
# Nothing is kept if this process has reserved more than this share of the device's memory: it may be needed elsewhere.
MOST = 0.25


@dataclass
class KeptModel:
    """What is kept of one model, its fingerprint, and its answers to noise, which must be the same bit for bit."""

    fingerprint: str
    answers: list[Tensor]
    networks: Networks = field(default_factory=Networks)
    idle: dict[Hashable, list[DeviceMicroBatch]] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop what reads the user's own model, and the functions of the evaluation that ends."""
        for key in [key for key in self.idle if not _lasts(key)]:
            del self.idle[key]
        for idle in self.idle.values():
            for micro_batch in idle:
                micro_batch.forget()
        self.networks.compiled = {key: n for key, n in self.networks.compiled.items() if self._copied(key)}

    def _copied(self, key: Hashable) -> bool:
        return isinstance(key, tuple) and self.networks.copies.get((key[0], True)) is not None


def _lasts(key: Hashable) -> bool:
    """Return whether a captured step reads nothing that ends with the evaluation: the model's own memory, or a mask."""
    if not isinstance(key, StepKey) or not isinstance(key.oracle, tuple):
        return False
    return key.mask is None and isinstance(key.oracle[0], Networks)


_MODELS: "weakref.WeakKeyDictionary[nn.Module, KeptModel]" = weakref.WeakKeyDictionary()


@contextmanager
def kept_for_process(
    oracle: Oracle, cache: GraphCache, fingerprint: str, shape: tuple[int, ...], gradients: bool = True
) -> Iterator[None]:
    """Use in this evaluation what an earlier one of the same model kept, and keep what this one makes.

    `shape` is the shape of a sample, `gradients` says whether the model has gradients. After an error nothing is kept.
    The model is called on a few rows of noise, to see that it is still the same.
    """
    module = oracle.classifier.torch_module
    if module is None or oracle.classifier.detector_rule or not isinstance(oracle, AcceleratedOracle):
        yield
        return
    kept, answers = _MODELS.pop(module, None), _answers(oracle.classifier, shape, gradients)
    if kept is None or kept.fingerprint != fingerprint or not _equal(kept.answers, answers):
        kept = KeptModel(fingerprint, answers)
    oracle.networks = kept.networks.bind(oracle.classifier)
    cache.adopt(kept.idle)
    yield
    kept.forget()
    if not memory_short() and not _holds_much():
        _MODELS[module] = kept


def _holds_much() -> bool:
    """Return whether this process has reserved much of the device's memory."""
    if not torch.cuda.is_available():
        return False
    return torch.cuda.memory_reserved() > MOST * torch.cuda.mem_get_info()[1]


def _answers(classifier: Classifier, shape: tuple[int, ...], gradients: bool) -> list[Tensor]:
    """Return the float32 logits of a few rows of noise, and with `gradients` those of the margin."""
    key = rng.keys(0, torch.arange(ROWS, device=classifier.device))
    x, y = rng.uniform(key, shape), torch.zeros_like(key)
    needed = Requires.GRAD if gradients else Requires.LOGITS
    response = Oracle(classifier, ROWS).query(x, y, y - 1, "margin", needed)
    return [v for v in (response.logits, response.grad) if v is not None]


def _equal(before: list[Tensor], now: list[Tensor]) -> bool:
    pairs = zip(before, now, strict=False)
    return len(before) == len(now) and all(a.device == b.device and torch.equal(a, b) for a, b in pairs)
