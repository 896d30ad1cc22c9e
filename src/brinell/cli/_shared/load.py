"""Load the models and data named on the command line."""

from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.evaluation import coerce


def model(spec: str) -> Classifier:
    """Return the classifier that --model names."""
    return coerce.as_classifier(spec)


def data(spec: str, n: int | None, part: str | None) -> Problem:
    """Return the samples that --data, --n and --part select."""
    return coerce.as_problem(spec, n, part)
