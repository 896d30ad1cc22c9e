"""Model outputs for natural inputs that a detector accepts: the references that matching attacks imitate."""

import hashlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class References:
    """Classes, logits and, if the model has them, features of accepted and correctly classified inputs.

    With `ids` each row belongs to the sample with that id, and only that sample imitates it. Two References are
    equal if all their values are equal. The repr shows a digest, so that a plan stays readable.

    >>> import torch
    >>> References(torch.tensor([0, 1]), torch.eye(2))
    References(n=2, sha256=c5377464)
    """

    y: Tensor
    logits: Tensor
    features: Tensor | None = None
    ids: Tensor | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of all classes, logits, features and ids."""
        h = hashlib.sha256()
        for part in (self.y, self.logits, self.features, self.ids):
            h.update(b"" if part is None else part.detach().cpu().numpy().tobytes())
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, References) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"References(n={len(self.y)}, sha256={self.digest[:8]})"

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest of a Run stores about the references."""
        return {"n": len(self.y), "sha256": self.digest}
