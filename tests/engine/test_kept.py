"""What a process keeps of a model: a second evaluation uses it, and only while the model is the same."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from tests.engine.fixed import Fixed, images, run

from brinell.attacks import APGD, PGD
from brinell.core.threat import Linf
from brinell.engine.accelerate import accelerated
from brinell.engine.cuda import kept
from brinell.engine.cuda.graphs import GraphCache
from brinell.engine.cuda.oracle import AcceleratedOracle, Networks
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.ops.rowwise import same

pytestmark = pytest.mark.usefixtures("unchecked")

SHAPE = (1, 6, 6)
STEPS = PGD(steps=4)


class Made(Fixed):
    """Notes every capture, and whether a kept one is tested; `stale` ones fail the test."""

    captured = 0
    tested = 0
    stale = False

    def __post_init__(self, entry):
        Made.captured += 1
        super().__post_init__(entry)

    def agrees(self, expected):
        Made.tested += 1
        return super().agrees(expected) and not Made.stale


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    """Queries call a copy of the model, as in lower precision on a GPU; nothing is kept from other tests."""
    monkeypatch.setattr(AcceleratedOracle, "_faster", lambda oracle: True)
    monkeypatch.setattr(kept, "_MODELS", weakref.WeakKeyDictionary())
    Made.captured, Made.tested, Made.stale = 0, 0, False


def evaluated(classifier, x, y, attack=STEPS, error=None):
    """Attack in an evaluation of its own: new oracle, new cache; return the results."""
    oracle = AcceleratedOracle(classifier, 8)
    cache = GraphCache(make=Made)
    with kept.kept_for_process(oracle, cache, classifier.fingerprint, SHAPE):
        found = run(classifier, x, y, Linf(0.05), attack, cache, oracle=oracle)
        if error is not None:
            raise error
    return found


def test_a_second_evaluation_captures_nothing_and_finds_the_same():
    classifier, x, y = images()
    first = evaluated(classifier, x, y)
    made = Made.captured
    assert made == 2 and not Made.tested
    again = wrap(classifier.module)  # the same module in another wrapper
    assert same(evaluated(again, x, y), first)
    assert (Made.captured, Made.tested) == (made, made)
    evaluated(again, x, y, APGD(steps=4))
    assert Made.captured == 2 * made, "another attack is captured beside it"
    assert same(evaluated(again, x, y), first)
    assert Made.captured == 2 * made


def test_what_does_not_agree_is_captured_anew():
    classifier, x, y = images()
    first = evaluated(classifier, x, y)
    Made.stale = True
    assert same(evaluated(classifier, x, y), first)
    assert (Made.captured, Made.tested) == (4, 2)


@pytest.mark.parametrize("change", ["weights", "behaviour", "normalisation"])
def test_another_model_shares_nothing(change):
    class Scaled(torch.nn.Module):
        """A network whose temperature is no weight."""

        def __init__(self, net):
            super().__init__()
            self.net, self.temperature = net, 1.0

        def forward(self, x):
            return self.net(x) / self.temperature

    classifier, x, y = images()
    net = Scaled(copy.deepcopy(classifier.module)).eval()
    evaluated(wrap(net), x, y)
    other = wrap(net)
    if change == "weights":
        with torch.no_grad():
            net.net[1].weight[0, 0] += 0.5
    elif change == "behaviour":
        net.temperature = 2.0
    else:
        other = wrap(net, mean=0.25, std=0.5)
    expected = run(other, x, y, Linf(0.05), STEPS)
    found = evaluated(other, x, y)
    assert torch.equal(found.broken, expected.broken) and torch.equal(found.forwards, expected.forwards)
    assert Made.captured == 4 and not Made.tested


def test_nothing_is_kept_after_an_error():
    classifier, x, y = images()
    with pytest.raises(KeyError):
        evaluated(classifier, x, y, error=KeyError("lost"))
    assert not len(kept._MODELS)


def test_nothing_is_kept_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(kept, "memory_short", lambda: True)
    classifier, x, y = images()
    evaluated(classifier, x, y)
    assert not len(kept._MODELS)


def test_what_is_kept_goes_with_the_model():
    classifier, x, y = images()
    evaluated(classifier, x, y)
    [held] = kept._MODELS.values()
    networks, module = weakref.ref(held.networks), weakref.ref(classifier.module)
    del held, classifier
    gc.collect()
    assert module() is None and networks() is None and not len(kept._MODELS)


def test_captures_of_the_models_own_weights_are_not_kept(monkeypatch):
    """In float32 queries call the model itself, whose memory is the user's."""
    monkeypatch.setattr(AcceleratedOracle, "_faster", lambda oracle: False)
    classifier, x, y = images()
    evaluated(classifier, x, y)
    [held] = kept._MODELS.values()
    assert not held.idle and held.networks.copies == {("float32", False): None}


def test_captures_that_read_a_mask_are_not_kept():
    classifier, x, y = images()
    cache, oracle = GraphCache(make=Made), AcceleratedOracle(classifier, 8)
    mask = torch.arange(36).view(SHAPE) % 2 == 0
    with kept.kept_for_process(oracle, cache, "f", SHAPE):
        run(classifier, x, y, Linf(0.05, mask), STEPS, cache, oracle=oracle)
        assert cache.idle
    assert not cache.idle


def test_a_detector_or_a_function_keeps_nothing():
    classifier, x, y = images()
    guarded = replace(
        classifier, detector=wrap(classifier.module, detector=lambda x: x.flatten(1).sum(1) - 99).detector
    )
    for one in (Oracle(classifier, 8), AcceleratedOracle(guarded, 8)):
        cache = GraphCache(make=Made)
        with kept.kept_for_process(one, cache, "f", SHAPE):
            run(one.classifier, x, y, Linf(0.05), STEPS, cache, oracle=one)
    assert not len(kept._MODELS)


def test_short_attacks_are_not_captured():
    classifier, x, y = images()
    expected = run(classifier, x, y, Linf(0.05), STEPS)
    cache = GraphCache(make=Made, least=50)
    assert same(run(classifier, x, y, Linf(0.05), STEPS, cache), expected)
    assert not Made.captured and not cache.idle
    assert same(
        run(classifier, x, y, Linf(0.05), PGD(steps=60), cache), run(classifier, x, y, Linf(0.05), PGD(steps=60))
    )
    assert Made.captured


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_copy_that_computes_another_function_is_not_used(precision):
    class Counted(torch.nn.Module):
        """A network that adds a bias from outside, which a deep copy loses."""

        def __init__(self, net, lost):
            super().__init__()
            self.net, self.lost = net, lost

        def forward(self, x):
            return self.net(x) + 0.5 * torch.arange(6) * (1 - self.lost)

        def __deepcopy__(self, memo):
            return Counted(copy.deepcopy(self.net, memo), loses)

    classifier, x, _ = images()
    for loses in (0, 1):
        oracle = AcceleratedOracle(wrap(Counted(classifier.module, 0).eval()), 8, precision=precision)
        assert (oracle.copy(x) is None) == bool(loses)


def test_networks_belong_to_one_classifier():
    classifier, x, _ = images()
    oracle = AcceleratedOracle(classifier, 8)
    assert oracle.copy(x) is oracle.with_block(4).copy(x) is not None
    assert oracle.in_precision("float32") is oracle
    other = replace(oracle, classifier=wrap(copy.deepcopy(classifier.module)))
    assert other.copy(x) is not oracle.copy(x)
    assert oracle.networks is not other.networks
    assert isinstance(accelerated(oracle, torch.device("cpu"), fuse=True), AcceleratedOracle)
    [made, arguments] = oracle.networks.__reduce__()
    assert made(*arguments).copies == {} and isinstance(oracle.networks, Networks)
