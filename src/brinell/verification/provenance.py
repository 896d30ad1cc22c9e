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
from brinell.results import CLEAN, Run, row_queries
from brinell.results.format.files import read_all_rows
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
    threat, radii = coerce.threat_of(run), run.sample_radii
    if not isinstance(threat.eps, Tensor):
        return threat
    if radii is None:
        _refuse_other_order(run, data)
        return threat
    ids = first_ids(data, len(data))
    return replace(threat, eps=torch.tensor([radii.get(i, max(radii.values())) for i in ids], dtype=threat.eps.dtype))


def _refuse_other_order(run: Run, data: Problem) -> None:
    """A RunError where a Run does not say whose its radii are and the data are not in the order it was made in."""
    ids = _as_written(run)
    if first_ids(data, len(ids)) != ids and data.fingerprint() != run.identity.data.fingerprint:
        raise RunError(
            expected="the samples in the order the Run was made with, since it does not say whose its radii are",
            got="another order",
            remedy="Pass the data as they were then, or evaluate again: Runs made now say it.",
        )


def foreign(run: Run, model: Classifier) -> Iterator[str]:
    stored = run.identity.model.fingerprint
    if stored != model.fingerprint:
        yield f"It was made with another model: fingerprint {str(stored)[:16]}…, not {model.fingerprint[:16]}…."


def other_classes(run: Run, oracle: Oracle, data: Problem) -> Iterator[str]:
    """As many classes as the model has: guessing is judged by them."""
    stored = run.identity.model.classes
    here = oracle.output(next(data.chunks(1)).x.to(oracle.classifier.device)).logits.shape[1]
    if stored is not None and stored != here:
        yield f"It tells of {stored} classes, and the model has {here}."


def strengthened(run: Run) -> Iterator[str]:
    """A plan of Brinell's under its name is as strong as it is here: the verdict depends on it."""
    stored = run.identity.plan
    try:
        here = by_name(stored.name).strength
    except PlanError:
        return
    if "strength" in stored.raw and stored.strength != here:
        yield f"Its plan {stored.name} is called {stored.strength!r}, and is {here!r}."


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
    stored, ids = run.identity.data, _as_written(run)
    streamed = str(stored.fingerprint).startswith("stream-")
    known = len(ids) == stored.n and not stored.sources
    if not known or streamed != data.streamed or first_ids(data, len(ids)) != ids:
        return
    if stored.fingerprint != (here := data[: len(ids)].fingerprint()):
        yield f"It was made with other data: fingerprint {str(stored.fingerprint)[:16]}…, not {here[:16]}…."


def _as_written(run: Run) -> list[int]:
    """The samples in the order in which their clean rows were stored: that of the data, unless workers shared it."""
    rows = read_all_rows(run.path, columns=("sample_id", "attack"))
    return list(dict.fromkeys(row_queries.ids_of(rows)[row_queries.is_attack(rows, CLEAN)].tolist()))


def facts(run: Run, data: Problem, right: Mapping[int, bool] | None = None) -> dict[int, str]:
    """Samples whose input or label are not what the Run says; all of them, broken or not.

    With `right`, which has whether the model is right about every clean input, also their clean outcome.
    """
    rows = run.rows().filter(row_queries.is_attack(run.rows(), CLEAN))
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
