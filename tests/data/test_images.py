"""Pictures become points as the benchmark makes them: sizes, crops and labels against the truth."""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from published import imagenet, pixels
from torch import nn

import brinell
from brinell import InputError, MissingExtra
from brinell.data import PREPROCESSINGS, Preprocessing, load
from brinell.data.image_folders import (
    LIST_DIGEST,
    Images,
    center_box,
    is_robustbench_list,
    preprocessing,
    resized_shape,
)


def read(tmp_path: Path, values: Any, steps: str | Preprocessing) -> Any:
    """The picture after preprocessing, (height, width, 3) in bytes."""
    Image.fromarray(values).save(tmp_path / "a.png")
    x, y = Images([tmp_path / "a.png"], [7], preprocessing(steps))[0]
    assert y == 7 and x.dtype == torch.float32 and float(x.min()) >= 0 and float(x.max()) <= 1
    whole = (x * 255).round()
    assert torch.equal(whole / 255, x)
    return whole.byte().permute(1, 2, 0).numpy()


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (100, 999), (257, 256), (1, 7)])
def test_the_shorter_side_gets_the_length(size: tuple[int, int]) -> None:
    width, height = resized_shape(size, 256)
    assert min(width, height) == 256
    # int(256 · long / short), as torchvision computes it.
    assert max(width, height) == int(256 * max(size) / min(size))
    assert (width <= height) == (size[0] <= size[1])
    assert resized_shape(size, None) == size and resized_shape(size, (224, 100)) == (100, 224)


def test_nothing_is_done_without_preprocessing(tmp_path: Path) -> None:
    values = pixels(0, 30, 50, 3)
    assert np.array_equal(read(tmp_path, values, "none"), values)


def test_the_middle_is_cut_out(tmp_path: Path) -> None:
    values = pixels(1, 300, 401, 3)
    # (401 - 288) / 2 = 56.5, and half rounds to even.
    assert np.array_equal(read(tmp_path, values, "Crop288"), values[6:294, 56:344])
    values = pixels(1, 256, 256, 3)
    assert np.array_equal(read(tmp_path, values, "Res256Crop224"), values[16:240, 16:240])
    assert np.array_equal(read(tmp_path, values, "BicubicRes256Crop224"), values[16:240, 16:240])


def test_a_smaller_picture_is_framed_in_black(tmp_path: Path) -> None:
    values = pixels(2, 287, 400, 3)
    wanted = np.zeros((288, 288, 3), np.uint8)
    wanted[:287] = values[:, 56:344]  # the odd row is added at the bottom
    assert np.array_equal(read(tmp_path, values, "Crop288"), wanted)
    values = pixels(2, 100, 103, 3)
    wanted = np.zeros((288, 288, 3), np.uint8)
    wanted[94:194, 92:195] = values
    assert np.array_equal(read(tmp_path, values, "Crop288"), wanted)
    assert center_box((100, 103), 288) == (-94, -92, 194, 196)


@pytest.mark.parametrize("name", [n for n in PREPROCESSINGS if n not in ("none", "Crop288")])
def test_a_picture_of_one_colour_keeps_it(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, np.full((301, 477, 3), (12, 200, 255), np.uint8), name)
    side = 32 if name == "Res32" else 224
    assert found.shape == (side, side, 3) and (found == (12, 200, 255)).all()


def test_interpolations(tmp_path: Path) -> None:
    """Against Pillow's own resizing, with the sizes written out."""
    values = pixels(3, 375, 500, 3)
    for name, kind in (("Res256Crop224", 2), ("BicubicRes256Crop224", 3)):
        wanted = np.asarray(Image.fromarray(values).resize((341, 256), kind))[16:240, 58:282]
        assert np.array_equal(read(tmp_path, values, name), wanted)
    wanted = np.asarray(Image.fromarray(values).resize((224, 224), 2))
    assert np.array_equal(read(tmp_path, values, "Res224"), wanted)
    lanczos = Preprocessing(resize=(10, 20), interpolation="lanczos")
    assert np.array_equal(read(tmp_path, values, lanczos), np.asarray(Image.fromarray(values).resize((20, 10), 1)))


def test_grey_and_transparent_pictures_become_colours(tmp_path: Path) -> None:
    grey = pixels(4, 8, 8)
    assert np.array_equal(read(tmp_path, grey, "none"), np.repeat(grey[..., None], 3, axis=2))
    assert np.array_equal(read(tmp_path, pixels(4, 8, 8, 4), "none"), pixels(4, 8, 8, 4)[..., :3])
    assert np.array_equal(read(tmp_path, grey, Preprocessing(mode="L")), grey[..., None])


def test_pictures_of_16_bits_are_refused(tmp_path: Path) -> None:
    """Pillow would make every value above 255 white."""
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for mode in ("RGB", "L"):
        with pytest.raises(InputError, match="8 bits per channel"):
            read(tmp_path, deep, Preprocessing(mode=mode))


def test_a_folder_of_grey_pictures(tmp_path: Path) -> None:
    """Colours by default, as in torchvision; one channel on request. A model with one channel gets the hint."""
    grey = pixels(4, 8, 8)
    (tmp_path / "cat").mkdir()
    Image.fromarray(grey).save(tmp_path / "cat" / "0.png")
    assert load(tmp_path).shape() == (3, 8, 8)
    x, _ = load(tmp_path, mode="L")
    assert x.shape == (1, 1, 8, 8) and torch.equal(x[0, 0] * 255, torch.from_numpy(grey).float())
    with pytest.raises(brinell.ModelError, match="mode=L"):
        brinell.evaluate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).eval(), tmp_path, brinell.Linf(0.1))
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).eval()
    torch.nn.init.constant_(net[1].bias, 0).data[0] = 99
    with pytest.raises(brinell.ModelError, match="The labels are 0 cat"):
        brinell.evaluate(net, tmp_path, brinell.Linf(0.1), "fgsm", expected_clean_accuracy=0)
    with pytest.raises(InputError, match="one folder per class"):
        load(tmp_path / "cat")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of lossless pictures, one of them without any."""
    for i, path in enumerate(["cat/1.png", "cat/0.PNG", "ant/x.png", "emu/notes.txt"]):
        (tmp_path / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("txt"):
            (tmp_path / "pictures" / path).write_text("no picture")
        else:
            Image.fromarray(np.full((6, 5, 3), 50 * i, np.uint8)).save(tmp_path / "pictures" / path)
    return tmp_path / "pictures"


def test_a_folder_of_class_folders(folder: Path) -> None:
    problem = load(f"folder:{folder}")
    (chunk,) = problem.chunks(9)
    assert chunk.y.tolist() == [0, 1, 1] and problem.shape() == (3, 6, 5)
    assert (255 * chunk.x[:, 0, 0, 0]).round().tolist() == [100, 50, 0]
    assert problem.name == "pictures" and load(folder, preprocessing="Res224").shape() == (3, 224, 224)
    assert [c.y.tolist() for c in problem[1:].chunks(1)] == [[1], [1]]
    # Every folder is a class, also one without pictures.
    assert problem[1:].classes == ("ant", "cat", "emu") and "0 ant, 1 cat, 2 emu" in problem.notes[0]
    assert repr(problem) == "<Problem pictures, 3 samples read from Images, 3 classes>"
    with pytest.raises(AttributeError, match="x, y = problem"):
        _ = problem.y
    again = pickle.loads(pickle.dumps(problem))  # as workers get it
    assert torch.equal(next(again.chunks(9)).x, chunk.x)


def test_pictures_are_decoded_when_they_are_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, picture = [], Images._picture
    monkeypatch.setattr(Images, "_picture", lambda self, path: opened.append(path.name) or picture(self, path))
    problem = load(folder)
    assert len(problem) == 3 and opened == []
    next(problem[2:3].chunks(1))
    assert sorted(opened) == ["1.png", "x.png"]  # the wanted one, and the first for its size


def test_pictures_of_several_sizes_need_a_preprocessing(folder: Path) -> None:
    Image.fromarray(pixels(0, 9, 9, 3)).save(folder / "cat" / "2.png")
    with pytest.raises(InputError, match=r"9 x 9 in .*2\.png"):
        list(load(folder).chunks(9))
    assert len(next(load(folder, preprocessing="Res224").chunks(9))) == 4


def test_damaged_pictures_are_named(folder: Path) -> None:
    blob = (folder / "cat" / "1.png").read_bytes()
    (folder / "cat" / "1.png").write_bytes(blob[: len(blob) // 2])
    with pytest.raises(InputError, match=r"cat/1\.png"):
        list(load(folder).chunks(9))


def test_splits_are_no_classes(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / name / "cat").mkdir(parents=True)
    with pytest.raises(InputError, match="train, val"):
        load(tmp_path)


def test_labels_need_every_class_folder(tmp_path: Path) -> None:
    imagenet(tmp_path, {"n01440764/a.JPEG": pixels(0, 8, 8, 3)})
    assert len(load("imagenet", root=tmp_path)) == 1
    (tmp_path / "n02000500").rmdir()
    with pytest.raises(InputError, match=r"1000 class folders in .*, got 999"):
        load("imagenet", root=tmp_path)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "no lines"),
        ("cat/1.png\ncow/1.png", "cow/1.png"),
        ("1.png", "1.png"),
        ("cat/9.png\ncat/1.png", r"1 missing pictures, e\.g\. cat/9\.png"),
        ("../../cat/1.png", None),
    ],
)
def test_lists(lines: str, told: str | None, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(lines)
    if told is None:  # only the last two parts count: a list leads nowhere else
        assert next(load(folder, paths=tmp_path / "list.txt").chunks(3)).y.tolist() == [1]
        return
    with pytest.raises(InputError, match=told):
        load(folder, paths=tmp_path / "list.txt")


def test_a_list_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        load(folder, paths=tmp_path / "none.txt")
    (tmp_path / "other.txt").write_text("cat/1.png\n")
    assert len(LIST_DIGEST) == 64 and not is_robustbench_list(tmp_path / "other.txt")


def test_without_pillow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    problem = load(folder)
    with pytest.raises(MissingExtra, match=r"brinell\[images\]"):
        next(problem.chunks(1))
