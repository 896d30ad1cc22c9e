"""GTSRB, Tiny-ImageNet, CINIC-10, textures and HAR: small files in the layout of the published ones."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brinell.data import SETS, check, fetch, load
from brinell.errors import InputError

image = pytest.importorskip("PIL.Image", reason="needs pillow")
HEAD = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"


def picture(path: Path, value: int, size: tuple[int, int] = (32, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB", size, (value, 0, 255 - value)).save(path)


def signs(root: Path) -> None:
    for k, size in enumerate([(32, 32), (20, 30), (50, 41)]):
        picture(root / "GTSRB" / "Final_Test" / "Images" / f"{k:05}.ppm", 10 * k, size)
    lines = [HEAD, "00000.ppm;32;32;5;5;27;27;16", "00001.ppm;20;30;5;5;15;25;1", "00002.ppm;50;41;5;5;45;36;42"]
    (root / "GT-final_test.csv").write_text("\r\n".join(lines) + "\r\n")
    for c in range(43):
        folder = root / "GTSRB" / "Final_Training" / "Images" / f"{c:05}"
        picture(folder / "00000_00000.ppm", c)
        (folder / f"GT-{c:05}.csv").write_text(HEAD + "\n")


def test_traffic_signs(tmp_path: Path) -> None:
    signs(tmp_path)
    test = load("gtsrb", root=tmp_path)
    assert test.name == "gtsrb/Res32" and len(test) == 3 and test.shape() == (3, 32, 32)
    (chunk,) = test.chunks(10)
    assert chunk.y.tolist() == [16, 1, 42]
    np.testing.assert_allclose(chunk.x[2, 0].numpy(), 20 / 255)
    train = load("gtsrb", split="train", root=tmp_path)
    assert [c.y.tolist() for c in train.chunks(100)] == [list(range(43))]
    assert [part.trouble for part in check("gtsrb", tmp_path)] == [
        "3 images instead of 12,630",
        "43 images instead of 39,209",
    ]
    (tmp_path / "GTSRB" / "Final_Test" / "Images" / "00001.ppm").unlink()
    with pytest.raises(InputError, match=r"1 missing pictures, e\.g\. 00001\.ppm"):
        load("gtsrb", root=tmp_path)
    (tmp_path / "GT-final_test.csv").write_text("Filename,ClassId\n")
    (tmp_path / "GT-final_test.csv").write_text("Filename,ClassId\n00000.ppm,1\n")
    with pytest.raises(InputError, match="KeyError"):
        load("gtsrb", root=tmp_path)


def test_archives_that_share_a_folder_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two archives of pictures both hold a folder GTSRB."""
    made, mirror = tmp_path / "made", tmp_path / "mirror" / "data" / "gtsrb"
    signs(made)
    mirror.mkdir(parents=True)
    files = []
    for file in SETS["gtsrb"].files:
        with zipfile.ZipFile(mirror / file.name, "w") as packed:
            for path in sorted((made / file.holds[0]).rglob("*")) or [made / file.holds[0]]:
                packed.write(path, path.relative_to(made))
        digest = hashlib.md5((mirror / file.name).read_bytes(), usedforsecurity=False).hexdigest()
        files.append(type(file)(file.name, file.sources, f"md5:{digest}", file.holds))
    changed = {**vars(SETS["gtsrb"]), "files": tuple(files)}
    monkeypatch.setitem(SETS, "gtsrb", type(SETS["gtsrb"])(**changed))
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BRINELL_MIRROR", (tmp_path / "mirror").as_uri())
    monkeypatch.delenv("BRINELL_OFFLINE", raising=False)
    place = fetch("gtsrb")
    assert (place / "GTSRB" / "Final_Test").is_dir() and (place / "GTSRB" / "Final_Training").is_dir()
    assert len(load("gtsrb")) == 3 and len(load("gtsrb", split="train")) == 43


def tiny(root: Path) -> list[str]:
    names = [f"n{1443537 + k:08}" for k in range(200)]
    for k, name in enumerate(names):
        picture(root / "train" / name / "images" / f"{name}_0.JPEG", k, (64, 64))
        (root / "train" / name / f"{name}_boxes.txt").write_text("")
    for k in (0, 1):
        picture(root / "val" / "images" / f"val_{k}.JPEG", k, (64, 64))
    # In another order than that of the classes.
    lines = [f"val_{k % 2}.JPEG\t{name}\t0\t0\t62\t62" for k, name in enumerate(reversed(names))]
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return names


@pytest.mark.parametrize("inner", ["tiny-imagenet-200", "."])
def test_tiny_imagenet(inner: str, tmp_path: Path) -> None:
    names = tiny(tmp_path / inner)
    test = load("tiny-imagenet", 5, root=tmp_path)
    (chunk,) = test.chunks(10)
    assert chunk.y.tolist() == [199, 198, 197, 196, 195] and test.shape() == (3, 64, 64)
    (train,) = load("tiny-imagenet", split="train", root=tmp_path).chunks(1000)
    assert train.y.tolist() == list(range(200))
    (tmp_path / inner / "train" / names[3] / "images" / f"{names[3]}_0.JPEG").unlink()
    with pytest.raises(InputError, match="200 classes"):
        load("tiny-imagenet", split="train", root=tmp_path)
    (tmp_path / inner / "val" / "val_annotations.txt").write_text("one column\n")
    with pytest.raises(InputError, match=r"val_annotations\.txt"):
        load("tiny-imagenet", root=tmp_path)


def test_cinic(tmp_path: Path) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for k, name in enumerate(names):
        for split, times in (("test", 1), ("train", 2), ("valid", 1)):
            for j in range(times):
                picture(tmp_path / split / name / f"n{j}.png", 10 * k + j)
    (test,) = load("cinic10", root=tmp_path).chunks(100)
    # A label is the position in the sorted list, which is the order of CIFAR-10.
    assert test.y.tolist() == list(range(10)) and test.x.shape == (10, 3, 32, 32)
    np.testing.assert_allclose(test.x[3, 0].numpy(), 30 / 255)
    assert len(load("cinic10", split="train", root=tmp_path)) == 20
    assert len(load("cinic10", split="valid", root=tmp_path)) == 10
    assert check("cinic10", tmp_path)[0].trouble == "10 images instead of 90,000"
    (tmp_path / "test" / "cat" / "n0.png").unlink()
    (tmp_path / "test" / "cat").rmdir()
    with pytest.raises(InputError, match="10 class folders"):
        load("cinic10", root=tmp_path)


@pytest.mark.parametrize("inner", ["dtd", "."])
def test_textures(inner: str, tmp_path: Path) -> None:
    root = tmp_path / inner
    names = [f"texture{k:02}" for k in range(47)]
    for k, name in enumerate(names):
        for j in range(3):
            picture(root / "images" / name / f"{name}_{j}.jpg", 5 * k, (40 + k, 50))
    (root / "labels").mkdir()
    for j, split in enumerate(("train", "val", "test")):
        listed = [f"{name}/{name}_{j}.jpg\n" for name in reversed(names)]
        (root / "labels" / f"{split}1.txt").write_text("".join(listed))
    test = load("dtd", root=tmp_path)
    (chunk,) = test.chunks(100)
    assert chunk.y.tolist() == list(range(46, -1, -1)) and test.shape() == (3, 32, 32)
    assert len(load("dtd", split="all", root=tmp_path)) == 141
    large = load("dtd", 2, split="val", preprocessing="Res256Crop224", root=tmp_path)
    assert large.shape() == (3, 224, 224) and large.name == "dtd/val/Res256Crop224"
    (root / "labels" / "test1.txt").write_text("unknown/a.jpg\n")
    with pytest.raises(InputError, match=r"unknown/a\.jpg"):
        load("dtd", root=tmp_path)


def features(folder: Path, split: str, x: Any, y: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"X_{split}.txt").write_text("".join("  " + " ".join(f"{v: .7e}" for v in row) + "\n" for row in x))
    (folder / f"y_{split}.txt").write_text("".join(f"{v}\n" for v in y))


def test_activities(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 3 * 561).reshape(3, 561)
    for split in ("test", "train"):
        features(tmp_path / "UCI HAR Dataset" / split, split, x, [5, 1, 6])
    data = load("har", root=tmp_path)
    (chunk,) = data.chunks(10)
    assert chunk.y.tolist() == [4, 0, 5] and data.shape() == (561,)
    np.testing.assert_allclose(chunk.x.numpy(), (x + 1) / 2, atol=1e-6)
    assert float(chunk.x.min()) == 0 and float(chunk.x.max()) == 1
    features(tmp_path / "UCI HAR Dataset" / "test", "test", 2 * x, [5, 1, 6])
    with pytest.raises(InputError, match="from -1 to 1"):
        load("har", root=tmp_path)


def test_activities_are_put_in_place_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"archive\.ics\.uci\.edu.*UCI HAR Dataset/test"):
        load("har")
    with pytest.raises(InputError, match=r"archive\.ics\.uci\.edu"):
        fetch("har")
