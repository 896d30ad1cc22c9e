"""Whether a Run is about the data and the model at hand; of its adversarials nothing is asked yet."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from brinell.attacks.catalogue import by_name
from brinell.core.dataset import Problem, sample_hashes
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import PlanError, RunError
from brinell.evaluation import coerce
from brinell.results import CLEAN, Run
from brinell.results import row_queries as outcome
from brinell.results.format.files import read_all_rows
from brinell.results.format.manifest import lookup
from brinell.results.radii import own_radii
from brinell.verification.adversarials import WRONGLY_RIGHT

CHUNK = 4096


def refuse_shapes(run: Run, data: Problem) -> None:
    """A RunError for images that are not of the data's shape, which arithmetic might stretch to it."""
    try:
        shape = run.adversarials().x.shape[1:]
    except (ValueError, IndexError) as error:
        raise RunError(
            expected="adversarials of one shape", got=f"others ({error})", remedy="The Run is refused."
        ) from error
    if shape and tuple(shape) != data.shape():
        raise RunError(
            expected=f"adversarials of shape {data.shape()}", got=f"{tuple(shape)}", remedy="The Run is refused."
        )


def threat_for(run: Run, data: Problem) -> Threat:
    """The threat of a Run, radii of single samples in the order of this data; samples that are not the Run's have one
    that is never used."""
    threat, own = coerce.threat_of(run), own_radii(run.manifest)
    if not isinstance(threat.eps, Tensor):
        return threat
    if own is None:
        _refuse_other_order(run, data)
        return threat
    ids = first_ids(data, len(data))
    return replace(threat, eps=torch.tensor([own.get(i, max(own.values())) for i in ids], dtype=threat.eps.dtype))


def _refuse_other_order(run: Run, data: Problem) -> None:
    """A RunError where a Run does not say whose its radii are and the data are not in the order it was made in."""
    ids = _as_written(run)
    if first_ids(data, len(ids)) != ids and data.fingerprint() != lookup(run.manifest, "identity.data.fingerprint"):
        raise RunError(
            expected="the samples in the order the Run was made with, since it does not say whose its radii are",
            got="another order",
            remedy="Pass the data as they were then, or evaluate again: Runs made now say it.",
        )


def foreign(run: Run, model: Classifier) -> Iterator[str]:
    told = lookup(run.manifest, "identity.model.fingerprint")
    if told != model.fingerprint:
        yield f"It was made with another model: fingerprint {str(told)[:16]}…, not {model.fingerprint[:16]}…."


def other_classes(run: Run, oracle: Oracle, data: Problem) -> Iterator[str]:
    """As many classes as the model has: guessing is judged by them."""
    told = lookup(run.manifest, "identity.model.classes")
    here = oracle.output(next(data.chunks(1)).x.to(oracle.classifier.device)).logits.shape[1]
    if told is not None and told != here:
        yield f"It tells of {told} classes, and the model has {here}."


def strengthened(run: Run) -> Iterator[str]:
    """A plan of Brinell's under its name is as strong as it is here: the verdict depends on it."""
    told = run.manifest["identity"]["plan"]
    try:
        here = by_name(told["name"]).strength
    except PlanError:
        return
    if told.get("strength", here) != here:
        yield f"Its plan {told['name']} is called {told['strength']!r}, and is {here!r}."


def first_ids(data: Problem, n: int) -> list[int]:
    """The ids of the first n samples."""
    chunks = data.chunks(CHUNK)
    found: list[int] = []
    while len(found) < n and (chunk := next(chunks, None)) is not None:
        found += chunk.ids.tolist()
    return found[:n]


def other_data(run: Run, data: Problem) -> Iterator[str]:
    """The data's fingerprint, where it can be told: of all the Run's samples, in the order they were read in then.

    A fingerprint depends on the order, and of a Run that has not seen all its samples nothing follows from it.
    """
    told, ids = lookup(run.manifest, "identity.data"), _as_written(run)
    streamed = str(told.get("fingerprint")).startswith("stream-")
    known = len(ids) == told.get("n") and not told.get("sources")
    if not known or streamed != data.streamed or first_ids(data, len(ids)) != ids:
        return
    if told.get("fingerprint") != (here := data[: len(ids)].fingerprint()):
        yield f"It was made with other data: fingerprint {str(told.get('fingerprint'))[:16]}…, not {here[:16]}…."


def _as_written(run: Run) -> list[int]:
    """The samples in the order in which their clean rows were stored: that of the data, unless workers shared it."""
    rows = read_all_rows(run.path, columns=("sample_id", "attack"))
    return list(dict.fromkeys(outcome.ids_of(rows)[outcome.is_attack(rows, CLEAN)].tolist()))


def facts(run: Run, data: Problem, right: Mapping[int, bool] | None = None) -> dict[int, str]:
    """Samples whose input or label are not what the Run says; all of them, broken or not.

    With `right`, which has whether the model is right about every clean input, also their clean outcome.
    """
    rows = run.rows().filter(outcome.is_attack(run.rows(), CLEAN))
    columns = (rows[c].to_pylist() for c in ("sample_id", "x_sha256", "label", "broken"))
    told = {i: (sha, label, broken) for i, sha, label, broken in zip(*columns, strict=True)}
    failures = dict.fromkeys(told, "no such sample in the data")
    for chunk in data.chunks(CHUNK):
        mine = [r for r, i in enumerate(chunk.ids.tolist()) if i in told]
        for r, digest_ in zip(mine, sample_hashes(chunk.x[mine]) if mine else [], strict=True):
            i = int(chunk.ids[r])
            sha, label, broken = told[i]
            del failures[i]
            if sha != digest_:
                failures[i] = "the clean input is not the one that was attacked"
            elif label != int(chunk.y[r]):
                failures[i] = f"the label is {int(chunk.y[r])}, the Run was made with {label}"
            elif right is not None and not broken and not right[i]:
                failures[i] = WRONGLY_RIGHT
    return failures
