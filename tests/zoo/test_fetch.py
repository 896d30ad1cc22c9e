"""Weights arrive whole and checked, or nothing is left of them."""

import hashlib
import pickle
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from zoo_helpers import Source, made

import brinell
from brinell.data.catalogue import SETS
from brinell.errors import InputError, ModelError
from brinell.fetch import download
from brinell.models.zoo import fetch, load, place
from brinell.models.zoo.card import WeightFile, cards
from brinell.models.zoo.fetch import address

NAME, PATH = "cifar10/Linf/Tiny", "/weights.pt"


def left(home: Path) -> list[str]:
    return sorted(p.name for p in home.rglob("*") if p.is_file())


def digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


class Runs:
    """A pickle that writes a file when it is opened carelessly."""

    def __init__(self, at: Path) -> None:
        self.at = at

    def __reduce__(self) -> Any:
        return Path.write_text, (self.at, "it ran")


def test_weights_are_fetched_once_then_read_from_the_cache(source: Source, home: Path, add: Any, tiny: Any) -> None:
    net, source.files[PATH] = tiny
    card = add(made(NAME, WeightFile((source.url + PATH,))))
    seen: list[tuple[int, int | None]] = []
    first = load(NAME, progress=lambda done, total: seen.append((done, total)))
    again = brinell.models.load(NAME)
    x = torch.rand(3, 3, 32, 32)
    assert torch.equal(first.forward(x).logits, net(x)) and torch.equal(again.forward(x).logits, net(x))
    assert len(source.asked) == 1 and seen[-1] == (len(tiny[1]), len(tiny[1]))
    assert left(home) == ["Tiny.pt", "Tiny.pt.sha256"]
    assert (home / "models" / f"{NAME}.pt.sha256").read_text().strip() == digest(tiny[1])
    assert place(card, 0).read_bytes() == tiny[1]
    assert first.modes() == [] and not any(p.requires_grad for p in first.module.parameters())


def test_a_cut_connection_goes_on_where_it_was(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH], source.cuts, source.cut_at = tiny[1], 2, 1000
    fetch(made(NAME, WeightFile((source.url + PATH,), digest(tiny[1]))))
    assert [r for _, r in source.asked] == [None, "bytes=1000-", "bytes=2000-"]
    assert (home / "models" / f"{NAME}.pt").read_bytes() == tiny[1]
    assert left(home) == ["Tiny.pt", "Tiny.pt.sha256"]


def test_what_arrived_before_the_last_cut_is_kept_for_the_next_call(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH], source.cuts, source.cut_at = tiny[1], download.TRIES, 1000
    card = made(NAME, WeightFile((source.url + PATH,)))
    with pytest.raises(ModelError, match="broke 3 times") as caught:
        fetch(card)
    assert str(place(card, 0)) in caught.value.remedy and not place(card, 0).exists()
    fetch(card)
    assert source.asked[-1][1] == f"bytes={1000 * download.TRIES}-"
    assert place(card, 0).read_bytes() == tiny[1] and left(home) == ["Tiny.pt", "Tiny.pt.sha256"]


def test_a_file_that_changed_between_two_calls_is_not_mixed(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH], source.cuts, source.cut_at = bytes(len(tiny[1])), download.TRIES, 1000
    card = made(NAME, WeightFile((source.url + PATH,)))
    with pytest.raises(ModelError):
        fetch(card)
    source.files[PATH], source.version = tiny[1], '"2"'
    fetch(card)
    assert place(card, 0).read_bytes() == tiny[1]


def test_a_wrong_hash_is_refused(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH] = tiny[1]
    with pytest.raises(ModelError, match="sha256 aaaaaaaaaaaaaaaa"):
        fetch(made(NAME, WeightFile((source.url + PATH,), "a" * 64)))
    assert left(home) == []


def test_a_web_page_is_refused(source: Source, home: Path) -> None:
    source.files[PATH] = b"\n <!DOCTYPE html><html><title>Quota exceeded</title></html>"
    with pytest.raises(ModelError, match="a web page instead of a file"):
        fetch(made(NAME, WeightFile((source.url + PATH,))))
    assert left(home) == []


def test_an_empty_file_is_refused(source: Source, home: Path) -> None:
    source.files[PATH] = b""
    with pytest.raises(ModelError, match="an empty file"):
        fetch(made(NAME, WeightFile((source.url + PATH,))))
    assert left(home) == []


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_runs_code_is_refused(source: Source, home: Path, tmp_path: Path, legacy: bool) -> None:
    trap, file = tmp_path / "trap", tmp_path / "evil.pt"
    torch.save({"state_dict": Runs(trap)}, file, _use_new_zipfile_serialization=not legacy)
    source.files[PATH] = file.read_bytes()
    with pytest.raises(ModelError, match="without running code"):
        fetch(made(NAME, WeightFile((source.url + PATH,))))
    assert left(home) == [] and not trap.exists()
    torch.load(file, weights_only=False)
    assert trap.read_text() == "it ran"  # the trap works


def test_a_bare_pickle_in_the_cache_is_refused(home: Path, tmp_path: Path) -> None:
    card, trap = made(NAME, WeightFile(("https://nowhere.invalid/x.pt",))), tmp_path / "trap"
    place(card, 0).parent.mkdir(parents=True)
    place(card, 0).write_bytes(pickle.dumps(Runs(trap)))
    with pytest.raises(ModelError, match="without running code"):
        fetch(card)
    assert not trap.exists() and left(home) == ["Tiny.pt"]  # a user's own file is not deleted


def test_damage_inside_is_found_without_a_hash(source: Source, home: Path, tiny: Any) -> None:
    blob = bytearray(tiny[1])
    (at,) = [
        i.header_offset for i in zipfile.ZipFile(home.parent / "tiny.pt").infolist() if i.filename.endswith("data/0")
    ]
    blob[at + 200] ^= 1
    source.files[PATH] = bytes(blob)
    with pytest.raises(ModelError, match="damaged"):
        fetch(made(NAME, WeightFile((source.url + PATH,))))
    assert left(home) == []


def test_a_file_that_changes_in_the_cache_is_refused(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH] = tiny[1]
    card = made(NAME, WeightFile((source.url + PATH,)))
    (path,) = fetch(card)
    path.write_bytes(tiny[1] + b"\0")
    with pytest.raises(ModelError, match=digest(tiny[1])[:16]) as caught:
        fetch(card)
    assert str(path) in caught.value.remedy


def test_the_next_source_is_asked_when_one_fails(source: Source, home: Path, tiny: Any) -> None:
    source.files = {"/page": b"<html>", PATH: tiny[1]}
    fetch(made(NAME, WeightFile((source.url + "/gone", source.url + "/page", source.url + PATH))))
    assert [p for p, _ in source.asked] == ["/gone", "/page", PATH]
    assert left(home) == ["Tiny.pt", "Tiny.pt.sha256"]


def test_a_mirror_is_asked_first(source: Source, home: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source.files[f"/{NAME}.pt"] = tiny[1]
    monkeypatch.setenv("BRINELL_MIRROR", source.url + "/")
    fetch(made(NAME, WeightFile(("https://nowhere.invalid/x.pt",))))
    assert [p for p, _ in source.asked] == [f"/{NAME}.pt"]


def test_a_shared_folder_is_a_mirror(home: Path, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share" / "cifar10" / "Linf").mkdir(parents=True)
    (tmp_path / "share" / f"{NAME}.pt").write_bytes(tiny[1])
    monkeypatch.setenv("BRINELL_MIRROR", (tmp_path / "share").as_uri())
    (path,) = fetch(made(NAME, WeightFile(("https://nowhere.invalid/x.pt",))))
    assert path.read_bytes() == tiny[1] and left(home) == ["Tiny.pt", "Tiny.pt.sha256"]


def test_every_failure_is_told_with_the_place_for_the_file(source: Source, home: Path) -> None:
    card = made(NAME, WeightFile((source.url + "/gone", "http://127.0.0.1:9/x.pt")))
    with pytest.raises(ModelError, match="404") as caught:
        fetch(card)
    assert "127.0.0.1:9" in caught.value.got and str(place(card, 0)) in caught.value.remedy
    assert left(home) == []


def test_offline_asks_nobody(source: Source, home: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source.files[PATH] = tiny[1]
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    card = made(NAME, WeightFile((source.url + PATH,)))
    with pytest.raises(ModelError, match="BRINELL_OFFLINE") as caught:
        fetch(card)
    assert source.asked == [] and str(place(card, 0)) in caught.value.remedy


def test_offline_no_model_and_no_data_set_opens_a_connection(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a connection was opened")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, connected)
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    # A mirror is somebody to ask, too.
    monkeypatch.setenv("BRINELL_MIRROR", "https://nowhere.invalid")
    known = [card for card in brinell.models.cards().values() if not place(card, 0).exists()]
    for card in known:
        with pytest.raises(ModelError, match="BRINELL_OFFLINE") as caught:
            fetch(card)
        assert str(place(card, 0)) in caught.value.remedy and address(card.files[0].sources[0]) in caught.value.remedy
    for name in SETS:
        with pytest.raises(InputError):
            brinell.data.load(name, **({"corruption": "fog", "severity": 1} if name.endswith("-c") else {}))
    assert len(known) > 100 and left(home) == []


@pytest.mark.parametrize("word", ["0", "false", "No", "off", ""])
def test_offline_can_be_said_no_to(
    source: Source, home: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    source.files[PATH] = tiny[1]
    monkeypatch.setenv("BRINELL_OFFLINE", word)
    assert fetch(made(NAME, WeightFile((source.url + PATH,))))[0].exists() and len(source.asked) == 1


@pytest.mark.parametrize("safe", [False, True])
def test_a_file_put_there_by_hand_is_used_and_pinned(home: Path, add: Any, tiny: Any, safe: bool) -> None:
    net, blob = tiny
    card = add(made(NAME, WeightFile(("https://nowhere.invalid/x.pt",))))
    path = place(card, 0) if not safe else place(card, 0).with_suffix(".safetensors")
    path.parent.mkdir(parents=True)
    path.write_bytes(save(net.state_dict()) if safe else blob)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load(NAME).forward(x).logits, net(x))
    assert left(home) == [path.name, path.name + ".sha256"]


def test_two_at_once_do_not_disturb_each_other(source: Source, home: Path, tiny: Any) -> None:
    """While one process holds the part, another one takes a part of its own."""
    source.files[PATH] = tiny[1]
    card = made(NAME, WeightFile((source.url + PATH,)))
    place(card, 0).parent.mkdir(parents=True)
    shared = download.part_of(place(card, 0), source.url + PATH)
    with download.claimed(shared) as held:
        held.write_bytes(b"half of it")
        fetch(card)
        assert held.read_bytes() == b"half of it"
    assert place(card, 0).read_bytes() == tiny[1]


def test_a_download_is_locked_while_it_runs(source: Source, home: Path, tiny: Any) -> None:
    source.files[PATH], seen = tiny[1], []
    card = made(NAME, WeightFile((source.url + PATH,)))
    part = download.part_of(place(card, 0), source.url + PATH)

    def progress(done: int, total: int | None) -> None:
        with download.claimed(part) as other:
            seen.append(other != part)

    fetch(card, progress)
    assert seen and all(seen)


def test_addresses() -> None:
    assert address("gdrive:abc_1").endswith("id=abc_1&export=download&confirm=t")
    assert address("https://example.org/a.pt") == "https://example.org/a.pt"


def test_nothing_is_written_into_the_package() -> None:

    demo = next(c for c in cards().values() if c.files and c.files[0].sources[0].startswith("package:"))
    path = fetch(demo)[0]
    assert sorted(p.name for p in path.parent.iterdir() if p.suffix == ".sha256") == []
