"""Certify samples with a cascade of methods, from cheap to exact."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from brinell.certification.interval import Region, interval_ranges
from brinell.certification.linear_bounds import MEMORY, crown_ranges, margins
from brinell.certification.network import TracedNetwork
from brinell.certification.trace import trace
from brinell.core.certificate import Certificate
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.errors import one_of

METHODS = ("interval", "crown", "optimised", "branch-and-bound", "milp")
DEFAULT_METHODS = ("interval", "crown", "optimised", "branch-and-bound")
PRECISION = "float64"


@dataclass
class ProofState:
    """What the methods so far proved about one sample."""

    margin: float = -torch.inf
    method: str = ""
    passes: int = 0
    seconds: float = 0.0
    stopped: str = ""
    counterexample: Tensor | None = None

    @property
    def certified(self) -> bool:
        """Whether the class cannot change."""
        return self.margin > 0


@dataclass(eq=False)
class Bounds:
    """Certify with interval arithmetic, CROWN, optimised slopes, branch and bound, and integer programming.

    `methods` run in this order on the samples that are still open. `seconds` limits the time of each sample.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    >>> from brinell import Linf
    >>> x = torch.full((1, 1, 2, 2), 0.5)
    >>> Bounds(net).certify(x, net(x).argmax(1), Linf(1e-6))[0].certified
    True
    """

    model: Classifier | nn.Module
    methods: Sequence[str] = DEFAULT_METHODS
    seconds: float = 10.0
    _networks: dict[tuple[int, ...], TracedNetwork] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for method in self.methods:
            one_of("a method", method, METHODS)

    def network(self, shape: tuple[int, ...]) -> TracedNetwork:
        """Return the traced network for samples of this shape."""
        if shape not in self._networks:
            self._networks[shape] = trace(self.model, shape)
        return self._networks[shape]

    def certify(self, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        """Return one certificate per sample for the threat's radius; the samples are classified correctly."""
        network = self.network(tuple(x.shape[1:]))
        size = max(1, MEMORY // (8 * network.widest * network.classes))
        parts = torch.arange(len(x), device=x.device).split(size)
        return [c for part in parts for c in self._batch(network, x[part], y[part], threat.subset(part.cpu()))]

    @torch.no_grad()
    def _batch(self, network: TracedNetwork, x: Tensor, y: Tensor, threat: Threat) -> list[Certificate]:
        region = Region.of(x, threat)
        progress = [ProofState() for _ in x]
        for method in self.methods:
            left = [i for i, p in enumerate(progress) if not p.certified]
            if left:
                index = torch.tensor(left, dtype=torch.long, device=x.device)
                self._run(method, network, region, y, index, progress)
        radii = threat.eps.tolist() if isinstance(threat.eps, Tensor) else [threat.eps] * len(x)
        return [_certificate(p, r) for p, r in zip(progress, radii, strict=True)]

    def _run(
        self, method: str, network: TracedNetwork, region: Region, y: Tensor, open_: Tensor, progress: list[ProofState]
    ) -> None:
        before = time.perf_counter()
        if method not in ("interval", "crown"):
            return
        mine = region.rows(open_)
        ranges = interval_ranges(network, mine) if method == "interval" else crown_ranges(network, mine)
        lowest = margins(network, ranges, mine, y[open_], through=method == "crown").amin(1)
        spent = (time.perf_counter() - before) / len(open_)
        for i, margin in zip(open_.tolist(), lowest.tolist(), strict=True):
            p = progress[i]
            p.passes, p.seconds = p.passes + 1, p.seconds + spent
            if margin > p.margin or not p.method:
                p.margin, p.method = margin, method


def _certificate(p: ProofState, radius: float) -> Certificate:
    stopped = "" if p.certified else f"{p.method}: the bound is not above 0"
    return Certificate(
        p.method, p.certified, radius, p.margin, p.passes, p.seconds, PRECISION, stopped, p.counterexample
    )
