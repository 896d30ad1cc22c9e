"""The only model call. Always the same batch shape, so that a row's answer does not depend on its neighbours."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from brinell.core.attack import Answer, Needs
from brinell.core.classifier import Classifier, Output, answer
from brinell.engine.events import Listener, Shrunk, silent
from brinell.engine.precision import FLOAT32, SLACK, backward, lower
from brinell.errors import ModelError
from brinell.ops.losses import LOGITS, LOSSES
from brinell.ops.rows import average, concat, head

A = TypeVar("A")
LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, labels, targets) -> one value per row, larger is worse for the model."""
Respond = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, Tensor | None]]
"""(points, labels, targets, samples' ids) -> logits, loss, and the detector's score where there is one."""

# Rows per model call. Numerical libraries choose other kernels for other batch shapes, so this is fixed per kind of
# device and stored in the Run; the number of slots may change without changing any outcome.
BLOCK = {"cpu": 32, "cuda": 512}


def default_block(device: torch.device) -> int:
    """Rows per model call on this kind of device."""
    return BLOCK.get(device.type, 128)


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error) or "can't allocate" in str(error)


def named_loss(name: str) -> LossFunction:
    """The loss of that name; rows without a target carry −1, which targeted losses cannot read."""
    loss = LOSSES[name]
    return (lambda z, y, t: loss.function(z, y, t.clamp(min=0))) if loss.targeted else loss.function


def responder(classifier: Classifier, loss: LossFunction, of: str = LOGITS) -> Respond:
    """The model's logits, the loss and the detector's score, as one function of points, labels, targets (and ids).

    `of` names the part of the answer that the loss is about: the logits, or the features.
    """

    def respond(x: Tensor, y: Tensor, target: Tensor, id: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        out = answer(classifier, x, id)
        logits, reject = out.logits.float(), None if out.reject is None else out.reject.float()
        return logits, loss(logits if of == LOGITS else _part(out, of), y, target), reject

    return respond


def question(
    respond: Respond,
    needs: Needs,
    x: Tensor,
    y: Tensor,
    target: Tensor,
    precision: str = FLOAT32,
    id: Tensor | None = None,
) -> Answer:
    """One model call about one batch of rows, as it stands: its answer with whatever gradients are needed."""
    follows, twice = needs is not Needs.LOGITS, needs is Needs.DETECTOR
    with torch.set_grad_enabled(follows):
        point = x.detach().requires_grad_(follows)
        with lower(precision, x.device):
            logits, value, reject = respond(point, y, target, id)
        with backward(precision, x.device):
            grad = _gradient(value, point, twice) if twice or needs is Needs.GRAD else None
            jacobian = _jacobian(logits, point) if needs is Needs.JACOBIAN else None
            towards = _gradient(_part(Output(logits, reject), "reject"), point) if twice else None
    return Answer(logits.detach(), value.detach(), grad, jacobian, None if reject is None else reject.detach(), towards)


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

    `precision` is that of `ask`, which attacks use to find their way; `output`, which decides, is always in float32 and
    by the classifier itself. Where speed is wanted, a copy of it laid out for the device answers `ask`, and `compiled`
    fuses its kernels.
    """

    classifier: Classifier
    block: int
    listener: Listener = silent
    shrunk: list[int] = field(default_factory=list)
    precision: str = FLOAT32
    compiled: bool = False
    _responders: dict[str, Respond] = field(default_factory=dict, init=False, repr=False)
    _guide: Classifier | None = field(default=None, init=False, repr=False)
    _exact: "Oracle | None" = field(default=None, init=False, repr=False)

    def output(self, x: Tensor, id: Tensor | None = None) -> Output:
        """The model's answer without gradients."""
        with torch.no_grad():
            return self._in_blocks(partial(answer, self.classifier), x, *_given(id))

    def ask(
        self,
        x: Tensor,
        y: Tensor,
        target: Tensor,
        loss: str,
        needs: Needs,
        draws: int = 1,
        id: Tensor | None = None,
    ) -> Answer:
        """Logits, loss and, where needed, the gradient of the loss or of every logit at every row.

        For randomised models each is the mean over `draws` passes (expectation over transformation). `id` are the
        samples the rows belong to.
        """
        return self._in_blocks(partial(self._mean, loss, needs, draws), x, y, target, *_given(id))

    def _mean(self, loss: str, needs: Needs, draws: int, x: Tensor, y: Tensor, target: Tensor, *id: Tensor) -> Answer:
        answers = [self._one(loss, needs, x, y, target, *id) for _ in range(draws)]
        return answers[0] if draws == 1 else average(answers)

    def _one(self, loss: str, needs: Needs, x: Tensor, y: Tensor, target: Tensor, *id: Tensor) -> Answer:
        return question(self._responder(loss), needs, x, y, target, self.precision, *id)

    def _responder(self, loss: str) -> Respond:
        if loss not in self._responders:
            made = responder(self._steering(), named_loss(loss), LOSSES[loss].of)
            self._responders[loss] = _fused(made) if self.compiled else made
        return self._responders[loss]

    def _steering(self) -> Classifier:
        """The model to find the way by: a copy laid out for speed where that is wanted, else the classifier itself."""
        if self._guide is None:
            copy = getattr(self.classifier, "copy", None)
            fast = self.compiled or self.precision != FLOAT32
            self._guide = self.classifier
            if copy is not None and fast and self.classifier.device.type == "cuda":
                with suppress(Exception):  # some modules cannot be copied; then they are asked themselves
                    self._guide = copy()
        return self._guide or self.classifier

    @property
    def slack(self) -> float:
        """How far margins from `ask` may be off: a sample that seems broken by less goes on being attacked."""
        return SLACK[self.precision]

    def exact(self) -> "Oracle":
        """The same model asked in float32, as it is; always the same oracle for the same block."""
        if self._exact is None or self._exact.block != self.block:
            self._exact = Oracle(self.classifier, self.block, self.listener, self.shrunk)
        return self._exact

    def _in_blocks(self, ask: Callable[..., A], *inputs: Tensor) -> A:
        while True:
            try:
                return self._once(ask, *inputs)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                self._shrink(error)

    def _once(self, ask: Callable[..., A], *inputs: Tensor) -> A:
        n = len(inputs[0])
        spare = -n % self.block
        if spare:
            inputs = tuple(torch.cat([v, v[:1].expand(spare, *v.shape[1:])]) for v in inputs)
        whole = concat([ask(*part) for part in zip(*(v.split(self.block) for v in inputs), strict=True)])
        return head(whole, n) if spare else whole

    def _shrink(self, error: RuntimeError) -> None:
        if self.block == 1:
            raise ModelError(
                expected="memory for one sample at a time",
                got=f"out of memory ({str(error).splitlines()[0]})",
                remedy="Use a smaller model or input, or a device with more memory.",
            ) from error
        self.block //= 2
        self.shrunk.append(self.block)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.listener(Shrunk(self.block))


def _fused(respond: Respond) -> Respond:
    """The same function compiled, so that several gradients can be taken of one answer."""
    compiled: Respond = torch.compile(respond, dynamic=False)
    functions: Any = functorch_config

    def run(x: Tensor, y: Tensor, target: Tensor, id: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        # Buffers that one way back may overwrite would be gone for the next one.
        with functions.patch(donated_buffer=False):
            return compiled(x, y, target, id)

    return run


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
