"""A model on a leaderboard: what is measured, what is refused, what the record says."""

import csv
import hashlib
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import InputError, Linf, ModelError, Problem, Run, RunError, wrap
from brinell.analysis.corruptions import Baseline
from brinell.analysis.corruptions.table import CELLS, CorruptionTable, count_correct
from brinell.attacks.catalogue import PLANS
from brinell.data.corruptions import COMMON, SEVERITIES
from brinell.data.image_folders import LISTED
from brinell.leaderboard import benchmark as module
from brinell.leaderboard import definitions, records
from brinell.leaderboard.definitions import LEADERBOARDS, Leaderboard, find_leaderboard
from brinell.leaderboard.records import RECORD
from brinell.models.demo import demo_net
from brinell.results import wilson
from brinell.verification.bundle import digest

pytestmark = pytest.mark.usefixtures("few")

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The board of the demonstration with a plan for tests."""
    monkeypatch.setattr(definitions, "LEADERBOARDS", (Leaderboard("demo", "Linf", Linf("0.1"), 1000, "fgsm"),))


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: Tensor) -> Any:
        return self.net(x + 0.05 * torch.randn_like(x))


@pytest.mark.parametrize(
    ("dataset", "threat", "ball", "points"),
    [
        ("cifar10", "Linf", "Linf(eps=8/255)", 10_000),
        ("cifar10", "L2", "L2(eps=0.5)", 10_000),
        ("cifar10", "corruptions", "None", 10_000),
        ("cifar100", "Linf", "Linf(eps=8/255)", 10_000),
        ("cifar100", "corruptions", "None", 10_000),
        ("imagenet", "Linf", "Linf(eps=4/255)", 5_000),
        ("imagenet", "corruptions", "None", 5_000),
        ("imagenet", "corruptions_3d", "None", 5_000),
    ],
)
def test_the_boards_are_the_public_ones(dataset: str, threat: str, ball: str, points: int) -> None:
    found = find_leaderboard(dataset, threat)
    assert (str(found.ball), found.points) == (ball, points)
    assert found.plan == ("autoattack" if found.ball else threat)
    assert found.ball is None or PLANS[found.plan].strength == "standard"


def test_every_published_record_has_a_board() -> None:
    boards = {b.name for b in LEADERBOARDS[:-1]}
    # 3D corruptions have a board of their own, but their numbers are part of the records of corruptions.
    assert {f"{r.dataset}/{r.threat}" for r in records.published()} == boards - {"imagenet/corruptions_3d"}


def test_an_unknown_board_lists_those_there_are() -> None:
    with pytest.raises(
        InputError, match=r"cifar10/Linf, cifar10/L2.*Did you mean cifar10/L2 or cifar100/Linf"
    ) as error:
        find_leaderboard("cifar100", "L2")
    assert all(b.name in str(error.value) for b in LEADERBOARDS)


def test_a_record_says_what_the_run_says(quick: None, tmp_path: Path) -> None:
    data = brinell.data.load("demo", 20)
    record = brinell.benchmark("demo", "demo", "Linf", n=20, out=tmp_path / "run", **QUIET)
    run = brinell.evaluate("demo", data, Linf("0.1"), "fgsm", progress=False)
    assert record.autoattack == round(100 * run.robust_accuracy.value, 2)
    assert record.clean == round(100 * run.clean_accuracy.value, 2)
    assert (record.key, record.n, record.eps, record.status) == ("demo/Linf/demo", 20, "0.1", "unverified")
    assert (record.plan, record.seed, record.verdict, record.restrictions) == ("fgsm", 0, "upper bound", ())
    assert record.fingerprint == wrap(demo_net()).fingerprint
    assert record.run_hash == digest(tmp_path / "run")
    assert record.cost is not None and record.cost.forwards == run.cost.forwards
    assert records.read(tmp_path / "run" / RECORD) == replace(record, run="run")  # no path of this machine
    told = json.loads((tmp_path / "run" / RECORD).read_text())
    assert told["autoattack_acc"] == f"{record.autoattack:.2f}"


def test_the_real_plan(tmp_path: Path) -> None:
    """A radius at which everything falls at once, so that AutoAttack is quick."""
    record = brinell.benchmark("demo", "demo", "Linf", n=6, eps="0.5", out=tmp_path, **QUIET)
    assert (record.autoattack, record.plan, record.eps, record.unreliable) == (0.0, "autoattack", "0.5", False)
    assert Run.open(tmp_path).attacks == ["apgd-ce", "apgd-t", "fab-t", "square"]


def test_resume_ends_with_the_same_record(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from brinell.results import Writer

    first = brinell.benchmark("demo", "demo", n=40, out=tmp_path / "whole", **QUIET)
    append, left = Writer.append, [1]

    def dies(self: Writer, *parts: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        append(self, *parts)

    monkeypatch.setattr(Writer, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        brinell.benchmark("demo", "demo", n=40, out=tmp_path / "cut", slots=32, **QUIET)
    monkeypatch.setattr(Writer, "append", append)
    assert not (tmp_path / "cut" / RECORD).exists()
    with pytest.raises(RunError, match="resume"):
        brinell.benchmark("demo", "demo", n=40, out=tmp_path / "cut", **QUIET)
    again = brinell.benchmark("demo", "demo", n=40, out=tmp_path / "cut", resume=True, **QUIET)
    assert (again.autoattack, again.clean, again.n, again.interval) == (
        first.autoattack,
        first.clean,
        40,
        first.interval,
    )
    assert again.cost is not None and first.cost is not None and again.cost.forwards == first.cost.forwards
    # Once more on a finished Run: nothing is done, and the record is the same.
    assert brinell.benchmark("demo", "demo", n=40, out=tmp_path / "cut", resume=True, **QUIET) == again


def test_a_violation_is_refused_before_anything_is_written(quick: None, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"deterministic forward.*--anyway"):
        brinell.benchmark(Noisy().eval(), "demo", n=8, out=tmp_path / "run", **QUIET)
    assert not (tmp_path / "run").exists()


def test_a_violation_is_part_of_the_record(quick: None, tmp_path: Path) -> None:
    record = brinell.benchmark(Noisy().eval(), "demo", n=8, strict=False, out=tmp_path / "run", **QUIET)
    assert [r.partition(":")[0] for r in record.restrictions] == ["deterministic forward"]
    assert records.read(tmp_path / "run" / RECORD).restrictions == record.restrictions
    assert record.unreliable


def test_train_mode_is_refused(quick: None) -> None:
    with pytest.raises(ModelError, match="evaluation mode"):
        brinell.benchmark(demo_net().train(), "demo", n=8, **QUIET)


@pytest.mark.parametrize("n", [0, -1, 1001])
def test_the_board_says_how_many_points(n: int, quick: None) -> None:
    with pytest.raises(InputError, match="1 to 1,000"):
        brinell.benchmark("demo", "demo", n=n, **QUIET)


def test_points_of_ones_own(quick: None, tmp_path: Path) -> None:
    problem = brinell.data.load("demo", 12)
    np.savez(tmp_path / "mine.npz", x=problem.x.numpy(), y=problem.y.numpy())
    for data in (problem, (problem.x, problem.y), tmp_path / "mine.npz", str(tmp_path / "mine.npz")):
        assert brinell.benchmark("demo", "demo", n=9, data=data, **QUIET).n == 9
    assert brinell.benchmark("demo", "demo", data=problem, **QUIET).n == 12
    with pytest.raises(InputError, match="at least 13"):
        brinell.benchmark("demo", "demo", n=13, data=problem, **QUIET)


def test_facts_about_the_model(quick: None) -> None:
    about = {"authors": "A and B", "venue": "ICML 2026", "reported": 99.0}
    record = brinell.benchmark("demo", "demo", n=8, name="Mine2026", about=about, **QUIET)
    assert (record.name, record.authors, record.year) == ("Mine2026", "A and B", 2026)
    assert record.overestimation is not None and record.best is not None
    assert record.overestimation == round(99 - record.best, 2)
    with pytest.raises(InputError, match="clean"):
        brinell.benchmark("demo", "demo", n=8, about={"clean": 100.0}, **QUIET)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"about": {"reported": "60.5"}}, "reported"),
        ({"about": {"reported": float("nan")}}, "reported"),
        ({"about": {"venue": 2026}}, "venue"),
        ({"about": {"corruptions": 99.0}}, "corruptions"),
        ({"about": {"status": "verified"}}, "status"),
        ({"name": "a/b"}, "a/b"),
    ],
)
@pytest.mark.parametrize("threat", ["Linf", "corruptions"])
def test_facts_are_looked_at_before_anything_is_measured(
    threat: str, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "evaluate", lambda *_, **__: pytest.fail("evaluated"))
    monkeypatch.setattr(module.corruption_table, "measure_table", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises((InputError, RunError), match=said):
        brinell.benchmark(small_net(), "cifar10", threat, n=4, data=small(), corrupted=corrupted, **more, **QUIET)


def test_a_model_of_the_zoo_brings_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "LEADERBOARDS", (Leaderboard("cifar10", "Linf", Linf("0.1"), 100, "fgsm"),))
    net = wrap(demo_net(), name="cifar10/Linf/Carmon2019Unlabeled")
    record = brinell.benchmark(net, "cifar10", n=4, data=brinell.data.load("demo"), **QUIET)
    assert record.key == "cifar10/Linf/Carmon2019Unlabeled"
    assert (record.architecture, record.extra_data, record.reported) == ("WideResNet-28-10", True, 62.5)
    assert record.status == "unverified" and record.n == 4


def test_a_model_of_the_zoo_brings_its_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, n: int, **more: Any) -> Problem:
        asked.append((name, more))
        return brinell.data.load("demo", n)

    monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(definitions, "LEADERBOARDS", (Leaderboard("imagenet", "Linf", Linf("0.1"), 100, "fgsm"),))
    for name, given in (("imagenet/Linf/Wong2020Fast", None), ("imagenet/Linf/Wong2020Fast", "Res224"), ("mine", None)):
        brinell.benchmark(wrap(demo_net(), name=name), "imagenet", n=2, preprocessing=given, **QUIET)
    brinell.benchmark("demo", "imagenet", n=2, data="folder", preprocessing="Crop288", **QUIET)
    assert asked == [
        ("imagenet", {"preprocessing": "Crop288"}),
        ("imagenet", {"preprocessing": "Res224"}),
        ("imagenet", {}),
        ("folder", {"preprocessing": "Crop288"}),
    ]


def test_names_become_parts_of_a_file_name(quick: None) -> None:
    assert brinell.benchmark(wrap(demo_net(), name="../a b/c:d"), "demo", n=2, **QUIET).name == "c_d"


def small_net() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        net[1].weight.copy_(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
        net[1].bias.zero_()
    return net.eval()


def small() -> Problem:
    x = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    y = small_net()(x).argmax(1)
    y[:3] = (y[:3] + 1) % 3
    return Problem(x, y)


def corrupted(corruption: str, severity: int) -> Problem:
    """Brighter by severity, for one corruption; the others leave the images as they are."""
    clean = small()
    shift = 0.15 * severity if corruption == "brightness" else 0.0
    return Problem((clean.x + shift).clamp(0, 1), clean.y)


def on_corruptions(**more: Any) -> records.Record:
    return brinell.benchmark(small_net(), "cifar10", "corruptions", data=small(), **more, **QUIET)


def test_corruptions_are_averaged_over_all_cells(tmp_path: Path) -> None:
    record = on_corruptions(n=20, corrupted=corrupted, out=tmp_path)
    net, right = small_net(), []
    for c in COMMON:
        for s in SEVERITIES:
            p = corrupted(c, s)[:20]
            right.append(float((net(p.x).argmax(1) == p.y).float().mean()))
    assert record.corruptions == round(100 * float(np.mean(right)), 2)
    assert len(set(right)) > 2
    assert (record.n, record.autoattack, record.best) == (20, None, record.corruptions)
    assert record.interval is not None and record.interval[0] < record.corruptions < record.interval[1]
    assert records.read(tmp_path / RECORD) == replace(record, run=tmp_path.name)


def test_the_interval_counts_a_sample_once() -> None:
    """Equal cells say no more than one: the interval is that of the samples, not of samples times cells."""
    row = np.array([True] * 60 + [False] * 40)
    one = CorruptionTable((("fog", 1),), row[None])
    many = CorruptionTable(tuple(("fog", s) for s in range(75)), np.tile(row, (75, 1)))
    for table in (one, many):
        assert (table.mean, *table.interval) == pytest.approx((0.6, *wilson(60, 100)))
    # Samples that are alike are no proof that all others are: there is no interval without a width.
    mixed = CorruptionTable((("fog", 1), ("fog", 2)), np.stack([row, ~row]))
    assert mixed.interval == pytest.approx(wilson(50, 100))
    assert CorruptionTable((("fog", 1),), np.ones((1, 100), dtype=bool)).interval == pytest.approx(wilson(100, 100))


def test_what_a_detector_rejects_is_wrong_under_corruptions_too() -> None:
    x = torch.linspace(0.05, 0.95, 18).view(6, 3)
    problem = Problem(x, torch.zeros(6, dtype=torch.long))

    class Wary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.sum(1) + 9, x.sum(1)], 1)

    wary = wrap(Wary().eval(), detector=lambda x: x[:, 0] - 0.5)
    assert count_correct(wary, problem) == (int((x[:, 0] <= 0.5).sum()), 6)


def test_corruptions_go_on_where_they_were(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def dies(corruption: str, severity: int) -> Problem:
        asked.append((corruption, severity))
        if len(asked) == 10:
            raise KeyboardInterrupt
        return corrupted(corruption, severity)

    whole = on_corruptions(n=8, corrupted=corrupted, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        on_corruptions(n=8, corrupted=dies, out=tmp_path / "b")
    with pytest.raises(RunError, match="resume"):
        on_corruptions(n=8, corrupted=corrupted, out=tmp_path / "b")
    with pytest.raises(RunError, match="another model or other data"):
        brinell.benchmark(
            small_net(),
            "cifar10",
            "corruptions",
            n=9,
            data=small(),
            corrupted=corrupted,
            out=tmp_path / "b",
            resume=True,
            **QUIET,
        )
    again = brinell.benchmark(
        small_net(),
        "cifar10",
        "corruptions",
        n=8,
        data=small(),
        corrupted=dies,
        out=tmp_path / "b",
        resume=True,
        **QUIET,
    )
    # Only what was missing.
    assert len(asked) == 10 + 75 - 9
    assert again.corruptions == whole.corruptions
    assert (tmp_path / "a" / CELLS).read_text() == (tmp_path / "b" / CELLS).read_text()


def test_corruptions_come_from_the_corrupted_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, n: int, **more: Any) -> Problem:
        asked.append((name, n, more))
        return small()[:n]

    monkeypatch.setattr(module, "load", load)
    record = brinell.benchmark(small_net(), "cifar100", "corruptions", n=4, corrupted="folder", **QUIET)
    assert record.clean == record.corruptions
    first = {"corruption": "gaussian_noise", "severity": 1, "root": "folder"}
    assert asked[:2] == [("cifar100", 4, {}), ("cifar100-c", 4, first)]
    assert len({tuple(m.items()) for _, _, m in asked[1:]}) == len(asked[1:]) == 75


def test_corruptions_have_no_radius() -> None:
    with pytest.raises(InputError, match="no eps"):
        brinell.benchmark(small_net(), "cifar10", "corruptions", eps=0.1, **QUIET)


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ImageNet in class folders with two pictures each, and a list of one picture per class as RobustBench's list."""
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    monkeypatch.setattr("brinell.data.layouts.IMAGENET_CLASSES", 3)
    names = [f"n0{1440764 + k}" for k in range(3)]
    for k, name in enumerate(names):
        folder = tmp_path / "imagenet" / "val" / name
        folder.mkdir(parents=True)
        for j in range(2):
            pixels = np.random.default_rng([k, j]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            image.fromarray(pixels).save(folder / f"{j}.png")
    text = "".join(f"{name}/1.png\n" for name in reversed(names))
    (tmp_path / "list.txt").write_text(text)
    monkeypatch.setattr("brinell.data.image_folders.LIST_DIGEST", hashlib.sha256(text.encode()).hexdigest())
    monkeypatch.setattr(import_module("brinell.data.fetch"), "LIST_DIGEST", hashlib.sha256(text.encode()).hexdigest())
    board = Leaderboard("imagenet", "Linf", Linf("4/255"), 3, "fgsm", listed=True)
    monkeypatch.setattr(definitions, "LEADERBOARDS", (board,))
    return tmp_path


def test_imagenet_is_measured_on_the_list_of_robustbench(listed: Path) -> None:
    (board,) = definitions.LEADERBOARDS
    root = f"root={listed / 'imagenet'}"
    given = module.points(board, f"imagenet,{root},paths={listed / 'list.txt'}", None, "none")
    assert next(given.chunks(3)).y.tolist() == [2, 1, 0] and given.name.endswith("robustbench-5000")
    assert len(module.points(board, given, 2)) == 2  # the first pictures of the list, as in the original
    # The list in the cache is found without being named, and its digest is checked.
    with pytest.raises(InputError, match="BRINELL_OFFLINE"):
        module.points(board, f"imagenet,{root}", None, "none")
    cached = listed / "home" / "data" / "imagenet" / "imagenet_test_image_ids.txt"
    cached.parent.mkdir(parents=True, exist_ok=True)
    cached.write_text((listed / "list.txt").read_text())
    for data in (f"imagenet,{root}", str(listed / "imagenet" / "val")):
        assert torch.equal(next(module.points(board, data, None, "none").chunks(3)).x, next(given.chunks(3)).x)
    cached.write_text("n01440764/0.png\n")
    with pytest.raises(InputError, match="sha256"):
        module.points(board, f"imagenet,{root}", None, "none")


@pytest.mark.filterwarnings("ignore:n = 3 is more than the data have")
def test_other_pictures_of_imagenet_are_refused(listed: Path) -> None:
    (board,) = definitions.LEADERBOARDS
    (listed / "mine.txt").write_text("n01440764/0.png\n")
    others = [
        f"imagenet,root={listed / 'imagenet'},paths={listed / 'mine.txt'}",
        brinell.data.load("imagenet", root=listed / "imagenet", preprocessing="none"),
        (torch.rand(3, 3, 8, 8), torch.arange(3)),
    ]
    for data in others:
        with pytest.raises(InputError, match=r"RobustBench's list.*paths="):
            brinell.benchmark(small_net(), "imagenet", data=data, preprocessing="none", **{**QUIET, "n": 1})
    corrupted_board = replace(board, ball=None, threat="corruptions", plan="corruptions")
    with pytest.raises(InputError, match="RobustBench's list"):
        module._require_listed(corrupted_board, corrupted("fog", 1))


def test_the_imagenet_leaderboards_need_the_list() -> None:
    wanted = {"imagenet/Linf", "imagenet/corruptions", "imagenet/corruptions_3d"}
    assert {b.name for b in LEADERBOARDS if b.listed} == wanted


def published_accuracies() -> dict[str, dict[tuple[str, int], float]]:
    """The accuracies that RobustBench measured on ImageNet-C and ImageNet-3DCC for two of its models."""
    with (Path(__file__).parent / "imagenet_corruptions.csv").open() as file:
        names, severities, *rows = csv.reader(file)
    cells = [(name, int(severity)) for name, severity in zip(names[1:], severities[1:], strict=True)]
    return {row[0]: dict(zip(cells, map(float, row[1:]), strict=True)) for row in rows}


@pytest.mark.parametrize("name", ["Standard_R50", "Tian2022Deeper_DeiT-B"])
@pytest.mark.parametrize(
    ("fields", "corruptions"),
    [
        (("corruptions", "corruptions_mce"), COMMON),
        (("corruptions_3d", "corruptions_mce_3d"), brinell.data.CORRUPTIONS_3D),
    ],
)
def test_the_mean_corruption_error_is_that_of_robustbench(
    name: str, fields: tuple[str, str], corruptions: tuple[str, ...]
) -> None:
    """From the accuracies of a model by corruption and severity, the two numbers in its published record follow."""
    cells = {cell: a for cell, a in published_accuracies()[name].items() if cell[0] in corruptions}
    assert len(cells) == 5 * len(corruptions)
    right = np.array([np.arange(5_000) < round(5_000 * accuracy) for accuracy in cells.values()])
    table = CorruptionTable(tuple(cells), right)
    record = records.find(records.published(), f"imagenet/corruptions/{name}")
    measured = (round(100 * table.mean, 2), round(100 * table.mce(Baseline.named("alexnet-robustbench")), 2))
    assert measured == tuple(getattr(record, f) for f in fields)


@pytest.mark.parametrize("threat", ["corruptions", "corruptions_3d"])
def test_a_record_of_imagenet_has_the_mean_corruption_error(
    threat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(name: str, n: int, corruption: str = "", severity: int = 0, **more: Any) -> Problem:
        asked.append((name, corruption, more.get("paths")))
        images = corrupted("brightness" if corruption in ("fog", "flash") else "", severity)[:n]
        return Problem(images.x, images.y, name=LISTED)

    monkeypatch.setattr(module, "load", load)
    record = brinell.benchmark(small_net(), "imagenet", threat, n=20, out=tmp_path, **QUIET)
    name, corruptions = ("imagenet-3dcc", brinell.data.CORRUPTIONS_3D) if "3d" in threat else ("imagenet-c", COMMON)
    assert [a[:2] for a in asked[1::5]] == [(name, c) for c in corruptions] and {a[2] for a in asked} == {"robustbench"}
    # The same numbers by hand: one corruption brightens, the others leave the images as they are.
    net, relative, accuracies = small_net(), [], []
    alexnet = Baseline.named("alexnet-robustbench")
    for c in corruptions:
        cells = [corrupted("brightness" if c in ("fog", "flash") else "", s)[:20] for s in SEVERITIES]
        right = [float((net(p.x).argmax(1) == p.y).float().mean()) for p in cells]
        accuracies += right
        relative.append(sum(1 - a for a in right) / sum(alexnet.single[c, s] for s in SEVERITIES))
    wanted = [round(100 * float(np.mean(values)), 2) for values in (accuracies, relative)]
    fields = ("corruptions_3d", "corruptions_mce_3d") if "3d" in threat else ("corruptions", "corruptions_mce")
    assert [getattr(record, f) for f in fields] == wanted and record.best == wanted[0]
    assert records.read(tmp_path / RECORD) == replace(record, run=tmp_path.name)


def test_only_imagenet_has_a_mean_corruption_error() -> None:
    """RobustBench has no errors of AlexNet on CIFAR-10-C, and its records there have no such number."""
    assert on_corruptions(n=4, corrupted=corrupted).corruptions_mce is None
    assert {r.dataset for r in records.published() if r.corruptions_mce is not None} == {"imagenet"}
