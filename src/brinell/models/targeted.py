"""A classifier with two classes per sample, the chosen target class and all others, for attacks at chosen classes."""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.errors import ModelError
from brinell.ops.losses import best_other


def target_logits(logits: Tensor, target: Tensor) -> Tensor:
    """Return (b, 2): the largest logit of the other classes, and the logit of the target class.

    >>> target_logits(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([2])).tolist()
    [[3.0, 2.0]]
    """
    return torch.stack([best_other(logits, target), logits.gather(1, target[:, None])[:, 0]], 1)


@dataclass(frozen=True, eq=False)
class TargetedClassifier(DelegatingClassifier):
    """The classifier `model` with two classes: 1 where it predicts the target class of the sample, else 0.

    `targets` holds the target class of every sample id in `ids`, which are sorted. An attack that breaks class 0 has
    reached its target: the target's logit is then larger than every other logit.
    """

    model: Classifier
    ids: Tensor
    targets: Tensor
    per_sample = True

    @property
    def base(self) -> Classifier:
        return self.model

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model, the ids and the targets."""
        chosen = torch.stack([self.ids, self.targets]).cpu().numpy().tobytes()
        return hashlib.sha256(self.model.fingerprint.encode() + chosen).hexdigest()

    def forward(self, x: Tensor) -> Output:
        """Raise a ModelError: the output depends on the sample that a point belongs to; use `forward_of`."""
        raise ModelError(
            expected="points x and the ids of their samples", got="only points", remedy="Call forward_of(x, id)."
        )

    def forward_of(self, x: Tensor, id: Tensor) -> Output:
        """Return the model's output with the logits (b, 2) of the other classes and of the target class."""
        out = self.model.forward_of(x, id) if self.model.per_sample else self.model.forward(x)
        target = self.targets[torch.searchsorted(self.ids, id)]
        return replace(out, logits=target_logits(out.logits, target))

    def to(self, device: torch.device) -> "TargetedClassifier":
        model, ids, targets = self.model.to(device), self.ids.to(device), self.targets.to(device)
        return replace(self, model=model, ids=ids, targets=targets)
