"""JPEG and pixelation in torch give the very levels that the common codec and image library give."""

import io

import numpy as np
import pytest
import torch

from brinell.data.corruptions import corrupt
from brinell.data.corruptions.digital import box_matrix, pixelate
from brinell.data.corruptions.jpeg import CONSTANT, LUMINANCE, _cosines, _table, jpeg_compression

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def pillow():
    return pytest.importorskip("PIL.Image")


def levels(x):
    return (x * 255).round().byte()


def as_image(pillow, x):
    array = levels(x).permute(1, 2, 0).numpy()
    return pillow.fromarray(array if array.shape[2] == 3 else array[:, :, 0])


def back(image):
    array = np.array(image)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1)


def through_codec(pillow, x, quality):
    stream = io.BytesIO()
    as_image(pillow, x).save(stream, "JPEG", quality=quality)
    return back(pillow.open(stream))


@pytest.mark.parametrize("quality", [7, 40, 58, 80])
@pytest.mark.parametrize(("h", "w", "channels"), [(32, 32, 3), (28, 28, 1), (45, 39, 3), (24, 50, 3)])
def test_levels_agree_with_the_codec(quality, h, w, channels, pillow, load_pictures):
    x = load_pictures.synthetic(8, max(h, w))[:, :channels, :h, :w]
    x[-1] = torch.rand(channels, h, w, generator=torch.Generator().manual_seed(0))
    truth = torch.stack([through_codec(pillow, image, quality) for image in x]).int()
    off = (levels(jpeg_compression(x, torch.arange(8), quality)).int() - truth).abs()
    assert int(off.max()) == 0


def test_real_images_agree_with_the_codec(pillow, shared, load_pictures):
    x = load_pictures.cifar(shared, 50)
    truth = torch.stack([through_codec(pillow, image, 40) for image in x])
    assert torch.equal(levels(corrupt(x, "jpeg_compression", 5, range(50))), truth)


def test_the_integer_transform_is_the_cosine_transform():
    k, i = torch.arange(8.0)[:, None], torch.arange(8.0)
    truth = torch.cos((2 * i + 1) * k * torch.pi / 16) * torch.where(k == 0, 1.0, 2.0**0.5)
    assert float((_cosines() / 2**CONSTANT - truth).abs().max()) < 2e-4


def test_tables_scale_with_quality():
    assert torch.equal(_table(LUMINANCE, 50).long(), torch.tensor(LUMINANCE))
    assert float(_table(LUMINANCE, 100).max()) == 1 and float(_table(LUMINANCE, 1).max()) == 255
    assert _table(LUMINANCE, 25)[0, 0] == 32 and _table(LUMINANCE, 75)[0, :3].tolist() == [8, 6, 5]


def test_a_flat_image_survives():
    x = torch.full((1, 3, 16, 16), 128 / 255)
    assert torch.equal(levels(jpeg_compression(x, torch.arange(1), 7)), levels(x))


@pytest.mark.parametrize("share", [0.95, 0.9, 0.85, 0.75, 0.65, 0.4, 0.25])
@pytest.mark.parametrize(("h", "w", "channels"), [(32, 32, 3), (28, 33, 1)])
def test_pixelation_agrees_with_the_library(share, h, w, channels, pillow, load_pictures):
    x = load_pictures.synthetic(6, max(h, w))[:, :channels, :h, :w]
    box = pillow.Resampling.BOX
    truth = [
        back(as_image(pillow, image).resize((int(w * share), int(h * share)), box).resize((w, h), box)) for image in x
    ]
    assert torch.equal(levels(pixelate(x, torch.arange(6), share)), torch.stack(truth))


def test_boxes_are_means():
    assert box_matrix(6, 3).tolist() == [[0.5, 0.5, 0, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 0.5, 0.5]]
    assert box_matrix(2, 4).tolist() == [[1, 0], [1, 0], [0, 1], [0, 1]]
