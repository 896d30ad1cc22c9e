"""Names of the classes of well-known data sets; a Run stores numbers."""

from collections.abc import Sequence

from brinell.errors import InputError
from brinell.results import Run
from brinell.results.format.manifest import lookup

FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
KNOWN = {"demo": FASHION, "fashion-mnist": FASHION, "cifar-10-batches-py": CIFAR10, "cifar10": CIFAR10}
"""By the name of the data in the manifest."""


def class_names(run: Run, given: Sequence[str] = ()) -> tuple[str, ...]:
    """The given names, those of a well-known data set, or none."""
    count = lookup(run.manifest, "identity.model.classes")
    if given and isinstance(count, int) and len(given) != count:
        raise InputError(
            expected=f"{count} names of classes",
            got=f"{len(given)}",
            remedy="Give one for each class, in the order of their numbers.",
        )
    known = KNOWN.get(str(lookup(run.manifest, "identity.data.name")), ())
    return tuple(given) or (known if len(known) == count else ())
