"""Accuracy under common corruptions (ImageNet-C and its relatives).

`report` measures a model on every corruption and severity (`corruption_accuracy`) and holds the result.
`baselines` reads and writes tables of accuracies and holds the reference model for the mean corruption error.
`table` measures one corruption and severity at a time and can resume; the leaderboard uses it.
"""

from brinell.analysis.corruptions.baselines import Baseline, save_table
from brinell.analysis.corruptions.report import CorruptionReport, corruption_accuracy

__all__ = ["Baseline", "CorruptionReport", "corruption_accuracy", "save_table"]
