"""Check the certificates of a Run: with each other, with its rows, and by certifying random samples again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from brinell.core.certificate import Certificate, Certifier
from brinell.core.dataset import READ, Chunk, Problem
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import BrinellError
from brinell.evaluation.certificates.certifiers import SECONDS, Call, call_again, call_of
from brinell.evaluation.certificates.rows import certificate_rows
from brinell.evaluation.rows import clean
from brinell.finding import Finding
from brinell.results import Adversarials, Run, row_queries
from brinell.results.bracket import SLACK, certified_ids, contradictions
from brinell.results.format.files import joined
from brinell.results.format.schema import CERTIFICATE
from brinell.results.statistics import hidden
from brinell.verification.consistency import rows_that
from brinell.verification.result import failures, note, objection
from brinell.verification.sampling import RerunSample, half_interval, ordered

# Searches begin with these bounds, whether they are among the methods of the call or not.
FIRST = "crown"
# Proofs get this many times the seconds that the Run states: another machine may be slower.
PATIENCE = 4
# The methods that can find counterexamples, which turn an open sample into a broken one.
SEARCHING = ("branch-and-bound", "milp")
NAME, NOTHING = "certificates", joined(())
OWN = (
    "{name} is no certifier of Brinell, so its certificates were not computed again. Pass it: "
    "brinell.verify(…, certifier=mine). To do without, pass rerun=0 (--rerun 0)."
)


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
    """Report certificates of calls or methods that the manifest does not name."""
    known, table = calls(run), run.certificates()
    other = ~np.asarray(pc.is_in(table["attack_hash"], pa.array(list(known), pa.string())), dtype=bool)
    yield from rows_that("are certificates with settings that the manifest does not name", table, other)
    names = zip(table["attack"].to_pylist(), table["attack_hash"].to_pylist(), strict=True)
    wrong = np.array([not _has_method(known.get(key), name.removeprefix(CERTIFICATE)) for name, key in names], bool)
    yield from rows_that("are certificates of a method that its call does not have", table, wrong & ~other)


def calls(run: Run) -> dict[str, Mapping[str, object]]:
    """Return the settings of the certifiers that added certificates to a Run, by their hash."""
    return {str(call.get("hash")): call for call in run.manifest.get("certifiers") or ()}


def _has_method(call: Mapping[str, object] | None, name: str) -> bool:
    methods = None if call is None else call.get("methods")
    return not isinstance(methods, list) or name in (*methods, FIRST)


def _samples(run: Run) -> Iterable[str]:
    """Report certificates that contradict the clean row of their sample."""
    same = ("x_sha256", "label") if run.randomised else ("x_sha256", "label", "clean_pred")
    clean, table = run.rows().filter(pc.equal(run.rows()["attack"], "clean")), run.certificates()
    known = dict(zip(clean["sample_id"].to_pylist(), _tuples(clean, same), strict=True))
    given = zip(table["sample_id"].to_pylist(), _tuples(table, same), strict=True)
    wrong = np.array([known.get(i) != values for i, values in given], dtype=bool)
    yield from rows_that("are certificates of another input, label or answer than their sample's", table, wrong)


def _tuples(table: pa.Table, columns: Iterable[str]) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def _tried(run: Run) -> Iterable[str]:
    """Report survivors that a call left out: it tries every survivor that is not certified already."""
    if run.manifest.get("certifying") or run.identity.threat.unbounded or run.identity.data.sources:
        return
    table, still_open = run.certificates(), np.setdiff1d(run.survivors(), certified_ids(run))
    for key, call in calls(run).items():
        tried = row_queries.ids_of(table.filter(pc.equal(table["attack_hash"], key)))
        missing = np.setdiff1d(still_open, tried)
        if len(missing):
            name = call.get("methods") or call.get("certifier")
            yield f"{len(missing)} open samples were not tried by {name}, the first is sample {missing[0]}."


RULES: dict[str, Callable[[Run], Iterable[str]]] = {
    "certified and broken": _broken,
    "proofs": _proofs,
    "calls of certifiers": _calls,
    "samples of certificates": _samples,
    "samples that were tried": _tried,
}


@dataclass(frozen=True)
class CertifiedAgain:
    """What certifying samples again shows: findings, and the adversarials that were found."""

    findings: tuple[Finding, ...] = ()
    adversarials: Adversarials = NOTHING


def certify_again(
    run: Run, oracle: Oracle, data: Problem, threat: Threat, sampling: RerunSample, certifier: Certifier | None = None
) -> CertifiedAgain:
    """Certify random samples again that the Run counts as certified, and random open ones that a search had left open.

    Method: so many samples are drawn of each kind that as many false ones as half of the 95 % interval holds, or as
    the sampling says, are found with its confidence. Every method gets four times the seconds that the Run states to
    prove a certificate, and the same seconds to find a counterexample. A proof that is not found again is a failure.
    """
    if not calls(run) or sampling.count == 0:
        return CertifiedAgain()
    findings: list[Finding] = []
    found: list[Adversarials] = []
    certified, open_ = _claims(run), _open(run)
    for what, claims in (("certified", certified), ("open", open_)):
        share = run.certified_accuracy if what == "certified" else run.robust_accuracy
        half = half_interval(share or run.robust_accuracy)
        drawn = ordered(run, sorted(claims), sampling.seed)[: sampling.size(len(claims), half)]
        for key in sorted({claims[i] for i in drawn}):
            try:
                call = _call(run, key, oracle, certifier, PATIENCE if what == "certified" else 1)
                if call is None:
                    findings.append(objection(NAME, OWN.format(name=calls(run)[key].get("certifier", "It"))))
                    continue
                ids = [i for i in drawn if claims[i] == key]
                wrong, broken = _again(run, call, oracle, data, threat, ids, what == "certified")
            except BrinellError as error:
                findings.append(objection(NAME, f"The certificates could not be computed again: {error}"))
                continue
            findings += failures(wrong)
            found.append(broken)
        if drawn:
            findings.append(note(NAME, _stated(what, len(drawn), len(claims), sampling)))
    return CertifiedAgain(tuple(findings), joined(found))


def _claims(run: Run) -> dict[int, str]:
    """Return the call that proves the largest radius of every sample that counts as certified."""
    table, bounded = run.certificates(), not run.identity.threat.unbounded
    table = table.filter(pc.fill_null(table["certified"], False))
    counted = set((certified_ids(run) if bounded else row_queries.ids_of(table)).tolist())
    claims: dict[int, str] = {}
    for i, key in zip(table["sample_id"].to_pylist(), table["attack_hash"].to_pylist(), strict=True):
        if i in counted:
            claims.setdefault(i, key)  # the largest radius comes first
    return claims


def _open(run: Run) -> dict[int, str]:
    """Return, for every survivor that a search left open, the call of the search."""
    if run.identity.threat.unbounded:
        return {}
    searches = [key for key, call in calls(run).items() if set(SEARCHING) & set(_methods(call))]
    table = run.certificates()
    still_open = set(np.setdiff1d(run.survivors(), certified_ids(run)).tolist())
    pairs = zip(table["sample_id"].to_pylist(), table["attack_hash"].to_pylist(), strict=True)
    return {i: key for i, key in pairs if i in still_open and key in searches}


def _methods(call: Mapping[str, object]) -> list[str]:
    methods = call.get("methods")
    return list(map(str, methods)) if isinstance(methods, list) else []


def _call(run: Run, key: str, oracle: Oracle, certifier: Certifier | None, patience: float) -> Call | None:
    """Return the call with this hash, with more time; None if its certifier is unknown."""
    stored, seed = calls(run)[key], run.identity.seed or 0
    if certifier is not None and (given := call_of(oracle.classifier, certifier, SECONDS, seed)).hash == key:
        return given
    return call_again(oracle.classifier, stored, seed, patience)


def _again(
    run: Run, call: Call, oracle: Oracle, data: Problem, threat: Threat, ids: list[int], proved: bool
) -> tuple[dict[int, str], Adversarials]:
    """Certify these samples again; return what is wrong with some of them, and the adversarials that were found."""
    radii, wrong, broken = run.certified_radii(), dict[int, str](), list[Adversarials]()
    for chunk, place in _chosen(data, ids):
        ball = _ball(run, threat, chunk, place, radii)
        x, y = (v.to(oracle.classifier.device) for v in (chunk.x, chunk.y))
        found = call.certifier.certify(x, y, ball)
        answer = clean(chunk, [oracle.output(x, named=chunk.ids)])
        rows = certificate_rows(answer, found, ball, oracle, call.hash, run.identity.seed or 0)
        fell = row_queries.ids_of(rows.table)[np.asarray(rows.table["broken"], dtype=bool)]
        if rows.ids is not None and rows.x is not None:
            broken.append(Adversarials(rows.ids, rows.x))
        for i, certificate in zip(chunk.ids.tolist(), found, strict=True):
            if i in fell:
                wrong[i] = f"{'certified' if proved else 'open'} in the Run, broken when certified again"
            elif proved and not _holds(certificate, radii[i]):
                wrong[i] = f"certified for {radii[i]:.6g} in the Run, not when certified again{_why(certificate)}"
    return wrong, joined(broken)


def _chosen(data: Problem, ids: list[int]) -> Iterator[tuple[Chunk, torch.Tensor]]:
    """Yield the samples with these ids, as chunks, with their places in the data."""
    for chunk in data.chunks(READ):
        at = torch.from_numpy(np.flatnonzero(np.isin(chunk.ids.numpy(), ids)))
        if len(at):
            yield replace(chunk, ids=chunk.ids[at], x=chunk.x[at], y=chunk.y[at]), chunk.offset + at


def _ball(run: Run, threat: Threat, chunk: Chunk, place: torch.Tensor, radii: Mapping[int, float]) -> Threat:
    """Return the threat of these samples; without a radius, the radius that the Run states for each."""
    if run.identity.threat.unbounded:
        eps = [radii[i] * (1 - SLACK) for i in chunk.ids.tolist()]
        return replace(threat, eps=torch.tensor(eps, dtype=torch.float64, device="cpu"))
    return threat.subset(place)


def _holds(found: Certificate, radius: float) -> bool:
    return found.certified and found.radius >= radius * (1 - 2 * SLACK)


def _why(found: Certificate) -> str:
    return f": {found.stopped}" if found.stopped else f", only for {found.radius:.6g}" if found.certified else ""


def _stated(what: str, drawn: int, population: int, sampling: RerunSample) -> str:
    text = f"{drawn:,} of {population:,} {what} samples certified again (seed {sampling.seed})"
    if drawn == population:
        return f"{text}."
    least = hidden(0, drawn, population, sampling.confidence)[1] + 1
    return f"{text}; {least:,} or more false ones would be found with {100 * sampling.confidence:g} %."
