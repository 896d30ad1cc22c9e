"""Every sample is handed out, whatever happens; units shrink; idle workers take over."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brinell.distributed.scheduler import Lease, UnitScheduler


def scheduler(n: int, workers: int, block: int = 8, largest: int = 10**6, **more: object) -> UnitScheduler:
    return UnitScheduler(range(n), n, workers, block=block, largest=largest, **more)  # type: ignore[arg-type]


def given_to(lease: Lease | None) -> list[int]:
    assert lease is not None
    return list(lease.samples)


def test_units_shrink_to_a_block_and_cover_everything() -> None:
    s, sizes, seen = scheduler(1000, workers=4), [], []
    while not s.done:
        lease = s.lease(0, 0.0)
        if lease is not None:
            sizes.append(len(lease.samples))
            seen += given_to(lease)
            s.end(0, 1.0)
    assert seen == list(range(1000))
    assert sizes[0] == 128  # 1000 / (2 * 4) = 125, in blocks of 8
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes[-3:]) == {8}
    assert all(size % 8 == 0 for size in sizes)


def test_no_unit_is_larger_than_memory_allows_or_smaller_than_a_block() -> None:
    assert len(given_to(scheduler(1000, 1, largest=20).lease(0, 0.0))) == 16
    assert len(given_to(scheduler(1000, 1, largest=3).lease(0, 0.0))) == 8
    assert len(given_to(scheduler(1000, 1, fixed=7).lease(0, 0.0))) == 7
    assert len(given_to(scheduler(5, 100).lease(0, 0.0))) == 5


def test_samples_are_read_only_when_needed() -> None:
    read = []

    def source():  # type: ignore[no-untyped-def]
        for i in range(100):
            read.append(i)
            yield i

    s = UnitScheduler(source(), 100, 2, block=10, largest=100)
    s.lease(0, 0.0)
    assert read == list(range(30))


def test_what_a_dead_worker_had_alone_comes_next() -> None:
    s = scheduler(32, workers=2)
    first = given_to(s.lease(0, 0.0))
    s.finish(first[:3])
    s.lose(0)
    assert given_to(s.lease(1, 0.0))[: len(first) - 3] == first[3:]
    s.lose(7)  # somebody who had nothing


def test_an_idle_worker_takes_the_tail_of_the_unit_with_most_left() -> None:
    s = scheduler(64, workers=2, fixed=32)
    slow, quick = given_to(s.lease(0, 0.0)), given_to(s.lease(1, 0.0))
    s.finish(slow[:4])
    assert s.end(1, 1.0) == quick
    lease = s.lease(1, 1.0)
    assert given_to(lease) == slow[-8:]  # half of 28, in blocks of 8
    assert lease is not None
    assert lease.taken_from == 0
    # The victim dies: what was taken over is not handed out again.
    s.lose(0)
    assert given_to(s.lease(0, 2.0)) == slow[4:24]


def test_the_last_samples_of_a_late_unit_are_done_twice_and_the_first_answer_counts() -> None:
    s = scheduler(16, workers=3, fixed=8)
    late = given_to(s.lease(0, 0.0))
    s.lease(1, 0.0)
    s.end(1, 1.0)
    assert s.lease(1, 1.4) is None  # not late yet
    lease = s.lease(1, 2.5)
    assert given_to(lease) == late
    assert lease is not None
    assert lease.taken_from is None
    assert s.lease(2, 9.0) is None  # two are enough
    s.lose(1)
    assert given_to(s.lease(2, 9.0)) == late
    assert s.end(2, 10.0) == late
    assert s.done
    assert s.end(0, 11.0) == []


def test_without_overlap_nobody_takes_over() -> None:
    s = scheduler(64, workers=2, fixed=32, overlap=False)
    s.lease(0, 0.0), s.lease(1, 0.0)
    s.end(1, 1.0)
    assert s.lease(1, 1000.0) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**6))
def test_every_sample_is_finished_whatever_happens(n: int, workers: int, block: int, seed: int) -> None:
    """Workers finish parts of their units, end, die and come back at random."""
    rng, s = random.Random(seed), scheduler(n, workers, block)
    busy: dict[int, Lease] = {}
    done: set[int] = set()
    for step in range(100_000):
        if s.done:
            break
        worker = rng.randrange(workers)
        lease = busy.get(worker)
        if lease is None:
            new = s.lease(worker, float(step))
            if new is not None:
                assert not done & set(new.samples), "finished samples are not handed out"
                busy[worker] = new
            continue
        action = rng.random()
        if action < 0.1:
            s.lose(worker)
            del busy[worker]
        elif action < 0.6:
            some = [i for i in lease.samples if rng.random() < 0.3]
            s.finish(some)
            done |= set(some)
        else:
            done |= set(s.end(worker, float(step)))
            del busy[worker]
    assert s.done
    assert done == set(range(n))


@pytest.mark.parametrize("workers", [1, 3, 64])
def test_equal_workers_end_nearly_together(workers: int) -> None:
    """With one second per sample, nobody waits longer for the last one than a block takes."""
    s, now = scheduler(6400, workers, block=8), dict.fromkeys(range(workers), 0.0)
    leases: dict[int, Lease] = {}
    while not s.done:
        worker = min(now, key=lambda w: now[w])
        if worker in leases:
            s.end(worker, now[worker])
            del leases[worker]
        lease = s.lease(worker, now[worker])
        if lease is None:
            break
        leases[worker] = lease
        now[worker] += len(lease.samples)
    assert max(now.values()) - 6400 / workers <= 2 * 8
