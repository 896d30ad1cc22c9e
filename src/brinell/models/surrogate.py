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
    missing = [name for name in (*how.networks, *how.outputs, *how.through) if name not in known]
    if missing or not isinstance(classifier, TorchClassifier):
        raise ModelError(
            expected=f"a torch module with the submodules of the surrogate, {how}",
            got=f"{classifier.name} without {', '.join(missing) or 'submodules'}",
            remedy="See all names with [name for name, _ in net.named_modules()].",
        )
    return SurrogateClassifier(classifier, how)
