"""`from robustbench.model_zoo.models import model_dicts` of older scripts."""

from brinell.compat.robustbench.model_zoo import published_models

model_dicts = published_models()
