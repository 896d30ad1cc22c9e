"""The cards are whole, and each tells the truth about whether its model can be had."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from zoo_helpers import made

import brinell
from brinell.errors import MissingExtra, ModelError
from brinell.models.arch import FAMILIES, network
from brinell.models.zoo import build, cards, check, find, load
from brinell.models.zoo.card import WeightFile
from brinell.models.zoo.check import CheckedAccuracy


def test_names_say_data_threat_and_model() -> None:
    assert len(cards()) == 221
    for name, card in cards().items():
        assert name == card.name and len(name.split("/")) == 3
        assert card.data in ("cifar10", "cifar100", "fashion-mnist", "gtsrb", "imagenet", "mnist")
        assert card.threat in ("Linf", "L2", "corruptions")


def test_licences_are_those_that_robustbench_names() -> None:
    """MIT, except for the models that its file LICENSE lists; what torchvision publishes is not its own to license."""
    listed = {
        "Apache-2.0": ("Gowal", "Rebuffi", "Pang2020Boosting", "Hendrycks2019"),
        "CC-BY-NC-SA-4.0": ("Ding2020MMA",),
        "BSD-3-Clause": ("Rony2019",),
        "unknown": ("AlexNet", "Standard_R50"),
    }
    for card in (c for c in cards().values() if not c.name.rpartition("/")[2].startswith("Croce")):
        model = card.name.rpartition("/")[2]
        wanted = next((licence for licence, names in listed.items() if model.startswith(names)), "MIT")
        assert card.licence == wanted, card.name
        assert bool(card.restriction) == (wanted == "CC-BY-NC-SA-4.0")


def test_every_paper_has_a_title_and_authors() -> None:
    for card in cards().values():
        assert bool(card.title) == bool(card.paper), card.name
        assert bool(card.authors) == ("Standard" not in card.name and bool(card.paper)), card.name


def test_loading_non_commercial_weights_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path))
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    with pytest.warns(UserWarning, match="NON-COMMERCIAL use only .licence CC-BY-NC-SA-4.0"), pytest.raises(ModelError):
        load("cifar10/L2/Ding2020MMA")


def test_a_network_or_a_reason() -> None:
    for card in cards().values():
        assert (card.network is None) == bool(card.missing)
        assert card.network is None or card.network["family"] in (*FAMILIES, "timm")


def test_files_have_sources_and_parts_of_their_own() -> None:
    for card in cards().values():
        assert not card.loadable or all(f.sources for f in card.files)
        assert len(card.files) < 2 or card.network is None or len({f.into for f in card.files}) == len(card.files)


def test_accuracies_are_shares_and_robust_ones_are_smaller() -> None:
    for card in cards().values():
        # The published tables of the small networks are rounded or not at hand.
        small = card.network is not None and card.network["family"] == "small-cnn"
        assert small or card.clean_accuracy is not None
        assert card.clean_accuracy is None or 0.3 < card.clean_accuracy < 1
        if card.robust_accuracy is not None and card.best_known is not None:
            assert 0 <= card.best_known <= card.robust_accuracy < card.clean_accuracy


def test_every_network_of_ours_can_be_built_for_the_classes_of_its_data() -> None:
    classes = {"cifar10": 10, "cifar100": 100, "fashion-mnist": 10, "gtsrb": 43, "imagenet": 1000, "mnist": 10}
    ours = [c for c in cards().values() if c.network is not None and c.network["family"] != "timm"]
    assert len(ours) == 169
    for card in {json.dumps(c.network): c for c in ours}.values():
        with torch.device("meta"):
            last = list(network(card.network or {}).state_dict().values())[-1]
        assert last.shape[0] == classes[card.data], card.name


def test_build_gives_the_bare_network() -> None:
    net = build("cifar10/Linf/Wong2020Fast")
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ModelError, match="cifar10/Linf/Carmon2019Unlabeled"):
        find("cifar10/Linf/Carmon2019Unlabelled")


def test_a_short_name_must_be_the_only_one() -> None:
    with pytest.raises(ModelError, match="cifar10/L2/Rice2020Overfitting"):
        find("Rice2020Overfitting")


def test_a_model_without_a_network_says_why() -> None:
    with pytest.raises(ModelError, match="a mixture of two networks"):
        build("cifar10/Linf/Bai2024MixedNUTS")


def test_a_checkpoint_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(ModelError, match="orthogonal group"):
        load("cifar10/Linf/Kang2021Stable")


def test_imagenet_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"brinell\[zoo\]"):
        build("imagenet/Linf/Salman2020Do_R50")


class Stub(torch.nn.Module):
    """What timm would make."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 2, 3, stride=2)
        self.head = torch.nn.Linear(2, classes)
        self.register_buffer("computed", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).mean((2, 3))) * self.computed


def test_networks_of_timm_get_options_strides_normalisation_and_weights(
    monkeypatch: pytest.MonkeyPatch, home: Path, add: Any
) -> None:
    asked: dict[str, Any] = {}

    def create_model(name: str, *, pretrained: bool, num_classes: int, **options: Any) -> Stub:
        asked.update(name=name, pretrained=pretrained, **options)
        return Stub(num_classes)

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    inputs = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.25, 2.0]}
    config = {
        "family": "timm",
        "name": "n",
        "options": {"width": 3},
        "strides": {"conv": 1},
        "classes": 5,
        "inputs": inputs,
    }
    card = add(made("imagenet/Linf/Stub", WeightFile(("https://nowhere.invalid",)), network=config))
    net = Stub(5)
    path = home / "models" / f"{card.name}.pt"
    path.parent.mkdir(parents=True)
    torch.save({f"model.{k}": v for k, v in net.state_dict().items()}, path)
    got, x = load(card.name), torch.rand(2, 3, 8, 8)
    assert asked == {"name": "n", "pretrained": False, "width": 3}
    assert build(card.name).get_submodule("conv").stride == (1, 1)
    net.conv.stride = (1, 1)
    mean, std = (torch.tensor(inputs[k]).view(1, 3, 1, 1) for k in ("mean", "std"))
    torch.testing.assert_close(got.forward(x).logits, net((x - mean) / std))


def test_the_demonstration_model_loads_offline_and_is_as_good_as_its_card(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path))
    images, card = brinell.data.load("demo"), find("fashion-mnist/Linf/Demo")
    result = check(brinell.models.load(card.name), images, card.clean_accuracy)
    assert result.ok and result.accuracy == card.clean_accuracy and result.n == 1000
    assert list(tmp_path.iterdir()) == []


def test_margins_shrink_with_the_samples() -> None:
    assert CheckedAccuracy("a", 10_000, 0.8500, 0.8504, 0.0005).ok
    assert not CheckedAccuracy("a", 10_000, 0.8500, 0.8506, 0.0005).ok
    assert not CheckedAccuracy("a", 10_000, 0.85, None, 0.1).ok


def test_few_samples_get_a_binomial_margin() -> None:
    images, clf = brinell.data.load("demo", n=100), load("Demo")
    assert check(clf, images, 0.9).margin == pytest.approx(4 * (0.9 * 0.1 / 100) ** 0.5 + 0.0005)
    assert not check(clf, images, 0.2).ok
