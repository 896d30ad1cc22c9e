"""The base class of attacks that run other attacks."""

from brinell.core.attack import AnyAttack, Attack, Requires, S
from brinell.ops.norms import Norm


class Wrapper(Attack[S]):
    """An attack around another one, `attack`, whose loss, requirements and norms it shares."""

    @property
    def attack(self) -> AnyAttack:
        """The attack inside."""
        raise NotImplementedError

    @property
    def parts(self) -> tuple[str, ...]:
        """The field `attack`."""
        return ("attack",)

    @property
    def loss(self) -> str:
        """The loss of the attack inside."""
        return self.attack.loss

    @property
    def requires(self) -> Requires:
        """What the attack inside requires."""
        return self.attack.requires

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The norms of the attack inside."""
        return self.attack.norms

    @property
    def leaves_ball(self) -> bool:
        """Whether the attack inside leaves the ball."""
        return self.attack.leaves_ball
