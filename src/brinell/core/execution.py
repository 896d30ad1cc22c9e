"""How an evaluation is executed."""

from dataclasses import dataclass

import torch

from brinell.errors import InputError


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
