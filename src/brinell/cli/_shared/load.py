"""Load the models and data named on the command line."""

from collections.abc import Sequence

from brinell.analysis.across_models import named
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.evaluation import coerce


def model(spec: str) -> Classifier:
    """Return the classifier that --model names."""
    return coerce.as_classifier(spec)


def only_model(specs: Sequence[str]) -> str | None:
    """Return the one model that --model names, or None if --model names many models or has the form NAME=MODEL."""
    models = list(named(specs))
    return models[0][1] if len(models) == 1 and not models[0][0] else None


def data(spec: str, n: int | None, part: str | None) -> Problem:
    """Return the samples that --data, --n and --part select."""
    return coerce.as_problem(spec, n, part)
