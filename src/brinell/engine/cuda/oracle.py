"""The oracle for accelerators: a fast copy of the model, and its network compiled by torch.compile."""

import time
import weakref
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.model import Classifier, Output
from brinell.engine.cuda.compile import Refusals, fused, kernel_name, remember_kernels, repeatable
from brinell.engine.events import Phase
from brinell.engine.oracle import Ids, Network, Oracle, Pass, forward_backward, named_loss, network_of
from brinell.engine.precision import FLOAT32, lower
from brinell.ops.losses import LOSSES

# Rows of noise that a copy of the model is tested on, and those of them that a traced copy is traced on.
TESTED, TRACED = 32, 2
# The error of a copy's logits in float32 over that of the model's, relative to their spread: another memory layout may
# round differently.
EXACT = 1e-4


class Networks:
    """The fast copies of one model, by precision, and their compiled networks: all oracles of the model share them.

    A copy is None where the model itself is called. `compiled` holds a compiled network by precision, output and
    whether it reads sample ids; `seen` the kinds of calls that have been compiled.
    """

    def __init__(self) -> None:
        self.copies: dict[tuple[str, bool], Classifier | None] = {}
        self.compiled: dict[Hashable, Network] = {}
        self.seen: set[Hashable] = set()
        self._model: weakref.ref[Classifier] | None = None

    def bind(self, classifier: Classifier) -> "Networks":
        """Say which classifier these networks are copies of."""
        self._model = weakref.ref(classifier)
        return self

    def belong_to(self, classifier: Classifier) -> bool:
        """Return whether these are networks of this classifier, or of none yet."""
        return self._model is None or self._model() is classifier

    def __reduce__(self) -> tuple[Any, ...]:
        return Networks, ()  # a worker makes its own


@dataclass(eq=False)
class AcceleratedOracle(Oracle):
    """An oracle whose `query` calls a fast copy of the classifier, compiled if `compiled`."""

    compiled: bool = False
    networks: Networks = field(default_factory=Networks, repr=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.note)

    def one_pass(self, loss: str, requires: Requires, x: Tensor, id: Ids) -> tuple[Pass, tuple[Tensor, ...]]:
        """Return the function that does one pass on the fast copy; it runs uncompiled if the compiler fails."""
        of, copy = LOSSES[loss].of, self.copy(x)
        network, ids = network_of(self.classifier if copy is None else copy, id)
        settings = requires, of, self.precision
        plain = partial(forward_backward, network, named_loss(loss), *settings)
        if not self.compiled:
            return plain, ids
        # The loss is not compiled: the losses are many, and small beside the network.
        key = self.precision, of, bool(ids)
        if key not in self.networks.compiled:
            self.networks.compiled[key] = fused(_in_float32(network, of == "features"))
        compiled = partial(forward_backward, self.networks.compiled[key], named_loss(loss), *settings)

        def run(*block: Tensor) -> Response:
            kind = key, requires is Requires.LOGITS, len(block[0])
            with repeatable():
                return self._refusals.attempt(
                    kind, partial(self._first, kind, compiled, *block), partial(plain, *block)
                )

        return run, ids

    def _first(self, kind: Hashable, compiled: Pass, *block: Tensor) -> Response:
        """Do a compiled pass; the first of its kind compiles, which is announced and remembered."""
        if kind in self.networks.seen:
            return compiled(*block)
        begun, x = time.perf_counter(), block[0]
        self.listener(Phase(f"compiling the network for calls of {len(x)} rows in {self.precision}"))
        try:
            response = compiled(*block)
        finally:
            self.listener(Phase(""))
        self.networks.seen.add(kind)
        name = kernel_name(self.classifier, tuple(x.shape[1:]), self.precision, len(x))
        if x.is_cuda:
            remember_kernels(name, time.perf_counter() - begun)
        return response

    def copy(self, x: Tensor) -> Classifier | None:
        """Return the fast copy that queries call; None if they call the classifier itself."""
        if not self.networks.belong_to(self.classifier):
            self.networks = Networks()
        key, copies = (self.precision, self.compiled), self.networks.bind(self.classifier).copies
        if key not in copies:
            made = self._fast_copy(x) if self._faster() else self.classifier
            copies[key] = None if made is self.classifier else made
        return copies[key]

    def _faster(self) -> bool:
        """Return whether a copy can be faster than the model: in float32 it computes the same kernels."""
        return (self.compiled or self.precision != FLOAT32) and self.classifier.device.type == "cuda"

    def graph_key(self, x: Tensor) -> Hashable:
        owner: Hashable = super().graph_key(x) if self.copy(x) is None else self.networks
        return owner, self.block, self.precision, self.compiled

    def _fast_copy(self, x: Tensor) -> Classifier:
        """Return the fastest copy whose logits are accurate enough, else the classifier itself.

        The copies are tested on noise with a fixed number of rows, so that the choice does not depend on which samples
        are evaluated.
        """
        x = torch.rand(
            (TESTED, *x.shape[1:]), generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu"
        ).to(x)
        with torch.no_grad():
            truth = self.classifier.forward(x).logits.float()
            with lower(self.precision, x.device):
                usual = self.classifier.forward(x).logits.float()
        kept = [torch.bfloat16, None] if self.precision == "bfloat16" else [None]
        copies = ((dtype, self._tested_copy(x, dtype)) for dtype in kept)
        # A deep copy may compute another function, for instance if a hook belongs to the original.
        good = ((d, c) for d, c in copies if c is not None and as_good(c[1], usual, truth, self.slack or EXACT))
        dtype, plain = next(good, (None, None))
        if plain is None:
            return self.classifier
        if not self.compiled or self.precision == FLOAT32:
            return plain[0]
        traced = self._tested_copy(x, dtype, x[:TRACED])
        return traced[0] if traced is not None and as_good(traced[1], plain[1], truth, self.slack) else plain[0]

    def _tested_copy(
        self, x: Tensor, dtype: torch.dtype | None, check_on: Tensor | None = None
    ) -> tuple[Classifier, Tensor] | None:
        """Return a copy of the module and its logits at x; None if it cannot be copied or the copy raises an error."""
        with suppress(Exception), torch.no_grad(), lower(self.precision, x.device):
            copy = self.classifier.copy(dtype, check_on)
            return None if copy is None else (copy, copy.forward(x).logits.float())
        return None


def _in_float32(network: Network, features: bool) -> Network:
    """Return the network with all outputs cast to float32; without `features` its feature output is dropped."""

    def run(x: Tensor, *id: Tensor) -> Output:
        out = network(x, *id)
        reject = None if out.reject is None else out.reject.float()
        kept = out.features.float() if features and out.features is not None else None
        return Output(out.logits.float(), reject, kept)

    return run


def as_good(new: Tensor, old: Tensor, truth: Tensor, slack: float) -> bool:
    """Return whether the largest error of the logits `new` is at most twice that of the logits `old`, plus `slack`.

    Errors are relative to the spread (max − min) of `truth`. A wrongly traced network has a far larger error;
    rounding in another order adds less than `slack`.
    """
    scale = (truth.amax(1) - truth.amin(1)).clamp(min=torch.finfo(truth.dtype).tiny)
    new_error, old_error = (((z - truth).abs().amax(1) / scale).amax() for z in (new, old))
    return bool(new_error <= 2 * old_error + slack)
