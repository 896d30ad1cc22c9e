"""Every corruption does what its definition says, and depends on nothing but seed, id, name and severity."""

import colorsys
import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from brinell.core.dataset import Problem
from brinell.data.catalogue import IMAGENET_C
from brinell.data.corruptions import (
    COMMON,
    CORRUPTIONS,
    EXTRA,
    SEVERITIES,
    blur,
    corrupt,
    corrupted,
    digital,
    image_ops,
    weather,
)
from brinell.data.corruptions.frost import PICTURES, _pictures
from brinell.errors import InputError, PlanError
from brinell.ops import rng

pytestmark = pytest.mark.usefixtures("unchecked")


def keys(n):
    return rng.keys(3, torch.arange(n))


def grey(n, size=32, value=0.5, channels=3):
    return torch.full((n, channels, size, size), value)


@pytest.fixture(scope="module")
def pictures(load_pictures):
    return load_pictures.synthetic(12)


def exact(x, name, severity, ids=None):
    return corrupt(x, name, severity, range(len(x)) if ids is None else ids, eight_bit=False)


# ------------------------------------------------------------------------------------------------------------ registry


def test_fifteen_common_and_four_extra():
    assert len(COMMON) == 15 and len(EXTRA) == 4 and (*COMMON, *EXTRA) == tuple(CORRUPTIONS)
    assert set(EXTRA) == {"speckle_noise", "gaussian_blur", "spatter", "saturate"}
    # As in the paper's table, and as the archives of ImageNet-C are cut: brightness is weather.
    families = {f: tuple(c.name for c in CORRUPTIONS.values() if c.family == f and c.common) for f in IMAGENET_C}
    assert families == {f: names for f, (_, names) in IMAGENET_C.items()} and "brightness" in families["weather"]


def test_constants_are_chosen_by_the_shorter_side():
    noise = CORRUPTIONS["gaussian_noise"]
    assert noise.constants(1, 32) == (0.04,) and noise.constants(1, 64) == (0.04,) and noise.constants(5, 65) == (0.38,)
    large = exact(grey(1, 80), "gaussian_noise", 5) - 0.5
    assert float((large.clamp(-0.4, 0.4)).std()) > 0.2


@pytest.mark.parametrize(
    ("x", "name", "severity", "ids", "error"),
    [
        (torch.rand(2, 3, 32, 32), "fogg", 1, [0, 1], PlanError),
        (torch.rand(2, 3, 32, 32), "fog", 6, [0, 1], PlanError),
        (torch.rand(2, 3, 32, 32), "fog", 1, [0], InputError),
        (torch.rand(2, 2, 32, 32), "fog", 1, [0, 1], InputError),
        (torch.rand(2, 3 * 32 * 32), "fog", 1, [0, 1], InputError),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "fog", 1, [0, 1], InputError),
    ],
)
def test_what_makes_no_sense_is_refused(x, name, severity, ids, error):
    with pytest.raises(error):
        corrupt(x, name, severity, ids)


# --------------------------------------------------------------------------------------------------- all of them alike


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(("size", "channels"), [((32, 32), 3), ((28, 28), 1), ((70, 83), 3)])
def test_the_batch_and_its_order_change_nothing(name, size, channels, load_pictures):
    x = load_pictures.synthetic(7, max(size))[:, :channels, : size[0], : size[1]]
    ids = torch.tensor([4, 9, 2, 100, 7, 55, 1])
    severity = 4 if name != "spatter" else 3
    whole = corrupt(x, name, severity, ids)
    assert whole.shape == x.shape and whole.dtype == torch.float32 and not torch.equal(whole, x)
    order = torch.tensor([5, 0, 3, 1, 6, 4, 2])
    assert torch.equal(corrupt(x[order], name, severity, ids[order]), whole[order])
    apart = [corrupt(x[i : i + 3], name, severity, ids[i : i + 3]) for i in (0, 3, 6)]
    assert torch.equal(torch.cat(apart), whole)
    assert torch.equal(corrupt(x[3:4], name, severity, [100]), whole[3:4])


RANDOM = [n for n in CORRUPTIONS if n not in (
    "defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur", "saturate",
)]  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_seed_and_id_decide_the_noise(name, pictures):
    x, s = pictures[:1], 5
    one = corrupt(x, name, s, [1], seed=0)
    assert torch.equal(one, corrupt(x, name, s, [1], seed=0))
    assert not torch.equal(one, corrupt(x, name, s, [2], seed=0))
    assert not torch.equal(one, corrupt(x, name, s, [1], seed=1))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_results_have_256_levels(name, pictures):
    y = corrupt(pictures[:2], name, 2, [0, 1])
    assert torch.equal((y * 255).round() / 255, y) and float(y.min()) >= 0 and float(y.max()) <= 1
    free = exact(pictures[:2], name, 2)
    assert float((free - y).min()) > -1e-5 and float((free - y).max()) < 1 / 255


def test_levels_of_whole_numbers_stay():
    k = torch.arange(256.0)
    assert torch.equal(image_ops.truncated(k / 255), k) and torch.equal(image_ops.truncated((k + 0.99) / 255), k)


class OneDevice(TorchDispatchMode):
    """No operation but a copy may see tensors of two devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.ndim]
        assert len({t.device for t in given}) < 2 or "copy" in func.name(), func.name()
        return func(*args, **(kwargs or {}))


def test_two_devices_are_noticed():
    with OneDevice(), pytest.raises(AssertionError, match="aten::mm"):
        torch.empty(3, 3, device="meta") @ torch.ones(3, 3)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 70, 80)])
def test_everything_happens_where_the_images_are(name, shape):
    """On a device without numbers, so that none but the CPU is needed."""
    x, ids = torch.empty(2, *shape, device="meta"), torch.empty(2, dtype=torch.long, device="meta")
    for severity in (3, 5):
        with OneDevice():
            y = corrupt(x, name, severity, ids)
        assert y.device.type == "meta" and y.shape == x.shape


@pytest.mark.gpu
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_gpu_gives_the_same_images(name, pictures):
    for x in (pictures, pictures[:, :1]):
        cpu, gpu = corrupt(x, name, 5, range(len(x))), corrupt(x.cuda(), name, 5, range(len(x))).cpu()
        assert float((cpu != gpu).float().mean()) < 1e-4 and float((cpu - gpu).abs().max()) < 1.5 / 255


# --------------------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise_is_added_with_its_variance(severity):
    c = CORRUPTIONS["gaussian_noise"].small[severity - 1][0]
    noise = (exact(grey(40), "gaussian_noise", severity) - 0.5).double() / c
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 / n**0.5 and abs(float(noise.var()) - 1) < 5 * (2 / n) ** 0.5
    assert stats.kstest(noise.flatten()[:20000].numpy(), "norm").pvalue > 1e-4
    dark = exact(grey(40, value=0.25), "gaussian_noise", severity)
    key = rng.fold(rng.fold(rng.keys(0, torch.arange(40)), rng.digest("gaussian_noise")), severity)
    assert torch.equal(dark, (0.25 + c * rng.normal(key, (3, 32, 32))).clamp(0, 1))


def test_speckle_noise_grows_with_the_value():
    for value in (0.2, 0.4):
        noise = exact(grey(40, value=value), "speckle_noise", 3) / value - 1
        assert abs(float(noise.double().var()) / 0.12**2 - 1) < 5 * (2 / noise.numel()) ** 0.5
    assert float(exact(grey(2, value=0.0), "speckle_noise", 5).max()) == 0


@pytest.mark.parametrize(("severity", "level"), [(1, 128), (5, 20), (3, 200)])
def test_shot_noise_is_poisson(severity, level):
    photons = CORRUPTIONS["shot_noise"].small[severity - 1][0]
    count = (exact(grey(40, value=level / 255), "shot_noise", severity) * photons).double()
    assert float((count - count.round()).abs().max()) < 1e-3
    law, n = stats.poisson(level / 255 * photons), count.numel()
    seen = count.round().long().flatten().numpy()
    assert abs(seen.mean() - law.mean()) < 5 * law.std() / n**0.5
    assert abs(seen.var() / law.var() - 1) < 5 * ((2 + 1 / law.var()) / n) ** 0.5
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 13)).astype(int))
    observed = np.histogram(seen, [-1, *(edges + 0.5), 10**6])[0]
    expected = np.diff([0, *law.cdf(edges), 1]) * n
    assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_shot_noise_leaves_black_black():
    assert float(exact(grey(2, value=0.0), "shot_noise", 5).max()) == 0


@pytest.mark.parametrize("severity", [1, 5])
def test_impulse_noise_strikes_its_share(severity):
    share = CORRUPTIONS["impulse_noise"].small[severity - 1][0]
    y = exact(grey(40), "impulse_noise", severity)
    n = y.numel()
    for value in (0.0, 1.0):
        hit = float((y == value).double().mean())
        assert abs(hit - share / 2) < 5 * (share / 2 / n) ** 0.5
    assert set(y.unique().tolist()) == {0.0, 0.5, 1.0}


# ---------------------------------------------------------------------------------------------------------------- blur


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_blur_is_a_gaussian_filter(severity, pictures):
    sigma = CORRUPTIONS["gaussian_blur"].small[severity - 1][0]
    truth = ndimage.gaussian_filter(pictures.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert np.abs(exact(pictures, "gaussian_blur", severity).numpy() - truth).max() < 1e-6


@pytest.mark.parametrize(("radius", "smooth"), [(3, 0.1), (10, 0.5), (8, 0.5), (0.3, 0.4), (1.5, 0.1)])
def test_defocus_blur_is_a_soft_disc(radius, smooth, pictures):
    grid = max(8, int(radius))
    disc = np.array(
        [[float(i * i + j * j <= radius**2) for j in range(-grid, grid + 1)] for i in range(-grid, grid + 1)]
    )
    reach = 1 if radius <= 8 else 2
    soft = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * smooth**2))
    soft = np.outer(soft, soft) / soft.sum() ** 2
    kernel = ndimage.correlate(disc / disc.sum(), soft, mode="mirror")
    x = pictures[:2]
    truth = ndimage.correlate(x.double().numpy(), kernel[None, None], mode="mirror")
    assert np.abs(blur.defocus_blur(x, keys(2), radius, smooth).numpy() - truth).max() < 1e-6


@pytest.mark.parametrize(("reach", "h", "w"), [(1, 32, 32), (2, 17, 20), (4, 24, 19)])
def test_glass_blur_equals_the_loop_over_pixels(reach, h, w):
    key = keys(3)
    jump = (rng.integers(key, 2 * reach, (2, h, w)) - reach).numpy()
    # Pixels as the published program has them, with a last axis for the channels: exchanging two such rows of an array
    # copies one over the other.
    truth = np.arange(h * w).reshape(1, h, w, 1).repeat(3, 0)
    for image, jumps in zip(truth, jump, strict=True):
        for i in range(h - reach, reach, -1):
            for j in range(w - reach, reach, -1):
                k, l = i + jumps[0, i, j], j + jumps[1, i, j]
                image[i, j], image[k, l] = image[k, l], image[i, j]
    assert np.array_equal(blur._sources(key, h, w, reach).numpy(), truth[..., 0])


def test_motion_blur_draws_half_a_bell_along_the_ray():
    x = torch.zeros(4, 1, 33, 33)
    x[:, :, 16, 16] = 1
    angle = torch.tensor([0.0, 90.0, 180.0, 45.0])
    y = image_ops.streaked(x, angle, 5, 2.0)
    weights = np.exp(-(np.arange(11) ** 2) / 8.0)
    weights /= weights.sum()
    # What a pixel takes from a place i ahead is what that place gives to the pixel i behind.
    for b, (dy, dx) in enumerate([(0, -1), (-1, 0), (0, 1)]):
        seen = [float(y[b, 0, 16 + i * dy, 16 + i * dx]) for i in range(11)]
        assert np.allclose(seen, weights, atol=1e-6)
    diagonal = np.zeros(8)
    for j, weight in enumerate(weights):
        diagonal[math.ceil(j * 0.5**0.5 - 0.5)] += weight
    assert np.allclose([float(y[3, 0, 16 - i, 16 - i]) for i in range(8)], diagonal, atol=1e-6)
    assert torch.allclose(y.sum((1, 2, 3)), torch.ones(4), atol=1e-6)


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("size", [32, 80])
def test_zoom_blur_is_the_mean_of_enlargements(severity, size, load_pictures):
    x = load_pictures.synthetic(2, size)
    most, step = CORRUPTIONS["zoom_blur"].constants(severity, size)
    total, factors = x.double().numpy(), np.arange(1, most, step)
    for factor in factors:
        cut = int(np.ceil(size / factor))
        top = (size - cut) // 2
        big = ndimage.zoom(x.double().numpy()[:, :, top : top + cut, top : top + cut], (1, 1, factor, factor), order=1)
        trim = (big.shape[2] - size) // 2
        total = total + big[:, :, trim : trim + size, trim : trim + size]
    assert np.abs(exact(x, "zoom_blur", severity).numpy() - total / (len(factors) + 1)).max() < 1e-6


# ------------------------------------------------------------------------------------------------------------- weather


def test_clouds_are_made_by_midpoints():
    key, size, decay = keys(1), 16, 2.0
    field, step, wibble, level = np.zeros((size, size)), size, 100.0, 0
    while step >= 2:
        half = step // 2
        for turn, (top, left) in enumerate(((half, half), (0, half), (half, 0))):
            noise = 2 * rng.uniform(rng.fold(key, 3 * level + turn), (size // step, size // step))[0].double() - 1
            square, diamond = [(1, 1), (1, -1), (-1, 1), (-1, -1)], [(1, 0), (-1, 0), (0, 1), (0, -1)]
            ways = [(half * a, half * b) for a, b in (square if turn == 0 else diamond)]
            new = field.copy()
            for i, row in enumerate(range(top, size, step)):
                for j, column in enumerate(range(left, size, step)):
                    corners = [field[(row + a) % size, (column + b) % size] for a, b in ways]
                    new[row, column] = np.mean(corners) + wibble**2 * float(noise[i, j])
            field = new
        step, wibble, level = half, wibble / decay, level + 1
    field = (field - field.min()) / (field.max() - field.min())
    assert np.abs(weather.clouds(key, size, decay)[0].numpy() - field).max() < 1e-5


def test_fog_adds_the_same_clouds_to_every_channel_and_keeps_the_brightest_value():
    x = grey(3, value=0.25)
    x[:, :, :4] = 0.5
    amount = CORRUPTIONS["fog"].small[2][0]
    cloud = exact(x, "fog", 3) * (0.5 + amount) / 0.5 - x
    assert float((cloud - cloud[:, :1]).abs().max()) < 1e-6
    assert torch.allclose(cloud.amin((1, 2, 3)), torch.zeros(3), atol=1e-6)
    assert torch.allclose(cloud.amax((1, 2, 3)), torch.full((3,), amount), atol=1e-5)


def test_frost_lays_one_picture_over_any_image(pictures):
    clear, ice = CORRUPTIONS["frost"].small[4]
    key = keys(12)
    laid = [(weather.frost(x, key, clear, ice) - clear * x) / ice for x in (pictures, grey(12))]
    assert torch.allclose(laid[0], laid[1], atol=1e-6)
    assert float(laid[0].min()) >= 0 and float(laid[0].max()) <= 1 + 1e-6 and float(laid[0].std()) > 0.1
    assert torch.allclose(laid[0][:, 0] / laid[0][:, 2], torch.tensor(0.88), atol=1e-4)
    alone = weather.frost(pictures[:, :1], key, 0.0, 1.0)
    assert torch.allclose(alone, image_ops.luma(weather.frost(pictures, key, 0.0, 1.0)), atol=1e-6)


def test_frost_pictures_differ_and_span_dark_to_bright():
    all_of_them = _pictures(False)
    assert len(all_of_them) == PICTURES and len({tuple(p.flatten()[::5000].tolist()) for p in all_of_them}) == PICTURES
    for p in all_of_them:
        low, high = (float(p.quantile(q)) for q in (0.05, 0.95))
        assert low < 0.2 and high > 0.7 and 0.3 < float(p.mean()) < 0.65


def test_frost_reaches_beyond_a_picture():
    assert exact(grey(1, 600, channels=1), "frost", 1).shape == (1, 1, 600, 600)


def test_snow_only_brightens_and_is_turned_upside_down():
    x = grey(4, value=0.0)
    keep = CORRUPTIONS["snow"].small[0][-1]
    flakes = exact(x, "snow", 1) - (1 - keep) * 0.5
    assert torch.allclose(flakes, flakes.flip(2, 3), atol=1e-6) and float(flakes.min()) > -1e-6
    assert float(flakes.max()) > 0.05 and float((flakes - flakes[:, :1]).abs().max()) < 1e-6


def test_snow_whitens_by_its_definition(pictures):
    """Without flakes (a threshold above any of them) only the whitening is left."""
    y = weather.snow(pictures, keys(12), 0.0, 0.1, 1.5, 9.0, 4, 2.0, 0.7).double().numpy()
    x = pictures.double().numpy()
    luma = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    assert np.abs(y - (0.7 * x + 0.3 * np.maximum(x, 1.5 * luma + 0.5))).max() < 1e-6


def test_water_brightens_and_mud_covers():
    x = grey(6, value=0.4)
    assert float((exact(x, "spatter", 3) - x).min()) >= 0 and float((exact(x, "spatter", 3) - x).max()) > 0.3
    cover = (x - exact(x, "spatter", 5)) / (0.4 - torch.tensor(weather.MUD)[:, None, None])
    assert float((cover - cover[:, :1]).abs().max()) < 1e-5
    assert set((cover[cover < 0.79] * 1e4).round().abs().tolist()) == {0.0} and float(cover.max()) > 0.8


def test_water_scales_to_the_given_amount_and_tint():
    y = weather.spatter(torch.zeros(5, 3, 32, 32), keys(5), 0.65, 0.3, 1.0, 0.69, 0.5, 0)
    assert torch.allclose(y.amax((2, 3)), 0.5 * torch.tensor(weather.WATER).expand(5, 3), atol=1e-6)


def test_distances_to_edges_are_euclidean():
    edges = rng.uniform(keys(3), (1, 40, 33)) < 0.01
    truth = np.stack([ndimage.distance_transform_edt(~e) for e in edges[:, 0].numpy()])
    found = weather._distance(edges)[:, 0].clamp(max=20).numpy()
    assert np.abs(found - np.minimum(truth, 20)).max() < 1e-5


def test_edges_are_found_where_a_drop_begins():
    x = torch.zeros(1, 1, 32, 32)
    x[:, :, 8:20, 10:25] = 200
    edges = weather._edges(x)[0, 0]
    inside, outside = edges[10:18, 12:23], edges[:6]
    assert not inside.any() and not outside.any()
    assert edges[7:9, 12:23].any(0).all() and edges[19:21, 12:23].any(0).all()
    assert (edges[10:18].sum(1) == 2).all(), "one pixel on each side"


def test_equalised_levels_are_equally_frequent():
    levels = (rng.uniform(keys(2), (1, 64, 64)) ** 2 * 20).floor()
    found = weather._equalised(levels)
    for before, after in zip(levels.numpy(), found.numpy(), strict=True):
        count = np.bincount(before.astype(int).ravel(), minlength=256).cumsum()
        first = count[count > 0][0]
        table = np.floor((count - first) / (before.size - first) * 255 + 0.5)
        assert np.array_equal(table[before.astype(int)], after)


# ------------------------------------------------------------------------------------------------------------- digital


def by_pixel(x, change):
    """A function of one pixel in hue, saturation, value applied to every pixel, by the standard library."""
    out = np.empty(x.shape)
    for b, row, column in np.ndindex(x.shape[0], *x.shape[2:]):
        h, s, v = colorsys.rgb_to_hsv(*x[b, :, row, column].double().tolist())
        out[b, :, row, column] = colorsys.hsv_to_rgb(*change(h, s, v))
    return out


@pytest.mark.parametrize("severity", [1, 5])
def test_brightness_adds_to_the_value(severity, pictures):
    more = CORRUPTIONS["brightness"].small[severity - 1][0]
    x = pictures[:2].clone()
    x[0, :, 0] = 0.0
    truth = by_pixel(x, lambda h, s, v: (h, s, min(v + more, 1)))
    assert np.abs(exact(x, "brightness", severity).numpy() - truth).max() < 1e-6
    alone = exact(x[:, :1], "brightness", severity)
    assert torch.allclose(alone, (x[:, :1] + more).clamp(max=1), atol=1e-6)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate_changes_the_saturation(severity, pictures):
    factor, more = CORRUPTIONS["saturate"].small[severity - 1]
    x = pictures[:1].clone()
    x[0, :, 0] = 0.3
    x[0, :, 1] = 0.0
    truth = by_pixel(x, lambda h, s, v: (h, min(s * factor + more, 1), v))
    assert np.abs(exact(x, "saturate", severity).numpy() - truth).max() < 1e-6


@pytest.mark.parametrize("severity", [1, 5])
def test_contrast_draws_to_the_mean(severity, pictures):
    factor, x = CORRUPTIONS["contrast"].small[severity - 1][0], pictures.double().numpy()
    mean = x.mean((2, 3), keepdims=True)
    truth = np.clip((x - mean) * factor + mean, 0, 1)
    assert np.abs(exact(pictures, "contrast", severity).numpy() - truth).max() < 1e-6


def test_no_displacement_is_no_change(pictures):
    assert torch.allclose(digital.elastic_transform(pictures, keys(12), 0.0, 0.0, 0.0), pictures, atol=1e-6)


def test_displacements_are_smoothed_noise(pictures):
    key, side = keys(12), 32
    noise = 2 * rng.uniform(rng.fold(key, 2), (2, 32, 32)).double().numpy() - 1
    shift = ndimage.gaussian_filter(noise, (0, 0, 0.06 * side, 0.06 * side), mode="reflect", truncate=3) * 0.08 * side
    found = digital.elastic_transform(pictures, key, 0.08, 0.06, 0.0).numpy()
    rows, columns = np.mgrid[:32, :32]
    for b in range(12):
        for c in range(3):
            at = [rows + shift[b, 0], columns + shift[b, 1]]
            truth = ndimage.map_coordinates(pictures[b, c].double().numpy(), at, order=1, mode="reflect")
            assert np.abs(found[b, c] - truth).max() < 1e-4


def test_the_affine_map_moves_three_points():
    key, h, w, most = keys(5), 40, 30, 3.0
    row, column = digital._affine_map(key, h, w, most)
    moves = (2 * rng.uniform(key, (3, 2)).double().numpy() - 1) * most
    before = np.array([[15, 20], [15, 20], [15, 20]]) + 10 * np.array([[1, 1], [1, -1], [-1, -1]])
    for b in range(5):
        # Affine: columns and rows of the source are linear in those of the result.
        places = np.stack([np.ones(h * w), *(v.ravel() for v in np.mgrid[:h, :w])], 1)
        source = np.stack([column[b].numpy().ravel(), row[b].numpy().ravel()], 1)
        fit, *_ = np.linalg.lstsq(places, source, rcond=None)
        assert np.abs(places @ fit - source).max() < 1e-4
        after = before + moves[b]
        assert np.abs(np.stack([np.ones(3), after[:, 1], after[:, 0]], 1) @ fit - before).max() < 1e-4


# ------------------------------------------------------------------------------------------------------------ problems


def test_a_corrupted_problem_is_read_as_it_is_needed(pictures):
    problem = Problem(pictures, torch.arange(12), ids=range(100, 112), name="some")
    made = corrupted(problem, "snow", 3, seed=4)
    assert made.streamed and made.name == "some, snow 3" and len(made) == 12
    truth = corrupt(pictures, "snow", 3, range(100, 112), 4)
    for part, wanted in ((made, slice(None)), (made[3:9], slice(3, 9)), (made[1::3], slice(1, None, 3))):
        for size in (4, 5, 100):
            chunks = list(part.chunks(size))
            assert torch.equal(torch.cat([c.x for c in chunks]), truth[wanted])
            assert torch.cat([c.ids for c in chunks]).tolist() == list(range(100, 112))[wanted]
            assert torch.cat([c.y for c in chunks]).tolist() == list(range(12))[wanted]


@pytest.mark.parametrize("loader", [False, True])
def test_streams_can_be_corrupted(loader, pictures):
    data = TensorDataset(pictures, torch.arange(12))
    problem = Problem(DataLoader(data, batch_size=5) if loader else data)
    found = next(corrupted(problem, "fog", 2).chunks(12))
    assert torch.equal(found.x, corrupt(pictures, "fog", 2, range(12))) and found.ids.tolist() == list(range(12))


def test_a_wrong_name_is_refused_before_reading(pictures):
    with pytest.raises(PlanError, match="fog"):
        corrupted(Problem(pictures, torch.arange(12)), "fogs", 1)
