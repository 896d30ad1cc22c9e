"""What once went wrong: normalisation around a module, splits of folders, weights that are no numbers."""

import gzip
import struct

import numpy as np
import pytest
import torch
from torch import nn

import brinell
from brinell.train import Recipe, fit, load
from brinell.train.samples import as_samples


def test_a_loaded_module_keeps_its_normalisation(tmp_path):
    x = torch.rand(120, 3, 4, 4)
    y = (x[:, 0].mean((1, 2)) > 0.5).long()
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    clf = brinell.wrap(net, mean=(0.5, 0.5, 0.5), std=(0.05, 0.1, 0.2))
    recipe = Recipe(epochs=2, batch=20, lr=0.1)
    made = fit(clf, (x, y), brinell.Linf(0.001), "standard", recipe, out=tmp_path, validation=0, progress=False)
    again = load(tmp_path, net)
    assert torch.equal(again.forward(x).logits, made.classifier.forward(x).logits)


def idx(path, array):
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_validation_on_a_folder_takes_its_test_split(tmp_path):
    for name, n in (("train", 12), ("t10k", 5)):
        idx(tmp_path / f"{name}-images-idx3-ubyte.gz", np.full((n, 4, 4), n, np.uint8))
        idx(tmp_path / f"{name}-labels-idx1-ubyte.gz", np.arange(n).astype(np.uint8) % 3)
    assert len(as_samples(tmp_path)) == 12
    assert len(as_samples(tmp_path, "test")) == 5
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    made = fit(
        net, tmp_path, brinell.Linf(0.1), "standard", Recipe(epochs=1, batch=4, lr=0.01), out=tmp_path / "out",
        validation=tmp_path, plan="fgsm", progress=False,
    )  # fmt: skip
    assert made.curve[0].n == 5


class Poisoned(nn.Module):
    """A finite loss whose gradient is not: the root's slope at zero, weighed by a number that is never seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spare = nn.Linear(4, 2), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.linear(x) + self.spare.sqrt()


def test_weights_that_are_no_numbers_are_never_stored(tmp_path):
    x, y = torch.rand(16, 4), torch.arange(16) % 2
    with pytest.raises(brinell.ModelError, match="finite"):
        fit(
            Poisoned(), (x, y), brinell.Linf(0.1), "standard", Recipe(epochs=1, batch=16, lr=0.1), out=tmp_path,
            validation=0, progress=False,
        )  # fmt: skip
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(v.isfinite().all() for v in stored["model"].values())


@pytest.mark.parametrize("content", [b"", b"a single array"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "x.npz"
    if content:
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(brinell.InputError, match=r"readable file x\.npz"):
        brinell.data.load(path)
