"""The numbers of AutoAttack's attacks under its own names: they take effect, or raise."""

from typing import Any

from brinell.errors import InputError, did_you_mean

# Other names of AutoAttack's attributes for one number.
SAME = {"thr_decr": "rho", "n_iter_orig": "n_iter"}
# What the ensemble sets for all its attacks, in the original too.
OF_THE_ENSEMBLE = ("eps", "norm", "seed", "device", "verbose", "logger", "model", "is_tf_model")
# What an attack of the ensemble always does, and the value that says so.
FIXED = {"use_rs": True, "resc_schedule": False, "targeted": None, "loss": None}


class Settings:
    """The numbers of one attack as attributes; an unknown name raises, with the name that was meant.

    >>> apgd = Settings("apgd", n_iter=100, n_restarts=1)
    >>> apgd.n_iter = 5
    >>> apgd.n_iter
    5
    >>> apgd.n_iters = 5
    Traceback (most recent call last):
    brinell.errors.InputError: expected numbers of apgd: n_iter, n_restarts, got n_iters. Did you mean 'n_iter'?
    """

    def __init__(self, name: str, **values: Any) -> None:
        self.__dict__.update(_name=name, _values=dict(values))

    def values(self) -> dict[str, Any]:
        """Return all numbers by name."""
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        known = SAME.get(name, name)
        if known in values:
            return values[known]
        raise AttributeError(f"{self.__dict__.get('_name', 'the attack')} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        known = SAME.get(name, name)
        if known in self._values:
            self._values[known] = value
        elif not (name in FIXED and FIXED[name] is not None and FIXED[name] == value):
            raise self._unknown(name)

    def _unknown(self, name: str) -> InputError:
        names = list(self._values)
        remedy = did_you_mean(name, names, "Leave it out, or build the attack with brinell.attacks.")
        if name in OF_THE_ENSEMBLE:
            remedy = f"Set it for all attacks: AutoAttack({name}=…)."
        elif name in FIXED:
            remedy = "Leave it out: the ensemble decides it. Use APGDAttack or SquareAttack for one attack."
        return InputError(expected=f"numbers of {self._name}: {', '.join(names)}", got=name, remedy=remedy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"
