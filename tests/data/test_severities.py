"""What grows with severity, on natural-like, real and grey images; and what, by its published constants, does not."""

from itertools import pairwise

import pytest
import torch

from brinell.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from brinell.data.demo import demo

pytestmark = pytest.mark.usefixtures("unchecked")

# Published constants that do not ask for more at every step: glass, motion and elastic trade one constant for another,
# frost dims the image while the ice grows, spatter turns from water to mud, saturate from less colour to more.
UNSTEADY = {"glass_blur", "motion_blur", "elastic_transform", "frost", "spatter", "saturate"}
# Of the constants for large images: snow becomes larger flakes instead of more, fog rougher instead of thicker.
LARGE = UNSTEADY | {"snow", "fog"}
# The affine map of the elastic transform even shrinks: images are moved less and torn more.
SHRINKING = "elastic_transform"


@pytest.fixture(scope="module", params=["synthetic", "cifar", "demo"])
def pictures(request, load_pictures):
    if request.param == "synthetic":
        return load_pictures.synthetic(16)
    if request.param == "demo":
        return demo()[0][:16]
    return load_pictures.cifar(request.getfixturevalue("shared"), 16)


def differences(x, name):
    return [corrupt(x, name, s, range(len(x))) - x for s in SEVERITIES]


def means(parts):
    return [float(d.abs().mean()) for d in parts]


def bands(difference):
    """Power of the difference in low, middle and high frequencies, per value."""
    h, w = difference.shape[2:]
    power = torch.fft.fft2(difference.double()).abs() ** 2 / (h * w)
    f = (torch.fft.fftfreq(h)[:, None] ** 2 + torch.fft.fftfreq(w) ** 2).sqrt()
    return [float(power[..., (f >= low) & (f < high)].mean()) for low, high in pairwise((0.0, 0.125, 0.25, 1.0))]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_difference_and_spectrum_grow_with_severity(name, pictures):
    found = differences(pictures, name)
    if name == SHRINKING:
        assert means(found)[0] > means(found)[-1] > 0
        return
    if name not in UNSTEADY:
        assert means(found)[0] > 0 and all(b > a for a, b in pairwise(means(found))), means(found)
    grey_kept = name == "saturate" and pictures.shape[1] == 1
    assert grey_kept or all(b > a for a, b in zip(bands(found[0]), bands(found[-1]), strict=True))


@pytest.mark.parametrize("name", [n for n in CORRUPTIONS if n not in LARGE])
def test_so_it_does_for_large_images(name, load_pictures):
    found = means(differences(load_pictures.synthetic(3, 72), name))
    assert all(b > a for a, b in pairwise(found)), found


def test_saturation_leaves_grey_images_to_three_severities():
    x = demo()[0][:4]
    parts = means(differences(x, "saturate"))
    assert parts[:3] == [0, 0, 0] and 0 < parts[3] < parts[4]
