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
from brinell.models.smoothed import ALPHA, Smoothed, Smoothing
from brinell.results.format.manifest import attack_hash

SMOOTHING = "smoothing"
# Another name of the last method of the cascade, which decides every sample if it has the time.
ALIASES = {"exact": METHODS[-1]}
ALL_METHODS = (*METHODS, *ALIASES, SMOOTHING)
SECONDS = 10.0
# The limits of what is computed again for a Run of others: seconds and draws per sample, and the error of smoothing.
MOST_SECONDS, MOST_DRAWS, MOST_ALPHA = 3600, 1_000_000, 0.05
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
    if type(method) is Bounds:
        # A certificate is about the model of the Run, with its normalisation.
        return _named(model, methods_of(model, list(method.methods)), _positive(method.seconds), seed)
    if isinstance(method, Smoothing):
        methods_of(model, SMOOTHING)
        assert isinstance(model, Smoothed)
        method = replace(method, model=model)
        return Call(method, {"methods": [SMOOTHING], "seconds": seconds, **method.settings})
    if method is None or isinstance(method, str | list | tuple):
        return _named(model, methods_of(model, method), _positive(seconds), seed)
    certifier: Any = method
    settings: dict[str, Any] = {}
    if is_dataclass(certifier):
        settings = {f.name: getattr(certifier, f.name) for f in fields(certifier)}
    plain = {name: value for name, value in settings.items() if isinstance(value, PLAIN)}
    return Call(certifier, {"certifier": type(certifier).__name__, **plain})


def call_again(model: Classifier, stored: Mapping[str, Any], seed: int = 0, patience: float = 1) -> Call | None:
    """Return the certifier that a Run describes, with `patience` times its seconds; None if it is the user's own.

    Settings are refused that would only cost the verifier time, or that prove next to nothing.
    """
    methods, seconds = stored.get("methods"), stored.get("seconds")
    if "certifier" in stored:
        return None
    if not isinstance(methods, list) or not methods or not {*map(str, methods)} <= {*ALL_METHODS}:
        raise _refused(f"methods among {', '.join(ALL_METHODS)}", methods)
    if not isinstance(seconds, int | float) or not 0 < seconds <= MOST_SECONDS:
        raise _refused(f"seconds above 0, {MOST_SECONDS:,} at most", seconds)
    settings = {name: value for name, value in stored.items() if name != "hash"}
    if attack_hash(settings) != stored.get("hash"):
        raise _refused("settings that give their hash", stored.get("hash"))
    certifier = _named(model, tuple(map(str, methods)), patience * seconds, seed).certifier
    if isinstance(certifier, Smoothing):
        certifier = replace(certifier, **_draws(stored))
    return Call(certifier, settings)


def _draws(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the draws and the error probability of smoothing that a Run states."""
    found = {name: stored[name] for name in ("select", "n", "alpha") if name in stored}
    counts, alpha = [found.get(name, 1) for name in ("select", "n")], found.get("alpha", ALPHA)
    if not all(type(count) is int and 0 < count <= MOST_DRAWS for count in counts):
        raise _refused(f"1 to {MOST_DRAWS:,} draws", counts)
    if not isinstance(alpha, float) or not 0 < alpha <= MOST_ALPHA:
        raise _refused(f"alpha above 0, {MOST_ALPHA} at most", alpha)
    return found


def _refused(expected: str, got: object) -> RunError:
    remedy = "Restore manifest.json from a copy, or certify again."
    return RunError(expected=f"a certifier with {expected}", got=str(got)[:80], remedy=remedy)


def methods_of(model: Classifier, method: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the methods to try, in order: a list as it is, one name with all cheaper methods before it.

    >>> import brinell
    >>> demo = brinell.wrap(brinell.models.demo.demo_net())
    >>> methods_of(demo, "crown"), methods_of(demo, ["crown"])
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
