"""Make a certifier from the names of methods, and describe it so that it can be made again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from brinell.certification import Bounds
from brinell.certification.certify import DEFAULT_METHODS, METHODS
from brinell.core.certificate import Certifier
from brinell.core.model import Classifier
from brinell.errors import InputError, ModelError, RunError, one_of
from brinell.models.smoothed import Smoothed, Smoothing
from brinell.results.format.manifest import attack_hash

SMOOTHING = "smoothing"
# Another name of the last method of the cascade, which decides every sample if it has the time.
ALIASES = {"exact": METHODS[-1]}
ALL_METHODS = (*METHODS, *ALIASES, SMOOTHING)
SECONDS = 10.0
PLAIN = (bool, int, float, str)


@dataclass(frozen=True)
class Call:
    """A certifier and its settings as a Run stores them; `hash` names them in the rows."""

    certifier: Certifier
    settings: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """The hash of the settings: samples that have a row with this hash are not certified again."""
        return attack_hash(self.settings)

    def to_json(self) -> dict[str, Any]:
        """Return the settings with their hash, as the manifest stores them."""
        return {**self.settings, "hash": self.hash}


def call_of(
    model: Classifier, method: "str | Sequence[str] | Certifier | None" = None, seconds: float = SECONDS, seed: int = 0
) -> Call:
    """Return the certifier of these methods and its settings.

    `method` is the last method of the cascade from cheap to exact, a list of methods, or a Certifier. By default it is
    smoothing for a smoothed model, and bounds up to branch and bound for other models.
    """
    if isinstance(method, Smoothing):
        return Call(method, {"methods": [SMOOTHING], "seconds": seconds, **method.settings})
    if method is None or isinstance(method, str | list | tuple):
        return _named(model, methods_of(model, method), _positive(seconds), seed)
    certifier: Any = method
    settings: dict[str, Any] = {}
    if is_dataclass(certifier):
        settings = {f.name: getattr(certifier, f.name) for f in fields(certifier)}
    plain = {name: value for name, value in settings.items() if isinstance(value, PLAIN)}
    return Call(certifier, {"certifier": type(certifier).__name__, **plain})


def call_again(model: Classifier, stored: Mapping[str, Any], seed: int = 0) -> Call | None:
    """Return the certifier that a Run describes; None if it is one of the user's own."""
    methods, seconds = stored.get("methods"), stored.get("seconds")
    if not isinstance(methods, list) or not isinstance(seconds, int | float):
        return None
    if not set(methods) <= {*ALL_METHODS} or not seconds > 0:
        raise RunError(
            expected=f"methods among {', '.join(ALL_METHODS)}, and seconds above 0",
            got=f"{str(methods)[:80]} and {seconds}",
            remedy="Restore manifest.json from a copy, or certify again.",
        )
    certifier = _named(model, tuple(methods), float(seconds), seed).certifier
    if isinstance(certifier, Smoothing):
        draws = {name: stored[name] for name in ("select", "n", "alpha") if name in stored}
        certifier = replace(certifier, **draws)
    return Call(certifier, {name: value for name, value in stored.items() if name != "hash"})


def methods_of(model: Classifier, method: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods to try, in order: a list as it is, one name with all cheaper methods before it.

    >>> from brinell.models.demo import demo_model
    >>> methods_of(demo_model(), "crown"), methods_of(demo_model(), ["crown"])
    (('interval', 'crown'), ('crown',))
    """
    if method is None:
        return (SMOOTHING,) if isinstance(model, Smoothed) else DEFAULT_METHODS
    names = [method] if isinstance(method, str) else list(method)
    names = [ALIASES.get(one_of("a method", name, ALL_METHODS), name) for name in names]
    if SMOOTHING in names and (len(names) > 1 or not isinstance(model, Smoothed)):
        raise ModelError(
            expected="a smoothed model for the method smoothing, and no other method",
            got=f"{model.name or type(model).__name__}, methods {', '.join(names)}",
            remedy="Smooth the model: brinell.models.smoothed(net, sigma=0.25), and evaluate it first.",
        )
    if isinstance(model, Smoothed) and SMOOTHING not in names:
        raise ModelError(
            expected="the method smoothing for a smoothed model",
            got=", ".join(names),
            remedy="Omit the method (--method): bounds on the network say nothing about its average over noise.",
        )
    alone = isinstance(method, str) and names[0] in METHODS
    return METHODS[: METHODS.index(names[0]) + 1] if alone else tuple(names)


def _named(model: Classifier, methods: tuple[str, ...], seconds: float, seed: int) -> Call:
    if isinstance(model, Smoothed):
        smoothing = Smoothing(model, seed)
        return Call(smoothing, {"methods": [SMOOTHING], "seconds": seconds, **smoothing.settings})
    return Call(Bounds(model, methods, seconds), {"methods": list(methods), "seconds": seconds})


def _positive(seconds: float) -> float:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise InputError(
            expected="seconds per sample above 0", got=f"{seconds}", remedy="Write e.g. seconds=10 (--seconds 10)."
        )
    return float(seconds)
