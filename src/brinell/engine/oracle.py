"""The only model call. Always the same batch shape, so that a row's answer does not depend on its neighbours."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from brinell.core.attack import Requires, Response
from brinell.core.model import Classifier, Output, answer
from brinell.engine.cuda.compile import Refusals, fused, repeatable
from brinell.engine.events import Listener, Note, Shrunk, silent
from brinell.engine.precision import FLOAT32, SLACK, backward, lower
from brinell.errors import ModelError, first_line
from brinell.ops.losses import LOGITS, LOSSES
from brinell.ops.rowwise import average, concat, head

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])
LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, labels, targets) -> one value per row, larger is worse for the model."""
Network = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None, Tensor | None]]
"""(points, samples' ids) -> logits, another part of the answer, and the detector's score, where there are such."""
Respond = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor | None]]
"""(points, labels, targets, samples' ids) -> logits, loss, and the detector's score where there is one."""

# Rows per model call. Numerical libraries choose other kernels for other batch shapes, so this is fixed per kind of
# device and stored in the Run; the number of slots may change without changing any outcome.
BLOCK = {"cpu": 32, "cuda": 256}
# Fixed as well: where later targets and restarts fill what samples leave empty.
ATTEMPTS_BLOCK = {"cpu": 32, "cuda": 512}
# Where few rows are left early on, and a call about many would keep the last ones waiting: attacks that give samples
# up. Those whose last runs are made side by side have more of them.
EARLY_BLOCK = {"cpu": 32, "cuda": 32}
RESTARTS_BLOCK = {"cpu": 32, "cuda": 128}
# Where few begin: claims to be verified, and those of lower precision that are tried again in float32.
CLAIMS_BLOCK = {"cpu": 32, "cuda": 64}
RETRY_BLOCK = {"cpu": 32, "cuda": 8}
# Rows of noise a copy of the model is tried on, and those of it that a processor is asked about.
TRIED, FEW_TRIED = 32, 2
KINDS = {
    "legs": ATTEMPTS_BLOCK,
    "few": EARLY_BLOCK,
    "branches": RESTARTS_BLOCK,
    "claims": CLAIMS_BLOCK,
    "again": RETRY_BLOCK,
}


def default_block(device: torch.device) -> int:
    """Rows per model call on this kind of device."""
    return BLOCK.get(device.type, 128)


def other_blocks(device: torch.device) -> dict[str, int]:
    """Rows per model call of the kinds that differ from the usual one on this kind of device.

    >>> other_blocks(torch.device("cpu"))
    {}
    """
    sizes = {kind: block_for(rows, device) for kind, rows in KINDS.items()}
    return {kind: size for kind, size in sizes.items() if size != default_block(device)}


def block_for(rows: dict[str, int], device: torch.device) -> int:
    """Rows per model call of one of the kinds above."""
    return rows.get(device.type, default_block(device))


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error) or "can't allocate" in str(error)


def named_loss(name: str) -> LossFunction:
    """The loss of that name; rows without a target carry −1, which targeted losses cannot read."""
    loss = LOSSES[name]
    return (lambda z, y, t: loss.function(z, y, t.clamp(min=0))) if loss.targeted else loss.function


def network(classifier: Classifier, of: str = LOGITS) -> Network:
    """The model as a function of points (and ids): logits, the part `of` the answer that is no logits, the detector."""

    def answered(x: Tensor, id: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        out = answer(classifier, x, id)
        part = None if of == LOGITS else _part(out, of)
        return out.logits.float(), part, None if out.reject is None else out.reject.float()

    return answered


def responder(query: Network, loss: LossFunction) -> Respond:
    """The model's logits, the loss and the detector's score, as one function of points, labels, targets (and ids).

    The loss is about the logits, or about the other part of the answer where `query` gives one.
    """

    def respond(x: Tensor, y: Tensor, target: Tensor, id: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        logits, part, reject = query(x, id)
        return logits, loss(logits if part is None else part, y, target), reject

    return respond


def question(
    respond: Respond,
    requires: Requires,
    x: Tensor,
    y: Tensor,
    target: Tensor,
    precision: str = FLOAT32,
    id: Tensor | None = None,
) -> Response:
    """One model call about one batch of rows, as it stands: its answer with whatever gradients are needed."""
    follows, twice = requires is not Requires.LOGITS, requires is Requires.DETECTOR
    with torch.set_grad_enabled(follows):
        point = x.detach().requires_grad_(follows)
        with lower(precision, x.device):
            logits, value, reject = respond(point, y, target, id)
        with backward(precision, x.device):
            grad = _gradient(value, point, twice) if twice or requires is Requires.GRAD else None
            jacobian = _jacobian(logits, point) if requires is Requires.JACOBIAN else None
            towards = _gradient(_part(Output(logits, reject), "reject"), point) if twice else None
    return Response(
        logits.detach(), value.detach(), grad, jacobian, None if reject is None else reject.detach(), towards
    )


def _part(out: Output, name: str) -> Tensor:
    value: Tensor | None = getattr(out, name)
    if value is None:
        what = {"reject": "a detector"}.get(name, name)
        raise ModelError(
            expected=f"a model with {what}, which this attack looks at",
            got="one without",
            remedy="Give it one, brinell.wrap(net, detector=…, features=…), or use another attack.",
        )
    return value.float()


@dataclass(eq=False)
class Oracle:
    """Asks a classifier about any number of rows, `block` at a time, padding the last block.

    `precision` is that of `query`, which attacks use; `output`, which decides, is always in float32 and
    by the classifier itself. Where speed is wanted, a fast copy of it answers `query`, and `compiled`
    fuses its kernels.
    """

    classifier: Classifier
    block: int
    listener: Listener = silent
    shrunk: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    precision: str = FLOAT32
    compiled: bool = False
    _networks: dict[str, Network] = field(default_factory=dict, init=False, repr=False)
    _responders: dict[str, Respond] = field(default_factory=dict, init=False, repr=False)
    _guides: list[Classifier] = field(default_factory=list, init=False, repr=False)
    _exact: "Oracle | None" = field(default=None, init=False, repr=False)
    _sized: "dict[int, Oracle]" = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.note)

    def note(self, text: str) -> None:
        """Tell whoever listens, now and in the Run."""
        self.listener(Note(text))
        self.notes.append(text)

    def output(self, x: Tensor, id: Tensor | None = None) -> Output:
        """The model's answer without gradients."""
        with torch.no_grad():
            return self._in_blocks(partial(answer, self.classifier), x, *_given(id))

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
        """Logits, loss and, where needed, the gradient of the loss or of every logit at every row.

        For randomised models each is the mean over `draws` passes (expectation over transformation). `id` are the
        samples the rows belong to.
        """
        return self._in_blocks(partial(self._mean, loss, requires, draws), x, y, target, *_given(id))

    def _mean(
        self, loss: str, requires: Requires, draws: int, x: Tensor, y: Tensor, target: Tensor, *id: Tensor
    ) -> Response:
        answers = [self._one(loss, requires, x, y, target, *id) for _ in range(draws)]
        return answers[0] if draws == 1 else average(answers)

    def _one(self, loss: str, requires: Requires, x: Tensor, y: Tensor, target: Tensor, *id: Tensor) -> Response:
        def query(respond: Respond) -> Response:
            return question(respond, requires, x, y, target, self.precision, *id)

        if not self.compiled:
            return query(self._responder(loss, x))
        with repeatable():
            return self._refusals.attempt(
                (loss, requires, len(x)),
                lambda: query(self._responder(loss, x)),
                lambda: query(responder(network(self._steering(x), LOSSES[loss].of), named_loss(loss))),
            )

    def _responder(self, loss: str, x: Tensor) -> Respond:
        if loss not in self._responders:
            fuse = fused if self.compiled else _as_it_is
            of = LOSSES[loss].of
            if of not in self._networks:
                # Apart from the losses, which are many: a network takes long to compile.
                self._networks[of] = fuse(network(self._steering(x), of))
            self._responders[loss] = responder(self._networks[of], fuse(named_loss(loss)))
        return self._responders[loss]

    def _steering(self, x: Tensor) -> Classifier:
        """The model to find the way by: a copy laid out for speed where that is wanted, else the classifier itself."""
        if not self._guides:
            copy: Callable[..., Classifier] | None = getattr(self.classifier, "copy", None)
            fast = (self.compiled or self.precision != FLOAT32) and self.classifier.device.type == "cuda"
            self._guides.append(self.classifier if copy is None or not fast else self._laid_out(copy, x))
        return self._guides[0]

    def _laid_out(self, copy: Callable[..., Classifier], x: Tensor) -> Classifier:
        """The fastest copy that answers as it should, else the classifier itself.

        Asked about noise, not about samples, and always about as many rows: what is at hand must not decide how others
        are attacked.
        """
        x = torch.rand((TRIED, *x.shape[1:]), generator=torch.Generator().manual_seed(0)).to(x)
        kept = [torch.bfloat16, None] if self.precision == "bfloat16" else [None]
        copies = ((dtype, self._tried(partial(copy, dtype), x)) for dtype in kept)
        dtype, plain = next(((d, c) for d, c in copies if c is not None), (None, None))
        if plain is None:
            return self.classifier
        if not self.compiled or self.precision == FLOAT32:
            return plain[0]
        finished = self._tried(partial(copy, dtype, check_on=x[:FEW_TRIED]), x)
        with torch.no_grad():
            truth = self.classifier.forward(x).logits.float()
        if finished is None or not as_good(finished[1], plain[1], truth, self.slack):
            return plain[0]
        return finished[0]

    def _tried(self, make: Callable[[], Classifier], x: Tensor) -> tuple[Classifier, Tensor] | None:
        """A copy and its logits, or none: some modules cannot be copied, or not only multiply by their weights."""
        with suppress(Exception), torch.no_grad(), lower(self.precision, x.device):
            made = make()
            return made, made.forward(x).logits.float()
        return None

    @property
    def slack(self) -> float:
        """How far margins from `query` may be off: a sample that seems broken by less goes on being attacked."""
        return SLACK[self.precision]

    def exact(self) -> "Oracle":
        """The same model asked in float32, as it is, about few rows; always the same oracle for the same block."""
        device = self.classifier.device
        block = min(self.block, block_for(RETRY_BLOCK, device))
        if self._exact is None or self._exact.block != block:
            self._exact = Oracle(self.classifier, block, self.listener, self.shrunk, self.notes)
        return self._exact

    def sized(self, rows: dict[str, int]) -> "Oracle":
        """The same oracle with calls of another size; after memory ran out, with none that are larger."""
        device = self.classifier.device
        block = block_for(rows, device)
        if block == self.block or (block > self.block and self.block < default_block(device)):
            return self
        if block not in self._sized:
            other = self._sized[block] = replace(self, block=block)
            # One network and one compiled version of every function for all.
            other._networks, other._responders, other._guides = self._networks, self._responders, self._guides
        return self._sized[block]

    def _in_blocks(self, query: Callable[..., A], *inputs: Tensor) -> A:
        while True:
            try:
                return self._once(query, *inputs)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(error)

    def _once(self, query: Callable[..., A], *inputs: Tensor) -> A:
        n = len(inputs[0])
        spare = -n % self.block
        if spare:
            inputs = tuple(torch.cat([v, v[:1].expand(spare, *v.shape[1:])]) for v in inputs)
        whole = concat([query(*part) for part in zip(*(v.split(self.block) for v in inputs), strict=True)])
        return head(whole, n) if spare else whole

    def _shrink(self, error: RuntimeError) -> None:
        if self.block == 1:
            raise ModelError(
                expected="memory for one sample at a time",
                got=f"out of memory ({first_line(error)})",
                remedy="Use a smaller model or input, or a device with more memory.",
            ) from error
        self.block //= 2
        self.shrunk.append(self.block)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.listener(Shrunk(self.block))


def as_good(new: Tensor, old: Tensor, truth: Tensor, slack: float) -> bool:
    """Whether no row's new logits are much further from the truth than the old ones of any row.

    A network that was read wrongly is off by far; one that rounds in another order by less than the slack.
    """
    scale = (truth.amax(1) - truth.amin(1)).clamp(min=torch.finfo(truth.dtype).tiny)
    off, usual = (((z - truth).abs().amax(1) / scale).amax() for z in (new, old))
    return bool(off <= 2 * usual + slack)


def _as_it_is(function: F) -> F:
    return function


def _given(id: Tensor | None) -> tuple[Tensor, ...]:
    return () if id is None else (id,)


def _gradient(value: Tensor, point: Tensor, again: bool = False) -> Tensor:
    """Of each row's value; `again` keeps the graph for another one."""
    grad = torch.autograd.grad(value.sum(), point, retain_graph=again)[0]
    # Where a gradient is not finite there is no direction to go; zero stands still instead of poisoning the row. Not in
    # place: the gradient of a constant is one number shared by all coordinates.
    return grad.nan_to_num(0.0, 0.0, 0.0)


def _jacobian(logits: Tensor, point: Tensor) -> Tensor:
    """One backward pass per class through one graph (a vectorised pass is no faster, and some models refuse it)."""
    totals, last = logits.sum(0), logits.shape[1] - 1
    grads = [torch.autograd.grad(v, point, retain_graph=k < last)[0] for k, v in enumerate(totals)]
    return torch.stack(grads, 1).nan_to_num_(0.0, 0.0, 0.0)
