"""Can an evaluation be believed: signs that an attack failed for reasons other than the model's robustness."""

from brinell.reliability.items import Item, Probes, Surface
from brinell.reliability.probes import probe

__all__ = ["Item", "Probes", "Surface", "probe"]
