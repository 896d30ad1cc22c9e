"""Data sets on the command line."""

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from brinell.data import SETS, load
from brinell.evaluation.coerce import OPTIONS


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINELL_OFFLINE", "1")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """One corruption of CIFAR-10-C, three images a severity."""
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.random.default_rng(0).integers(0, 256, (15, 32, 32, 3), dtype=np.uint8))
    np.save(folder / "labels.npy", np.tile([1, 2, 3], 5))
    return tmp_path


def test_list_has_every_set(brinell: Any) -> None:
    code, out, _ = brinell("data", "list", "--json")
    assert code == 0 and [s["name"] for s in json.loads(out)] == list(SETS)
    code, out, _ = brinell("data", "list", width=200)
    assert code == 0 and all(name in out for name in SETS)


def test_a_narrow_terminal_cuts_no_word(brinell: Any) -> None:
    out = brinell("data", "list", width=40).out
    assert max(map(len, out.splitlines())) <= 40
    assert "cifar10: classes 10, images 10,000 test, 50,000 train, options split" in " ".join(out.split())


def test_list_tells_what_the_cache_has(brinell: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "data" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "test_batch").write_bytes(b"")
    states = {s["name"]: s["cache"] for s in json.loads(brinell("data", "list", "--json")[1])}
    assert states["cifar10"] == "part" and states["cifar100"] == ""


def test_show(brinell: Any, tmp_path: Path) -> None:
    code, out, _ = brinell("data", "show", "cifar10-c", width=400)
    assert code == 0
    for text in ("1903.12261", "zenodo.org/records/2535967", "56bf5dcef84df0e2308c6dcbcbbd8499", "jpeg_compression"):
        assert text in out
    card = json.loads(brinell("data", "show", "cifar10.1", "--json")[1])
    assert card["images"] == {"v6": 2000, "v4": 2021}
    assert card["place"] == str(tmp_path / "cache" / "data" / "cifar10.1")
    assert "image-net.org" in brinell("data", "show", "imagenet", width=400)[1]


def test_fetch_offline_names_the_places(brinell: Any, tmp_path: Path) -> None:
    code, _, err = brinell("data", "fetch", "mnist", "-q", width=3000)
    assert code == 2 and all(str(tmp_path / "cache" / "data" / "mnist" / f.name) in err for f in SETS["mnist"].files)


def test_fetch_prints_the_place(brinell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "data" / "cifar100" / "cifar-100-python"
    folder.mkdir(parents=True)
    code, out, err = brinell("data", "fetch", "cifar100", "-q")
    assert (code, out.strip(), err) == (0, str(folder.parent), "")


def test_check_agrees_and_disagrees(brinell: Any, tmp_path: Path) -> None:
    for split, n in (("test", 10_000), ("train", 3)):
        stored = {b"data": np.zeros((n, 3072), np.uint8), b"fine_labels": [99] * n}
        (tmp_path / split).write_bytes(pickle.dumps(stored, protocol=2))
    code, out, _ = brinell("data", "check", "cifar100", "--root", tmp_path, "--json")
    test, train = json.loads(out)
    assert code == 1 and test["ok"] and (train["ok"], train["trouble"]) == (False, "3 images instead of 50,000")
    code, out, _ = brinell("data", "check", "cifar100", "--root", tmp_path, width=200)
    assert code == 1 and "as published" in out and "3 images instead" in out


def test_options_of_the_source(brinell: Any, images: Path) -> None:
    """The distances between the classes of three images, as numpy finds them."""
    spec = f"cifar10-c,corruption=fog,severity=2,root={images}"
    code, out, _ = brinell("distances", "--data", spec, "--norm", "L2", "--json")
    x = np.load(images / "CIFAR-10-C" / "fog.npy")[3:6].reshape(3, -1) / 255
    wanted = min(np.linalg.norm(x[i] - x[j]) for i in range(3) for j in range(i))
    assert code == 0 and json.loads(out)["norms"]["L2"]["smallest"] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("cifar10-c,fog", "'fog'"),
        ("cifar10-c,corruption=", "'corruption='"),
        ("cifar10-c,n=3", "'n=3'"),
        ("cifar10-c,corruption=fog,severity=bad", "severity from 1 to 5"),
        ("cifar10-c", "a corruption and a severity"),
        ("cifar12", "Did you mean"),
    ],
)
def test_wrong_sources_are_one_sentence(brinell: Any, spec: str, told: str) -> None:
    code, _, err = brinell("distances", "--data", spec, width=2000)
    assert code == 2 and told in err


def test_a_path_with_a_comma(brinell: Any, here: Path) -> None:
    (here / "a,b.npz").write_bytes((here / "data.npz").read_bytes())
    assert brinell("distances", "--data", "a,b.npz", "--json").code == 0


def test_the_options_are_those_of_load() -> None:
    assert set(OPTIONS) == set(inspect.signature(load).parameters) - {"source", "n"}


def test_a_named_set_can_be_evaluated(brinell: Any, tmp_path: Path, here: Path) -> None:
    """The demonstration's images in the files of Fashion-MNIST give what the demonstration gives."""
    demo = load("demo", 12)
    folder = tmp_path / "cache" / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, values in (
        ("t10k-images-idx3-ubyte", (255 * demo.x[:, 0]).round().byte()),
        ("t10k-labels-idx1-ubyte", demo.y.byte()),
    ):
        head = bytes((0, 0, 8, values.ndim)) + b"".join(n.to_bytes(4, "big") for n in values.shape)
        (folder / name).write_bytes(head + values.numpy().tobytes())
    arguments = ("-m", "demo", "--eps", "0.1", "--plan", "fgsm", "-q", "--json")
    by_name = json.loads(brinell("evaluate", "-d", "fashion-mnist", *arguments)[1])
    assert (
        by_name["robust_accuracy"]
        == json.loads(brinell("evaluate", "-d", "data.npz", *arguments)[1])["robust_accuracy"]
    )


def test_show_says_what_the_labels_of_a_folder_mean(brinell: Any, tmp_path: Path) -> None:
    for name in ("bag", "Tshirt"):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("L", (4, 3)).save(tmp_path / "images" / name / "0.png")
    code, out, _ = brinell("data", "show", f"{tmp_path / 'images'},mode=L", width=100)
    assert code == 0 and "0 Tshirt, 1 bag" in out and "1 × 3 × 4" in out
    assert brinell("data", "show", f"folder:{tmp_path / 'images'},mode=L", width=100).out == out
    assert "no file or folder has this name" in brinell("data", "show", "nosuch", width=400).err
    code, _, err = brinell("data", "check", str(tmp_path / "images"), width=200)
    assert code == 2 and "brinell data show" in err
