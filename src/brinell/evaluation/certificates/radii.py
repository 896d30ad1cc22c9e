"""The largest radius that is certified for each sample, by bisection below its smallest adversarial distance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc
import torch
from torch import Tensor

from brinell.core.certificate import Certificate, Certifier
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine.events import Listener
from brinell.evaluation import coerce
from brinell.evaluation.certificates.certifiers import SECONDS, Call, call_of
from brinell.evaluation.certificates.certify import store
from brinell.results import Run, row_queries

# Halvings of the interval: the radius is found to 1/256 of the adversarial distance.
HALVINGS = 8


@dataclass(frozen=True)
class LargestRadius:
    """A certifier that bisects the radius: it certifies the largest of the radii tried within the threat's."""

    certifier: Certifier
    halvings: int = HALVINGS

    def certify(self, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        """Return, for each sample, the certificate for the largest radius that was proved; uncertified if none was."""
        high = threat.ball(torch.arange(len(x), device="cpu"), x.device).eps.double().cpu()
        low = torch.zeros_like(high)
        best: list[Certificate | None] = [None] * len(x)
        for _ in range(self.halvings):
            middle = (low + high) / 2
            found = self.certifier.certify(x, y, replace(threat, eps=middle))
            best = [_better(a, b) for a, b in zip(best, found, strict=True)]
            proved = torch.tensor([c.certified for c in found], dtype=torch.bool, device="cpu")
            radius = torch.tensor([c.radius for c in found], dtype=torch.float64, device="cpu")
            low = torch.where(proved, torch.maximum(radius, middle), low)
            high = torch.where(proved, torch.maximum(high, low), middle)
        return [c for c in best if c is not None]


def _better(known: Certificate | None, new: Certificate) -> Certificate:
    """Return the certificate of the larger radius, with the cost of both and without a counterexample."""
    kept = new if known is None or (new.certified and new.radius > known.radius * known.certified) else known
    passes, seconds = (0, 0.0) if known is None else (known.passes, known.seconds)
    return replace(kept, passes=passes + new.passes, seconds=seconds + new.seconds, counterexample=None)


def certify_radii(
    run: Run, model: Classifier, data: Problem, distances: Mapping[int, float],
    *, method: "str | Sequence[str] | Certifier | None" = None, seconds: float = SECONDS,
    progress: "bool | Listener | None" = None,
) -> Run:  # fmt: skip
    """Certify the largest radius that bisection finds for each correctly classified sample of a Run without a radius.

    `distances` are the smallest adversarial distances by sample id; radii below them are tried. An interrupted call is
    continued by the same call.
    """
    coerce.require_same_model(run, model)
    named = call_of(model, method, seconds, run.identity.seed or 0)
    call = Call(LargestRadius(named.certifier), {**named.settings, "halvings": HALVINGS})
    finite = [d for d in distances.values() if 0 < d < math.inf]
    largest = max(finite, default=0.5)
    threat = coerce.threat_of(run)

    def below(ids: Tensor) -> Threat:
        radii = [min(distances.get(i, largest), largest) for i in ids.tolist()]
        return replace(threat, eps=torch.tensor(radii, dtype=torch.float64, device="cpu"))

    table = run.certificates()
    tried = np.asarray(table.filter(pc.equal(table["attack_hash"], call.hash))["sample_id"], dtype=np.int64)
    correct = row_queries.survivors(run.numbers(), [])
    standing = [i for i in correct.tolist() if distances.get(i, math.inf) > 0]
    return store(run, call, model, data, below, np.setdiff1d(standing, tried), progress)
