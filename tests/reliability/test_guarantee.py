"""For every accepted sample an adversarial exists, is stored, and is one by any measure: a full score is attainable."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reliability.conftest import NETS, Knowing, fixed, samples

import brinell
from brinell.attacks import FGSM
from brinell.core.dataset import Chunk
from brinell.core.threat import threat
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.ops.norms import NORMS
from brinell.reliability.binarization.binary_models import build_tasks
from brinell.reliability.binarization.features import find_features
from brinell.reliability.binarization.planting import Design
from brinell.reliability.binarization.readouts import READOUTS, EnsembleReadout

SIZE = {"Linf": np.inf, "L2": 2, "L1": 1}
EPS = {"Linf": (0.02, 0.1, 0.3), "L2": (0.1, 0.5, 1.5), "L1": (0.5, 3.0, 9.0)}


def tasks(net, x, y, t, readout, design, seed):
    classifier = wrap(net)
    seen = find_features(classifier, x)
    chunk = Chunk(torch.arange(len(x)) * 3 + 5, x, y)
    return build_tasks(Oracle(seen, 32), seen, readout, design, chunk, t, seed)


@settings(max_examples=30, deadline=None)
@given(
    norm=st.sampled_from(sorted(NORMS)),
    radius=st.integers(0, 2),
    net=st.sampled_from(sorted(NETS)),
    readout=st.sampled_from(sorted(READOUTS)),
    corners=st.booleans(),
    boundary=st.integers(1, 4),
    inner=st.sampled_from([0, 5, 60]),
    kappa=st.sampled_from([0.01, 0.5, 0.99, 0.9999]),
    seed=st.integers(0, 2**20),
)
def test_every_accepted_sample_has_its_adversarial(norm, radius, net, readout, corners, boundary, inner, kappa, seed):
    eps = EPS[norm][radius]
    x, y = samples(5, seed)
    module = fixed(NETS[net](), seed % 7)
    design = Design(inner, boundary, corners and NORMS[norm].corners, 0.05)
    found = tasks(module, x, y, threat(norm, eps), READOUTS[readout], design, seed)
    if found is None:
        return
    binary = found.classifier(kappa)
    x0, witness = x[found.at], found.statistics.witness
    with torch.no_grad():
        clean, there = (binary.forward_of(v, found.ids).logits for v in (x0, witness))
        original = module(torch.cat([x0, witness]))
    assert bool((clean.argmax(1) == 0).all()) and bool((there.argmax(1) == 1).all())
    d = (witness.double() - x0.double()).flatten(1).numpy()
    assert bool((np.linalg.norm(d, SIZE[norm], axis=1) <= eps * (1 + 1e-6)).all())
    assert float(witness.min()) >= 0 and float(witness.max()) <= 1
    # κ is where the boundary lies between the best boundary point and the nearest inner point, on the readout's scale.
    f, gap = found.statistics, there[:, 1] - there[:, 0]
    full = binary.scale * (f.best - f.inner)
    assert torch.allclose(gap, (1 - kappa) * full, rtol=2e-2, atol=1e-4 * float(original.abs().max() + 1))
    assert bool((clean[:, 0] - clean[:, 1] >= 0.9 * kappa * full - 1e-4).all())
    # The range of the logits is that of the network's own; two of its values come from these very points.
    values = torch.cat([clean, there], 1)
    assert bool((values.amin(1) >= f.least - 1e-3 * f.range).all())
    assert bool((values.amax(1) <= f.least + f.range * (1 + 1e-3)).all())


@pytest.mark.parametrize(
    ("norm", "net", "readout"),
    [
        ("Linf", "conv", "linear"),
        ("L2", "mlp", "linear"),
        ("L1", "conv", "linear"),
        ("Linf", "mlp", "ensemble"),
        ("L2", "conv", EnsembleReadout(1)),
        ("Linf", "conv", "prototypes"),
        ("L2", "mlp", "neighbours"),
    ],
)
def test_an_attack_that_knows_the_witnesses_scores_everything(norm, net, readout):
    module, data = fixed(NETS[net]()), brinell.Problem(*samples(9), ids=torch.arange(9).flip(0) * 11)
    t, options = threat(norm, EPS[norm][1]), {"inner": 30, "kappa": 0.999, "readout": readout, "progress": False}
    first = brinell.test_attack(module, data, t, FGSM(), **options)
    assert 0 < first.n == len(first.ids) == len(first.witnesses) == len(first.found)
    again = brinell.test_attack(module, data, t, Knowing(first.ids, first.witnesses), **options)
    assert again.score == 1.0 and again.n == first.n and torch.equal(again.witnesses, first.witnesses)
    assert again.rows["forwards"].to_pylist() == [1] * again.n
    if readout == "linear":
        # The surface is where the witnesses lie.
        place = {i: k for k, i in enumerate(data.ids.tolist())}
        x0 = data.x[[place[i] for i in first.ids.tolist()]].double()
        size = np.linalg.norm((first.witnesses.double() - x0).flatten(1).numpy(), SIZE[norm], axis=1)
        assert size == pytest.approx(np.full(first.n, EPS[norm][1]), rel=1e-5)


def test_what_cannot_be_separated_is_skipped_and_told():
    """Two features cannot tell one corner from many points around it, unless it happens to lie outside them all."""
    net = fixed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2), torch.nn.Linear(2, 3)))
    data = brinell.Problem(*samples(12), ids=torch.arange(12) + 100)
    r = brinell.test_attack(net, data, brinell.Linf(0.1), "fgsm", inner=200, kappa=0.9, progress=False)
    assert r.skipped > 0 and r.n + r.skipped == 12
    assert set(r.reasons) | set(r.ids.tolist()) == set(range(100, 112)) and not set(r.reasons) & set(r.ids.tolist())
    assert set(r.reasons.values()) == {"its two classes cannot be separated"}
    assert f"{r.skipped} of 12 samples skipped" in str(r)


def test_nothing_separable_is_inconclusive():
    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = fixed(torch.nn.Linear(4, 3))

        def forward(self, x):
            return self.head(0 * x.flatten(1)[:, :4] + 1)

    data = brinell.Problem(*samples(4))
    r = brinell.test_attack(Constant().eval(), data, brinell.Linf(0.1), "fgsm", inner=9, progress=False)
    assert r.verdict == "inconclusive" and not r.passed and r.n == 0 and r.skipped == 4 and np.isnan(r.score)
    assert "No score: 4 of 4 samples skipped. Verdict: inconclusive. No sample could be used" in str(r)
    assert r.to_json()["score"] is None and len(r.witnesses) == 0
