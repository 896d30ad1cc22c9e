"""Distances between classes: exact, whatever the bounds; duplicates; the paper's numbers."""

import math
import warnings

import numpy as np
import pytest
import torch

import brinell
from brinell.curves import bounds, class_distances
from brinell.ops.norms import NORMS

pytestmark = pytest.mark.usefixtures("unchecked")


def by_hand(x, y, norm) -> torch.Tensor:
    x = x.double().flatten(1)
    d = torch.stack([NORMS[norm].size(x - row) for row in x])
    return d.masked_fill(y[:, None] == y[None], math.inf).amin(1)


def sample(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    g = np.random.default_rng(7)
    y = torch.from_numpy(g.integers(0, 4, 150))
    if kind == "noise":
        return torch.from_numpy(g.random((150, 3, 8, 8), dtype=np.float32)), y
    if kind == "flat":
        return torch.from_numpy(g.random((150, 19), dtype=np.float32)), y
    smooth = g.random((150, 1, 3, 3), dtype=np.float32)
    x = torch.nn.functional.interpolate(torch.from_numpy(smooth), size=(12, 20), mode="bilinear")
    return (x * 255).round() / 255, y


@pytest.mark.parametrize("kind", ["noise", "flat", "smooth"])
@pytest.mark.parametrize("norm", NORMS)
def test_equals_the_whole_matrix(kind, norm, monkeypatch):
    monkeypatch.setattr(class_distances, "ROWS", {"cpu": 13})
    monkeypatch.setattr(class_distances, "PAIRS", {"cpu": 29})
    x, y = sample(kind)
    found = brinell.distances((x, y), [norm])[norm]
    assert np.allclose(found.distances, by_hand(x, y, norm).numpy(), rtol=1e-6)
    pair = NORMS[norm].size(x.double() - x[found.partners].double())
    assert np.allclose(found.distances, pair.numpy()) and (y[found.partners] != y).all()


@pytest.mark.parametrize("kind", ["noise", "flat", "smooth"])
@pytest.mark.parametrize("norm", NORMS)
def test_bounds_never_exceed_the_distance(kind, norm):
    x, _ = sample(kind)
    rows = x.flatten(1)
    b = bounds.distance_bounds(norm, rows, tuple(x.shape[1:]))
    i, j = torch.arange(150).repeat_interleave(150), torch.arange(150).repeat(150)
    truth = NORMS[norm].size(rows[i].double() - rows[j].double())
    for low in (b.rows(torch.arange(150)).flatten(), *(level(i, j) for level in b.levels)):
        assert (low.double() <= truth * (1 + 1e-5) + 1e-6).all()


@pytest.mark.parametrize("kind", ["noise", "flat", "smooth"])
@pytest.mark.parametrize("norm", NORMS)
def test_pairs_of_classes_equal_the_whole_matrix(kind, norm, monkeypatch):
    monkeypatch.setattr(class_distances, "ROWS", {"cpu": 13})
    monkeypatch.setattr(class_distances, "PAIRS", {"cpu": 29})
    x, y = sample(kind)
    # A duplicate in another class does not count.
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1] + 1])
    pairs = brinell.distances((x, y), [norm], pairs=True)[norm].pairs
    i, j = torch.arange(len(x)).repeat_interleave(len(x)), torch.arange(len(x)).repeat(len(x))
    d = NORMS[norm].size(x[i].double() - x[j].double())
    labels = y.unique().tolist()
    for a, of in enumerate(labels):
        for b, to in enumerate(labels):
            these = d[(y[i] == of) & (y[j] == to) & (d > 1e-4)]
            assert pairs[a, b] == (np.inf if a == b else pytest.approx(float(these.min()), rel=1e-5))


def test_distances_as_files(tmp_path):
    x = torch.tensor([[0.1, 0.1], [0.4, 0.1], [0.9, 0.2]])
    found = brinell.distances(brinell.Problem(x, torch.tensor([3, 5, 5]), torch.tensor([7, 8, 9])), ["L1"], pairs=True)
    first, second = found.save(tmp_path / "d.csv")
    lines = [line.split(",") for line in first.read_text().splitlines()]
    assert lines[0] == ["norm", "sample_id", "class", "distance", "nearest_id", "nearest_class"]
    assert lines[3][:3] == ["L1", "9", "5"] and lines[3][4:] == ["7", "3"] and float(lines[3][3]) == pytest.approx(0.9)
    assert second.name == "d-pairs.csv" and second.read_text().splitlines()[1].startswith("L1,3,5,0.3")
    assert found.nearest_classes("L1") == (3, 5)
    assert found.to_json()["norms"]["L1"]["pairs"][0][0] is None
    with pytest.raises(brinell.InputError, match=r"\.csv"):
        found.save(tmp_path / "d.json")


def test_duplicates_are_reported_and_left_out():
    x = torch.tensor([[0.1, 0.1], [0.1, 0.1], [0.4, 0.1], [0.9, 0.9]])
    found = brinell.distances((x, torch.tensor([0, 1, 1, 0])), ["Linf", "L1"])
    assert found["Linf"].duplicates.tolist() == [0, 1]
    assert found["Linf"].smallest == pytest.approx(0.3) and found["L1"].largest == pytest.approx(1.3)
    assert "2 samples have a duplicate" in str(found) and found.to_json()["norms"]["Linf"]["duplicates"] == [0, 1]


def test_a_radius_beyond_half_the_smallest_distance_is_told():
    x = torch.tensor([[0.1, 0.1], [0.4, 0.1]])
    found = brinell.distances((x, torch.tensor([0, 1])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.warning(brinell.Linf(0.1499)) == "" and found.warning(brinell.L2()) == ""
    with pytest.warns(UserWarning, match="half the smallest distance"):
        found.warning(brinell.Linf(0.16))


def test_one_class_is_refused():
    with pytest.raises(brinell.InputError, match="at least two classes"):
        brinell.distances((torch.rand(3, 2), torch.zeros(3).long()))


@pytest.mark.slow
def test_the_papers_numbers_for_cifar10(shared):
    """Table 2 of "How to compare adversarial robustness of classifiers from a global perspective"."""
    image = pytest.importorskip("PIL.Image", reason="needs pillow to read the images")
    folder = shared / "data" / "cifar10"
    grid = np.asarray(image.open(folder / "test_batch.webp").convert("RGB"))
    x = grid.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(10000, 3, 32, 32)
    y = np.load(folder / "labels.npz")["test"].astype(np.int64)
    found = brinell.distances((torch.from_numpy(x.copy()).float() / 255, torch.from_numpy(y)))
    told = {n: (round(found[n].smallest, 2), round(found[n].largest, 2)) for n in NORMS}
    assert told == {"Linf": (0.27, 0.70), "L2": (3.61, 18.57), "L1": (130.77, 831.44)}
