"""The classifier that a `Surrogate` describes: the model without a wrapper, or straight through some submodules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.core.surrogate import Surrogate
from brinell.errors import ModelError
from brinell.models.bpda import straight_through
from brinell.models.wrap import TorchClassifier

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]


@contextmanager
def hooked(module: nn.Module, hooks: dict[str, Hook]) -> Iterator[None]:
    """Register forward hooks by the names of submodules, and remove them at the end."""
    handles = [module.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _through(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return straight_through(inputs[0], output)


class _Secant(torch.autograd.Function):
    """The autograd function that returns `value`; its gradient is that of the slopes of `function` around x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, function: Callable[[Tensor], Tensor], width: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function, ctx.width = function, width
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        slopes = pixel_slopes(ctx.function, x, ctx.width)
        return torch.stack([(grads[0] * slope).sum(1) for slope in slopes], 1), None, None, None


def pixel_slopes(function: Callable[[Tensor], Tensor], x: Tensor, width: float) -> Iterator[Tensor]:
    """Yield, for each channel of x, how the output changes with it: the slope over `width` in both directions.

    All pixels change at once, so this is right where each output depends on the input at its own place only.

    >>> list(pixel_slopes(lambda x: torch.cat([3 * x, x.round()], 1), torch.full((1, 1, 1, 1), 0.5), 0.25))[0].flatten()
    tensor([3., 2.])
    """
    with torch.no_grad():
        for channel in range(x.shape[1]):
            step = torch.zeros_like(x)
            step[:, channel] = width
            yield (function(x + step) - function(x - step)) / (2 * width)


def _with_slopes(width: float) -> Hook:
    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        # `forward`, since a call of the module would call this hook.
        result: Tensor = _Secant.apply(inputs[0], output, module.forward, width)
        return result

    return hook


def _keep(outputs: dict[str, Tensor], name: str) -> Hook:
    """Return a hook that keeps the output of the last call and changes nothing."""

    def keep(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        outputs[name] = output

    return keep


@dataclass(frozen=True, eq=False)
class SurrogateClassifier(DelegatingClassifier):
    """A surrogate of the classifier `original`. It steers attacks; the original decides what is adversarial."""

    original: TorchClassifier
    how: Surrogate

    @property
    def base(self) -> Classifier:
        return self.original

    def forward(self, x: Tensor) -> Output:
        """Return the logits of the surrogate; those of several submodules are averaged."""
        module, how = self.original.module, self.how
        if how.networks:
            point = self.original.normalised(x.clone())
            return Output(_mean([module.get_submodule(name)(point) for name in how.networks], how.columns))
        outputs: dict[str, Tensor] = {}
        hooks: dict[str, Hook] = dict.fromkeys(how.through, _through)
        hooks |= {name: _with_slopes(width) for name, width in how.secants}
        hooks |= {name: _keep(outputs, name) for name in how.outputs}
        with hooked(module, hooks):
            whole = self.original.forward(x)
        return Output(_mean([outputs[name] for name in how.outputs], how.columns)) if how.outputs else whole


def _mean(logits: list[Tensor], columns: int) -> Tensor:
    """Return the mean of several logits; of the columns of a class the largest counts."""
    z = torch.stack([z.float() for z in logits]).mean(0)
    return z if columns == 1 else z.view(len(z), -1, columns).amax(2)


def surrogate_of(classifier: Classifier, how: Surrogate) -> Classifier:
    """Return the surrogate of a wrapped torch module; refuse a classifier without these submodules.

    >>> from brinell.models.wrap import wrap
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Softsign())
    >>> x = torch.rand(2, 4)
    >>> z = surrogate_of(wrap(net.eval()), Surrogate(outputs=("1",))).forward(x).logits
    >>> torch.equal(z, net[1](x))
    True
    """
    known = dict(classifier.module.named_modules()) if isinstance(classifier, TorchClassifier) else {}
    missing = [name for name in (*how.networks, *how.outputs, *how.through, *dict(how.secants)) if name not in known]
    if missing or not isinstance(classifier, TorchClassifier):
        raise ModelError(
            expected=f"a torch module with the submodules of the surrogate, {how}",
            got=f"{classifier.name} without {', '.join(missing) or 'submodules'}",
            remedy="See all names with [name for name, _ in net.named_modules()].",
        )
    return SurrogateClassifier(classifier, how)
