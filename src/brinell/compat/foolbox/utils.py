"""`accuracy` of a model and `samples` of a data set."""

from typing import Any

from torch import Tensor

from brinell.compat.foolbox.models import PyTorchModel, plain
from brinell.compat.functions import predictions, refuse_unless
from brinell.compat.missing import refuse_name
from brinell.data.load import load

__all__ = ["accuracy", "samples"]
# The data sets of Foolbox, by their names in Brinell. The images of the demonstration are those of Fashion-MNIST.
SETS = {"imagenet": "imagenet", "cifar10": "cifar10", "cifar100": "cifar100", "mnist": "mnist", "fashionMNIST": "demo"}


def accuracy(fmodel: PyTorchModel, inputs: Any, labels: Any) -> float:
    """Return the share of inputs that the model classifies as their labels."""
    found = predictions(fmodel.classifier, fmodel.inwards(plain(inputs)))
    return float((found == plain(labels).cpu()).float().mean())


def samples(
    fmodel: PyTorchModel, dataset: str = "imagenet", index: int = 0, batchsize: int = 1, shape: Any = (224, 224),
    data_format: str | None = None, bounds: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return test images, in the bounds of the model, and their labels: those of `brinell.data`, in its order.

    Foolbox has 20 images of each data set in its package. Here they are those from position `index` on.
    """
    refuse_unless(
        dataset in SETS, f"a data set among {', '.join(SETS)}", repr(dataset), "Use brinell.data.load, or your images."
    )
    options = (tuple(shape), data_format in (None, "channels_first"), bounds in (None, fmodel.bounds))
    refuse_unless(
        options == ((224, 224), True, True), "the shape, the order of channels and the bounds of the model",
        f"shape={shape}, data_format={data_format}, bounds={bounds}", "Leave them out.",
    )  # fmt: skip
    x, y = load(SETS[dataset], n=index + batchsize)[index:]
    return fmodel.outwards(x).to(fmodel.classifier.device), y.to(fmodel.classifier.device)


def __getattr__(name: str) -> Any:
    """Raise that Foolbox's name is missing here; the remedy names what to use."""
    refuse_name(__name__, name, __all__, {})
