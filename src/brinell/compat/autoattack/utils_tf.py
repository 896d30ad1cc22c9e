"""AutoAttack's adapters of TensorFlow models: none here, and the error names what to use."""

from typing import Any

from brinell.compat.missing import refuse_name


def __getattr__(name: str) -> Any:
    """Raise that an adapter of AutoAttack is missing here; the remedy names what to use."""
    use = "brinell.models.from_tensorflow(model)"
    refuse_name(__name__, name, [], {"ModelAdapter": use, "TFModel": use}, f"Use {use}.")
