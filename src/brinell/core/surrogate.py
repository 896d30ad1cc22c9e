"""A surrogate: another way to compute a model's logits, whose gradients an attack follows instead."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Surrogate:
    """A recipe for a surrogate, by names of submodules of the model; only one of `networks` and `outputs` is given.

    `networks` are applied to the input itself, without the rest of the model. `outputs` are submodules whose outputs,
    in a pass of the model, are the logits. Several are averaged. With neither, the logits are those of the model.
    `through` are submodules whose backward pass is the identity. With `columns` above 1, each class has that many
    adjacent columns, of which the largest counts.

    >>> print(Surrogate(networks=("base",)))
    the network base alone
    >>> print(Surrogate(outputs=("head",), through=("round",)))
    the logits of head, straight through round
    """

    networks: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    columns: int = 1

    def __str__(self) -> str:
        names = ", ".join(self.networks or self.outputs)
        if len(self.networks) > 1:
            what = f"the mean of the networks {names}"
        elif self.networks:
            what = f"the network {names} alone"
        else:
            what = f"the logits of {names}" if self.outputs else "the model"
        what += f" ({self.columns} columns per class)" if self.columns > 1 else ""
        return what + (f", straight through {', '.join(self.through)}" if self.through else "")

    @property
    def label(self) -> str:
        """A short name for stages: what the attack goes through."""
        outputs = "+".join(self.networks) or "+".join(f"{name}()" for name in self.outputs)
        return ", ".join([outputs] * bool(outputs) + [f"~{name}" for name in self.through])

    def to_json(self) -> dict[str, Any]:
        """Return the recipe's entry in the manifest of a Run."""
        given = {"networks": self.networks, "outputs": self.outputs, "through": self.through}
        columns = {"columns": self.columns} if self.columns > 1 else {}
        return {key: list(names) for key, names in given.items() if names} | columns
