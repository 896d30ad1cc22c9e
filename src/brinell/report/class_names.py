"""Names of the classes of well-known data sets; a Run stores numbers."""

from collections.abc import Sequence

from brinell.errors import InputError
from brinell.results import Run

FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KNOWN = {"demo": FASHION, "fashion-mnist": FASHION, "cifar-10-batches-py": CIFAR10, "cifar10": CIFAR10}
"""By the name of the data in the manifest."""


def class_names(run: Run, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The given names, those of a well-known data set, or none."""
    count = run.identity.model.classes
    if given and count is not None and len(given) != count:
        raise InputError(
            expected=f"{count} names of classes",
            got=f"{len(given)}",
            remedy="Give one for each class, in the order of their numbers.",
        )
    known = KNOWN.get(str(run.identity.data.name), ())
    return tuple(given) or (known if len(known) == count else ())
