"""Find the features of a network: the inputs of its last layer or of a named layer, or else the model's own logits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.errors import ModelError, one_of
from brinell.models.detector import negated
from brinell.models.wrap import TorchClassifier, require_module
from brinell.ops import rng
from brinell.ops.rowwise import flat
from brinell.reliability.binarization.result import INVERTED, PLAIN, WHOLE

Layer: TypeAlias = "str | Sequence[str] | Callable[[Tensor], Tensor] | None"
"""The name of the readout layer (its inputs are the features), several names, a function, or None to find it.

"outputs" takes the model's logits as features.
"""

OUTPUTS = "outputs"

TRIES = 3
"""How often the outputs of the last layer are replaced, to see whether the logits follow."""

# Numbers that differ by less than this share of the largest are the same but for rounding.
SAME = 1e-3

NO_MODULE = "Pass the features as a function of the input: layer=lambda x: …"
REMEDY = "Name the layer whose inputs are the features, e.g. layer='head', or pass a function, layer=lambda x: …"


def _bare(classifier: Classifier) -> Classifier:
    """Return the classifier without its detector, if it is a TorchClassifier: detectors may rerun recorded layers."""
    return replace(classifier, detector=None) if isinstance(classifier, TorchClassifier) else classifier


@dataclass
class _LayerRecorder:
    """A recorder of the inputs and outputs of `layers` during a forward pass."""

    layers: Sequence[tuple[str, nn.Module]]

    def run(self, classifier: Classifier, x: Tensor) -> tuple[Output, list[tuple[str, Tensor, Any]]]:
        """Return the classifier's output, and (name, input, output) of all layer calls in the order the calls end."""
        seen: list[tuple[str, Tensor, Any]] = []

        def note(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, given: tuple[Any, ...], result: Any) -> None:
                # Copy: later layers may work in place.
                seen.append((name, given[0].clone(), result.clone() if isinstance(result, Tensor) else result))

            return hook

        handles = [m.register_forward_hook(note(name)) for name, m in self.layers]
        try:
            return classifier.forward(x), seen
        finally:
            for h in handles:
                h.remove()


def _directions(raw: Tensor, logits: Tensor) -> set[int]:
    """Return the signs (1, −1) of the steps between successive logits, each row sorted by the layer's outputs `raw`."""
    steps = logits.gather(1, raw.argsort(1)).diff(dim=1)
    return {way for way in (1, -1) if bool((way * steps > 0).any())}


def _substitutes(raw: Tensor) -> list[Tensor]:
    """Return three replacements of the layer's outputs `raw`: permutations or, for one constant output, multiples."""
    if raw.shape[1] == 1:
        return [raw.roll(k, 0) if bool((raw != raw[:1]).any()) else (k + 1) * raw for k in range(1, TRIES + 1)]
    keys = (rng.keys(k, torch.arange(len(raw), device=raw.device)) for k in range(TRIES - 1))
    return [raw.roll(1, 1), *(raw.gather(1, rng.uniform(key, (raw.shape[1],)).argsort(1)) for key in keys)]


def _instead(z: Tensor, value: Tensor) -> Tensor:
    """Return `value` in place of z, with the gradient path of z if z has a gradient."""
    return value + (z - z.detach()) if z.requires_grad else value.clone()


def _answers(classifier: Classifier, layer: nn.Module, x: Tensor, raw: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of values that replace the outputs `raw` of the layer, and the logits that follow from them."""
    pairs = []
    for value in _substitutes(raw):
        hook = layer.register_forward_hook(lambda _, __, z, value=value: _instead(z, value))
        try:
            with torch.no_grad():
                pairs.append((value, classifier.forward(x).logits))
        finally:
            hook.remove()
    return pairs


def _follows(classifier: Classifier, layer: nn.Module, x: Tensor, raw: Tensor, logits: Tensor) -> bool:
    if raw.ndim != 2 or (len(raw), max(raw.shape[1], 2)) != tuple(logits.shape):
        return False
    try:
        pairs = [(raw, logits), *_answers(classifier, layer, x, raw)]
    except Exception:  # the network cannot run with other values
        return False
    if raw.shape[1] == 1:
        pairs = [(torch.cat([v for v, _ in pairs], 1), torch.stack([z[:, -1] - z[:, 0] for _, z in pairs], 1))]
    # Equal outputs give no order; a single output may stand for either of two classes.
    ordered = any(bool((v != v[:, :1]).any()) for v, _ in pairs)
    wanted = [set[int]()] if not ordered else [{1}] if raw.shape[1] > 1 else [{1}, {-1}]
    return all(_directions(v, z) in wanted for v, z in pairs)


def find_readout_layer(classifier: Classifier, x: Tensor) -> str:
    """Return the name of the linear layer that the network ends in, found with a few forward passes of x.

    This is the last linear layer that runs. Sorted by size, its outputs must have the same order as the logits, so that
    at most a rescaling, a softmax or a log-softmax follows the layer; a single output must decide between two logits.
    On a few points this may hold by chance, so it must still hold after the layer's outputs are replaced.
    """
    module = require_module(classifier, NO_MODULE)
    layers = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    with torch.no_grad():
        out, seen = _LayerRecorder(tuple(layers.items())).run(classifier, x)
    if not seen:
        raise ModelError(
            expected="a network that ends in a linear layer",
            got="a network in which no linear layer runs",
            remedy=REMEDY,
        )
    name, _, raw = seen[-1]
    if not _follows(classifier, layers[name], x, raw, out.logits):
        raise ModelError(
            expected="a network that ends in a linear layer",
            got=f"logits in another order than the outputs of its last linear layer, {name or 'the whole module'}",
            remedy=REMEDY,
        )
    return name


@dataclass(frozen=True, eq=False)
class Features(DelegatingClassifier):
    """A classifier whose output holds its features, followed by its logits.

    The features are the inputs of the modules in `layers`, pairs (name, module), or the values of `function`. Without
    both they are the logits of the classifier. `kind` is the kind of test: "plain" ignores the detector, "regular" uses
    the detector's score, "inverted" the negated score.
    """

    classifier: Classifier
    layers: tuple[tuple[str, nn.Module], ...] = ()
    function: Callable[[Tensor], Tensor] | None = None
    kind: str = PLAIN

    @property
    def base(self) -> Classifier:
        return self.classifier

    def to(self, device: torch.device) -> "Features":
        return replace(self, classifier=self.classifier.to(device))

    def _record(self, x: Tensor) -> tuple[list[Tensor], Output]:
        """Return the features of every layer, (b, f) each, and the output of the classifier without its detector."""
        if self.function is not None:
            return [flat(self.function(x)).float()], _bare(self.classifier).forward(x)
        if not self.layers:
            out = _bare(self.classifier).forward(x)
            return [out.logits.float()], out
        out, seen = _LayerRecorder(self.layers).run(_bare(self.classifier), x)
        inputs = {name: given for name, given, _ in seen}
        missing = next((name for name, _ in self.layers if name not in inputs), None)
        if missing is not None:
            raise ModelError(
                expected="layers that run exactly once per forward pass",
                got=f"{missing}, which does not run for a batch of {len(x)}",
                remedy=REMEDY,
            )
        return [flat(inputs[name]).float() for name, _ in self.layers], out

    def parts(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the features of every layer, (b, f) each, and the logits."""
        parts, out = self._record(x)
        return parts, out.logits

    def of(self, x: Tensor) -> Tensor:
        """Return the features of all layers, concatenated, (b, f)."""
        if self.function is not None:
            return flat(self.function(x)).float()
        return torch.cat(self.parts(x)[0], 1)

    def with_detector(self, x: Tensor) -> tuple[Tensor, Output]:
        """Return the features (b, f), and the classifier's output with the detector's score, negated if "inverted".

        The detector sees the input and the classifier's own logits, and keeps its threshold. If `kind` is "plain", the
        output is empty.
        """
        if self.kind == PLAIN:
            return self.of(x), Output(x.new_zeros(len(x), 0))
        parts, out = self._record(x)
        score = out.reject
        if isinstance(self.classifier, TorchClassifier) and self.classifier.detector is not None:
            score = self.classifier.detector.reject(x.clone(), out.logits, out.features)
        assert score is not None, "the model has a detector"
        score = negated(score) if self.kind == INVERTED else score
        return torch.cat(parts, 1), replace(out, reject=score)

    def forward(self, x: Tensor) -> Output:
        """Return an Output whose logits are the features of all layers, followed by the classifier's logits."""
        features, logits = self.parts(x)
        return Output(torch.cat([*features, logits], 1))

    @property
    def source(self) -> str:
        """The names of the layers that the features come from, for reports."""
        if not self.layers and self.function is None:
            return WHOLE
        return ", ".join(name or "the whole module" for name, _ in self.layers) or "a function of the input"

    def widths(self, x: Tensor) -> list[int]:
        with torch.no_grad():
            return [f.shape[1] for f in self.parts(x)[0]]


def find_features(classifier: Classifier, x: Tensor, layer: Layer = None) -> Features:
    """Return the features before `layer`, after a check on the points x.

    By default these are the features before the last linear layer. If the model does not end in one, they are its
    logits: whatever it does to them is then part of every two-class problem.
    """
    if callable(layer):
        with torch.no_grad():
            rows = layer(x)
        if not isinstance(rows, Tensor) or rows.ndim < 1 or len(rows) != len(x):
            raise ModelError(
                expected=f"a function `layer` that returns one row of finite features for each of the {len(x)} inputs",
                got=f"a tensor of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__,
                remedy="Return a tensor of shape (inputs, features).",
            )
        return _checked(Features(classifier, function=layer), x)
    if layer is None:
        layer = _ending(_bare(classifier), x)
    names = (layer,) if isinstance(layer, str) else tuple(layer)
    if names == (OUTPUTS,) and not _has_module(classifier, OUTPUTS):
        return _checked(Features(classifier), x)
    module = require_module(classifier, NO_MODULE)
    layers = dict(module.named_modules())
    for name in names:
        one_of("a layer", name, [n for n in layers if n] or [""])
    chosen = tuple((name, layers[name]) for name in names)
    with torch.no_grad():
        seen = _LayerRecorder(chosen).run(_bare(classifier), x)[1]
    calls = [name for name, _, _ in seen]
    wrong = [name for name in names if calls.count(name) != 1]
    if wrong:
        raise ModelError(
            expected="layers that run exactly once per forward pass",
            got=f"{wrong[0]}, which runs {calls.count(wrong[0])} times",
            remedy=REMEDY,
        )
    return _checked(Features(classifier, chosen), x)


def _ending(classifier: Classifier, x: Tensor) -> str:
    """Return the name of the linear layer whose outputs the model returns as logits, or "outputs" if there is none."""
    try:
        name = find_readout_layer(classifier, x)
    except ModelError:
        return OUTPUTS
    return (
        name
        if _unchanged(classifier, dict(require_module(classifier, NO_MODULE).named_modules())[name], x)
        else OUTPUTS
    )


def _unchanged(classifier: Classifier, layer: nn.Module, x: Tensor) -> bool:
    """Return whether the logits are the outputs of the layer, times one number, plus a constant and a shift per row.

    Both the values and the gradients must say so. A softmax, a temperature that depends on the input, or a gradient of
    its own must not be left out of the test, since the attack meets it.
    """
    seen: list[Tensor] = []

    def note(_: nn.Module, __: Any, z: Tensor) -> Tensor:
        seen.append(z)
        return z.clone()  # later layers may work in place

    handle = layer.register_forward_hook(note)
    try:
        with torch.enable_grad():
            logits = classifier.forward(x.detach().clone().requires_grad_()).logits
            way = rng.normal(rng.keys(0, torch.arange(len(x), device=x.device)), (logits.shape[1],))
            way = way - way.mean(1, keepdim=True)
            (slope,) = torch.autograd.grad((logits * way).sum(), seen[-1])
    except Exception:  # no gradient reaches the layer, or the model itself raises
        return False
    finally:
        handle.remove()
    raw, logits = seen[-1].detach(), logits.detach()
    pairs = [(raw, logits), *_answers(classifier, layer, x, raw)]
    if raw.shape[1] == 1:
        pairs = [(torch.cat([-v, v], 1) / 2, z) for v, z in pairs]
        slope = torch.cat([-slope, slope], 1)
    scale = (slope * way).sum() / way.square().sum()
    rest = torch.cat([z - scale * v for v, z in pairs])
    rest = rest - rest.mean(1, keepdim=True)
    return _close(slope, scale * way) and _close(rest, rest[:1].expand_as(rest), float(logits.abs().max()))


def _close(a: Tensor, b: Tensor, scale: float = 0.0) -> bool:
    return float((a - b).abs().max()) <= SAME * max(float(b.abs().max()), scale)


def _has_module(classifier: Classifier, name: str) -> bool:
    try:
        return name in dict(require_module(classifier, NO_MODULE).named_modules())
    except ModelError:
        return False


def _checked(found: Features, x: Tensor) -> Features:
    with torch.no_grad():
        parts, _ = found.parts(x)
    for f in parts:
        if len(f) != len(x) or not bool(f.isfinite().all()):
            raise ModelError(
                expected=f"one row of finite features for each of the {len(x)} inputs",
                got=f"features of shape {tuple(f.shape)}{'' if bool(f.isfinite().all()) else ' with NaN or inf'}",
                remedy=REMEDY,
            )
    return found
