"""Check the certificates of a Run: with each other, with its rows, and by certifying some samples again."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from brinell.core.dataset import READ, Problem
from brinell.core.model import Classifier
from brinell.core.threat import Threat
from brinell.errors import BrinellError
from brinell.evaluation.certificates.certifiers import Call, call_again
from brinell.finding import Finding
from brinell.results import Run, row_queries
from brinell.results.bracket import SLACK, contradictions
from brinell.verification.consistency import rows_that
from brinell.verification.result import failures, note, objection

# So many certificates of each call are computed again, unless --rerun says how many.
AGAIN = 8
TIME = "time"


def certificate_contradictions(run: Run) -> list[Finding]:
    """Return a finding for every contradiction between certificates, or between certificates and other rows."""
    if not run.manifest.get("certifiers"):
        return []
    return [objection(name, message) for name, rule in RULES.items() for message in rule(run)]


def _broken(run: Run) -> Iterable[str]:
    ids = contradictions(run)
    if len(ids):
        yield f"{len(ids)} samples are both certified and broken, the first is sample {ids[0]}."


def _proofs(run: Run) -> Iterable[str]:
    """Report certificates without a radius or a margin that proves it, or with a radius below that of the threat."""
    table = run.certificates()
    certified = np.asarray(pc.fill_null(table["certified"], False), dtype=bool)
    radius, bound = (np.asarray(pc.fill_null(table[c], np.nan), dtype=np.float64) for c in ("radius", "bound"))
    yield from rows_that("are certified with a margin that is not above 0", table, certified & ~(bound > 0))
    yield from rows_that("are certified for no radius", table, certified & ~((radius > 0) & np.isfinite(radius)))
    eps, own = run.identity.threat.eps, run.sample_radii
    if isinstance(eps, int | float) or own is not None:
        ids = row_queries.ids_of(table)
        wanted = np.array([own.get(i, np.inf) if own is not None else eps for i in ids.tolist()], dtype=np.float64)
        small = certified & (radius < wanted * (1 - SLACK))
        yield from rows_that("are certified for a radius below eps", table, small)
    broken = np.asarray(table["broken"], dtype=bool)
    silent = np.asarray(pc.equal(pc.fill_null(table["stopped"], ""), ""), dtype=bool)
    unfounded = ~certified & ((radius > 0) | (silent & ~broken))
    yield from rows_that("are not certified, but state a radius or no reason", table, unfounded)


def _calls(run: Run) -> Iterable[str]:
    """Report certificates of calls that the manifest does not name, and rows that contradict their sample."""
    known = [str(call.get("hash")) for call in run.manifest["certifiers"] if isinstance(call, dict)]
    table = run.certificates()
    other = ~np.asarray(pc.is_in(table["attack_hash"], pa.array(known, pa.string())), dtype=bool)
    yield from rows_that("are certificates with settings that the manifest does not name", table, other)
    clean = run.rows().filter(pc.equal(run.rows()["attack"], "clean"))
    columns = [clean[name].to_pylist() for name in ("sample_id", "x_sha256", "label")]
    samples = {i: (digest, label) for i, digest, label in zip(*columns, strict=True)}
    given = zip(*(table[name].to_pylist() for name in ("sample_id", "x_sha256", "label")), strict=True)
    wrong = np.array([samples.get(i) != (digest, label) for i, digest, label in given], dtype=bool)
    yield from rows_that("are certificates of another input or label than their sample's", table, wrong)


RULES: dict[str, Callable[[Run], Iterable[str]]] = {
    "certified and broken": _broken,
    "proofs": _proofs,
    "calls of certifiers": _calls,
}


def certify_again(
    run: Run, model: Classifier, data: Problem, threat: Threat, seed: int, count: int | None = None
) -> Iterator[Finding]:
    """Certify some samples again that the Run counts as certified; yield what is found.

    Method: `count` certificates of each call (default: `AGAIN`), drawn with the seed, are computed with its settings.
    A certificate that fails only for lack of time gives a note.
    """
    seen = 0
    for stored in run.manifest.get("certifiers") or ():
        call = call_again(model, stored, run.identity.seed or 0)
        if call is None:
            yield note(
                "certificates", "Certificates of a certifier that is not part of Brinell were not computed again."
            )
            continue
        ids = _drawn(run, call, seed, AGAIN if count is None else count)
        seen += len(ids)
        try:
            yield from _again(run, call, data, threat, ids)
        except BrinellError as error:
            yield objection("certificates", f"The certificates could not be computed again: {error}")
    if seen:
        yield note("certificates", f"{seen} certificates were computed again.")


def _drawn(run: Run, call: Call, seed: int, count: int) -> list[int]:
    table = run.certificates()
    mine = pc.and_(pc.equal(table["attack_hash"], call.hash), pc.fill_null(table["certified"], False))
    ids = np.unique(row_queries.ids_of(table.filter(mine)))
    return sorted(np.random.default_rng(seed).permutation(ids)[:count].tolist())


def _again(run: Run, call: Call, data: Problem, threat: Threat, ids: list[int]) -> Iterator[Finding]:
    place, stored_radii = 0, run.certified_radii()
    for chunk in data.chunks(READ):
        at = torch.from_numpy(np.flatnonzero(np.isin(chunk.ids.numpy(), ids)))
        ball = threat
        if threat.unlimited:
            radii = [stored_radii[i] for i in chunk.ids[at].tolist()]
            ball = replace(threat, eps=torch.tensor(radii, dtype=torch.float64, device="cpu"))
        elif isinstance(threat.eps, torch.Tensor):
            ball = replace(threat, eps=threat.eps[place + at])
        place += len(chunk)
        found = call.certifier.certify(chunk.x[at], chunk.y[at], ball) if len(at) else []
        for i, certificate in zip(chunk.ids[at].tolist(), found, strict=True):
            if not certificate.certified:
                message = f"certified in the Run, open when computed again: {certificate.stopped}"
                late = TIME in certificate.stopped
                yield note("certificates", f"Sample {i} is {message}.") if late else failures({i: message})[0]
