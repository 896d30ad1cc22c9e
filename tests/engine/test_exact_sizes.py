"""Calls with fewer or more rows: the same bits, fewer padded rows, and none for models whose rows differ."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell.engine.exact_sizes import CANDIDATES, exact_sizes
from brinell.engine.oracle import Oracle
from brinell.evaluation import prepare
from brinell.models.demo import demo_net

DATA = brinell.data.load("demo", 7)


class ByBatch(nn.Module):
    """A network whose last bit depends on whether a call has an even number of rows divisible by eight."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: Tensor) -> Any:
        z = self.net(x)
        return z if len(x) % 8 == 0 else torch.nextafter(z, z + 1)


class Noisy(ByBatch):
    def forward(self, x: Tensor) -> Any:
        return self.net(x + 0.01 * torch.rand_like(x))


def sizes(net: nn.Module, gradients: bool = True) -> tuple[int, ...]:
    return exact_sizes(Oracle(brinell.wrap(net.eval()), 32), DATA.x, DATA.y, gradients, 128)


def test_only_sizes_with_the_same_bits_are_used() -> None:
    assert set(sizes(ByBatch())) <= {8, 16, 24, 40, 48, 64, 96, 128}
    assert sizes(Noisy()) == ()
    assert set(sizes(demo_net())) <= set(CANDIDATES)
    assert set(sizes(demo_net())) <= set(sizes(demo_net(), gradients=False))


@pytest.mark.parametrize("threads", [1, 2])
def test_every_size_gives_the_bits_of_a_block(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = brinell.wrap(demo_net())
        blocks, smaller = Oracle(model, 32), Oracle(model, 32, sizes=sizes(demo_net()))
        for n in (1, 3, 9, 20, 33, 70, 131) if threads == 1 else (3, 33):
            x, y = (v.repeat(19, *[1] * (v.ndim - 1))[:n] for v in (DATA.x, DATA.y))
            a, b = (o.query(x, y, y, "margin", brinell.core.attack.Requires.JACOBIAN) for o in (blocks, smaller))
            assert torch.equal(a.logits, b.logits) and torch.equal(a.jacobian, b.jacobian)
            assert torch.equal(blocks.output(x).logits, smaller.output(x).logits)
    finally:
        torch.set_num_threads(before)


SHORT = {
    "mm3": "mm3",
    "fab-t": brinell.Targets(brinell.attacks.FAB(steps=20, targeted=True), 3),
    "square": brinell.attacks.Square(steps=500),
}


@pytest.mark.parametrize("plan", SHORT.values(), ids=SHORT.keys())
def test_rows_are_those_of_whole_blocks(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Any:
        run = brinell.evaluate("demo", DATA, brinell.Linf(0.1), plan, progress=False)
        return run.rows().drop_columns(["seconds", "adv_shard"])

    called: list[int] = []
    forward = nn.Sequential.forward

    def counted(self: nn.Sequential, x: Tensor) -> Any:
        called.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(nn.Sequential, "forward", counted)
    smaller, few = rows(), sum(called)
    called.clear()
    monkeypatch.setattr(prepare, "exact_sizes", lambda *_: ())
    assert rows().equals(smaller)
    assert few <= sum(called)
