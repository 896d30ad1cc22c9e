"""The oracle: the only place that calls the model.

The model gets the same number of rows in every call, or fewer rows at which every row's response is the same bit for
bit. So a row's response does not depend on its neighbours.
"""

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.execution import Blocks
from brinell.core.model import Classifier, Output
from brinell.engine.calls import Calls, out_of_memory
from brinell.engine.events import Listener, Note, Shrunk, silent
from brinell.engine.precision import FLOAT32, PRECISIONS, SLACK, backward, lower
from brinell.errors import ModelError, first_line
from brinell.ops.losses import LOGITS, LOSSES
from brinell.ops.rowwise import average, concat, head

A = TypeVar("A", Response, Output)
LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of (logits, labels, targets) with one value per row. Attacks maximise it."""
Network = Callable[..., Output]
"""A function from points, or from points and sample ids, to the classifier's output."""
Pass = Callable[..., Response]
Ids = Tensor | None

# Rows per model call, by type of device. Numerical libraries choose other kernels for other batch shapes, so the sizes
# are fixed before the attacks and stored in the Run. The number of slots may change without changing any outcome. On a
# GPU `brinell.cost.settings` chooses other sizes for the model and the number of samples; these are for 1,000 small
# images.
BLOCK = {"cpu": 32, "cuda": 256}
# The kinds of calls, by the names that a Run stores. With several attempts ("legs"), later targets and restarts fill
# the slots that samples leave empty. Attacks that abandon samples early ("few") leave few rows soon, and large calls
# would keep the last ones waiting; with parallel restarts ("branches") they have more rows. Verification ("claims"),
# and attacks in float32 on samples that lower precision got wrong ("again"), begin with few rows.
KINDS = {
    "legs": {"cpu": 32, "cuda": 512},
    "few": {"cpu": 32, "cuda": 32},
    "branches": {"cpu": 32, "cuda": 128},
    "claims": {"cpu": 32, "cuda": 64},
    "again": {"cpu": 32, "cuda": 8},
}


def default_block(device: torch.device) -> int:
    """Return the number of rows per model call on this type of device, where no other number is chosen."""
    return BLOCK.get(device.type, 128)


def default_blocks(device: torch.device) -> Blocks:
    """Return the rows per model call of every kind on this type of device, where no others are chosen.

    >>> default_blocks(torch.device("cpu")).to_json()
    {'block': 32}
    """
    usual = default_block(device)
    return Blocks(usual, {kind: rows.get(device.type, usual) for kind, rows in KINDS.items()})


def named_loss(name: str) -> LossFunction:
    """Return the loss function with this name. A targeted loss treats a missing target (−1) as class 0."""
    loss = LOSSES[name]
    return (lambda z, y, t: loss.function(z, y, t.clamp(min=0))) if loss.targeted else loss.function


def network_of(classifier: Classifier, id: Ids) -> tuple[Network, tuple[Tensor, ...]]:
    """Return the function that calls the classifier and its arguments after x: the ids if the classifier reads them."""
    return (classifier.forward, ()) if id is None or not classifier.per_sample else (classifier.forward_of, (id,))


def forward_backward(
    network: Network, loss: LossFunction, requires: Requires, of: str, precision: str,
    x: Tensor, y: Tensor, target: Tensor, *id: Tensor,
) -> Response:  # fmt: skip
    """Call the network once; return its response with the required gradients. `of` names the output for the loss."""
    exact, detector = precision == FLOAT32, requires is Requires.DETECTOR
    with torch.set_grad_enabled(requires is not Requires.LOGITS):
        point = x.detach().requires_grad_(requires is not Requires.LOGITS)
        with nullcontext() if exact else lower(precision, x.device):
            out = network(point, *id)
            logits, reject = out.logits.float(), None if out.reject is None else out.reject.float()
            value = loss(logits if of == LOGITS else _member(out, of), y, target)
        with nullcontext() if exact else backward(precision, x.device):
            grad = _gradient(value, point, detector) if detector or requires is Requires.GRAD else None
            jacobian = _jacobian(logits, point) if requires is Requires.JACOBIAN else None
            reject_grad = _gradient(_member(Output(logits, reject), "reject"), point) if detector else None
    score = None if reject is None else reject.detach()
    return Response(logits.detach(), value.detach(), grad, jacobian, score, reject_grad)


def _member(out: Output, name: str) -> Tensor:
    value = {"reject": out.reject, "features": out.features}[name]
    if value is None:
        raise ModelError(
            expected=f"a model with {'a detector' if name == 'reject' else name}, which this attack needs",
            got="a model that has none",
            remedy=f"Write brinell.wrap(net, {'detector' if name == 'reject' else name}=…), or use another attack.",
        )
    return value.float()


def _gradient(value: Tensor, point: Tensor, again: bool = False) -> Tensor:
    """Return the gradient of each row's value with respect to its point; `again` keeps the autograd graph."""
    grad = torch.autograd.grad(value.sum(), point, retain_graph=again)[0]
    # A gradient that is not finite gives no direction; zero stands still instead of spoiling the row. Not in place:
    # the gradient of a constant is one number shared by all coordinates.
    return grad.nan_to_num(0.0, 0.0, 0.0)


def _jacobian(logits: Tensor, point: Tensor) -> Tensor:
    """Return the gradient of every logit, (b, k, *shape): one pass per class, since some models refuse vmap."""
    totals, last = logits.sum(0), logits.shape[1] - 1
    grads = [torch.autograd.grad(v, point, retain_graph=k < last)[0] for k, v in enumerate(totals)]
    return torch.stack(grads, 1).nan_to_num_(0.0, 0.0, 0.0)


@dataclass(eq=False)
class Oracle:
    """A wrapper that calls a classifier on any number of rows, `largest` rows at a time; the last call is padded.

    It is padded to the smallest of `sizes` and `block` that holds its rows. `sizes` are other numbers of rows at which
    every row gets the same response as in a block, bit for bit (`brinell.engine.exact_sizes`). `blocks` are the rows of
    a call by kind (None: the device's).
    Attacks use `query`, in the given `precision`. Verification uses `output`, always in float32.
    """

    classifier: Classifier
    block: int
    listener: Listener = silent
    shrunk: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    precision: str = FLOAT32
    sizes: tuple[int, ...] = ()
    calls: Calls = field(default_factory=Calls)
    blocks: Blocks | None = None
    _exact: "Oracle | None" = field(default=None, init=False, repr=False)
    _finer: "Oracle | None" = field(default=None, init=False, repr=False)
    _sized: "dict[int, Oracle]" = field(default_factory=dict, init=False, repr=False)
    compiled = False

    @property
    def _blocks(self) -> Blocks:
        return default_blocks(self.classifier.device) if self.blocks is None else self.blocks

    @property
    def slack(self) -> float:
        """The relative rounding error of margins from `query`; a smaller positive margin does not end the attack."""
        return SLACK[self.precision]

    def query(
        self, x: Tensor, y: Tensor, target: Tensor, loss: str, requires: Requires, draws: int = 1, id: Ids = None
    ) -> Response:
        """Return logits, loss and the required gradients at every row.

        For a randomised model each of these is the mean over `draws` passes (expectation over transformation). `id`
        holds the sample id of each row.
        """
        while True:
            try:
                one_pass, ids = self.one_pass(loss, requires, x, id)
                responses = []
                for k, block in enumerate(self._pad(x, y, target, *ids)):
                    passes = []
                    self.calls.rows += draws * len(block[0])
                    for _ in range(draws):
                        with self.calls.call(self._block_of(id, k)):
                            passes.append(one_pass(*block))
                    responses.append(passes[0] if draws == 1 else average(passes))
                whole = _unpad(responses, len(x))
                if not self.slack:
                    return whole
                # The rounding error of each row's margin.
                return replace(whole, tolerance=self.slack * (whole.logits.amax(1) - whole.logits.amin(1)))
            except RuntimeError as error:
                self._shrink(error)

    def one_pass(self, loss: str, requires: Requires, x: Tensor, id: Ids) -> tuple[Pass, tuple[Tensor, ...]]:
        """Return a function of (x, y, target, *ids) that does one pass on a block, and the tuple `ids`."""
        network, ids = network_of(self.classifier, id)
        return partial(forward_backward, network, named_loss(loss), requires, LOSSES[loss].of, self.precision), ids

    def output(self, x: Tensor, id: Ids = None, named: Ids = None) -> Output:
        """Return the classifier's output without gradients, in float32.

        Errors name the samples `id`; `named` are sample ids for errors alone.
        """
        network, ids = network_of(self.classifier, id)
        named = id if named is None else named
        while True:
            try:
                outputs = []
                for k, block in enumerate(self._pad(x, *ids)):
                    self.calls.rows += len(block[0])
                    with torch.no_grad(), self.calls.call(self._block_of(named, k)):
                        outputs.append(network(*block))
                return _unpad(outputs, len(x))
            except RuntimeError as error:
                self._shrink(error)

    def note(self, text: str) -> None:
        """Send the text to the listener as a `Note`, and keep it for the Run."""
        self.listener(Note(text))
        self.notes.append(text)

    def exact(self) -> "Oracle":
        """Return an oracle of the same classifier in float32 with small blocks; later calls return the same oracle."""
        block = min(self.block, self._blocks.of("again"))
        if self._exact is None or self._exact.block != block:
            shared = self.listener, self.shrunk, self.notes
            self._exact = Oracle(self.classifier, block, *shared, calls=self.calls, blocks=self.blocks)
        return self._exact

    def sized(self, kind: str) -> "Oracle":
        """Return the oracle with the block size of a kind of calls (`KINDS`); never larger after memory ran out."""
        block = self._blocks.of(kind)
        if block == self.block or (block > self.block and self.block < self._blocks.usual):
            return self
        if block not in self._sized:
            self._sized[block] = self.with_block(block)
        return self._sized[block]

    def in_precision(self, precision: str) -> "Oracle":
        """Return an oracle of the same classifier whose queries have at least this precision."""
        if PRECISIONS.index(self.precision) <= PRECISIONS.index(precision):
            return self
        if self._finer is None or (self._finer.block, self._finer.precision) != (self.block, precision):
            self._finer = replace(self, precision=precision, sizes=())
        return self._finer

    def with_block(self, block: int) -> "Oracle":
        """Return the same oracle with blocks of this size."""
        return replace(self, block=block)

    @property
    def checked(self) -> int:
        """The number of samples that checks look at: a block, but not fewer than on a CPU."""
        return max(self.block, BLOCK["cpu"])

    @property
    def largest(self) -> int:
        """The largest number of rows in a call."""
        return max(self.block, *self.sizes) if self.sizes else self.block

    def padded(self, n: int) -> int:
        """Return the number of rows that n rows take in calls of the model, with their padding.

        >>> import brinell
        >>> model = brinell.models.load("fashion-mnist/Linf/Demo")
        >>> Oracle(model, 32, sizes=(4, 12)).padded(37)  # 32 rows, then 5 in a call of 12
        44
        >>> Oracle(model, 32, sizes=(4, 12, 40)).padded(37)
        40
        """
        whole, rest = divmod(n, self.largest)
        last = min(size for size in (*self.sizes, self.block) if size >= rest) if rest else 0
        return whole * self.largest + last

    def graph_key(self, x: Tensor) -> Hashable:
        """Return what tells captured calls of this oracle on inputs like x from those of others."""
        return id(self.classifier), self.block, self.precision, self.compiled

    def _block_of(self, id: Ids, k: int) -> Ids:
        return None if id is None else id[k * self.largest : (k + 1) * self.largest]

    def _pad(self, *inputs: Tensor) -> list[tuple[Tensor, ...]]:
        spare = self.padded(len(inputs[0])) - len(inputs[0])
        if spare:
            inputs = tuple(torch.cat([v, v[:1].expand(spare, *v.shape[1:])]) for v in inputs)
        if len(inputs[0]) <= self.largest:
            return [inputs]
        return list(zip(*(v.split(self.largest) for v in inputs), strict=True))

    def _shrink(self, error: RuntimeError) -> None:
        """Halve the blocks if the device is out of memory; raise any other error."""
        if not out_of_memory(error):
            raise error
        if self.block == 1:
            raise ModelError(
                expected="enough memory to call the model on one sample",
                got=f"out of memory ({first_line(error)})",
                remedy="Use a smaller model or input, or a device with more memory.",
            ) from error
        self.block, self.sizes = self.block // 2, ()
        self.shrunk.append(self.block)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.listener(Shrunk(self.block))


def _unpad(blocks: list[A], n: int) -> A:
    whole = blocks[0] if len(blocks) == 1 else concat(blocks)
    return whole if len(whole.logits) == n else head(whole, n)
