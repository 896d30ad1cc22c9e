"""A surrogate: another way to compute a model's logits, whose gradients an attack follows instead."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Surrogate:
    """A recipe for a surrogate, by names of submodules of the model; only one of `networks` and `outputs` is given.

    `networks` are applied to the input itself, without the rest of the model. `outputs` are submodules whose outputs,
    in a pass of the model, are the logits. Several are averaged. With neither, the logits are those of the model.
    `through` are submodules whose backward pass is the identity; those in `secants` map every pixel on its own, and
    their backward pass is the slope over a change of their input by a given width in both directions. With `columns`
    above 1, each class has that many adjacent columns, of which the largest counts.

    >>> print(Surrogate(networks=("base",)))
    the network base alone
    >>> print(Surrogate(outputs=("head",), through=("round",)))
    the logits of head, straight through round
    >>> print(Surrogate(secants=(("encode", 0.1),)))
    the model, with the slopes of encode over 0.1
    """

    networks: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    columns: int = 1
    secants: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        names = ", ".join(self.networks or self.outputs)
        if len(self.networks) > 1:
            what = f"the mean of the networks {names}"
        elif self.networks:
            what = f"the network {names} alone"
        else:
            what = f"the logits of {names}" if self.outputs else "the model"
        what += f" ({self.columns} columns per class)" if self.columns > 1 else ""
        what += f", straight through {', '.join(self.through)}" if self.through else ""
        slopes = ", ".join(f"{name} over {width:.2g}" for name, width in self.secants)
        return what + (f", with the slopes of {slopes}" if slopes else "")

    @property
    def label(self) -> str:
        """A short name for stages: what the attack goes through."""
        outputs = "+".join(self.networks) or "+".join(f"{name}()" for name in self.outputs)
        replaced = [f"~{name}" for name in self.through] + [f"/{name}" for name, _ in self.secants]
        return ", ".join([outputs] * bool(outputs) + replaced)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe's entry in the manifest of a Run."""
        given = {"networks": self.networks, "outputs": self.outputs, "through": self.through}
        more: dict[str, Any] = {"columns": self.columns} if self.columns > 1 else {}
        if self.secants:
            more["secants"] = [list(pair) for pair in self.secants]
        return {key: list(names) for key, names in given.items() if names} | more
