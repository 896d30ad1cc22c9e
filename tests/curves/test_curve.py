"""Robustness curves: what they say about distances that are known, and how they are measured, reused and stored."""

import csv
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, FMN
from brinell.attacks.catalogue import by_name
from brinell.curves import Curve, crossings, order_across_norms
from brinell.ops.norms import NORMS
from brinell.testing import duel, linear_world

pytestmark = pytest.mark.usefixtures("unchecked")
INF = math.inf


def made(distances, norm="L2", name="m") -> Curve:
    return Curve(norm, np.arange(len(distances)), np.asarray(distances, dtype=float), name)


# ------------------------------------------------------------------------------------------------------- step functions


def test_a_step_function_with_the_clean_error_at_zero():
    c = made([0, 0, 0.5, 0.5, 0.7, INF])
    x, y = c.steps()
    assert x.tolist() == [0, 0.5, 0.7] and y.tolist() == [2 / 6, 4 / 6, 5 / 6]
    assert [c.at(e).k for e in (0, 0.499, 0.5, 0.69, 0.7, 1e9)] == [2, 2, 4, 4, 5, 5]
    assert c.clean_error.k == 2 and c.unresolved == 1, "a failed search never counts as broken"
    assert made([0.5, 0.7]).steps()[1].tolist() == [0, 0.5, 1]


def test_area_is_the_integral():
    rng = np.random.default_rng(0)
    c = made(np.concatenate([rng.uniform(0, 2, 50), [0, 0, INF]]))
    grid = np.linspace(0, 1.5, 200001)[:-1]
    middle = grid + 1.5 / 400000
    by_hand = np.mean([c.distances <= e for e in middle[::50]]) * 1.5
    assert c.area(1.5) == pytest.approx(by_hand, abs=1e-3)
    assert made([0.0, 0.0]).area(2.0) == 2.0 and made([INF]).area(2.0) == 0.0


def test_the_band_holds_the_whole_curve():
    """Distances uniform in [0, 1]: R(eps) = eps. The band must hold it in 95 % of the repetitions."""
    rng = np.random.default_rng(1)
    kept = 0
    for _ in range(300):
        d = np.sort(rng.uniform(size=80))
        steps = np.arange(81) / 80
        worst = max(np.abs(steps[1:] - d).max(), np.abs(steps[:-1] - d).max())
        kept += worst <= made(d).band()
    assert kept >= 300 * 0.95


def test_slope_beside_a_threshold():
    even = made(np.linspace(0.01, 1, 100))
    assert even.slope(0.5, 0.2).p_value > 0.5
    # Everything between the threshold and a tenth beyond was moved there: what training for it may do.
    piled = made(np.concatenate([np.linspace(0.01, 0.4, 20), np.linspace(0.501, 0.55, 60)]))
    assert piled.slope(0.5, 0.1).above == 60 and piled.slope(0.5, 0.1).p_value < 1e-10
    assert piled.slope(0.5, 0.1).ratio > 5
    for width in (0.6, 0.0, -0.1):
        with pytest.raises(brinell.InputError, match=r"at most eps = 0\.5"):
            even.slope(0.5, width)


# ------------------------------------------------------------------------------------------------------------ crossings


def test_a_crossing_is_found_where_it_is():
    rng = np.random.default_rng(2)
    n = 400
    a = made(rng.uniform(0.4, 0.6, n), name="steep")
    b = made(rng.uniform(0.0, 1.0, n), name="flat")
    found = a.crossings(b)
    assert found.p_value < 0.01 and len(found.real) == 1
    cross = found.real[0]
    assert cross.low <= 0.5 <= cross.high and cross.at == pytest.approx(0.5, abs=0.03)
    assert found.ranges[0].better == "steep" and found.ranges[-1].better == "flat"
    # Seen from the other side nothing but the names changes.
    back = b.crossings(a)
    assert back.p_value == pytest.approx(found.p_value, abs=0.01) and back.real[0].at == cross.at


def test_equal_models_do_not_cross():
    rng = np.random.default_rng(3)
    claimed = ranges = 0
    for _ in range(200):
        shared = rng.uniform(size=60)
        a, b = (made(shared + 0.05 * rng.normal(size=60).clip(-3, 3) + 0.2) for _ in range(2))
        found = crossings(a, b, swaps=200)
        claimed += bool(found.real)
        ranges += bool(found.ranges)
        assert (found.p_value <= 0.05) >= bool(found.real)
    assert claimed <= 200 * 0.05 and ranges <= 200 * 0.08
    same = crossings(a, a)
    assert same.observed == () and same.real == () and same.ranges == () and same.p_value == 1.0


def test_a_better_model_everywhere_is_no_crossing():
    rng = np.random.default_rng(4)
    d = rng.uniform(size=300)
    found = made(d + 0.1, name="better").crossings(made(d, name="worse"))
    assert found.real == () and found.p_value == 1.0 and {r.better for r in found.ranges} == {"better"}


def test_unresolved_samples_in_a_crossing():
    a, b = made([0.1] * 30 + [INF] * 30, name="a"), made([0.5] * 60, name="b")
    found = a.crossings(b)
    assert [r.better for r in found.ranges] == ["b", "a"] and math.isinf(found.ranges[-1].high)


def test_ranges_of_one_model_with_a_gap_stay_apart_and_read_as_one_phrase():
    """A is better by 60 of 60 samples from 0.1 to 0.2 and from 0.4 to 0.5; elsewhere both curves are equal."""
    found = made([0.2] * 60 + [0.5] * 60, name="A").crossings(made([0.1] * 60 + [0.4] * 60, name="B"))
    assert [(r.low, r.high, r.better) for r in found.ranges] == [(0.1, 0.2, "A"), (0.4, 0.5, "A")]
    assert str(found).endswith("Better for certain: A in 2 ranges between 0.1 and 0.5.")
    # Ranges that touch are one: every step of the difference from 0.1 to 0.5 is for A.
    stairs = np.linspace(0.2, 0.5, 60)
    whole = made(stairs, name="A").crossings(made(np.full(60, 0.1), name="B"))
    assert len(whole.ranges) == 1 and whole.ranges[0].low == 0.1


def test_order_across_norms():
    rng = np.random.default_rng(5)
    d = rng.uniform(0.2, 1, 200)
    good, bad = made(d * 1.3, "Linf", "good"), made(d, "Linf", "bad")
    turned = (made(d, "L2", "good"), made(d * 1.3, "L2", "bad"))
    assert (
        order_across_norms([good, bad], [made(d * 2, "L2", "good"), made(d, "L2", "bad")], (0.5, 1.0))[0].verdict
        == "kept"
    )
    assert order_across_norms([good, bad], turned, (0.5, 0.5))[0].verdict == "reversed"
    noise = made(rng.permutation(d), "L2", "good"), made(d, "L2", "bad")
    assert order_across_norms([good, bad], noise, (0.5, 0.5))[0].verdict == "open"
    with pytest.raises(brinell.InputError, match="same models"):
        order_across_norms([good, bad], turned[::-1], (1.0, 1.0))


# ------------------------------------------------------------------------------------------------------------- measured


def test_theorem_two_holds_on_measured_curves():
    """For a linear model R in one norm is R in another with the radius times ‖w‖_q1 / ‖w‖_q2."""
    world = duel(classes=2, n=24)
    w = (world.weight[1] - world.weight[0])[None].double()
    data = (world.x, world.y)
    curves = {p: brinell.curve(world.classifier, data, p, FMN(150), progress=False) for p in NORMS}
    for p, q in (("Linf", "L2"), ("L2", "L1"), ("Linf", "L1")):
        c = float(NORMS[p].dual_size(w) / NORMS[q].dual_size(w))
        assert np.allclose(curves[q].distances, c * curves[p].distances, rtol=0.01)
        for eps in np.quantile(curves[p].distances, [0.2, 0.5, 0.8]) * 1.001:
            assert abs(curves[p].at(eps).k - curves[q].at(c * eps).k) <= 1


class Plane(nn.Module):
    """Breaks where the first value falls below `share` of the second, which is fixed, plus `shift`."""

    def __init__(self, share, shift):
        super().__init__()
        self.share, self.shift = share, shift

    def forward(self, x):
        gap = x[:, 0] - self.share * x[:, 1] - self.shift
        return torch.stack([gap, -gap], 1)


def test_two_models_whose_curves_cross():
    """Both values of a sample are equal: distances are x − 0.5 for A, from 0.02 to 0.48, and 0.2 + 0.1 x for B."""
    v = torch.linspace(0.52, 0.98, 120)
    x, first = torch.stack([v, v], 1), torch.tensor([True, False])
    truth = v.numpy() - 0.5, 0.2 + 0.1 * v.numpy()
    curves = []
    for model, known, name in zip((Plane(0.0, 0.5), Plane(0.9, -0.2)), truth, "AB", strict=True):
        rows = brinell.attack(model.eval(), (x, torch.zeros(120).long()), brinell.Linf(mask=first), FMN(100))
        curves.append(made(rows["distance"].to_pylist(), "Linf", name))
        assert np.allclose(curves[-1].distances, known, rtol=0.01)
    found = curves[0].crossings(curves[1])
    assert found.p_value < 0.01 and len(found.real) == 1
    # R of A is (eps − 0.02) / 0.46, that of B (eps − 0.252) / 0.046: they meet at 0.2778.
    assert found.real[0].low <= 0.2778 <= found.real[0].high and found.real[0].at == pytest.approx(0.2778, abs=0.01)
    assert [r.better for r in found.ranges] == ["B", "A"]


def test_more_budget_never_gives_a_larger_distance():
    world = linear_world(4, shape=(1, 4, 4), n=6)
    data = (world.x, world.y)
    for norm in ("L0",):
        small, large = (
            brinell.curve(world.classifier, data, norm, p, progress=False).distances
            for p in ("minimal-quick", "minimal")
        )
        assert (large <= small).all() and np.isfinite(large).all()
    for smaller, larger in (("minimal-quick", "minimal"), ("minimal", "minimal-full")):
        for threat in (brinell.Linf(), brinell.L2(), brinell.L1(), brinell.L0()):
            stages = by_name(smaller).stages_for(threat)
            held = [s.to_json()["hash"] for s in by_name(larger).stages_for(threat)]
            assert [s.to_json()["hash"] for s in stages] == held[: len(stages)]


def test_what_other_runs_know_is_reused(tmp_path):
    world = linear_world(3, n=8)
    model, data = world.classifier, brinell.Problem(world.x, world.y)
    first = brinell.curve(model, data, "L2", FMN(30), out=tmp_path / "a", progress=False)
    again = brinell.curve(model, data, "L2", FMN(30), known=[tmp_path / "a"], out=tmp_path / "b", progress=False)
    assert again.distances.tolist() == first.distances.tolist() and not (tmp_path / "b").exists()
    both = [FMN(30), brinell.Stage(FMN(60), label="longer", noise="longer")]
    more = brinell.curve(model, data, "L2", both, known=[tmp_path / "a"], out=tmp_path / "c", progress=False)
    assert (more.distances <= first.distances).all() and brinell.Run.open(tmp_path / "c").attacks == ["longer"]
    # An evaluation in another norm with a radius: its adversarials have a Euclidean size too.
    fixed = brinell.evaluate(model, data, brinell.Linf(0.2), "pgd20", progress=False)
    with_it = brinell.curve(model, data, "L2", FMN(1), known=[fixed], progress=False)
    alone = brinell.curve(model, data, "L2", FMN(1), progress=False)
    assert (with_it.distances <= alone.distances).all() and np.isfinite(with_it.distances).sum() >= len(
        fixed.adversarials().ids
    )
    other = linear_world(3, n=8, seed=1)
    with pytest.raises(brinell.RunError, match="given model"):
        brinell.curve(other.classifier, data, "L2", FMN(3), known=[tmp_path / "a"], progress=False)


def test_beside_an_evaluation_at_one_radius():
    world = duel(classes=2, n=16)
    model, data = world.classifier, (world.x, world.y)
    c = brinell.curve(model, data, "Linf", FMN(100), progress=False)
    eps = float(world.distance("Linf").median()) * 1.02
    run = brinell.evaluate(model, data, brinell.Linf(eps), APGD(50, "margin"), progress=False)
    met = c.against(run)
    assert met.alike == 16 and met.only_run == met.only_curve == ()
    assert c.at(eps).k == 16 - run.robust_accuracy.k
    weak = Curve("Linf", c.ids, c.distances * 3)
    assert set(weak.against(run).only_run) == set(c.ids[c.broken(eps) & ~weak.broken(eps)].tolist())
    with pytest.raises(brinell.RunError, match="one radius in L2"):
        made(c.distances).against(run)


def test_interruption_changes_nothing(tmp_path):
    world = linear_world(3, n=8)
    model, data = world.classifier, brinell.Problem(world.x, world.y)
    whole = brinell.curve(model, data, "L1", [FMN(20), brinell.Stage(FMN(40), label="b")], progress=False)

    class StopError(Exception):
        pass

    calls = 0
    forward = type(model).forward

    class Fragile(type(model)):
        def forward(self, x):
            nonlocal calls
            calls += 1
            if calls == 45:
                raise StopError
            return forward(self, x)

    fragile = Fragile(model.module, name=model.name)
    assert fragile.fingerprint == model.fingerprint
    with pytest.raises(StopError):
        brinell.curve(
            fragile, data, "L1", [FMN(20), brinell.Stage(FMN(40), label="b")], out=tmp_path / "r", progress=False
        )
    rest = brinell.curve(
        model, data, "L1", [FMN(20), brinell.Stage(FMN(40), label="b")], out=tmp_path / "r", resume=True, slots=2,
        progress=False,
    )  # fmt: skip
    assert rest.distances.tolist() == whole.distances.tolist()
    assert brinell.verify(tmp_path / "r", model, data).ok


def test_misclassified_samples_have_distance_zero():
    world = linear_world(3, n=6)
    y = world.y.clone()
    y[2] = (y[2] + 1) % 3
    c = brinell.curve(world.classifier, (world.x, y), "L2", FMN(30), progress=False)
    assert c.distances[2] == 0 and (np.delete(c.distances, 2) > 0).all() and c.clean_error.k == 1


# -------------------------------------------------------------------------------------------------------------- storing


def test_stored_and_read_again(tmp_path):
    c = made([0, 0.1234567890123, INF], name="mine")
    c.save(tmp_path / "c.csv")
    with (tmp_path / "c.csv").open() as f:
        rows = list(csv.reader(f))
    assert rows[0] == ["sample_id", "distance"] and [float(r[1]) for r in rows[1:]] == c.distances.tolist()
    c.save(tmp_path / "c.json")
    back = Curve.from_json(json.loads((tmp_path / "c.json").read_text()))
    assert back.distances.tolist() == c.distances.tolist() and (back.name, back.norm) == ("mine", "L2")
    with pytest.raises(brinell.InputError, match=r"\.csv or \.json"):
        c.save(tmp_path / "c.txt")


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra report")
    a, b = made([0, 0.2, 0.5, INF], name="first"), made([0.1, 0.3, 0.4, 0.9], name="second")
    other = made([0, 0.01, 0.02, 0.03], "Linf", "first")
    text = a.plot(tmp_path / "c.svg", [b, other], marks=[0.25, 5 / 255]).read_text()
    for word in ("first", "second", "Linf", "L2", "5/255", "1 unresolved"):
        assert word in text
    again = a.plot(tmp_path / "d.svg", [b, other], marks=[0.25, 5 / 255]).read_text()
    assert text == again, "equal curves give equal files"
    assert a.plot(tmp_path / "c.png", [b]).read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: made([0.1, math.nan]), "one distance"),
        (lambda: made([0.1]).area(-1), "radius above 0"),
        (lambda: made([0.1]).band(1.5), "confidence"),
        (lambda: made([0.1]).crossings(made([0.1], "Linf")), "two curves in L2"),
        (lambda: made([0.1]).crossings(Curve("L2", np.array([9]), np.array([0.1]))), "common samples"),
    ],
)
def test_bad_input_is_refused(wrong, why):
    with pytest.raises(brinell.InputError, match=why):
        wrong()


def test_a_norm_may_be_spelled_as_people_do() -> None:
    data = brinell.data.load("demo", 4)
    assert brinell.curve("demo", data, 2, "minimal-quick", progress=False).norm == "L2"
    assert [found.norm for found in brinell.distances(data, ["linf", "1"]).nearest] == ["Linf", "L1"]
