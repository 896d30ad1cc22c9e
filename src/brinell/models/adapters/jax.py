"""Adapter for JAX functions: Flax, Equinox, Haiku or plain JAX."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from brinell.models.adapters.bridge import Bridge, Pullback, classifier, digest, framework, versioned
from brinell.models.wrap import TorchClassifier

PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}
"""JAX platforms and the torch device types of the same name."""


def _jax() -> Any:
    return framework("jax", "jax", "models in JAX")


def _arrays(jax: Any, tree: Any) -> "list[tuple[str, Any]]":
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if hasattr(leaf, "dtype")]


class JaxBridge(Bridge):
    """A bridge to a JAX function of a batch and optional parameters; JAX compiles it once per input shape."""

    def __init__(self, function: Callable[..., Any], params: Any, mark: str, dtypes: set[str]) -> None:
        super().__init__(mark, dtypes)
        self.function, self.params = function, params
        self._compile()

    def _compile(self) -> None:
        jax = _jax()
        leaves, tree = jax.tree_util.tree_flatten((self.function, self.params))
        # Pass arrays as arguments. Compiling them in as constants takes long for large models.
        self._arrays = [v if hasattr(v, "dtype") else None for v in leaves]

        def run(arrays: list[Any], x: Any) -> Any:
            merged = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
            function, params = jax.tree_util.tree_unflatten(tree, merged)
            return function(x) if params is None else function(params, x)

        self._plain = jax.jit(run)
        self._vjp = jax.jit(lambda arrays, x: jax.vjp(lambda v: run(arrays, v), x))
        # The pullback is a JAX value, so the backward pass is compiled once and does not repeat the forward pass.
        self._back = jax.jit(lambda pull, g: pull(g)[0])

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_arrays", "_plain", "_vjp", "_back")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compile()

    def jax_device(self) -> Any:
        """Return the JAX device of the parameters, or the default device."""
        jax = _jax()
        for _, leaf in _arrays(jax, self.function if self.params is None else self.params):
            if hasattr(leaf, "devices"):
                return next(iter(leaf.devices()))
        return jax.devices()[0]

    def _to_jax(self, x: Tensor) -> Any:
        """Return a torch tensor as a JAX array; the two share memory if torch and JAX use the same device."""
        jax, target = _jax(), self.jax_device()
        x = x if x.device.type == PLATFORMS.get(target.platform) else x.cpu()
        return jax.device_put(jax.dlpack.from_dlpack(x.detach().contiguous()), target)

    def _to_torch(self, a: Any, device: torch.device) -> Tensor:
        # Wait: nobody may read it or free its inputs before it is computed.
        a.block_until_ready()
        shared = PLATFORMS.get(next(iter(a.devices())).platform) == device.type
        back = torch.utils.dlpack.from_dlpack(a) if shared else torch.tensor(_jax().device_get(a), device="cpu")
        return back.to(device)

    def logits(self, x: Tensor) -> Tensor:
        return self._to_torch(self._plain(self._arrays, self._to_jax(x)), x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pullback]:
        y, back = self._vjp(self._arrays, self._to_jax(x))
        kind = y.dtype

        def pullback(g: Tensor) -> Tensor:
            return self._to_torch(self._back(back, self._to_jax(g).astype(kind)), x.device)

        return self._to_torch(y, x.device), pullback


def from_jax(
    function: Callable[..., Any],
    params: Any = None,
    *,
    name: str | None = None,
    version: str | None = None,
    channels_last: bool = False,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    allow: Iterable[str] = (),
    detector: Any = None,
) -> TorchClassifier:
    """Make a classifier from a JAX function `function(params, x)` or `function(x)` that returns the logits of a batch.

    Method: JAX compiles the function once per shape. Gradients are vector-Jacobian products, so every attack works.
    JAX and torch share memory if they use the same device. The fingerprint hashes the arrays in `params` (or in
    `function` if it is a tree of arrays, such as an Equinox module), the function's name and `version`. A function
    without arrays needs a version. With `channels_last` images have shape (n, h, w, c). The other options are those of
    `wrap`.
    """
    jax = _jax()
    arrays = _arrays(jax, function if params is None else params)
    label = getattr(function, "__qualname__", type(function).__name__)
    version = version or "" if arrays else versioned("a JAX function without params", version)
    mark = digest(((k, jax.device_get(v)) for k, v in arrays), "jax", label, version)
    bridge = JaxBridge(function, params, mark, {str(v.dtype) for _, v in arrays})
    kind = PLATFORMS.get(bridge.jax_device().platform, "cpu")
    return classifier(
        bridge,
        name=name if name is not None else label,
        differentiable=True,
        channels_last=channels_last,
        mean=mean,
        std=std,
        allow=allow,
        device=torch.device(kind if kind == "cpu" or torch.cuda.is_available() else "cpu"),
        detector=detector,
    )
