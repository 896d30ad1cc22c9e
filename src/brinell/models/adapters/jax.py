"""Functions of JAX: Flax, Equinox, Haiku or plain ones."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from brinell.models.adapters.bridge import Bridge, Pull, classifier, digest, framework, versioned
from brinell.models.wrap import TorchClassifier

PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}
"""Where arrays of JAX are, and what torch calls it."""


def _jax() -> Any:
    return framework("jax", "jax", "models in JAX")


def _arrays(jax: Any, tree: Any) -> "list[tuple[str, Any]]":
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if hasattr(leaf, "dtype")]


class JaxBridge(Bridge):
    """A function of a batch, and of its parameters where there are some; compiled by JAX once per shape."""

    def __init__(self, function: Callable[..., Any], params: Any, mark: str, stored: set[str]) -> None:
        super().__init__(mark, stored)
        self.function, self.params = function, params
        self._compile()

    def _compile(self) -> None:
        jax = _jax()
        leaves, tree = jax.tree_util.tree_flatten((self.function, self.params))
        # Arrays are arguments: as constants they would be compiled in, which takes long for large models.
        self._arrays = [v if hasattr(v, "dtype") else None for v in leaves]

        def run(arrays: list[Any], x: Any) -> Any:
            merged = [own if given is None else given for own, given in zip(leaves, arrays, strict=True)]
            function, params = jax.tree_util.tree_unflatten(tree, merged)
            return function(x) if params is None else function(params, x)

        self._plain = jax.jit(run)
        self._vjp = jax.jit(lambda arrays, x: jax.vjp(lambda v: run(arrays, v), x))
        # The pullback is data, so that a backward pass repeats nothing of the forward one and is compiled once.
        self._back = jax.jit(lambda pull, g: pull(g)[0])

    def __getstate__(self) -> dict[str, Any]:
        """Without what was compiled."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_arrays", "_plain", "_vjp", "_back")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._compile()

    def home(self) -> Any:
        """The device of JAX that the parameters are on; without parameters, the default one."""
        jax = _jax()
        for _, leaf in _arrays(jax, self.function if self.params is None else self.params):
            if hasattr(leaf, "devices"):
                return next(iter(leaf.devices()))
        return jax.devices()[0]

    def _over(self, x: Tensor) -> Any:
        """A tensor as an array, the same memory where both live on one device."""
        jax, home = _jax(), self.home()
        here = x if x.device.type == PLATFORMS.get(home.platform) else x.cpu()
        return jax.device_put(jax.dlpack.from_dlpack(here.detach().contiguous()), home)

    def _home_again(self, a: Any, device: torch.device) -> Tensor:
        # Finished before anybody reads it or frees what it was computed from.
        a.block_until_ready()
        shared = PLATFORMS.get(next(iter(a.devices())).platform) == device.type
        back = torch.utils.dlpack.from_dlpack(a) if shared else torch.tensor(_jax().device_get(a))
        return back.to(device)

    def answer(self, x: Tensor) -> Tensor:
        """One compiled call."""
        return self._home_again(self._plain(self._arrays, self._over(x)), x.device)

    def differentiate(self, x: Tensor) -> tuple[Tensor, Pull]:
        """The same and its vector-Jacobian product."""
        y, back = self._vjp(self._arrays, self._over(x))
        kind = y.dtype

        def pull(g: Tensor) -> Tensor:
            return self._home_again(self._back(back, self._over(g).astype(kind)), x.device)

        return self._home_again(y, x.device), pull


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
    """A classifier from a JAX function `function(params, x)`, or `function(x)`, that gives the logits of a batch.

    Method: the function is compiled once per shape; gradients are its vector-Jacobian products, so every attack works.
    Arrays are shared, not copied, where JAX and torch use one device. The fingerprint hashes the arrays in `params` (or
    in `function`, where that is a tree of arrays such as an Equinox module), the function's name and `version`; a
    function without such arrays needs a version. `channels_last` gives images as (n, h, w, c). The rest as in `wrap`.
    """
    jax = _jax()
    arrays = _arrays(jax, function if params is None else params)
    label = getattr(function, "__qualname__", type(function).__name__)
    told = versioned("a JAX function without params", version) if not arrays else version or ""
    mark = digest(((k, jax.device_get(v)) for k, v in arrays), "jax", label, told)
    bridge = JaxBridge(function, params, mark, {str(v.dtype) for _, v in arrays})
    kind = PLATFORMS.get(bridge.home().platform, "cpu")
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
