"""Estimates against what can be computed by hand."""

import pytest

from brinell.distributed import World, estimate


def test_one_worker_takes_the_sum() -> None:
    e = estimate(5120, 1, passes_per_sample=10, passes_per_second=100, block=512, price_per_hour=36)
    assert e.seconds == pytest.approx(512)
    assert e.cost == pytest.approx(5.12)
    assert e.efficiency == pytest.approx(1)


@pytest.mark.parametrize(("workers", "rounds"), [(2, 5), (4, 3), (10, 1), (100, 1)])
def test_equal_workers_take_whole_blocks(workers: int, rounds: int) -> None:
    """Ten blocks of one minute."""
    e = estimate(5120, workers, passes_per_sample=10, passes_per_second=512 / 6, block=512)
    assert e.seconds == pytest.approx(60 * rounds)
    assert e.efficiency == pytest.approx(10 / workers / rounds)


def test_starting_and_handing_over_are_counted() -> None:
    plain = estimate(512, 1, passes_per_sample=1, passes_per_second=1, block=512)
    slow = estimate(512, 1, passes_per_sample=1, passes_per_second=1, block=512, world=World(start=30, latency=2))
    assert slow.seconds == pytest.approx(plain.seconds + 32)


def test_a_slow_worker_is_overtaken_by_an_idle_one() -> None:
    """Two blocks, the slow worker needs ten times as long: the other repeats its block once it is late."""
    e = estimate(1024, 2, passes_per_sample=1, passes_per_second=512, block=512, world=World(slow=0.5, slowness=10))
    assert 2.5 <= e.seconds < 2.7  # late after one and a half of the usual time, then one more
    many = estimate(
        512 * 400, 20, passes_per_sample=1, passes_per_second=512, block=512, world=World(slow=0.1, slowness=10)
    )
    # 18 workers alone need 22.2 blocks each; the slow ones may cost a few more, not the 100 of an equal share.
    assert 400 / 18.2 <= many.seconds <= 36


def test_deaths_cost_time_and_lose_nothing() -> None:
    calm = estimate(51200, 5, passes_per_sample=60, passes_per_second=512, block=512)
    wild = estimate(51200, 5, passes_per_sample=60, passes_per_second=512, block=512, world=World(deaths=20, start=10))
    assert calm.seconds == pytest.approx(1200)
    assert 1200 < wild.seconds < 2400
