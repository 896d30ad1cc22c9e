"""Class names of well-known data sets; a Run stores only class numbers."""

from collections.abc import Sequence

from brinell.errors import InputError
from brinell.results import Run

FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KNOWN = {"demo": FASHION, "fashion-mnist": FASHION, "cifar-10-batches-py": CIFAR10, "cifar10": CIFAR10}
"""Class names by the name of the data in the manifest."""


def class_names(run: Run, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the given names, else those of a well-known data set, else none."""
    count = run.identity.model.classes
    if given and count is not None and len(given) != count:
        raise InputError(
            expected=f"{count} class names",
            got=f"{len(given)}",
            remedy="Give one name per class, in the order of the class numbers.",
        )
    known = KNOWN.get(str(run.identity.data.name), ())
    return tuple(given) or (known if len(known) == count else ())
