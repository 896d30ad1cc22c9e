"""Images in a report are the stored adversarials, beside the right originals."""

import base64
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.report.conftest import Images, make_images

from brinell.errors import InputError
from brinell.report.charts.png import png
from brinell.report.examples import LARGEST, adversarial_examples
from brinell.report.outcomes import sample_outcomes
from brinell.results import Run


def decode(data: bytes) -> np.ndarray:
    """A reader of its own, for the two filters that are written."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        parts[kind], at = body, at + 12 + size
    wide, high, depth, colour = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3}[colour]
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(high, 1 + wide * channels)
    image = lines[:, 1:].reshape(high, wide, channels).copy()
    for row, line in zip(image, lines, strict=True):
        if line[0] == 1:
            row[:] = np.cumsum(row.astype(np.int64), 0) % 256
    return image


def image(uri: str) -> np.ndarray:
    return decode(base64.b64decode(uri.partition(",")[2]))


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (28, 28, 1)])
def test_png_holds_every_pixel(shape: tuple[int, int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    smooth = np.broadcast_to(np.arange(shape[1], dtype=np.uint8)[None, :, None], shape).copy()
    for pixels in (noise, smooth):
        assert np.array_equal(decode(png(pixels)), pixels)


def test_png_is_what_others_read() -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(png(pixels)))), pixels)


def test_pictures_are_the_stored_adversarials(run: Run, images: Images) -> None:
    found = run.adversarials()
    shown = adversarial_examples(run, sample_outcomes(run), images)
    pictures = [p for _, _, group in shown.groups for p in group]
    assert len(pictures) == len({p.sample for p in pictures}) == 12
    for p in pictures:
        x = found.x[found.ids.tolist().index(p.sample)]
        assert np.array_equal(image(p.adversarial)[..., 0], (x[0] * 255).round().astype(np.uint8))
        original = images.x[p.sample]
        assert np.array_equal(image(p.original)[..., 0], (original[0] * 255).round().astype(np.uint8))
        assert p.amplified == pytest.approx(0.5 / np.abs(x - original).max())
        sign = np.sign(x - original)[0]
        difference = image(p.difference)[..., 0]
        assert (difference[sign > 0] > 127).all() and (difference[sign < 0] < 128).all()
    assert shown.note == ""


def test_without_data_the_note_says_how_to_get_originals(run: Run) -> None:
    shown = adversarial_examples(run, sample_outcomes(run))
    assert all(p.adversarial and not p.original for _, _, group in shown.groups for p in group)
    assert "--data" in shown.note


def test_the_easiest_fell_first_and_the_hardest_last(run: Run) -> None:
    (_, _, easy), (_, _, hard), _ = adversarial_examples(run, sample_outcomes(run)).groups
    assert {p.attack for p in easy} == {"first"}
    assert {p.attack for p in hard} == {"third"}
    assert [p.passes for p in easy] == sorted(p.passes or 0 for p in easy)


def test_other_data_is_refused(run: Run, images: Images) -> None:
    with pytest.raises(InputError, match="another input with the id"):
        adversarial_examples(run, sample_outcomes(run), Images(1 - images.x))


def test_large_images_are_averaged_down(make: Callable[..., Run], tmp_path: Path) -> None:
    images = make_images(20, (3, 2 * LARGEST, 2 * LARGEST))
    run = make(tmp_path / "run", images)
    shown = adversarial_examples(run, sample_outcomes(run), images, each=1)
    picture = shown.groups[0][2][0]
    x = images.x[picture.sample].reshape(3, LARGEST, 2, LARGEST, 2).mean((2, 4))
    assert np.array_equal(image(picture.original), (x * 255).round().astype(np.uint8).transpose(1, 2, 0))
    assert "averaged" in shown.note


def test_no_more_than_fits(make: Callable[..., Run], tmp_path: Path) -> None:
    images = make_images(50, (3, 64, 64))
    run = make(tmp_path / "run", images)
    everything = sum(
        p.bytes for _, _, group in adversarial_examples(run, sample_outcomes(run), images).groups for p in group
    )
    part = adversarial_examples(run, sample_outcomes(run), images, room=everything // 2).groups
    assert 0 < sum(p.bytes for _, _, group in part for p in group) <= everything // 2


def test_what_is_no_image_is_not_shown(make: Callable[..., Run], tmp_path: Path) -> None:
    images = Images(np.random.default_rng(0).random((20, 6), dtype=np.float32))
    shown = adversarial_examples(make(tmp_path / "run", images), sample_outcomes(Run.open(tmp_path / "run")), images)
    assert shown.groups == ()
    assert "not images" in shown.note
