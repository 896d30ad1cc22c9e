"""Check that a Run belongs to the given data and model; the module `adversarials` checks the stored points."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from brinell.core.dataset import READ, Problem, sample_hashes
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import RunError
from brinell.evaluation import coerce
from brinell.finding import Finding
from brinell.results import Evidence, Run, is_evidence, row_queries
from brinell.verification.adversarials import CHUNK, OTHER_INPUT, WRONGLY_RIGHT
from brinell.verification.result import note, objection, refused


def refuse_shapes(run: Run, data: Problem) -> None:
    """Raise a RunError if adversarials and data differ in shape; broadcasting might hide the difference."""
    used = run.nearest_rows()["adv_shard"].unique().to_pylist()
    shapes = sorted({tuple(run.shards.adversarials(shard).x.shape[1:]) for shard in used})  # one shard at a time
    if len(shapes) > 1:
        raise refused("adversarials of one shape", f"the shapes {shapes[0]} and {shapes[1]}")
    if shapes and shapes[0] != data.shape():
        raise refused(f"adversarials of shape {data.shape()}", shapes[0])


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
    return replace(
        threat, eps=torch.tensor([radii.get(i, max(radii.values())) for i in ids], dtype=threat.eps.dtype, device="cpu")
    )


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


def first_ids(data: Problem, n: int) -> list[int]:
    """Return the ids of the first n samples of the data, or of all samples if there are fewer than n."""
    chunks = data.chunks(CHUNK)
    ids: list[int] = []
    while len(ids) < n and (chunk := next(chunks, None)) is not None:
        ids += chunk.ids.tolist()
    return ids[:n]


def other_data(run: Run, data: Problem) -> Iterator[Finding]:
    """Yield a finding if the data with the ids of the Run have another fingerprint than the Run says.

    The order in which an evaluation read its samples is not stored if several workers wrote the rows. The order of the
    data, of the rows and of the ids are tried. The parts of a merged Run are not known: there, the hash of every sample
    is all that is compared, which `sample_failures` does for every Run.
    """
    stored, ids = run.identity.data, _ids_as_written(run)
    if not run.finished or stored.sources or not ids:
        return
    streamed = str(stored.fingerprint).startswith(STREAMED)
    known = set(ids)
    ordered = [i for chunk in data.chunks(CHUNK) for i in chunk.ids.tolist() if i in known]
    orders = {tuple(order): None for order in (ordered, ids, sorted(ids)) if len(order) == len(ids)}
    fingerprints = [_fingerprint(data, order, streamed) for order in orders]
    if stored.fingerprint not in fingerprints:
        here = f", not {fingerprints[0][:16]}…" if fingerprints else ""
        message = f"The Run is on other data: fingerprint {str(stored.fingerprint)[:16]}…{here}."
        yield (note if run.manifest.get("workers") else objection)("data fingerprint", message)


STREAMED = "stream-"


def _fingerprint(data: Problem, ids: tuple[int, ...], streamed: bool) -> str:
    """Return the fingerprint of the samples `ids` of the data in this order, as `Problem.fingerprint` computes it."""
    wanted = ids[:READ] if streamed else ids
    x, y = samples_of(data, wanted)
    h = hashlib.sha256()
    for part in (torch.tensor(wanted, dtype=torch.long, device="cpu"), x, y):
        h.update(str(tuple(part.shape)).encode() + part.numpy().tobytes())
    h.update(str(len(ids)).encode())
    return (STREAMED if streamed else "") + h.hexdigest()


def samples_of(data: Problem, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of the samples `ids`, in this order; all of them must be in the data."""
    place = {i: k for k, i in enumerate(ids)}
    order, xs, ys = [], [], []
    for chunk in data.chunks(CHUNK):
        rows = chunk.rows_of(place)
        order += [place[i] for i in chunk.ids[rows].tolist()]
        xs.append(chunk.x[rows])
        ys.append(chunk.y[rows])
    back = torch.tensor(order, dtype=torch.long, device="cpu").argsort()
    return torch.cat(xs)[back], torch.cat(ys)[back]


def selection(run: Run, data: Problem) -> Iterator[Finding]:
    """Yield a finding if the Run lacks samples of the data: no fault if it has the first ones, else an objection."""
    ids, total = set(row_queries.samples(run.numbers()).tolist()), len(data)
    if not run.finished or len(ids) >= total:
        return
    if set(first_ids(data, len(ids))) == ids:
        yield note("selection", f"The Run is on the first {len(ids):,} of the {total:,} samples of the data.")
        return
    message = (
        f"The Run is on {len(ids):,} of the {total:,} samples of the data, and not on the first ones: a choice of "
        "samples can give any accuracy. Pass the data that were to be evaluated, such as the part data[100:200]."
    )
    yield objection("selection", message)


def _ids_as_written(run: Run) -> list[int]:
    """Return the sample ids in the order of the clean rows: the order of the data, unless several workers ran."""
    rows = run.shards.all_rows(("sample_id", "attack"))
    return list(dict.fromkeys(row_queries.ids_of(rows)[is_evidence(rows, Evidence.CLEAN)].tolist()))


def others(failed: Mapping[int, str], run: Run) -> list[Finding]:
    """Return one objection, that the data are others, if most samples of the Run have another input in the data.

    `failed` is what `sample_failures` returns. One sentence then says more than one message per sample.
    """
    n = len(set(row_queries.samples(run.numbers()).tolist()))
    other = sum(message == OTHER_INPUT for message in failed.values())
    if 2 * other <= n:
        return []
    message = f"The data are others: {other:,} of the {n:,} inputs of the Run are different in them. "
    return [objection("data", f"{message}Pass the data of the Run ({run.identity.data.name or 'unnamed'}).")]


def sample_failures(run: Run, data: Problem, right: Mapping[int, bool] | None = None) -> dict[int, str]:
    """Return what is wrong with each failed sample, by id: it is not in the data, or its input or label differs.

    `right` says, by id, whether the model classifies the clean input correctly. If given, samples that the Run
    wrongly counts as correctly classified fail too.
    """
    rows = run.rows().filter(is_evidence(run.rows(), Evidence.CLEAN))
    columns = (rows[c].to_pylist() for c in ("sample_id", "x_sha256", "label", "broken", "sample_name"))
    stored = {i: tuple(values) for i, *values in zip(*columns, strict=True)}
    failed = dict.fromkeys(stored, "no such sample in the data")
    for chunk in data.chunks(CHUNK):
        rows_here = chunk.rows_of(stored).tolist()
        for row, digest_here in zip(rows_here, sample_hashes(chunk.x[rows_here]) if rows_here else [], strict=True):
            i = int(chunk.ids[row])
            digest, label, broken, name = stored[i]
            del failed[i]
            if digest != digest_here:
                failed[i] = OTHER_INPUT
            elif label != int(chunk.y[row]):
                failed[i] = f"the label is {int(chunk.y[row])}, the Run was made with {label}"
            elif name is not None and chunk.names is not None and chunk.names[row] != name:
                failed[i] = f"the name is {chunk.names[row]!r}, the Run has {name!r}"
            elif right is not None and not broken and not right[i]:
                failed[i] = WRONGLY_RIGHT
    return failed
