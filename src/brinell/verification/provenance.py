"""Check that a Run belongs to the given data and model; the module `adversarials` checks the stored points."""

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
from brinell.finding import Finding
from brinell.results import Evidence, Run, is_evidence, row_queries
from brinell.results.format.files import read_all_rows
from brinell.verification.adversarials import CHUNK, OTHER_INPUT, WRONGLY_RIGHT
from brinell.verification.result import objection, refused


def refuse_shapes(run: Run, data: Problem) -> None:
    """Raise a RunError if adversarials and data differ in shape; broadcasting might hide the difference."""
    try:
        shape = run.adversarials().x.shape[1:]
    except (ValueError, IndexError) as error:
        raise refused("adversarials of one shape", f"several shapes ({error})") from error
    if shape and tuple(shape) != data.shape():
        raise refused(f"adversarials of shape {data.shape()}", tuple(shape))


def threat_for(run: Run, data: Problem) -> Threat:
    """Return the threat of a Run, with per-sample radii in the order of the samples in `data`.

    Samples that the Run does not have get the largest radius, which is never used.
    """
    threat, radii = coerce.threat_of(run), run.sample_radii
    if not isinstance(threat.eps, Tensor):
        return threat
    if radii is None:
        stored = _ids_as_written(run)
        if first_ids(data, len(stored)) == stored or data.fingerprint() == run.identity.data.fingerprint:
            return threat
        raise RunError(
            expected="the samples in the order of the Run, because this Run stores radii without sample ids",
            got="another order",
            remedy="Pass the data in the order of the Run, or evaluate again: new Runs store the ids.",
        )
    ids = first_ids(data, len(data))
    return replace(threat, eps=torch.tensor([radii.get(i, max(radii.values())) for i in ids], dtype=threat.eps.dtype))


def other_model(run: Run, model: Classifier) -> Iterator[Finding]:
    """Yield a finding if the model's fingerprint differs from the fingerprint in the Run."""
    stored = run.identity.model.fingerprint
    if stored != model.fingerprint:
        message = f"The Run is of another model: fingerprint {str(stored)[:16]}…, not {model.fingerprint[:16]}…."
        yield objection("model fingerprint", message)


def other_classes(run: Run, oracle: Oracle, data: Problem) -> Iterator[Finding]:
    """Yield a finding if model and Run differ in the number of classes, which sets the accuracy of guessing."""
    stored = run.identity.model.classes
    classes = oracle.output(next(data.chunks(1)).x.to(oracle.classifier.device)).logits.shape[1]
    if stored is not None and stored != classes:
        yield objection("classes", f"The Run says {stored} classes, but the model has {classes}.")


def other_strength(run: Run) -> Iterator[Finding]:
    """Yield a finding if the Run stores a wrong strength for a built-in plan; the verdict depends on the strength."""
    stored = run.identity.plan
    try:
        strength = by_name(stored.name).strength
    except PlanError:
        return
    if "strength" in stored.raw and stored.strength != strength:
        yield objection("strength", f"The plan {stored.name} is stored as {stored.strength!r}, but is {strength!r}.")


def first_ids(data: Problem, n: int) -> list[int]:
    """Return the ids of the first n samples of the data, or of all samples if there are fewer than n."""
    chunks = data.chunks(CHUNK)
    ids: list[int] = []
    while len(ids) < n and (chunk := next(chunks, None)) is not None:
        ids += chunk.ids.tolist()
    return ids[:n]


def other_data(run: Run, data: Problem) -> Iterator[Finding]:
    """Yield a finding if the fingerprint of the data differs from the fingerprint in the Run.

    A fingerprint depends on the order of the samples. It is compared only if the Run has rows of all samples, was not
    merged, and the data begin with these samples in the same order.
    """
    stored, ids = run.identity.data, _ids_as_written(run)
    streamed = str(stored.fingerprint).startswith("stream-")
    complete = len(ids) == stored.n and not stored.sources
    if not complete or streamed != data.streamed or first_ids(data, len(ids)) != ids:
        return
    if stored.fingerprint != (fingerprint := data[: len(ids)].fingerprint()):
        message = f"The Run is on other data: fingerprint {str(stored.fingerprint)[:16]}…, not {fingerprint[:16]}…."
        yield objection("data fingerprint", message)


def _ids_as_written(run: Run) -> list[int]:
    """Return the sample ids in the order of the clean rows: the order of the data, unless several workers ran."""
    rows = read_all_rows(run.path, columns=("sample_id", "attack"))
    return list(dict.fromkeys(row_queries.ids_of(rows)[is_evidence(rows, Evidence.CLEAN)].tolist()))


def sample_failures(run: Run, data: Problem, right: Mapping[int, bool] | None = None) -> dict[int, str]:
    """Return what is wrong with each failed sample, by id: it is not in the data, or its input or label differs.

    `right` says, by id, whether the model classifies the clean input correctly. If given, samples that the Run
    wrongly counts as correctly classified fail too.
    """
    rows = run.rows().filter(is_evidence(run.rows(), Evidence.CLEAN))
    columns = (rows[c].to_pylist() for c in ("sample_id", "x_sha256", "label", "broken"))
    stored = {i: (digest, label, broken) for i, digest, label, broken in zip(*columns, strict=True)}
    failed = dict.fromkeys(stored, "no such sample in the data")
    for chunk in data.chunks(CHUNK):
        rows_here = chunk.rows_of(stored).tolist()
        for row, digest_here in zip(rows_here, sample_hashes(chunk.x[rows_here]) if rows_here else [], strict=True):
            i = int(chunk.ids[row])
            digest, label, broken = stored[i]
            del failed[i]
            if digest != digest_here:
                failed[i] = OTHER_INPUT
            elif label != int(chunk.y[row]):
                failed[i] = f"the label is {int(chunk.y[row])}, the Run was made with {label}"
            elif right is not None and not broken and not right[i]:
                failed[i] = WRONGLY_RIGHT
    return failed
