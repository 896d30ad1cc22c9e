"""Load the models and data named on the command line."""

from collections.abc import Sequence

from brinell.analysis.across_models import named
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.results import Run, row_queries


def model(spec: str) -> Classifier:
    """Return the classifier that --model names."""
    return coerce.as_classifier(spec)


def only_model(specs: Sequence[str]) -> str | None:
    """Return the one model that --model names, or None if --model names many models or has the form NAME=MODEL."""
    models = list(named(specs))
    return models[0][1] if len(models) == 1 and not models[0][0] else None


def data(spec: str, n: int | None, part: str | None, model: Classifier | None = None) -> Problem:
    """Return the samples that --data, --n and --part select; pictures get the size that the model expects."""
    return coerce.as_problem(spec, n, part, None if model is None else model.inputs)


def data_of(run: Run, spec: str | None, n: int | None) -> Problem:
    """Return the samples that --data and --n select; without --data, those that the Run names, as many as it has."""
    stored = run.identity.data
    if spec is not None:
        return data(spec, n, None)
    if not stored.name:
        raise InputError(
            expected="--data, because the Run does not name its data", got="no --data", remedy="Add --data DATA."
        )
    return data(stored.name, stored.n if n is None else n, None)


def size_of(run: Run) -> int | None:
    """Return the number of samples of a Run of the first samples of its data; None for a Run of others."""
    n, ids = run.identity.data.n, row_queries.samples(run.numbers())
    return n if n == len(ids) and bool((ids == range(len(ids))).all()) else None
