"""Models, attacks and criteria under the names of Foolbox: `from brinell.compat import foolbox as fb`.

The modules are those of Foolbox: `models`, `criteria`, `attacks` and `utils`.
"""

from typing import Any

from brinell.compat.foolbox import attacks, criteria, models, utils
from brinell.compat.foolbox.criteria import Misclassification, TargetedMisclassification
from brinell.compat.foolbox.models import PyTorchModel
from brinell.compat.foolbox.utils import accuracy, samples
from brinell.compat.missing import refuse_name

__all__ = [
    "Misclassification",
    "PyTorchModel",
    "TargetedMisclassification",
    "accuracy",
    "attacks",
    "criteria",
    "models",
    "samples",
    "utils",
]


def __getattr__(name: str) -> Any:
    """Raise that Foolbox's name is missing here; the remedy names what to use."""
    outside = {
        "plot": "matplotlib's imshow(image.permute(1, 2, 0)), or `brinell report`, which shows the images",
        "zoo": "brinell.models.zoo",
        "gradient_estimators": "brinell.attacks.Square or brinell.attacks.HopSkipJump for models without gradients",
        "distances": "brinell.Linf(eps).norm.size(x_adv - x)",
    }
    within = {attack: f"brinell.compat.foolbox.attacks.{attack}" for attack in attacks.__all__}
    refuse_name(__name__, name, __all__, {**within, **outside, **attacks.INSTEAD, **models.INSTEAD})
