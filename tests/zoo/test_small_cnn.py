"""The networks of the paper on robustness curves: MATLAB files of TensorFlow weights in the small network."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zoo_helpers import made

from brinell.errors import ModelError
from brinell.models.by_name import load_model
from brinell.models.zoo import card_of_file, cards, find, load
from brinell.models.zoo.card import WeightFile

savemat = pytest.importorskip("scipy.io").savemat

SIDE, CHANNELS, CLASSES = 8, 2, 3
PAPER = [c for c in cards().values() if c.network and c.network["family"] == "small-cnn"]


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {
        "weights_conv1": (4, 4, CHANNELS, 16), "weights_conv2": (4, 4, 16, 32), "weights_fc1": (2 * 2 * 32, 100),
        "weights_fc2": (100, CLASSES), "biases_conv1": (1, 16), "biases_conv2": (1, 32), "biases_fc1": (1, 100),
        "biases_fc2": (1, CLASSES),
    }  # fmt: skip
    return {k: rng.normal(0, 0.2, s).astype(np.float32) for k, s in shapes.items()}


def as_published(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The published network by its definition, in TensorFlow's order of axes: x is (n, height, width, channels)."""
    for k in ("conv1", "conv2"):
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        half = x.shape[1] // 2
        windows = [[padded[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4] for j in range(half)] for i in range(half)]
        out = [[np.tensordot(p, w[f"weights_{k}"], 3) for p in row] for row in windows]
        x = np.maximum(np.stack([np.stack(row, 1) for row in out], 1) + w[f"biases_{k}"], 0)
    x = np.maximum(x.reshape(len(x), -1) @ w["weights_fc1"] + w["biases_fc1"], 0)
    return x @ w["weights_fc2"] + w["biases_fc2"]


@pytest.fixture
def file(tmp_path: Path, add: Any) -> Path:
    path = tmp_path / "mine.mat"
    savemat(path, weights())
    network = {"family": "small-cnn", "channels": CHANNELS, "side": SIDE, "classes": CLASSES}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    add(
        made("cifar10/Linf/Mine", WeightFile(("https://nowhere.invalid",), digest), keys=PAPER[0].keys, network=network)
    )
    return path


def test_the_network_gives_the_logits_of_the_published_one(file: Path) -> None:
    x = np.random.default_rng(1).random((4, SIDE, SIDE, CHANNELS), dtype=np.float32)
    got = load("cifar10/Linf/Mine", checkpoint=file).forward(torch.from_numpy(x.transpose(0, 3, 1, 2).copy())).logits
    np.testing.assert_allclose(got.numpy(), as_published(weights(), x), rtol=1e-4, atol=1e-5)


def test_a_file_of_weights_is_a_model(file: Path) -> None:
    found = card_of_file(file)
    assert found is not None and found.name == "cifar10/Linf/Mine"
    assert load_model(str(file)).name == "cifar10/Linf/Mine"
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="loads these weights"):
        load_model(str(file))


def test_weights_in_the_cache_may_keep_their_ending(file: Path, home: Path) -> None:
    path = home / "models" / "cifar10" / "Linf" / "Mine.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(file.read_bytes())
    assert load("Mine").name == "cifar10/Linf/Mine"
    path.write_bytes(b"MATLAB 5.0 MAT-file, but nothing else")
    with pytest.raises(ModelError, match="sha256"):
        load("Mine")


def test_every_network_of_the_paper_has_a_source_and_a_digest() -> None:
    assert len(PAPER) == 14
    for card in PAPER:
        (only,) = card.files
        assert card.loadable and only.sha256 is not None and len(only.sha256) == 64
        assert only.sources[0].startswith("https://github.com/") and only.sources[0].endswith(".mat")
        assert " " not in only.sources[0] and (card.eps is None) == card.name.endswith("_ST")


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_the_published_files_load(data: str, shared: Path) -> None:
    file = shared / "models" / "published" / f"mmr_univ_{data}.mat"
    if not file.exists():
        pytest.skip("needs the published weights")
    card = find(f"{data}/Linf/Croce2020Provable_MMR_UNIV")
    got = card_of_file(file)
    assert got is not None and got.name == card.name
    shape = (1, 28, 28) if data == "mnist" else (3, 32, 32)
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    logits = load(card.name, checkpoint=file).forward(x).logits
    from scipy.io import loadmat

    np.testing.assert_allclose(logits.numpy(), as_published(loadmat(file), x.permute(0, 2, 3, 1).numpy()), atol=1e-4)
