"""Data as people have them give the same samples as arrays in [0, 1], or an error that says what to do."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from brinell.core.dataset import Problem
from brinell.core.samples import BYTES, ID_BITS, id_of
from brinell.errors import InputError
from brinell.evaluation.coerce import as_problem
from brinell.ops import rng
from brinell.train.samples import as_samples

N = 9
PIXELS = rng.integers(rng.keys(0, torch.arange(N)), 256, (3, 4, 5)).to(torch.uint8)
X, Y = PIXELS.float() / 255, torch.arange(N) % 4


def picture(i: int, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(PIXELS[i].permute(1, 2, 0).numpy()).convert(mode)


class Samples(Dataset[Any]):
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.make(range(N)[i])


class HuggingFace:
    """Like a data set of Hugging Face: no torch Dataset, dicts of pictures and labels."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"idx": i, "image": picture(i), "label": int(Y[i])}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(X[i], int(Y[i])) for i in range(N)])


SOURCES = {
    "bytes in a tensor": lambda: (PIXELS, Y),
    "bytes in an array": lambda: (PIXELS.numpy(), Y.numpy()),
    "a data set of bytes": lambda: Samples(lambda i: (PIXELS[i].numpy(), Y[i])),
    "a data set of pictures": lambda: Samples(lambda i: (picture(i), int(Y[i]))),
    "a data set of dicts": lambda: Samples(lambda i: {"pixel_values": X[i], "labels": int(Y[i])}),
    "a loader of dicts": lambda: DataLoader(Samples(lambda i: {"x": X[i], "y": int(Y[i])}), batch_size=4),
    "hugging face": HuggingFace,
    "a list of pairs": lambda: [(X[i], int(Y[i])) for i in range(N)],
    "a tuple of pairs of arrays": lambda: tuple((X[i].numpy(), np.int64(Y[i])) for i in range(N)),
    "a dict of arrays": lambda: {"image": PIXELS, "label": Y},
    "an iterable data set": Stream,
    "a loader of an iterable data set": lambda: DataLoader(Stream(), batch_size=4),
    "a generator": lambda: ((picture(i), int(Y[i])) for i in range(N)),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_kind_of_data_gives_the_same_samples(make: Any) -> None:
    problem = as_problem(make())
    assert len(problem) == N
    for part, rows in ((problem, slice(None)), (problem[2:5], slice(2, 5)), (problem, slice(None))):
        x, y = part
        assert torch.equal(x, X[rows]) and torch.equal(y, Y[rows])
    x, y = as_samples(make()).problem()
    assert torch.equal(x, X) and torch.equal(y, Y)


@pytest.mark.parametrize("source", ["bytes in an array", "a data set of pictures", "a generator", "a dict of arrays"])
def test_bytes_are_noted(source: str) -> None:
    problem = as_problem(SOURCES[source]())
    list(problem.chunks(4))
    assert problem.notes == [BYTES] == problem[1:].notes
    assert as_problem((X, Y)).notes == []


def test_two_pairs_are_no_pair_of_arrays() -> None:
    x, _ = as_problem([(X[0], 1), (X[1], 2)])
    assert torch.equal(x, X[:2])
    x, y = as_problem([[[0.1, 0.2], [0.3, 0.4]], [0, 1]])
    assert x.shape == (2, 2) and y.tolist() == [0, 1]


def test_grey_pictures_stay_grey() -> None:
    x, _ = Problem(Samples(lambda i: (picture(i, "L"), 0)))
    assert x.shape == (N, 1, 4, 5)
    assert torch.equal(x[3, 0], torch.from_numpy(np.array(picture(3, "L"))).float() / 255)


BAD = {
    "other keys": (Samples(lambda i: {"left": X[i], "right": 0}), "rename the keys"),
    "pictures of several sizes": (Samples(lambda i: (picture(i).resize((4 + i, 4)), 0)), "Resize or crop"),
    "pictures in a loader": (DataLoader(Samples(lambda i: (picture(i), 0))), "ToTensor"),
    "sixteen bits": (Samples(lambda i: (Image.fromarray(np.zeros((4, 4), np.uint16)), 0)), "ToTensor"),
    "bytes of 0 and 1": ((PIXELS // 200 + 0 * PIXELS, Y), "x.float()"),
    "whole numbers": ((PIXELS.int(), Y), "/ 255"),
    "a used-up generator": (iter(()), "used up"),
    "an array without labels": (X.numpy(), "labels too"),
    "splits": ({"train": HuggingFace(), "test": HuggingFace()}, "train, test"),
}


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_read_says_what_to_do(data: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(as_problem(data).chunks(4))


def test_a_stream_too_large_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brinell.core.samples.LARGEST_STREAM", 4 * 60 * 5)
    with pytest.raises(InputError, match="islice"):
        Problem((X[i % N], 0) for i in itertools.count())


NAMES = [f"cat/{i}.png" for i in range(N)]


@pytest.mark.parametrize("names", [NAMES, tuple(NAMES), np.array(NAMES), np.array(NAMES, object)])
def test_ids_may_be_names(names: Any) -> None:
    problem = Problem(X, Y, ids=names)
    assert problem.ids.tolist() == [id_of(name) for name in NAMES] and problem.names == NAMES
    assert problem[4:6].names == NAMES[4:6] and problem[4:6].ids.tolist() == problem.ids[4:6].tolist()
    streamed = Problem(Samples(lambda i: (X[i], Y[i])), ids=names)[1:8]
    chunks = list(streamed.chunks(3))
    assert [name for chunk in chunks for name in chunk.names or ()] == NAMES[1:8]
    assert torch.equal(torch.cat([chunk.ids for chunk in chunks]), problem.ids[1:8])


def test_ids_of_names_are_exact_in_doubles_and_apart() -> None:
    ids = [id_of(f"{i}.jpg") for i in range(20_000)]
    assert len(set(ids)) == len(ids) and max(ids) < 2**ID_BITS and [int(float(i)) for i in ids] == ids
    # A digest computed elsewhere: sha256sum of the name, its first 53 bits.
    assert id_of("a") == 0xCA978112CA1BBDCA >> 11


def test_names_without_ids_change_no_outcome() -> None:
    problem = Problem(X, Y, names=NAMES)
    assert problem.ids.tolist() == list(range(N)) and problem.fingerprint() == Problem(X, Y).fingerprint()
    with pytest.raises(InputError, match="one per sample"):
        Problem(X, Y, names=NAMES[:3])
    with pytest.raises(InputError, match="8 distinct"):
        Problem(X, Y, ids=[*NAMES[:-1], NAMES[0]])


def test_a_folder_of_torchvision_has_file_names() -> None:
    folder: Any = Samples(lambda i: (X[i], 0))
    folder.root, folder.samples = "/pictures", [(f"/pictures/{name}", 0) for name in NAMES]
    problem = Problem(folder)
    assert problem.names == NAMES and next(problem[3:].chunks(2)).ids.tolist() == [3, 4]
