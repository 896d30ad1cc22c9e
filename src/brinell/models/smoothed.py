"""Randomised smoothing: a classifier that takes a vote over Gaussian noise, and the L2 radius that the vote certifies.

Reference: Cohen, Rosenfeld & Kolter, Certified adversarial robustness via randomized smoothing, ICML 2019.
"""

import hashlib
import math
import time
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from brinell.core.certificate import Certificate
from brinell.core.dataset import sample_hashes
from brinell.core.model import Classifier, DelegatingClassifier, Output
from brinell.core.threat import TOLERANCE, Threat
from brinell.errors import InputError, ModelError, ThreatError
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.results.statistics import lower_bound, mcnemar

# The prediction where no class is significantly more frequent than the second.
ABSTAIN = -1
# Draws that select the class, draws that estimate its probability, and the probability of a wrong statement.
SELECT, ESTIMATE, ALPHA = 100, 10_000, 0.001
# Draws of one call of the model: the same for all samples, so that a row's answer does not depend on others.
BLOCK = 100
NORMS = ("L2",)


class Votes(NamedTuple):
    """What the smoothed classifier says about a sample: a class (`ABSTAIN` if unsure) and a certified L2 radius."""

    predicted: int
    radius: float


@dataclass(frozen=True, eq=False)
class Smoothed(DelegatingClassifier):
    """The `classifier` on inputs with Gaussian noise of standard deviation `sigma`; made by `smoothed`.

    A pass draws fresh noise, so attacks need a plan for randomised models. The smoothed classifier predicts the class
    that most passes predict. `predict` and `certify` take votes with keyed noise: what they say about a sample depends
    on the seed and the sample only.
    """

    classifier: Classifier
    sigma: float

    @property
    def base(self) -> Classifier:
        return self.classifier

    @property
    def name(self) -> str:
        return f"{self.base.name}, sigma = {self.sigma:g}"

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the base classifier's fingerprint and sigma."""
        return hashlib.sha256(f"smoothed {self.base.fingerprint} {self.sigma!r}".encode()).hexdigest()

    def forward(self, x: Tensor) -> Output:
        """Return the base classifier's output for the points with fresh noise."""
        return self.base.forward(x + self.sigma * torch.randn_like(x))

    def to(self, device: torch.device) -> "Smoothed":
        return replace(self, classifier=self.classifier.to(device))

    def predict(self, x: Tensor, n: int = SELECT, *, alpha: float = ALPHA, seed: int = 0) -> Tensor:
        """Return the class of each point by a vote of n draws; `ABSTAIN` where chance explains its lead.

        Method: the exact two-sided binomial test of equal probabilities of the two most frequent classes, at level
        `alpha` (Cohen et al. 2019, Predict).
        """
        self._check(n, alpha)
        votes = [self._counts(row, key, n) for row, key in zip(x, _keys(x, seed), strict=True)]
        return torch.tensor([_leader(counts, alpha) for counts in votes], dtype=torch.long, device="cpu")

    def certify(
        self, x: Tensor, *, select: int = SELECT, n: int = ESTIMATE, alpha: float = ALPHA, seed: int = 0
    ) -> list[Votes]:
        """Return the class and the certified L2 radius of each point; `ABSTAIN` and 0 where none is certified.

        Method: `select` draws choose a class, n further draws give the one-sided Clopper-Pearson lower bound p of its
        probability at level `alpha`. If p is above 1/2, the vote is the same within the radius sigma · Φ⁻¹(p), with
        probability 1 - `alpha` over the draws (Cohen et al. 2019, Certify).
        """
        self._check(min(select, n), alpha)
        return [self._certified(row, key, select, n, alpha) for row, key in zip(x, _keys(x, seed), strict=True)]

    def _certified(self, x: Tensor, key: Tensor, select: int, n: int, alpha: float) -> Votes:
        chosen = int(self._counts(x, rng.fold(key, 0), select).argmax())
        p = lower_bound(int(self._counts(x, rng.fold(key, 1), n)[chosen]), n, 1 - alpha)
        return Votes(chosen, self.sigma * NormalDist().inv_cdf(p)) if p > 0.5 else Votes(ABSTAIN, 0.0)

    def _check(self, n: int, alpha: float) -> None:
        """Refuse numbers without a meaning, and a base classifier that is random itself: its draws have no key."""
        if n < 1 or not 0 < alpha < 1:
            raise InputError(
                expected="at least 1 draw and alpha between 0 and 1",
                got=f"{n} draws, alpha {alpha}",
                remedy="Write e.g. n=10_000, alpha=0.001.",
            )
        module = self.base.torch_module
        if module is not None and any(m.training for m in module.modules()):
            raise ModelError(
                expected="a base classifier in evaluation mode",
                got=f"{self.base.name or type(module).__name__} in train mode",
                remedy="Call net.eval() first.",
            )

    @torch.no_grad()
    def _counts(self, x: Tensor, key: Tensor, n: int) -> Tensor:
        """Return how often each class is predicted in n draws, which only the key and the point determine."""
        total = torch.zeros(0, dtype=torch.long, device="cpu")
        for start in range(0, n, BLOCK):
            draw = torch.arange(start, start + BLOCK, device=x.device)
            noise = rng.normal(rng.fold(key.expand(BLOCK), draw), tuple(x.shape))
            logits = self.base.forward(x + self.sigma * noise).logits[: n - start]
            # Where a logit is NaN, the draw votes for no class.
            counts = logits.argmax(1)[~logits.isnan().any(1)].bincount(minlength=logits.shape[1]).cpu()
            total = counts if not len(total) else total + counts
        return total


@dataclass(frozen=True, eq=False)
class Smoothing:
    """Certify samples of a smoothed model in L2; the method "smoothing" of `brinell.certify`.

    The margin of a certificate is (radius - eps) / sigma, with the tolerance on eps. A certificate is wrong with
    probability `alpha` at most.
    """

    model: Smoothed
    seed: int = 0
    select: int = SELECT
    n: int = ESTIMATE
    alpha: float = ALPHA

    @property
    def settings(self) -> dict[str, Any]:
        """What a Run stores beside the method."""
        return {"sigma": self.model.sigma, "select": self.select, "n": self.n, "alpha": self.alpha}

    def certify(self, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        """Return one certificate per sample for the threat's radius; the draws count as passes."""
        if threat.norm.name not in NORMS:
            raise ThreatError(
                expected="a threat in L2, which Gaussian noise certifies",
                got=str(threat),
                remedy="Evaluate and certify with brinell.L2(eps) (--norm L2).",
            )
        radii = threat.ball(torch.arange(len(x), device="cpu"), x.device).eps.tolist()
        return [self._one(row, int(label), eps) for row, label, eps in zip(x, y, radii, strict=True)]

    def _one(self, x: Tensor, y: int, eps: float) -> Certificate:
        begun, passes = time.perf_counter(), self.select + self.n
        (found,) = self.model.certify(x[None], select=self.select, n=self.n, alpha=self.alpha, seed=self.seed)
        right = found.predicted == y
        # An adversarial example within the tolerance on the radius counts as inside the ball.
        margin = (found.radius - eps * (1 + TOLERANCE)) / self.model.sigma if right else -math.inf
        why = "" if margin > 0 else f"a radius of {found.radius:.4g}" if right else _wrong(found)
        seconds = time.perf_counter() - begun
        radius = found.radius if right else 0.0
        return Certificate("smoothing", margin > 0, radius, margin, passes, seconds, "float32", why)


def smoothed(net: "Classifier | nn.Module", sigma: float) -> Smoothed:
    """Return the model smoothed by Gaussian noise of standard deviation `sigma`, for inputs in [0, 1].

    `net` is a module or a wrapped model, best trained with the same noise. Attack the result with a plan for randomised
    models and certify it with `brinell.certify` in L2. Reference: Cohen et al. 2019.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    >>> model = smoothed(net, 0.25)
    >>> model.predict(torch.rand(2, 1, 2, 2)).shape
    torch.Size([2])
    """
    if not isinstance(sigma, int | float) or isinstance(sigma, bool) or not 0 < sigma < math.inf:
        raise InputError(
            expected="sigma above 0, for inputs in [0, 1]", got=f"{sigma}", remedy="Write e.g. sigma=0.25."
        )
    if isinstance(net, Smoothed):
        raise ModelError(
            expected="a model without noise of its own",
            got=net.name,
            remedy="Smooth its base once: noise of s and t together has the deviation sqrt(s² + t²).",
        )
    return Smoothed(wrap(net) if isinstance(net, nn.Module) else net, float(sigma))


def _keys(x: Tensor, seed: int) -> Tensor:
    """Return one key per point, from the seed and the values of the point."""
    digests = [rng.digest(text) for text in sample_hashes(x.cpu())]
    return rng.keys(seed, torch.tensor(digests, dtype=torch.long, device=x.device))[:, None]


def _leader(counts: Tensor, alpha: float) -> int:
    (first, second), (best, _) = counts.topk(2)
    return int(best) if mcnemar(int(first), int(second)) <= alpha else ABSTAIN


def _wrong(found: Votes) -> str:
    return "no class has half of the votes" if found.predicted == ABSTAIN else "the vote is for another class"
