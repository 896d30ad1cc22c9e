"""How an evaluation is executed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from brinell.errors import InputError, did_you_mean


class ComputeOptions(TypedDict, total=False):
    """The keyword arguments of functions in which precision and mode cannot be chosen."""

    seed: int
    slots: int | None
    device: torch.device | str | None


class ExecutionOptions(ComputeOptions, total=False):
    """The keyword arguments of every evaluation. `execution` is the mode, or an `Execution` in place of all options."""

    precision: str
    execution: "str | Execution"


@dataclass(frozen=True)
class Execution:
    """The options that every evaluation shares.

    `seed` keys all noise. `slots` is the number of samples attacked at a time (None: chosen for the device).
    `precision` is that of the attacks' passes: "float32", "tf32", "bfloat16" or "auto". Adversarials are verified
    in float32. `mode` is "auto", "eager", "graph" (CUDA graphs) or "compile". `device` is where the model is moved.

    >>> Execution(seed=1, precision="tf32").slots is None
    True
    """

    seed: int = 0
    slots: int | None = None
    precision: str = "float32"
    mode: str = "auto"
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**63:
            raise InputError(expected="a whole number of 64 bits as seed", got=repr(self.seed), remedy="Use seed=0.")
        if self.slots is not None and (
            isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1
        ):
            raise InputError(
                expected="slots of at least 1, a whole number",
                got=f"{self.slots}",
                remedy="Leave it out for the default.",
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any], accepted: Any = ExecutionOptions) -> "Execution":
        """Return the keyword arguments of a public function as one object; refuse names that it does not accept.

        >>> Execution.from_options({"seed": 3, "execution": "eager"})
        Execution(seed=3, slots=None, precision='float32', mode='eager', device=None)
        >>> Execution.from_options({"execution": Execution(seed=3)}).seed
        3
        """
        for name in options:
            if name not in accepted.__annotations__:
                names = list(accepted.__annotations__)
                raise InputError(
                    expected=f"options among {', '.join(names)}", got=name, remedy=did_you_mean(name, names)
                )
        given = dict(options)
        mode = given.pop("execution", cls.mode)
        if not isinstance(mode, Execution):
            return cls(mode=mode, **given)
        if cls(**given) != cls():
            raise InputError(
                expected="an Execution, or seed, slots, precision and device",
                got="both",
                remedy="Put the options into the Execution.",
            )
        return mode
