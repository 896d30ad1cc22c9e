"""The binarization test of models with a detector: what is planted stands, exists, and decides what it should."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reliability.conftest import NETS, SHAPE, Knowing, fixed, samples
from torch import nn
from typer.testing import CliRunner

import brinell
from brinell import test_attack  # by name: pytest must not take it for a test
from brinell.attacks import PGD, Alternating, Matching
from brinell.cli.main import app
from brinell.core.attack import Batch
from brinell.core.dataset import Chunk
from brinell.core.references import References
from brinell.core.threat import threat
from brinell.engine.oracle import Oracle
from brinell.models.detector import inverted
from brinell.ops import rng
from brinell.ops.norms import NORMS
from brinell.reliability.binarization.binary_models import build_tasks
from brinell.reliability.binarization.features import find_features
from brinell.reliability.binarization.planting import FAR, TRIES, Design, accepting, plant
from brinell.reliability.binarization.readouts import READOUTS
from brinell.reliability.binarization.result import INVERTED, REGULAR, BinarizationTest, KappaLevel, worse_of
from brinell.results import Proportion

SIZE = {"Linf": np.inf, "L2": 2, "L1": 1}
EPS = {"Linf": (0.02, 0.1, 0.3), "L2": (0.1, 0.5, 1.5), "L1": (0.5, 3.0, 9.0)}
LINF = brinell.Linf(0.1)


class Slope(nn.Module):
    """A linear score of the input or, if told so, of the network's own logits."""

    def __init__(self, seed: int, of_logits: bool = False) -> None:
        super().__init__()
        self.of_logits = of_logits
        self.register_buffer("slope", rng.normal(rng.keys(seed, torch.arange(1)), (36,))[0])

    def forward(self, x, logits):
        return logits[:, 0] - logits[:, 1] if self.of_logits else x.flatten(1) @ self.slope


def guarded(net: str = "mlp", seed: int = 0, of_logits: bool = False, rate: float = 0.3) -> Any:
    """A network with a detector that rejects about so many of the samples."""
    model = brinell.wrap(fixed(NETS[net](), seed % 7), detector=Slope(seed, of_logits).eval())
    return brinell.calibrated(model, brinell.Problem(*samples(20, seed)), rate=rate)


def rejected(model: Any, x: torch.Tensor) -> torch.Tensor:
    """By the detector's own words: its score, its threshold, the network's own logits."""
    d = model.detector
    with torch.no_grad():
        return d.module(x, model.module(x)) > d.threshold


def chunk_of(n: int, seed: int) -> Chunk:
    x, y = samples(n, seed)
    return Chunk(torch.arange(n) * 3 + 5, x, y)


def planted_in(model: Any, chunk: Chunk, t: Any, design: Design, seed: int, kind: str) -> Any:
    judge = model if kind == REGULAR else inverted(model)
    return plant(design, chunk, t, seed, model.device, accepting(Oracle(judge, 32)))


# ------------------------------------------------------------------------------------------------------ the guarantee


@settings(max_examples=15, deadline=None)
@given(
    norm=st.sampled_from(sorted(NORMS)),
    radius=st.integers(0, 2),
    net=st.sampled_from(sorted(NETS)),
    readout=st.sampled_from(sorted(READOUTS)),
    kind=st.sampled_from([REGULAR, INVERTED]),
    of_logits=st.booleans(),
    boundary=st.integers(1, 3),
    beyond=st.integers(0, 1),
    kappa=st.sampled_from([0.01, 0.5, 0.99]),
    seed=st.integers(0, 2**20),
)
def test_every_accepted_sample_has_an_adversarial_that_fools_both(
    norm, radius, net, readout, kind, of_logits, boundary, beyond, kappa, seed
):
    eps, model, chunk = EPS[norm][radius], guarded(net, seed, of_logits), chunk_of(5, seed)
    design, t = Design(30, boundary, NORMS[norm].corners, 0.05, beyond), threat(norm, eps)
    seen = replace(find_features(model, chunk.x), kind=kind)
    planted = planted_in(model, chunk, t, design, seed, kind)
    found = build_tasks(Oracle(seen, 32), seen, READOUTS[readout], design, chunk, t, seed, planted)
    if found is None:
        return
    assert bool(planted.enough[found.at].all())
    binary = found.classifier(kappa)
    x0, witness = chunk.x[found.at], found.statistics.witness
    with torch.no_grad():
        clean, there = binary.forward_of(x0, found.ids), binary.forward_of(witness, found.ids)
    # It fools the binarized classifier, and what its detector says is what the network's own says, or the opposite.
    assert bool((clean.logits.argmax(1) == 0).all()) and bool((there.logits.argmax(1) == 1).all())
    assert bool((there.reject <= 0).all())
    assert bool((rejected(model, witness) == (kind == INVERTED)).all())
    d = (witness.double() - x0.double()).flatten(1).numpy()
    assert bool((np.linalg.norm(d, SIZE[norm], axis=1) <= eps * (1 + 1e-6)).all())
    assert float(witness.min()) >= 0 and float(witness.max()) <= 1
    for k in range(beyond):
        far = found.statistics.beyond[:, k]
        with torch.no_grad():
            out = binary.forward_of(far, found.ids)
        assert bool((out.logits.argmax(1) == 1).all()) and bool((out.reject <= 0).all())
        size = np.linalg.norm((far.double() - x0.double()).flatten(1).numpy(), SIZE[norm], axis=1)
        assert bool((size <= FAR * eps * (1 + 1e-6)).all())


@pytest.mark.parametrize("kind", [REGULAR, INVERTED])
def test_an_attack_that_knows_the_witnesses_scores_everything(kind):
    model, data = guarded(), brinell.Problem(*samples(9), ids=torch.arange(9).flip(0) * 11)
    options = {"inner": 30, "kappa": 0.99, "kind": kind, "progress": False, "reference": PGD(3)}
    first = test_attack(model, data, LINF, PGD(3), **options)
    assert first.kind == kind and 0 < first.n == len(first.witnesses)
    assert bool((rejected(model, first.witnesses) == (kind == INVERTED)).all())
    again = test_attack(model, data, LINF, Knowing(first.ids, first.witnesses), **options)
    assert again.score == 1.0 and again.n == first.n and torch.equal(again.witnesses, first.witnesses)


# --------------------------------------------------------------------------------------------------- rejection sampling


@pytest.mark.parametrize("kind", [REGULAR, INVERTED])
@pytest.mark.parametrize("count", [1, 3])
def test_the_first_points_that_stand_are_kept_and_no_others(kind, count):
    """Against all points drawn at once and judged one by one."""
    model, chunk, design = guarded(rate=0.5), chunk_of(8, 3), Design(9, count)
    planted = planted_in(model, chunk, LINF, design, 4, kind)
    redrawn = 0
    for i in range(len(chunk)):
        x0 = chunk.x[i : i + 1].expand(TRIES * count, *SHAPE)
        key = rng.keys(4, chunk.ids[i : i + 1]).expand(TRIES * count)
        everything = design.boundary_points(
            LINF.ball(torch.zeros(TRIES * count, dtype=torch.long), x0.device), x0, key, torch.arange(TRIES * count)
        )
        accepts = torch.cat([rejected(model, p[None]) for p in everything]) == (kind == INVERTED)
        assert bool(planted.enough[i]) == (int(accepts.sum()) >= count)
        if planted.enough[i]:
            which = accepts.nonzero()[:count, 0]
            redrawn += int(which[-1]) >= count
            assert torch.equal(planted.boundary[i], everything[which])
    assert redrawn > 0, "nothing was redrawn: the test shows nothing"


def test_what_never_stands_is_counted_and_told():
    model = brinell.wrap(fixed(NETS["mlp"]()), detector=lambda x: torch.ones(len(x), device=x.device))
    data = brinell.Problem(*samples(5), ids=torch.arange(5) + 40)
    r = test_attack(model, data, LINF, "pgd20", kind="regular", inner=9, kappa=0.9, progress=False)
    assert r.verdict == "inconclusive" and r.skipped == 5 and r.n == 0 and r.drawn == 5 * TRIES
    assert set(r.reasons.values()) == {"no point at distance eps was found that the detector accepts"}
    assert "Use another radius" in str(r)


def test_a_detector_that_accepts_everything_changes_nothing():
    net, data = fixed(NETS["mlp"]()), brinell.Problem(*samples(5))
    options = {"inner": 20, "kappa": 0.99, "reference": "pgd20", "progress": False}
    plain = test_attack(net, data, LINF, "pgd20", **options)
    model = brinell.wrap(net, detector=lambda x: 0 * x.flatten(1).sum(1) - 1)
    r = test_attack(model, data, LINF, "pgd20", kind="regular", **options)
    assert torch.equal(r.witnesses, plain.witnesses) and r.level == plain.level and torch.equal(r.found, plain.found)
    assert r.drawn == plain.drawn == 5


# ----------------------------------------------------------------------------------------------------- what it tells


def test_the_inverted_test_tells_an_attack_that_ignores_the_detector():
    """The detector rejects so little that the regular test lets it pass."""
    model, data = guarded("mlp", rate=0.1), brinell.Problem(*samples(10))
    options = {"inner": 30, "kappa": 0.9, "progress": False}
    blind = test_attack(model, data, LINF, PGD(20), **options)
    aware = test_attack(model, data, LINF, Alternating(40), **options)
    assert blind.kind == INVERTED and blind.verdict == "failed" and blind.n >= 5
    assert blind.other is not None and blind.other.kind == REGULAR and blind.other.score == 1.0
    assert aware.score == 1.0 and aware.other is not None and aware.other.score == 1.0
    assert blind.level.reference is not None and blind.level.reference.value == 1.0
    assert "Check detector ignored" in str(blind) and "evading reaches 100.0 % [" in str(blind)


def test_the_detector_stays_as_it_is():
    model = guarded(rate=0.1)
    before = model.fingerprint
    r = test_attack(model, brinell.Problem(*samples(4)), LINF, PGD(3), kind="regular", inner=9, progress=False)
    assert model.fingerprint == before
    assert r.detector == model.detector.describe() and r.detector in str(r)


def one(kind: str, k: int, n: int = 20, chance: int = 0) -> BinarizationTest:
    level = KappaLevel(0.99, Proportion(k, n), None, {"corners": Proportion(chance, n)}, 21)
    none = torch.zeros(0)
    return BinarizationTest(
        "pgd20", "evading", "net", "Linf(eps=0.1)", "linear", "head", 9, 1, "corners", level, (level,), none, none,
        none, brinell.results.ROWS.empty_table(), {} if n else {3: "its two classes cannot be separated"}, kind=kind,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("regular", "inverted_", "first", "verdict"),
    [
        (one(REGULAR, 20), one(INVERTED, 12), INVERTED, "failed"),
        (one(REGULAR, 5), one(INVERTED, 12), REGULAR, "failed"),
        (one(REGULAR, 40, 40), one(INVERTED, 39, 40), INVERTED, "passed"),
        (one(REGULAR, 20), one(INVERTED, 0, 0), INVERTED, "inconclusive"),
        (one(REGULAR, 20, chance=15), one(INVERTED, 20), REGULAR, "inconclusive"),
        (one(REGULAR, 20, chance=15), one(INVERTED, 12), INVERTED, "failed"),
    ],
)
def test_whoever_passes_must_pass_both(regular, inverted_, first, verdict):
    for pair in ([regular, inverted_], [inverted_, regular]):
        worse = worse_of(pair)
        assert (
            worse.kind == first and worse.verdict == verdict and {worse.kind, worse.other.kind} == {REGULAR, INVERTED}
        )
    stored = json.loads(json.dumps(worse.to_json()))
    assert stored["kind"] == first and stored["other"]["kind"] != first
    if regular.n and inverted_.n:
        assert "Regular binarization test" in str(worse) and "Inverted binarization test" in str(worse)


def test_attacks_that_imitate_get_a_point_of_their_own_sample():
    ids = torch.tensor([4, 7, 9])
    found = References(torch.ones(3, dtype=torch.long), torch.arange(6.0).view(3, 2), None, ids)
    zero = torch.zeros(4, dtype=torch.long)
    own = torch.tensor([9, 4, 4, 7])
    p = Batch(torch.zeros(4, 1), zero, rng.keys(0, own), zero - 1, id=own)
    assert Matching(references=found)._draw_reference(p).tolist() == [[4, 5], [0, 1], [0, 1], [2, 3]]
    r = test_attack(
        guarded(rate=0.1), brinell.Problem(*samples(4)), LINF, Matching(10), kind="regular", inner=9, kappa=0.5,
        progress=False,
    )  # fmt: skip
    assert r.n > 0 and r.score > 0.5


@pytest.mark.parametrize("kind", [REGULAR, INVERTED])
def test_a_detector_without_gradients_is_searched_for_without_them(kind):
    data = brinell.Problem(*samples(4))
    model = brinell.wrap(fixed(NETS["mlp"]()), detector=lambda x: x.detach().flatten(1).var(1))
    model = brinell.calibrated(model, brinell.Problem(*samples(20)), rate=0.4)
    r = test_attack(model, data, LINF, PGD(3, rel_step=0.01), kind=kind, inner=9, kappa=0.5, progress=False)
    assert r.reference == "searching" and r.n > 0 and r.level.reference.value == 1.0
    assert bool(((r.witnesses.flatten(1).var(1) > model.detector.threshold) == (kind == INVERTED)).all())


def test_outcomes_do_not_depend_on_order_or_company():
    x, y = samples(8)
    ids, order = torch.arange(8) * 5 + 2, torch.tensor([7, 2, 0, 5, 1, 3, 4, 6])
    model = guarded(rate=0.2)
    options = {"inner": 20, "kappa": 0.9, "kind": "inverted", "random_queries": 4, "progress": False}

    def statistics(at: torch.Tensor) -> dict[int, Any]:
        r = test_attack(model, brinell.Problem(x[at], y[at], ids[at]), LINF, Alternating(10), **options)
        known = zip(r.ids.tolist(), r.found.tolist(), r.witnesses, strict=True)
        return {i: (f, w.numpy().tobytes()) for i, f, w in known} | r.reasons

    whole = statistics(torch.arange(8))
    assert whole == statistics(order)
    assert statistics(torch.tensor([3])) == {i: f for i, f in whole.items() if i == 17}


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (lambda: fixed(NETS["mlp"]()), "inverted", "a model with a detector"),
        (guarded, "sideways", "regular"),
        (lambda: inverted(guarded()), None, 'kind="inverted"'),
    ],
    ids=["no detector", "unknown kind", "already inverted"],
)
def test_mistakes_are_told_with_a_remedy(model, kind, text):
    with pytest.raises(brinell.BrinellError, match=text):
        test_attack(model(), brinell.Problem(*samples(3)), LINF, PGD(3), kind=kind, inner=9, progress=False)


def test_the_program_prints_both_tests(tmp_path):
    file = tmp_path / "guarded.py"
    file.write_text(
        "import brinell\nfrom brinell.models.demo import demo_net\n"
        "def make():\n"
        "    net = brinell.wrap(demo_net(), detector=lambda x: x.diff(dim=3).abs().mean((1, 2, 3)))\n"
        "    return brinell.calibrated(net, brinell.data.load('demo', 100)[50:], rate=0.1)\n"
    )
    common = ["--model", f"{file}:make", "--data", "demo", "--eps", "0.1", "--n", "3", "--inner", "19", "--quiet"]
    common += ["--attacks", "pgd-ce", "--kappa", "0.9", "--reference", "pgd20"]
    done = CliRunner().invoke(app, ["test-attack", *common])
    text = " ".join(done.output.split())
    assert "Regular binarization test" in text and "Inverted binarization test" in text, done.output
    done = CliRunner().invoke(app, ["test-attack", *common, "--kind", "inverted", "--json"])
    found = json.loads(done.output)
    assert found["kind"] == "inverted" and found["other"] is None and found["drawn"] >= 3
