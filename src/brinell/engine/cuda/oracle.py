"""The oracle for accelerators: a fast copy of the model, and kernels fused by torch.compile."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.model import Classifier, Output
from brinell.engine.cuda.compile import Refusals, fused, repeatable
from brinell.engine.oracle import Ids, LossFunction, Network, Oracle, Pass, forward_backward, named_loss, network_of
from brinell.engine.precision import FLOAT32, lower
from brinell.ops.losses import LOSSES

# Rows of noise that a copy of the model is tested on, and those of them that a traced copy is traced on.
TESTED, TRACED = 32, 2


@dataclass
class _Shared:
    """What all oracles of one model share: the model's fast copy and the compiled functions."""

    copy: Classifier | None = None
    networks: dict[tuple[str, bool], Network] = field(default_factory=dict)
    losses: dict[str, LossFunction] = field(default_factory=dict)


@dataclass(eq=False)
class AcceleratedOracle(Oracle):
    """An oracle whose `query` calls a fast copy of the classifier, with fused kernels if `compiled`."""

    compiled: bool = False
    _shared: _Shared = field(default_factory=_Shared, init=False, repr=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.note)

    def one_pass(self, loss: str, requires: Requires, x: Tensor, id: Ids) -> tuple[Pass, tuple[Tensor, ...]]:
        """Return the function that does one pass on the fast copy; it runs uncompiled if the compiler fails."""
        shared, of = self._shared, LOSSES[loss].of
        settings = requires, of, self.precision
        if shared.copy is None:
            fast = (self.compiled or self.precision != FLOAT32) and self.classifier.device.type == "cuda"
            shared.copy = self._fast_copy(x) if fast else self.classifier
        network, ids = network_of(shared.copy, id)
        plain = partial(forward_backward, network, named_loss(loss), *settings)
        if not self.compiled:
            return plain, ids
        # Apart from the losses, which are many: a network takes long to compile.
        key = of, bool(ids)
        if key not in shared.networks:
            shared.networks[key] = fused(_in_float32(network, of == "features"))
        if loss not in shared.losses:
            shared.losses[loss] = fused(named_loss(loss))
        compiled = partial(forward_backward, shared.networks[key], shared.losses[loss], *settings)

        def run(*block: Tensor) -> Response:
            kind = loss, requires, len(block[0])
            with repeatable():
                return self._refusals.attempt(kind, partial(compiled, *block), partial(plain, *block))

        return run, ids

    def with_block(self, block: int) -> Oracle:
        other = replace(self, block=block)
        other._shared = self._shared
        return other

    def _fast_copy(self, x: Tensor) -> Classifier:
        """Return the fastest copy whose logits are accurate enough, else the classifier itself.

        The copies are tested on noise with a fixed number of rows, so that the choice does not depend on which samples
        are evaluated.
        """
        x = torch.rand(
            (TESTED, *x.shape[1:]), generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu"
        ).to(x)
        kept = [torch.bfloat16, None] if self.precision == "bfloat16" else [None]
        copies = ((dtype, self._tested_copy(x, dtype)) for dtype in kept)
        dtype, plain = next(((d, c) for d, c in copies if c is not None), (None, None))
        if plain is None:
            return self.classifier
        if not self.compiled or self.precision == FLOAT32:
            return plain[0]
        traced = self._tested_copy(x, dtype, x[:TRACED])
        with torch.no_grad():
            truth = self.classifier.forward(x).logits.float()
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
