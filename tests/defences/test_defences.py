"""The gallery: two evaluations attack the same function, the test tells them apart, and the exceptions are named."""

import json
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import brinell
from brinell.cli.commands.gallery import show
from brinell.cli.main import app
from brinell.defences import DEFENCES, DefenceResult, find, measure
from brinell.defences.base_networks import (
    HELD_OUT,
    held_out_images,
    interpolated,
    plain_network,
    prototype_conformity,
    separated_network,
    train,
    training_data,
)
from brinell.defences.base_networks import trapdoor_network as trapped_network
from brinell.defences.catalogue import CAUGHT, MISSED
from brinell.defences.detectors import LeaveOneOut, fit_logistic, trapdoor
from brinell.defences.layers import Jpeg, Thermometer, Winners, cosines
from brinell.defences.plot import plot
from brinell.models.demo import DemoNet
from brinell.ops import rng
from brinell.reliability.binarization.result import PASS

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = ["logit-scaling", "quantisation", "output-codes"]
DETECTORS = ("statistical-test", "leave-one-out", "trapdoor")
N = 8


@cache
def quick() -> dict[str, DefenceResult]:
    return {row.defence.name: row for row in measure(QUICK, N)}


@cache
def everything() -> dict[str, DefenceResult]:
    return {row.defence.name: row for row in measure(n=32)}


def test_there_are_enough_and_their_names_differ() -> None:
    assert len(DEFENCES) >= 13
    assert len({d.name for d in DEFENCES}) == len(DEFENCES)
    assert all(d.why for d in DEFENCES if d.expected == MISSED)


@pytest.mark.parametrize("name", [d.name for d in DEFENCES if d.name not in (*DETECTORS, "noise")])
def test_both_evaluations_attack_the_same_function(name: str) -> None:
    """A stronger attack may have other gradients, never other answers."""
    d, x = find(name), held_out_images(16).x
    a, b = d.original.build().forward(x).logits, d.stronger.build().forward(x).logits
    assert torch.equal(a, b)


def test_what_is_attacked_was_not_learnt() -> None:
    x, _ = training_data()
    seen = {bytes(row.numpy().tobytes()) for row in x}
    assert not any(bytes(row.numpy().tobytes()) in seen for row in held_out_images(HELD_OUT).x)


def test_a_fit_does_not_depend_on_the_global_generator() -> None:
    torch.manual_seed(1)
    a = train(DemoNet(), epochs=1)
    torch.manual_seed(2)
    b = train(DemoNet(), epochs=1)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_conformity_loss_is_the_formula_of_the_paper() -> None:
    f, centres = rng.normal(rng.keys(0, torch.arange(6)), (5,)), rng.normal(rng.keys(1, torch.arange(4)), (5,))
    y = torch.tensor([0, 3, 1, 1, 2, 0])
    for i, loss in enumerate(prototype_conformity(f, y, centres).tolist()):
        own = centres[y[i]]
        others = [c for j, c in enumerate(centres) if j != int(y[i])]
        pushed = sum(float((f[i] - c) @ (f[i] - c) + (own - c) @ (own - c)) for c in others)
        assert loss == pytest.approx(float((f[i] - own) @ (f[i] - own)) - pushed / 3, rel=1e-5)


def test_separated_features_make_the_gradient_of_cross_entropy_vanish() -> None:
    data, medians = held_out_images(32), []
    for net in (plain_network(), separated_network()):
        x = data.x.clone().requires_grad_(True)
        with torch.enable_grad():
            (up,) = torch.autograd.grad(nn.functional.cross_entropy(net(x), data.y, reduction="sum"), x)
        medians.append(float(up.flatten(1).abs().amax(1).median()))
    assert medians[1] < 1e-4 * medians[0]


def test_interpolated_points_imitate_another_image_within_the_ball() -> None:
    net, x, y = plain_network(), *training_data()
    x, y, keys = x[:20], y[:20], rng.keys(0, torch.arange(20))
    points, labels = interpolated(net, x, y, 0.1, 0.5, keys)
    assert float((points - x).abs().max()) <= 0.1 + 1e-6 and 0 <= float(points.min()) <= float(points.max()) <= 1
    body, other = net.layers[:-1], torch.arange(20).flip(0)
    alike = nn.functional.cosine_similarity(body(points), body(x[other]))
    assert float(alike.mean()) > float(nn.functional.cosine_similarity(body(x), body(x[other])).mean())
    for i in range(20):
        for c in range(10):
            assert float(labels[i, c]) == pytest.approx(0.5 * (c == int(y[i])) + 0.5 * (c != int(y[other[i]])) / 9)


def test_a_thermometer_counts_levels() -> None:
    x = torch.tensor([0.0, 0.25, 0.3, 1.0]).view(1, 1, 2, 2)
    assert Thermometer(4)(x).sum(1).flatten().tolist() == [0, 1, 2, 4]


def test_winners_keep_their_share() -> None:
    kept = Winners(0.25)(torch.arange(8.0).view(1, 8))
    assert kept.tolist() == [[0, 0, 0, 0, 0, 0, 6, 7]]


def test_the_transform_of_the_compression_is_orthonormal_and_vanishing_coarseness_changes_nothing() -> None:
    basis = cosines(7).double()
    assert torch.allclose(basis @ basis.T, torch.eye(7).double(), atol=1e-6)
    x = held_out_images(4).x
    assert torch.allclose(Jpeg(1e-6)(x), x, atol=1e-4)


@pytest.mark.parametrize("name", QUICK)
def test_the_flawed_evaluation_fails_and_the_stronger_one_passes(name: str) -> None:
    row = quick()[name]
    assert row.original.test.verdict == "failed"
    assert row.original.test.score < PASS <= row.stronger.test.score
    assert row.original.test.kappa == row.stronger.test.kappa
    assert row.stronger.robust.k < row.original.robust.k <= row.clean.k


def test_the_program_prints_the_table_and_json() -> None:
    runner = CliRunner()
    told = runner.invoke(app, ["gallery", "--only", "logit-scaling", "--n", "4", "--quiet"])
    assert told.exit_code == 0, told.output
    assert "logit-scaling" in told.stdout
    assert "failed" in told.stdout
    told = runner.invoke(app, ["gallery", "--only", "logit-scaling", "--n", "4", "--quiet", "--json"])
    (row,) = json.loads(told.stdout)
    assert row["caught"] is True
    assert row["stronger"]["test"]["score"] == 1.0
    assert row["original"]["robust_accuracy"]["n"] == 4


@cache
def trapdoor_network() -> DefenceResult:
    """The detector that is quickest to measure."""
    (row,) = measure(["trapdoor"], 6)
    return row


@pytest.mark.slow
def test_a_detector_has_two_tests_and_the_worse_counts() -> None:
    row = trapdoor_network()
    assert list(row.original.tests) == list(row.stronger.tests) == ["regular", "inverted"]
    for m in (row.original, row.stronger):
        assert m.score.value == min(t.level.score.value for t in m.tests.values())
    for kind, test in row.original.tests.items():
        assert test.kappa == row.stronger.tests[kind].kappa
        assert torch.equal(test.witnesses, row.stronger.tests[kind].witnesses)
    out = Console(record=True, width=200, file=StringIO())
    show([row], out)
    assert "regular test" in out.export_text() and row.to_json()["original"]["test"]["other"]["kind"]


@pytest.mark.slow
def test_the_picture_has_triangles_for_detectors(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert "worse of two tests" in plot([trapdoor_network()], tmp_path / "gallery.svg").read_text()


def test_leaving_out_nothing_is_no_attribution() -> None:
    """Where a patch is black already, leaving it out changes nothing; elsewhere the change is that of the features."""
    x = held_out_images(4).x.clone()
    x[:, :, :7, :7] = 0
    detector = LeaveOneOut(nn.Flatten())
    logs = detector.statistics(x)[:, :16]
    size = (x.view(4, 4, 7, 4, 7).transpose(2, 3).reshape(4, 16, 49)).norm(dim=2)
    assert torch.allclose(logs, (size.sort(1).values + 1e-3).log(), atol=1e-4)
    assert bool((logs[:, 0] == torch.tensor(1e-3).log()).all())


def test_a_logistic_regression_has_no_slope_left() -> None:
    a, b = rng.normal(rng.keys(0, torch.arange(50)), (3,)), 1 + rng.normal(rng.keys(1, torch.arange(40)), (3,))
    weight, bias = fit_logistic(a, b, ridge=0.0)
    x, y = torch.cat([a, b]).double(), torch.cat([torch.zeros(50), torch.ones(40)]).double()
    left = (x @ weight.double() + bias).sigmoid() - y
    assert float(left.mean().abs()) < 1e-5 and float((x.T @ left / len(x)).abs().max()) < 1e-5


def test_trapdoors_open_and_their_signature_is_seen() -> None:
    net, detector = trapdoor()
    x, traps = held_out_images(40).x, trapped_network()[1]
    for c in (0, 4, 9):
        bait = (x + traps[c]).clamp(0, 1)
        assert float((net(bait).argmax(1) == c).float().mean()) > 0.8
        baited, clean = detector(bait, net(bait)), detector(x, net(x))
        assert float(baited.median()) > float(clean.quantile(0.95))


def test_an_unknown_defence_is_refused_with_the_known_ones() -> None:
    with pytest.raises(brinell.BrinellError, match="thermometer"):
        find("fortress")


@pytest.mark.slow
def test_at_least_eleven_are_caught() -> None:
    rows = everything().values()
    caught = [
        r
        for r in rows
        if r.original.score.value < PASS
        and r.stronger.score.value > r.original.score.value
        and r.stronger.robust.k < r.original.robust.k
    ]
    assert len(rows) >= 20
    assert len(caught) >= 11


@pytest.mark.slow
@pytest.mark.parametrize("name", [d.name for d in DEFENCES])
def test_the_test_says_what_the_gallery_says(name: str) -> None:
    row = everything()[name]
    assert row.as_expected
    assert row.defence.expected == CAUGHT or row.defence.why


@pytest.mark.slow
@pytest.mark.parametrize("name", [d.name for d in DEFENCES])
def test_robust_accuracy_falls_with_the_stronger_attack(name: str) -> None:
    row = everything()[name]
    assert row.stronger.robust.k < row.original.robust.k
