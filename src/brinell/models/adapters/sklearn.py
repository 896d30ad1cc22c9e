"""Adapter for scikit-learn: linear models and perceptrons with gradients, all other estimators as black boxes."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.errors import InputError, one_of
from brinell.models.adapters.bridge import Bridge, Pullback, as_logits, classifier, digest, framework, numbers
from brinell.models.wrap import TorchClassifier

METHODS = {"logits": "decision_function", "probabilities": "predict_proba", "labels": "predict"}
AUTO = "auto"
# Activations of scikit-learn in torch.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda v: v,
    "logistic": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
}

TorchFormula = Callable[[Tensor], Tensor]
"""The estimator's formula in torch, used for gradients only: the estimator itself computes the outputs."""


def _sklearn(module: str) -> Any:
    return framework(module, "sklearn", "scikit-learn models")


class SklearnBridge(Bridge):
    """A bridge to a fitted estimator, which receives flattened rows in float64."""

    def __init__(self, estimator: Any, outputs: str, mark: str) -> None:
        super().__init__(mark)
        self.estimator, self.outputs = estimator, outputs
        self.formula = torch_formula(estimator, outputs)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "formula"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.formula = torch_formula(self.estimator, self.outputs)

    def logits(self, x: Tensor) -> Tensor:
        values = getattr(self.estimator, METHODS[self.outputs])(numbers(x.flatten(1)).astype(np.float64))
        known = self.estimator.classes_
        if self.outputs == "labels":
            values = np.searchsorted(known, values)
        return as_logits(values, self.outputs, len(x), len(known)).to(x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        if self.formula is None:
            return super().differentiate(x)
        with torch.enable_grad():
            point = x.detach().double().requires_grad_()
            same = self.formula(point.flatten(1))

        def pullback(g: Tensor) -> Tensor:
            towards = g.double().reshape(same.shape)
            return torch.autograd.grad(same, point, towards, retain_graph=True)[0].to(g.dtype)

        return self.logits(x), pullback


def torch_formula(estimator: Any, outputs: str) -> TorchFormula | None:
    """Return the formula of a linear decision function or of a perceptron's probabilities in torch, else None."""
    if isinstance(estimator, _sklearn("sklearn.linear_model._base").LinearClassifierMixin) and outputs == "logits":
        weight, bias = (
            torch.as_tensor(np.asarray(v, np.float64), device="cpu") for v in (estimator.coef_, estimator.intercept_)
        )
        # With two classes there is one column, and one number per row.
        return lambda x: (x @ weight.to(x.device).T + bias.to(x.device)).squeeze(1)
    if type(estimator) is _sklearn("sklearn.neural_network").MLPClassifier and outputs == "probabilities":
        return _perceptron(estimator)
    return None


def _perceptron(estimator: Any) -> TorchFormula | None:
    layers = [
        tuple(torch.as_tensor(np.asarray(v, np.float64), device="cpu") for v in pair)
        for pair in zip(estimator.coefs_, estimator.intercepts_, strict=True)
    ]
    activation, last = ACTIVATIONS.get(estimator.activation), estimator.out_activation_
    if activation is None or last not in ("softmax", "logistic") or (last == "logistic" and layers[-1][1].numel() != 1):
        return None

    def run(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers):
            x = (activation(x) if i else x) @ weight.to(x.device) + bias.to(x.device)
        if last == "logistic":
            x = torch.cat([torch.zeros_like(x), x], 1)
        return x.log_softmax(1)

    return run


def _outputs(estimator: Any, outputs: str) -> str:
    one_of("outputs", outputs, (AUTO, *METHODS))
    mixin = _sklearn("sklearn.linear_model._base").LinearClassifierMixin
    wanted = ("logits", "probabilities", "labels") if isinstance(estimator, mixin) else ("probabilities", "logits")
    wanted = (*wanted, "labels") if outputs == AUTO else (outputs,)
    available = [o for o in wanted if hasattr(estimator, METHODS[o])]
    if not available or not hasattr(estimator, "classes_"):
        raise InputError(
            expected=f"a fitted scikit-learn classifier with {METHODS[wanted[0]]}",
            got=f"{type(estimator).__name__} without {'classes_' if available else METHODS[wanted[0]]}",
            remedy="Call fit first, and use a classifier, not a regressor; or choose another value for outputs.",
        )
    return available[0]


def from_sklearn(
    estimator: Any, *, outputs: str = AUTO, name: str | None = None, version: str = "", allow: Iterable[str] = ()
) -> TorchClassifier:
    """Make a classifier from a fitted scikit-learn estimator; labels are positions in its `classes_`.

    Method: the logits of a linear classifier are its decision function. Other estimators' logits are the log of
    `predict_proba` (at least log 1e-30), or else the decision function, or else ±½ from `predict`. `outputs` selects
    one source: "logits" (`decision_function`), "probabilities" (`predict_proba`) or "labels" (`predict`). Linear
    decision functions and the probabilities of `MLPClassifier` also have exact gradients. All other estimators,
    including pipelines, are black boxes. The fingerprint is joblib's hash of the estimator, with `version`.
    """
    what = _outputs(estimator, outputs)
    estimator_hash = _sklearn("joblib").hash(estimator, hash_name="sha1")
    mark = digest((), "sklearn", type(estimator).__name__, str(estimator_hash), what, version)
    bridge = SklearnBridge(estimator, what, mark)
    label = name if name is not None else type(estimator).__name__
    return classifier(bridge, name=label, differentiable=bridge.formula is not None, allow=allow)
