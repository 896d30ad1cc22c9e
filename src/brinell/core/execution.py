"""The options with which an evaluation is executed: seed, slots, precision, mode and device."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch

from brinell.errors import InputError, did_you_mean

# Larger calls are not read from a manifest.
MOST_ROWS = 1 << 20


class ComputeOptions(TypedDict, total=False):
    """The keyword arguments of functions that fix precision and execution mode themselves."""

    seed: int
    slots: int | None
    device: torch.device | str | None


class ExecutionOptions(ComputeOptions, total=False):
    """The keyword arguments of every evaluation. `execution` is the mode, or an `Execution` with all options."""

    precision: str
    execution: "str | Execution"


@dataclass(frozen=True)
class Blocks:
    """The rows of a model call: `usual`, and those of the kinds of calls (`brinell.engine.oracle.KINDS`) that differ.

    >>> Blocks(256, {"few": 32}).to_json()
    {'block': 256, 'other_blocks': {'few': 32}}
    """

    usual: int
    others: Mapping[str, int] = field(default_factory=dict)

    def of(self, kind: str) -> int:
        """Return the rows of a call of this kind."""
        return self.others.get(kind, self.usual)

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the manifest's identity."""
        others = {kind: rows for kind, rows in self.others.items() if rows != self.usual}
        return {"block": self.usual, **({"other_blocks": others} if others else {})}

    @classmethod
    def read(cls, identity: Mapping[str, Any]) -> "Blocks | None":
        """Return the blocks that an identity stores; None if it stores none, or no whole numbers."""
        usual, others = identity.get("block"), identity.get("other_blocks", {})
        rows = [usual, *others.values()] if isinstance(others, dict) else [None]
        sound = all(isinstance(n, int) and not isinstance(n, bool) and 1 <= n <= MOST_ROWS for n in rows)
        return cls(int(str(usual)), dict(others)) if sound else None


@dataclass(frozen=True)
class Execution:
    """How an evaluation is computed: seed, slots, precision, mode and device.

    `seed` determines all noise. `slots` is the number of samples attacked at a time (None: chosen for the device).
    `precision` is the number format of the attacks' model passes: "float32", "tf32", "bfloat16" or "auto", which is
    float32 on a CPU, and on a GPU what ends soonest (`brinell.cost.settings`); adversarials are verified in float32.
    `mode` is "auto", "eager", "graph" (CUDA graphs) or "compile". The model is moved to `device` (None: it stays where
    it is). `blocks` are the rows of a model call (None: chosen on a GPU for the samples and the model, 32 on a CPU).

    >>> Execution(seed=1, precision="tf32").slots is None
    True
    """

    seed: int = 0
    slots: int | None = None
    precision: str = "auto"
    mode: str = "auto"
    device: torch.device | str | None = None
    blocks: Blocks | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**63:
            expected = "a whole number from -2**63 to 2**63 - 1 as seed"
            raise InputError(expected=expected, got=repr(self.seed), remedy="Write e.g. seed=0.")
        if self.slots is not None and (
            isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1
        ):
            raise InputError(
                expected="slots of at least 1, as a whole number",
                got=f"slots={self.slots!r}",
                remedy="Write e.g. slots=64, or leave slots out for the default.",
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any], accepted: Any = ExecutionOptions) -> "Execution":
        """Return the keyword arguments of a public function as an `Execution`; refuse names not in `accepted`.

        Functions that accept no precision compute in float32.

        >>> Execution.from_options({"seed": 3, "execution": "eager"})
        Execution(seed=3, slots=None, precision='auto', mode='eager', device=None, blocks=None)
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
        if "precision" not in accepted.__annotations__:
            given["precision"] = "float32"
        mode = given.pop("execution", cls.mode)
        if not isinstance(mode, Execution):
            return cls(mode=mode, **given)
        if cls(**given) != cls():
            raise InputError(
                expected="either execution=Execution(…), or seed, slots, precision and device as arguments",
                got="both an Execution and such arguments",
                remedy="Put all options into the Execution, e.g. execution=Execution(seed=1, slots=64).",
            )
        return mode
