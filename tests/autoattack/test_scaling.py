"""Figure 2 of Croce & Hein 2020 in miniature: larger logits stop PGD on cross-entropy, and nothing else."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import Linf, Targets, attacks

pytestmark = pytest.mark.usefixtures("unchecked")

SCALES = (1, 10, 100, 1000)
EPS = Linf(0.15)
# Free of the scale, up to rounding: the DLR loss by its definition, the minimum margin and FAB by how they step.
SCALE_FREE = [
    attacks.APGD(steps=12, loss="dlr"),
    Targets(attacks.APGD(steps=12, loss="minimum-margin"), 2),
    Targets(attacks.FAB(steps=6, targeted=True), 2),
    attacks.FAB(steps=4),
]


class Scaled(nn.Module):
    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.net(x)


@pytest.fixture(scope="module")
def runs(quiet: Any, demo: Any) -> dict[int, tuple[Any, Any]]:
    """For every scale: PGD on cross-entropy, and the other attacks, each on every sample."""
    from brinell.models.demo import demo_net

    def both(scale: int) -> tuple[Any, Any]:
        net = Scaled(demo_net(), scale).eval()
        return quiet(net, demo, EPS, "pgd20"), quiet(net, demo, EPS, SCALE_FREE, individual=True)

    return {scale: both(scale) for scale in SCALES}


def test_cross_entropy_fades(runs: Any) -> None:
    clean = runs[1][0].clean_accuracy.k
    robust = [runs[s][0].robust_accuracy.k for s in SCALES]
    assert all(runs[s][0].clean_accuracy.k == clean for s in SCALES)
    assert robust == sorted(robust)
    assert robust[0] < 0.6 * clean
    assert robust[-1] > 0.9 * clean


def test_the_others_do_not(runs: Any) -> None:
    broken = {s: [stage.broken for stage in runs[s][1].stages()] for s in SCALES}
    for s in SCALES:
        assert all(abs(a - b) <= 1 for a, b in zip(broken[s], broken[1], strict=True)), broken
    assert min(broken[1]) >= 8


def test_the_ensemble_does_not(runs: Any) -> None:
    robust = [runs[s][1].robust_accuracy.k for s in SCALES]
    assert max(robust) - min(robust) <= 1
    assert robust[-1] < runs[1000][0].robust_accuracy.k - 15


def test_the_flag_is_raised(runs: Any, level: Any) -> None:
    assert level(runs[1][0], "zero gradient (ce)") == "ok"
    for s in SCALES[2:]:
        assert level(runs[s][0], "zero gradient (ce)") == "warn"
        assert "the gradient of the ce loss is exactly zero at" in str(runs[s][0])
    # The other losses see on.
    assert level(runs[1000][1], "zero gradient") == "ok"


def test_scaling_keeps_adaptive_steps_bit_for_bit_where_the_factor_is_a_power_of_two(demo: Any, quiet: Any) -> None:
    """Then even rounding is the same, and so is every row but its logits."""
    from brinell.models.demo import demo_net

    attack = Targets(attacks.APGD(steps=6, loss="minimum-margin"), 2)
    one, big = (quiet(Scaled(demo_net(), f).eval(), demo[:24], EPS, attack).rows() for f in (1.0, 1024.0))
    for column in ("broken", "adv_pred", "distance", "first_broken_at", "target", "forwards"):
        assert one[column].to_pylist() == big[column].to_pylist(), column
    a, b = (torch.tensor([v or 0.0 for v in t["adv_margin"].to_pylist()]) for t in (one, big))
    assert torch.equal(1024 * a, b)
