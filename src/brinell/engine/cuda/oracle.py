"""The oracle for accelerators: a fast copy of the model, and kernels fused by torch.compile."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.model import Classifier, Output
from brinell.engine.cuda.compile import Refusals, fused, repeatable
from brinell.engine.oracle import LossFunction, Network, Oracle, named_loss, network_of
from brinell.engine.precision import FLOAT32, lower
from brinell.ops.losses import LOSSES

# Rows of noise that a copy of the model is tested on, and those of them that a traced copy is traced on.
TESTED, TRACED = 32, 2


@dataclass
class _Shared:
    """What oracles of one model share: its fast copy and the compiled functions."""

    copy: Classifier | None = None
    networks: dict[str, Network] = field(default_factory=dict)
    losses: dict[str, LossFunction] = field(default_factory=dict)


@dataclass(eq=False)
class AcceleratedOracle(Oracle):
    """An oracle whose `query` uses a fast copy of the classifier, with fused kernels if `fuse`."""

    fuse: bool = False
    _shared: _Shared = field(default_factory=_Shared, init=False, repr=False)
    _eager: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.note)

    @property
    def compiled(self) -> bool:
        """Whether torch.compile fuses the kernels of `query`."""
        return self.fuse

    def query(
        self,
        x: Tensor,
        y: Tensor,
        target: Tensor,
        loss: str,
        requires: Requires,
        draws: int = 1,
        id: Tensor | None = None,
    ) -> Response:
        """Return logits, loss and the required gradients; without fused kernels if the compiler fails."""
        query = partial(super().query, x, y, target, loss, requires, draws, id)
        if not self.fuse:
            return query()
        with repeatable():
            return self._refusals.attempt((loss, requires, self.block), query, partial(self._without_fusing, query))

    def _without_fusing(self, query: "partial[Response]") -> Response:
        self._eager = True
        try:
            return query()
        finally:
            self._eager = False

    def network(self, loss: str, x: Tensor, id: Tensor | None) -> tuple[Network, tuple[Tensor, ...]]:
        """Return the call of the fast copy, compiled once per output that losses read."""
        if self._shared.copy is None:
            fast = (self.fuse or self.precision != FLOAT32) and self.classifier.device.type == "cuda"
            self._shared.copy = self._fast_copy(x) if fast else self.classifier
        plain, ids = network_of(self._shared.copy, id)
        if not self.fuse or self._eager:
            return plain, ids
        of = LOSSES[loss].of
        if of not in self._shared.networks:
            # Apart from the losses, which are many: a network takes long to compile.
            self._shared.networks[of] = fused(_in_float32(plain, of == "features"))
        return self._shared.networks[of], ids

    def loss_function(self, loss: str) -> LossFunction:
        """Return the loss of that name, compiled if kernels are fused."""
        if not self.fuse or self._eager:
            return named_loss(loss)
        if loss not in self._shared.losses:
            self._shared.losses[loss] = fused(named_loss(loss))
        return self._shared.losses[loss]

    def with_block(self, block: int) -> Oracle:
        """Return the same oracle with blocks of this size; they share the copy and the compiled functions."""
        other = replace(self, block=block)
        other._shared = self._shared
        return other

    def _fast_copy(self, x: Tensor) -> Classifier:
        """Return the fastest copy whose output is right, else the classifier itself.

        The test uses noise instead of samples and always the same number of rows: the samples at hand must not decide
        how others are attacked.
        """
        x = torch.rand((TESTED, *x.shape[1:]), generator=torch.Generator().manual_seed(0)).to(x)
        kept = [torch.bfloat16, None] if self.precision == "bfloat16" else [None]
        copies = ((dtype, self._tested_copy(x, dtype)) for dtype in kept)
        dtype, plain = next(((d, c) for d, c in copies if c is not None), (None, None))
        if plain is None:
            return self.classifier
        if not self.fuse or self.precision == FLOAT32:
            return plain[0]
        traced = self._tested_copy(x, dtype, x[:TRACED])
        with torch.no_grad():
            truth = self.classifier.forward(x).logits.float()
        return traced[0] if traced is not None and as_good(traced[1], plain[1], truth, self.slack) else plain[0]

    def _tested_copy(
        self, x: Tensor, dtype: torch.dtype | None, check_on: Tensor | None = None
    ) -> tuple[Classifier, Tensor] | None:
        """Return a copy and its logits, None where the module cannot be copied or the copy fails."""
        with suppress(Exception), torch.no_grad(), lower(self.precision, x.device):
            copy = self.classifier.copy(dtype, check_on)
            return None if copy is None else (copy, copy.forward(x).logits.float())
        return None


def _in_float32(network: Network, features: bool) -> Network:
    """Return the network with an output in float32, reduced to the members that are needed."""

    def run(x: Tensor, *id: Tensor) -> Output:
        out = network(x, *id)
        reject = None if out.reject is None else out.reject.float()
        return Output(
            out.logits.float(), reject, out.features.float() if features and out.features is not None else None
        )

    return run


def as_good(new: Tensor, old: Tensor, truth: Tensor, slack: float) -> bool:
    """Whether no row's new logits are much further from the truth than the old logits of any row.

    A wrongly traced network is far off; one that rounds in another order is off by less than the slack.
    """
    scale = (truth.amax(1) - truth.amin(1)).clamp(min=torch.finfo(truth.dtype).tiny)
    new_error, old_error = (((z - truth).abs().amax(1) / scale).amax() for z in (new, old))
    return bool(new_error <= 2 * old_error + slack)
