"""Where results go: into training loops, Lightning, TensorBoard, MLflow and Weights & Biases.

`callback` measures a model in training on a fixed subset; `lightning` makes a Lightning callback of it. `loggers` write
the numbers of a Run to a tracker. No tracker is imported before it is used.
"""

from brinell.integrations.callback import MeasuredEpoch, RobustAccuracy
from brinell.integrations.lightning import lightning_callback
from brinell.integrations.loggers import MLflow, TensorBoard, WandB, numbers, texts

__all__ = [
    "MLflow",
    "MeasuredEpoch",
    "RobustAccuracy",
    "TensorBoard",
    "WandB",
    "lightning_callback",
    "numbers",
    "texts",
]
