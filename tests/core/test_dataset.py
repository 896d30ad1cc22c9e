"""Problems: every source gives the same samples, every defect of the data is refused with what to do about it."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from brinell.core.dataset import Problem, sample_hashes
from brinell.errors import InputError
from brinell.ops import rng

N = 23
X = rng.uniform(rng.keys(0, torch.arange(N)), (1, 3, 4))
Y = torch.arange(N) % 5


class Pairs(Dataset):
    """As people write them: (tensor, int) by index."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return X[i], int(Y[i])


SOURCES = {
    "tensors": lambda: Problem(X, Y),
    "numpy": lambda: Problem(X.numpy(), Y.numpy()),
    "double": lambda: Problem(X.double(), Y.int()),
    "lists": lambda: Problem(X.tolist(), Y.tolist()),
    "dataset": lambda: Problem(Pairs()),
    "tensor dataset": lambda: Problem(TensorDataset(X, Y)),
    "loader": lambda: Problem(DataLoader(TensorDataset(X, Y), batch_size=7)),
    "loader of one": lambda: Problem(DataLoader(Pairs(), batch_size=1)),
}
EVERY_SOURCE = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())


@EVERY_SOURCE
@pytest.mark.parametrize("size", [1, 5, 7, 23, 100])
def test_chunks(source, size):
    problem = source()
    assert len(problem) == N and problem.shape() == (1, 3, 4)
    chunks = list(problem.chunks(size))
    assert [len(c) for c in chunks] == [min(size, N - i) for i in range(0, N, size)]
    assert [c.offset for c in chunks] == list(range(0, N, size))
    assert torch.equal(torch.cat([c.ids for c in chunks]), torch.arange(N))
    assert torch.equal(torch.cat([c.x for c in chunks]), X)
    assert torch.equal(torch.cat([c.y for c in chunks]), Y)
    assert all(c.x.dtype == torch.float32 and c.y.dtype == torch.int64 for c in chunks)


@EVERY_SOURCE
@pytest.mark.parametrize("part", [slice(4, 9), slice(None, 6), slice(None, None, 3), slice(-4, None), slice(20, 99)])
def test_slices_keep_ids(source, part):
    piece = source()[part]
    assert len(piece) == len(range(N)[part])
    (chunk,) = piece.chunks(100)
    assert chunk.ids.tolist() == list(range(N))[part]
    assert torch.equal(chunk.x, X[part]) and torch.equal(chunk.y, Y[part])


@EVERY_SOURCE
def test_slices_of_slices(source):
    (chunk,) = source()[5:20][2:6].chunks(100)
    assert chunk.ids.tolist() == [7, 8, 9, 10] and torch.equal(chunk.x, X[7:11])


@pytest.mark.parametrize("source", [lambda ids: Problem(X, Y, ids), lambda ids: Problem(Pairs(), ids=ids)])
def test_given_ids(source):
    ids = [5 * i - 40 for i in range(N)]
    problem = source(ids)
    assert torch.cat([c.ids for c in problem.chunks(4)]).tolist() == ids
    assert torch.cat([c.ids for c in problem[3:9].chunks(4)]).tolist() == ids[3:9]
    assert problem.fingerprint() != source(list(range(N))).fingerprint()


@EVERY_SOURCE
def test_fingerprints_see_every_change(source):
    problem = source()
    assert problem.fingerprint() == source().fingerprint()
    assert problem.fingerprint() != problem[:-1].fingerprint()
    changed = X.clone()
    changed[11, 0, 2, 3] = torch.nextafter(X[11, 0, 2, 3], torch.tensor(2.0))
    other = Problem(changed, Y) if not problem.streamed else Problem(TensorDataset(changed, Y))
    assert problem.fingerprint() != other.fingerprint()
    assert len(set(sample_hashes(X))) == N and sample_hashes(changed)[11] != sample_hashes(X)[11]


# --------------------------------------------------------------------------------------------------------- bad inputs


def spoil(row: int, value: float) -> torch.Tensor:
    x = X.clone()
    x[row, 0, 1, 1] = value
    return x


BAD_X = {
    "above the box": (spoil(20, 1.01), r"inputs in \[0, 1\].*un-normalised.*brinell\.wrap"),
    "below the box": (spoil(20, -0.001), r"inputs in \[0, 1\]"),
    "0-255": (X * 255, r"inputs in \[0, 1\]"),
    "normalised": ((X - 0.5) / 0.25, "normalisation inside the model"),
    "nan": (spoil(20, float("nan")), "finite inputs"),
    "inf": (spoil(20, float("inf")), "finite inputs"),
    "integers": ((X * 255).int(), r"dtype int32.*x\.float\(\) / 255"),
    "integers of NumPy": ((X * 255).int().numpy(), r"dtype int32.*np\.asarray\(x, dtype=.float32.\) / 255"),
    "one sample": (torch.rand(12), "batch dimension"),
}


@pytest.mark.parametrize(("x", "why"), BAD_X.values(), ids=BAD_X.keys())
def test_bad_inputs(x, why):
    with pytest.raises(InputError, match=why):
        Problem(x, Y[: len(x)])


@pytest.mark.parametrize(("x", "why"), list(BAD_X.values())[:7], ids=list(BAD_X)[:7])
@pytest.mark.parametrize("loader", [False, True])
def test_bad_inputs_in_a_stream(x, why, loader):
    data = TensorDataset(x, Y)
    problem = Problem(DataLoader(data, batch_size=4) if loader else data)
    with pytest.raises(InputError, match=why):
        list(problem.chunks(5))


def test_the_bad_sample_is_named():
    with pytest.raises(InputError, match="sample 20"):
        Problem(spoil(20, float("nan")), Y)


def test_rounding_outside_the_box_is_clipped():
    problem = Problem(torch.stack([spoil(0, -3e-8)[0], spoil(0, 1 + 1e-7)[0]]), [0, 1])
    assert problem.x[0, 0, 1, 1] == 0 and problem.x[1, 0, 1, 1] == 1
    assert torch.equal(problem.x[0].flatten()[:4], X[0].flatten()[:4])


BAD_Y = {
    "too few": (Y[:-1], r"23 integer labels, shape \(23,\)"),
    "float": (Y.float(), "dtype float32"),
    "bool": (Y > 2, "dtype bool"),
    "one-hot": (torch.nn.functional.one_hot(Y), r"one-hot labels: y\.argmax\(1\)"),
    "column": (Y[:, None], r"shape \(23, 1\)"),
    "negative": (Y - 1, "labels of at least 0, got label -1"),
}


@pytest.mark.parametrize(("y", "why"), BAD_Y.values(), ids=BAD_Y.keys())
def test_bad_labels(y, why):
    with pytest.raises(InputError, match=why):
        Problem(X, y)


BAD_IDS = {
    "twice": [0, *range(N - 1)],
    "too few": list(range(N - 1)),
    "float": [float(i) for i in range(N)],
    "column": np.arange(N)[:, None],
    "bool": torch.ones(N, dtype=torch.bool),
}


@pytest.mark.parametrize("ids", BAD_IDS.values(), ids=BAD_IDS.keys())
@pytest.mark.parametrize("make", [lambda ids: Problem(X, Y, ids), lambda ids: Problem(Pairs(), ids=ids)])
def test_bad_ids(make, ids):
    with pytest.raises(InputError, match="distinct integer ids"):
        make(ids)


def test_labels_the_model_does_not_know():
    import brinell
    from brinell.testing import linear_world

    world = linear_world(classes=3, n=4)
    with pytest.raises(InputError, match=r"labels in 0\.\.2.*got label 3"):
        brinell.attack(world.classifier, (world.x, torch.tensor([0, 1, 3, 0])), brinell.L2(0.1), brinell.attacks.FGSM())


def test_bad_sources():
    with pytest.raises(InputError, match="shuffle=False"):
        Problem(DataLoader(Pairs(), shuffle=True))
    with pytest.raises(InputError, match="no labels"):
        Problem(X)
    with pytest.raises(InputError, match="at least one sample"):
        Problem(X[:0], Y[:0])
    with pytest.raises(InputError, match="at least one sample"):
        Problem(X, Y)[40:]
    with pytest.raises(InputError, match=r"\(inputs, labels\)"):
        list(Problem(DataLoader(X)).chunks(5))


def test_loaders_whose_order_or_number_of_samples_is_their_own_are_refused():
    """A sample's id is its position: a loader that reorders or drops samples would give them others' ids."""
    backwards = [[3, 2], [1, 0]]
    with pytest.raises(InputError, match="reads in order"):
        Problem(DataLoader(TensorDataset(X[:4], Y[:4]), batch_sampler=backwards))
    with pytest.raises(InputError, match="drop_last"):
        Problem(DataLoader(Pairs(), batch_size=7, drop_last=True))
