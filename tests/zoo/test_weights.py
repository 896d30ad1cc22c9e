"""Names in checkpoints become the network's, by the rules of the card and by nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zoo_helpers import TINY, made

from brinell.errors import ModelError
from brinell.models.arch import network
from brinell.models.zoo import load
from brinell.models.zoo.card import Keys, WeightFile
from brinell.models.zoo.weights import fill, read, tensors

ONE = torch.ones(1)


def test_rules_apply_in_their_order() -> None:
    keys = Keys(entry="last", drop=(r"\.scores$",), rename={"when": "a.0.w", "patterns": [[r"^a\.(\d)\.", r"b.\1."]]})
    stored = {
        "last": {"state_dict": {"module.model.a.0.w": ONE, "module.fc.scores": ONE, "a.1.w": ONE}},
        "best": {"x": ONE},
    }
    assert sorted(tensors(stored, keys)) == ["b.0.w", "b.1.w"]


def test_renaming_waits_for_its_sign() -> None:
    keys = Keys(rename={"when": "old.w", "patterns": [["^a", "b"]]})
    assert list(tensors({"a.w": ONE}, keys)) == ["a.w"]


def test_only_a_prefix_is_cut() -> None:
    assert list(tensors({"head.module.w": ONE}, Keys())) == ["head.module.w"]


def test_two_tensors_for_one_name_are_refused() -> None:
    with pytest.raises(ModelError, match=r"several tensors for fc\.w"):
        tensors({"module.fc.w": ONE, "fc.w": ONE}, Keys())


def test_what_is_no_tensor_is_left_out_and_halves_become_floats() -> None:
    got = tensors({"w": ONE.half(), "n": torch.tensor(3), "epoch": 7}, Keys())
    assert got["w"].dtype == torch.float32 and got["n"].dtype == torch.int64 and len(got) == 2


@pytest.mark.parametrize("change", ["missing", "unknown", "of another shape"])
def test_every_tensor_must_find_its_place(change: str) -> None:
    net = network(TINY)
    named = dict(net.state_dict())
    if change == "missing":
        del named["fc.bias"]
    elif change == "unknown":
        named["fc.other"] = ONE
    else:
        named["fc.bias"] = ONE
    with pytest.raises(ModelError, match=rf"1 tensors {change} \(fc\."):
        fill(net, named, Keys(), "tiny")


def test_more_than_the_network_needs_is_ignored_where_the_card_says_so() -> None:
    net, keys = network(TINY), Keys(ignore_unknown=True)
    named = {**network(TINY).state_dict(), "trainer.w": ONE}
    fill(net, named, keys, "tiny")
    assert torch.equal(net.state_dict()["fc.bias"], named["fc.bias"])
    del named["fc.bias"]
    with pytest.raises(ModelError, match="1 tensors missing"):
        fill(net, named, keys, "tiny")


def test_old_checkpoints_without_counters_and_normalisation_load(tmp_path: Path, home: Path, add: Any) -> None:
    half = {"mean": [0.5] * 3, "std": [0.25] * 3, "stored": True}
    config = {**TINY, "inputs": half}
    net = network(config).eval()
    card = add(
        made(
            "cifar10/Linf/Old",
            WeightFile(("https://nowhere.invalid",)),
            keys=Keys(absent=("mu", "sigma")),
            network=config,
        )
    )
    path = home / "models" / f"{card.name}.pt"
    path.parent.mkdir(parents=True)
    skip = ("mu", "sigma", "num_batches_tracked")
    torch.save({k: v for k, v in net.state_dict().items() if not k.endswith(skip)}, path)
    got, x = load(card.name), torch.rand(2, 3, 32, 32)
    assert torch.equal(got.forward(x).logits, net(x))
    assert not any(v.is_meta for v in got.module.state_dict().values())
    got.fingerprint  # every tensor has a value


def test_members_of_an_ensemble_come_from_their_own_files(home: Path, add: Any) -> None:
    config = {"family": "ensemble", "n": 2, "names": ["first", "second"], "member": TINY}
    net = network(config).eval()
    files = [WeightFile(("https://nowhere.invalid",), into=f"models.{i}.") for i in range(2)]
    card = add(made("cifar10/Linf/Two", *files, network=config))
    (home / "models" / "cifar10" / "Linf").mkdir(parents=True)
    for i in range(2):
        torch.save(net.models[i].state_dict(), home / "models" / f"{card.name}.pt_m{i}.pt")  # type: ignore[union-attr]
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load(card.name).forward(x).logits, net(x))


def test_options_and_numbers_of_numpy_beside_the_weights_are_harmless(tmp_path: Path) -> None:
    from argparse import Namespace

    torch.save({"args": Namespace(lr=0.1), "best": np.float64(0.5), "state_dict": {"w": ONE}}, tmp_path / "a.pt")
    assert list(tensors(read(tmp_path / "a.pt", "it"), Keys())) == ["w"]


def test_a_checkpoint_without_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="named tensors"):
        tensors([ONE], Keys())
