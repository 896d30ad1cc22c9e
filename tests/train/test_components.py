"""Schedules, radii, augmentation, averages, initial weights, order and split: by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from brinell import InputError
from brinell.ops import rng
from brinell.train.average import WeightAverage, decay_at
from brinell.train.curve import Epoch, as_csv, best_epoch
from brinell.train.model import initialise
from brinell.train.recipe import Recipe
from brinell.train.samples import TrainingSamples, as_samples, augment, order, sample_keys, split
from brinell.train.schedule import multistep, one_cycle, radius

CPU = torch.device("cpu")


def noise(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return rng.uniform(rng.keys(seed, torch.arange(n)), shape)


# --------------------------------------------------------------------------------------------------------- schedules


def test_the_papers_schedule() -> None:
    """100 epochs of 391 steps: 0.1, from epoch 60 on 0.01, from epoch 90 on 0.001."""
    recipe, per = Recipe(), 391
    at = [recipe.lr_at(epoch * per, 100 * per) for epoch in (0, 59, 60, 89, 90, 99)]
    assert at == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert recipe.lr_at(60 * per - 1, 100 * per) == 0.1
    assert [multistep(s, 5) for s in range(5)] == pytest.approx([1, 1, 1, 0.1, 0.1])
    assert [multistep(s, 10) for s in (5, 6, 8, 9)] == pytest.approx([1, 0.1, 0.1, 0.01])


@pytest.mark.parametrize("anneal", ["cosine", "linear"])
@pytest.mark.parametrize("total", [10, 77, 1000])
def test_one_cycle_is_torchs(anneal: str, total: int) -> None:
    """Against torch's scheduler, whose shape it has: but nothing is stored here."""
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    strategy = {"cosine": "cos", "linear": "linear"}[anneal]
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.3, total_steps=total, anneal_strategy=strategy, cycle_momentum=False
    )
    for step in range(total):
        assert 0.3 * one_cycle(step, total, anneal) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimiser.step()
        if step + 1 < total:
            theirs.step()


def test_one_cycle_by_hand() -> None:
    assert one_cycle(0, 101, "linear") == pytest.approx(1 / 25)
    assert one_cycle(14, 100, "linear") == pytest.approx(1 / 25 + 24 / 25 * 14 / 29)
    assert one_cycle(29, 100, "linear") == 1.0
    assert one_cycle(64, 100, "cosine") == pytest.approx(0.5 * (1 + 1 / 250000))
    assert one_cycle(99, 100) == pytest.approx(1 / 250000)


@pytest.mark.parametrize("total", [1, 2, 3, 4])
def test_one_cycle_of_few_steps(total: int) -> None:
    assert all(0 < one_cycle(s, total) <= 1 for s in range(total))


def test_radius() -> None:
    assert [radius(0.1, s, 10, 2.0) for s in (0, 9, 19, 20, 500)] == pytest.approx([0.005, 0.05, 0.1, 0.1, 0.1])
    assert radius(0.1, 0, 10, 0.0) == 0.1
    assert radius(0.1, 0, 3, 0.1) == 0.1


def test_optimisers() -> None:
    net = nn.Linear(2, 2)
    sgd = Recipe(nesterov=True, weight_decay=5e-4).make_optimiser(net)
    group = sgd.param_groups[0]
    assert (type(sgd), group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]) == (
        torch.optim.SGD, 0.1, 0.9, 5e-4, True,
    )  # fmt: skip
    adam = Recipe(optimiser="adamw").make_optimiser(net)
    assert (type(adam), adam.param_groups[0]["lr"], adam.param_groups[0]["weight_decay"]) == (
        torch.optim.AdamW, 1e-3, 1e-2,
    )  # fmt: skip
    assert Recipe().to_json()["weight_decay"] == 2e-4


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"epochs": 0}, "epochs"),
        ({"batch": 0}, "batch"),
        ({"lr": 0.0}, "lr above 0"),
        ({"lr": math.nan}, "lr above 0"),
        ({"optimiser": "adam"}, "'adamw'"),
        ({"schedule": "onecycle"}, "'one-cycle'"),
        ({"anneal": "cos"}, "cosine"),
        ({"precision": "float16"}, "bfloat16"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"average": 1.0}, "average"),
        ({"clip": -1.0}, "clip"),
        ({"ramp": -1.0}, "ramp"),
        ({"crop": -1}, "crop"),
        ({"patience": 0}, "patience"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"seed": 2**63}, "seed"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_impossible_recipes(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Recipe(**wrong)


# ------------------------------------------------------------------------------------------------------ augmentation


def by_hand(x: Tensor, key: Tensor, crop: int, flip: bool) -> Tensor:
    """One image at a time, with the same draws."""
    c, h, w = x.shape
    top, left = rng.integers(rng.fold(key[None], 1), 2 * crop + 1, (2,))[0].tolist()
    canvas = torch.zeros(c, h + 2 * crop, w + 2 * crop, dtype=x.dtype)
    canvas[:, crop : crop + h, crop : crop + w] = x
    out = canvas[:, top : top + h, left : left + w]
    mirrored = flip and bool(rng.signs(rng.fold(key[None], 2), (1,))[0] < 0)
    return out.flip(2) if mirrored else out


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("crop", "flip"), [(4, True), (4, False), (0, True), (1, True)])
def test_crops_and_flips(dtype: torch.dtype, crop: int, flip: bool) -> None:
    x = (255 * noise(40, (3, 5, 7))).to(dtype)
    key = rng.keys(1, torch.arange(40))
    found = augment(x, key, crop, flip)
    assert found.dtype == dtype
    assert torch.equal(found, torch.stack([by_hand(v, k, crop, flip) for v, k in zip(x, key, strict=True)]))
    assert not torch.equal(found, x)


def test_a_samples_augmentation_is_its_own() -> None:
    x, ids = noise(16, (1, 6, 6)), torch.arange(16)
    whole = augment(x, sample_keys(0, ids, 3, "augment"), 2, True)
    some = torch.tensor([11, 2, 7])
    assert torch.equal(augment(x[some], sample_keys(0, ids[some], 3, "augment"), 2, True), whole[some])
    assert not torch.equal(augment(x, sample_keys(0, ids, 4, "augment"), 2, True), whole)


def test_every_place_and_side_is_drawn_equally_often() -> None:
    n, crop = 6000, 1
    x = torch.zeros(n, 1, 3, 4)
    x[:, 0, 1, 1] = 1  # its place tells the shift; columns 0, 1, 2, or mirrored 3, 2, 1
    out = augment(x, rng.keys(5, torch.arange(n)), crop, flip=True)[:, 0]
    where = out.flatten(1).argmax(1)
    rows_, columns = where // 4, where % 4
    assert torch.bincount(rows_, minlength=3).tolist() == pytest.approx([n / 3] * 3, abs=4 * math.sqrt(n * 2 / 9))
    expected = [n / 6, n / 3, n / 3, n / 6]
    assert torch.bincount(columns, minlength=4).tolist() == pytest.approx(expected, abs=4 * math.sqrt(n / 4))


# -------------------------------------------------------------------------------------------------- weights, samples


def test_average_in_closed_form() -> None:
    """a_t = d_t a_{t−1} + (1 − d_t) w_t with d_t = min(decay, (1 + t)/(10 + t)), statistics too; counts are copied."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = WeightAverage(net, 0.3)
    kept = {k: v.clone().double() for k, v in net.state_dict().items() if v.is_floating_point()}
    for t in range(6):
        with torch.no_grad():
            for w in net.parameters():
                w.add_(0.1 * (t + 1))
            net[1].running_mean.fill_(float(t))
            net[1].num_batches_tracked.add_(1)
        average.update(t)
        d = min(0.3, (1 + t) / (10 + t))
        kept = {k: d * v + (1 - d) * net.state_dict()[k].double() for k, v in kept.items()}
    state = average.averaged().state_dict()
    for k, v in kept.items():
        torch.testing.assert_close(state[k].double(), v, rtol=1e-6, atol=1e-7)
    assert 3.5 < state["1.running_mean"][0].item() < 5.0, "averaged, not copied"
    assert state["1.num_batches_tracked"].item() == 6
    assert not average.module.training
    assert [decay_at(0.999, t) for t in (0, 8)] == [0.1, 0.5]


def test_no_average_is_the_weights_themselves() -> None:
    net = nn.Linear(3, 3)
    average = WeightAverage(net, 0.0)
    with torch.no_grad():
        net.weight.mul_(1.7)
    average.update(123456)
    assert torch.equal(average.averaged().weight, net.weight)


def test_initial_weights_come_from_the_seed_and_the_name() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Linear(400, 300))

    a, b, c = make(), make(), make()
    initialise(a, 1)
    initialise(b, 1)
    initialise(c, 2)
    for left, right in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(a[0].weight, c[0].weight)
    for layer, fan in ((a[0], 27), (a[2], 400)):
        n = layer.weight.numel()
        assert layer.weight.var().item() == pytest.approx(1 / (3 * fan), rel=5 * math.sqrt(2 / n))
        assert abs(layer.weight.mean().item()) < 5 * math.sqrt(1 / (3 * fan) / n)
        assert layer.weight.abs().max().item() <= 1 / math.sqrt(fan)
        assert not layer.bias.any()
    assert not torch.equal(a[0].weight.flatten()[:100], a[2].weight.flatten()[:100])


def test_order_is_a_permutation_of_its_own_each_epoch() -> None:
    a, b = order(0, 0, 100, CPU), order(0, 1, 100, CPU)
    assert sorted(a.tolist()) == list(range(100))
    assert a.tolist() != b.tolist() and a.tolist() != list(range(100))
    assert torch.equal(a, order(0, 0, 100, CPU))
    assert a.tolist() != order(1, 0, 100, CPU).tolist()


def test_split_is_random_and_depends_on_ids_alone() -> None:
    samples = as_samples((noise(50, (4,)), torch.arange(50) % 2))
    train, validation = split(samples, 20, seed=0)
    assert validation is not None
    assert sorted([*train.ids.tolist(), *validation.ids.tolist()]) == list(range(50))
    assert len(validation) == 20 and validation.ids.tolist() != list(range(30, 50))
    back = torch.arange(49, -1, -1)
    turned = split(samples.take(back), 20, seed=0)[1]
    assert turned is not None
    assert set(turned.ids.tolist()) == set(validation.ids.tolist())
    assert [len(p) for p in split(samples, None, 0) if p is not None] == [45, 5]
    assert split(samples, 0, 0)[1] is None
    with pytest.raises(InputError, match="between 0 and 49"):
        split(samples, 50, 0)


def test_bytes_stay_bytes() -> None:
    x = (255 * noise(6, (3, 8, 8))).to(torch.uint8)
    samples = as_samples((x.numpy(), [0, 1, 2, 0, 1, 2]))
    assert samples.x.dtype == torch.uint8
    assert torch.equal(samples.problem().x, x.float() / 255)
    assert isinstance(as_samples(samples.problem()), TrainingSamples)


@pytest.mark.parametrize(
    ("x", "y", "hint"),
    [
        (torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.long), "transpose"),
        (torch.zeros(4, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.long), "4 integer labels"),
        (torch.zeros(4, 3, dtype=torch.int32), torch.zeros(4, dtype=torch.long), "floating-point"),
        (torch.full((4, 3), 2.0), torch.zeros(4, dtype=torch.long), "inputs in"),
        (torch.zeros(4, 3), torch.tensor([0, 1, -1, 0]), "at least 0"),
    ],
    ids=["channels last", "too few labels", "integers", "range", "negative label"],
)
def test_data_at_the_door(x: Tensor, y: Tensor, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        as_samples((x, y))


def test_curve() -> None:
    rows = [Epoch(i + 1, 0.1, 1.0, c, r, 10, 5, 5, 1.0) for i, (c, r) in enumerate([(9, 3), (8, 5), (9, 5), (9, 5)])]
    assert best_epoch(rows).epoch == 3
    assert best_epoch([Epoch(i, 0.1, 1.0, None, None, 0, 5, 5, 1.0) for i in (1, 2)]).epoch == 2
    text = as_csv(rows).decode()
    assert text.splitlines()[0] == "epoch,lr,loss,clean,robust,n,forwards,backwards,seconds"
    assert text.splitlines()[2] == "2,0.1,1.0,8,5,10,5,5,1.0"
