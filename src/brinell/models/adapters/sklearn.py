"""Estimators of scikit-learn: linear models and perceptrons with gradients, everything else as a black box."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.errors import InputError, one_of
from brinell.models.adapters.bridge import Bridge, Pull, as_logits, classifier, digest, framework, numbers
from brinell.models.wrap import TorchClassifier

METHODS = {"logits": "decision_function", "probabilities": "predict_proba", "labels": "predict"}
AUTO = "auto"
# What an activation is called there, in torch.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda v: v,
    "logistic": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}

Twin = Callable[[Tensor], Tensor]
"""The same function as the estimator's, in torch: its gradients are used, its values are not."""


class SklearnBridge(Bridge):
    """A fitted estimator; rows are flattened and given in float64."""

    def __init__(self, estimator: Any, outputs: str, mark: str) -> None:
        super().__init__(mark)
        self.estimator, self.outputs = estimator, outputs
        self.twin = twin_of(estimator, outputs)

    def __getstate__(self) -> dict[str, Any]:
        """Without the formula, which is made again."""
        return {k: v for k, v in self.__dict__.items() if k != "twin"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.twin = twin_of(self.estimator, self.outputs)

    def answer(self, x: Tensor) -> Tensor:
        """One call of the estimator's own method."""
        said = getattr(self.estimator, METHODS[self.outputs])(numbers(x.flatten(1)).astype(np.float64))
        known = self.estimator.classes_
        if self.outputs == "labels":
            said = np.searchsorted(known, said)
        return as_logits(said, self.outputs, len(x), len(known)).to(x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pull]:
        """The estimator's answer, and the gradient of the same formula in torch."""
        if self.twin is None:
            return super().differentiate(x)
        with torch.enable_grad():
            point = x.detach().double().requires_grad_()
            same = self.twin(point.flatten(1))

        def pull(g: Tensor) -> Tensor:
            towards = g.double().reshape(same.shape)
            return torch.autograd.grad(same, point, towards, retain_graph=True)[0].to(g.dtype)

        return self.answer(x), pull


def twin_of(estimator: Any, outputs: str) -> Twin | None:
    """The estimator's formula where it is simple: linear decision functions, and perceptrons' probabilities."""
    kinds = framework("sklearn.linear_model._base", "sklearn", "scikit-learn models").LinearClassifierMixin
    perceptron = framework("sklearn.neural_network", "sklearn", "scikit-learn models").MLPClassifier
    if isinstance(estimator, kinds) and outputs == "logits":
        weight, bias = (torch.as_tensor(np.asarray(v, np.float64)) for v in (estimator.coef_, estimator.intercept_))
        # Two classes: one column, and one number each.
        return lambda x: (x @ weight.to(x.device).T + bias.to(x.device)).squeeze(1)
    if type(estimator) is perceptron and outputs == "probabilities":
        return _perceptron(estimator)
    return None


def _perceptron(estimator: Any) -> Twin | None:
    layers = [
        tuple(torch.as_tensor(np.asarray(v, np.float64)) for v in pair)
        for pair in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    bend, last = ACTIVATIONS.get(estimator.activation), estimator.out_activation_
    if bend is None or last not in ("softmax", "logistic") or (last == "logistic" and layers[-1][1].numel() != 1):
        return None

    def run(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers):
            x = (bend(x) if i else x) @ weight.to(x.device) + bias.to(x.device)
        if last == "logistic":
            x = torch.cat([torch.zeros_like(x), x], 1)
        return x.log_softmax(1)

    return run


def _outputs(estimator: Any, outputs: str) -> str:
    """What the estimator is asked for."""
    one_of("outputs", outputs, (AUTO, *METHODS))
    mixin = framework("sklearn.linear_model._base", "sklearn", "scikit-learn models").LinearClassifierMixin
    wanted = ("logits", "probabilities", "labels") if isinstance(estimator, mixin) else ("probabilities", "logits")
    wanted = (*wanted, "labels") if outputs == AUTO else (outputs,)
    found = [o for o in wanted if hasattr(estimator, METHODS[o])]
    if not found or not hasattr(estimator, "classes_"):
        raise InputError(
            expected=f"a fitted classifier of scikit-learn with {METHODS[wanted[0]]}",
            got=f"{type(estimator).__name__} without {'classes_' if found else 'it'}",
            remedy="Call fit first; a regressor cannot be evaluated.",
        )
    return found[0]


def from_sklearn(
    estimator: Any, *, outputs: str = AUTO, name: str | None = None, version: str = "", allow: Iterable[str] = ()
) -> TorchClassifier:
    """A classifier from a fitted estimator of scikit-learn; labels are places in its `classes_`.

    Method: linear classifiers answer with their decision function, others with `predict_proba`, whose logarithm (at
    least log 1e-30) are the logits; without either, with `predict`. `outputs` chooses otherwise: "logits"
    (decision_function), "probabilities", "labels". The answers are always the estimator's own. Linear decision
    functions and the probabilities of `MLPClassifier` also give exact gradients; everything else, pipelines too, is a
    black box. The fingerprint is joblib's hash of the estimator, with `version`.
    """
    what = _outputs(estimator, outputs)
    told = framework("joblib", "sklearn", "scikit-learn models").hash(estimator, hash_name="sha1")
    mark = digest((), "sklearn", type(estimator).__name__, str(told), what, version)
    bridge = SklearnBridge(estimator, what, mark)
    label = name if name is not None else type(estimator).__name__
    return classifier(bridge, name=label, differentiable=bridge.twin is not None, allow=allow)
