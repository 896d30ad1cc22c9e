"""Defences that did not hold, rebuilt small: to see that a flawed evaluation is told from a sound one."""

from brinell.defences.defences import DEFENCES, Defence, Evaluation, find
from brinell.defences.measure import Measured, Row, measure

__all__ = ["DEFENCES", "Defence", "Evaluation", "Measured", "Row", "find", "measure"]
