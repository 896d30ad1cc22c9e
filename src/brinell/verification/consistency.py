"""Check that the rows of a Run agree with its manifest and with each other; the model is not needed."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import error_text
from brinell.finding import Finding
from brinell.results import row_queries
from brinell.results.format import files
from brinell.results.format.manifest import attack_hash
from brinell.results.format.schema import CERTIFICATE, CLEAN, Evidence, counted, is_evidence
from brinell.results.run import Run
from brinell.untrusted import parse_number
from brinell.verification.result import objection, refused

# More judging passes than any plan has would only cost the verifier time.
DRAWS = 100
STRENGTHS = ("weak", "standard", "audited")
# The range of inputs.
BOX = [0.0, 1.0]
# Distances are stored in float64 and exceed eps by rounding only.
SLACK = 1e-6


def contradictions(run: Run, whole: bool = True) -> list[Finding]:
    """Return a finding for every contradiction between the rows of a Run and its manifest, or between rows.

    With `whole=False`, missing rows are allowed.

    >>> contradictions(Run.open("tests/results/golden_run_v1"))
    []
    """
    refuse_unreadable(run)
    rules = {**(WHOLE_RUN_RULES if whole else {}), **RULES}
    return [objection(name, message) for name, rule in rules.items() for message in rule(run)]


def refuse_unreadable(run: Run) -> None:
    """Raise a RunError if the manifest lacks a field that is needed, or if there are too many rows; read no row."""
    plan, threat, n = run.identity.plan, run.identity.threat, run.identity.data.n
    needed = {
        "threat.norm": threat.norm,
        "plan.name": plan.raw.get("name"),
        "plan.stages": plan.raw.get("stages"),
        "model.fingerprint": run.identity.model.fingerprint,
        "data.n": n,
        "seed": run.identity.seed,
        "precision": run.identity.precision,
    }
    for path, value in needed.items():
        if value is None:
            raise refused(f"a manifest with {path}", f"a manifest without {path}")
    text, eps = threat.eps_text, threat.eps
    if not 1 <= plan.draws <= DRAWS:
        raise refused(f"a plan with 1 to {DRAWS} judging passes (draws)", plan.draws)
    if "eps" not in threat.raw:
        raise refused("a manifest with threat.eps", "a manifest without threat.eps")
    if isinstance(eps, list) and len(eps) != n:
        raise refused(f"a radius for each of {n} samples", f"{len(eps)} radii")
    if plan.strength is not None and plan.strength not in STRENGTHS:
        raise refused(f"a plan of strength {' or '.join(STRENGTHS)}", plan.strength[:60])
    if not isinstance(eps, list) and text and not same_radius(text, math.inf if eps is None else eps):
        raise refused(f"an eps equal to its eps_text, {text}", eps)
    _refuse_many(run, n or 0, len(plan.stages) + len(run.manifest.get("certifiers") or ()))


def same_radius(text: str, eps: float) -> bool:
    """Return whether a text such as "8/255" is the radius `eps`, up to rounding.

    >>> same_radius("8/255", 8 / 255), same_radius("8/255", 0.031), same_radius("a lot", 1.0)
    (True, False, False)
    >>> same_radius("8 / 255", 8 / 255)  # spaces are allowed where a threat is made
    True
    """
    if math.isinf(eps):
        return text == "inf"
    try:
        return abs(parse_number(text) - eps) <= SLACK * abs(eps)
    except ValueError:
        return False


def _refuse_many(run: Run, n: int, stages: int) -> None:
    try:
        rows = run.shards.count()
    except files.DAMAGE as error:
        raise refused("rows that can be read", error_text(error)) from error
    if rows > n * (stages + 1):
        raise refused(
            f"at most {n * (stages + 1):,} rows, for {n:,} samples and {stages} attacks or calls", f"{rows:,}"
        )


def _unfinished(run: Run) -> Iterable[str]:
    if not run.finished:
        yield "The Run is not finished."


def _samples(run: Run) -> Iterable[str]:
    n, stored = run.clean_accuracy.n, run.identity.data.n
    if n != stored:
        yield f"There are clean rows of {n} samples, but the manifest says {stored} samples."


def _names(run: Run) -> Iterable[str]:
    stages = {stage.name: stage.hash for stage in run.identity.plan.stages}
    table = run.rows()
    table = table.filter(pa.array(~is_evidence(table, Evidence.CERTIFICATE)))  # they have rules of their own
    pairs = sorted(set(zip(table["attack"].to_pylist(), table["attack_hash"].to_pylist(), strict=True)))
    for name, digest in pairs:
        if name != CLEAN and name not in stages:
            yield f"There are rows of {name}, which is not an attack of the plan."
        elif name != CLEAN and digest != stages[name]:
            yield f"The rows of {name} were made with other parameters than the plan's."


def _seeds(run: Run) -> Iterable[str]:
    seeds = set(pc.unique(run.rows()["seed"]).to_pylist())
    if seeds - {run.identity.seed}:
        yield f"Rows have the seeds {sorted(seeds)}, but the manifest has the seed {run.identity.seed}."


def _skipped(run: Run) -> Iterable[str]:
    skipped = run.skipped()
    if len(skipped):
        yield f"{len(skipped)} samples counted as robust lack a row of some attack, the first is sample {skipped[0]}."


def _clean(run: Run) -> Iterable[str]:
    if run.identity.plan.draws > 1:
        return  # judged by the majority of several passes, see the module `attacked`
    table = run.rows().filter(is_evidence(run.rows(), Evidence.CLEAN))
    wrong = np.asarray(table["clean_pred"]) != np.asarray(table["label"])
    broken = np.asarray(table["broken"], dtype=bool)
    # A wrong class always breaks a clean input; so do rejection by a detector and non-finite logits.
    ids = row_queries.ids_of(table)[wrong & ~broken]
    if len(ids):
        yield f"{len(ids)} misclassified clean inputs are not counted as broken, the first is sample {ids[0]}."


def rows_that(fault: str, table: pa.Table, wrong: npt.NDArray[np.bool_]) -> Iterable[str]:
    """Yield how many rows are wrong and the sample of the first, in words; nothing if no row is wrong."""
    ids = row_queries.ids_of(table)[wrong]
    if len(ids):
        yield f"{len(ids)} rows {fault}, the first is of sample {ids[0]}."


def _references(run: Run) -> Iterable[str]:
    table = run.rows()
    refers = np.asarray(pc.is_valid(table["adv_shard"]), dtype=bool)
    yield from rows_that(
        "have an adversarial but are not broken", table, refers & ~np.asarray(table["broken"], dtype=bool)
    )


def _verified_rows(run: Run) -> Iterable[str]:
    """Report broken rows without a verification result, and unbroken attack rows with a verification result."""
    table = run.rows()
    verified, broken = np.asarray(pc.is_valid(table["verified"]), dtype=bool), np.asarray(table["broken"], dtype=bool)
    attacked = is_evidence(table, Evidence.ATTACK)
    yield from rows_that(
        "are broken without a verification result, or have such a result although they are not broken",
        table,
        (broken & ~verified) | (attacked & verified & ~broken),
    )


def _radius(run: Run) -> Any:
    """Return one radius per row, or one for all rows; None if the threat is unbounded or the manifest lacks the ids."""
    eps, radii = run.identity.threat.eps, run.sample_radii
    if radii is None:
        return None if isinstance(eps, list) else eps
    return np.array([radii.get(i, 0.0) for i in row_queries.ids_of(run.rows()).tolist()])


def _radii(run: Run) -> Iterable[str]:
    radii = run.sample_radii
    ids = [] if radii is None else [i for i in row_queries.samples(run.numbers()).tolist() if i not in radii]
    if ids:
        yield f"{len(ids)} samples have no radius in the manifest, the first is sample {ids[0]}."


def _distances(run: Run) -> Iterable[str]:
    eps, table = _radius(run), run.rows()
    if eps is None:
        return  # the distances of the adversarials themselves are measured
    distance = np.asarray(pc.fill_null(table["distance"], 0.0), dtype=np.float64)
    beyond = counted(table) & ~(distance <= eps * (1 + SLACK))
    yield from rows_that("count as broken at a distance above eps", table, beyond)


def _costs(run: Run) -> Iterable[str]:
    table = run.rows()
    passes = [np.asarray(table[c], dtype=np.float64) for c in ("forwards", "backwards", "seconds")]
    yield from rows_that(
        "have a negative or non-finite cost", table, ~np.all([np.isfinite(p) & (p >= 0) for p in passes], axis=0)
    )


def _stages(run: Run) -> Iterable[str]:
    """Report stages without parameters, stages whose parameters do not give the stored hash, and repeated names."""
    for stage in run.identity.plan.stages:
        body = {k: v for k, v in stage.raw.items() if k != "hash"}
        attack = body.get("attack")
        if not isinstance(attack, dict):
            yield f"The attack {stage.name} of the plan has no parameters."
        elif (stage.requires is not None or "type" in attack) and stage.hash != attack_hash(body):
            yield f"The parameters of {stage.name} in the plan do not give the hash stored with them."
    names = run.attacks
    if len(set(names)) < len(names) or CLEAN in names or any(name.startswith(CERTIFICATE) for name in names):
        yield f"Two attacks of the plan have the same name, or one is called {CLEAN} or {CERTIFICATE}…"


def _one_sample(run: Run) -> Iterable[str]:
    """Report samples whose rows differ in input or label, and samples without a clean row."""
    table = run.rows()
    ids, first = np.unique(row_queries.ids_of(table), return_index=True)
    start = first[np.searchsorted(ids, row_queries.ids_of(table))]
    for name, what in (("label", "label"), ("x_sha256", "input")):
        column = np.array(table[name].to_pylist(), dtype=object)
        differing = row_queries.ids_of(table)[column != column[start]] if len(column) else ids
        if len(differing):
            n = len(set(differing.tolist()))
            yield f"The rows of {n} samples disagree about their {what}, the first is sample {differing[0]}."
    lone = np.setdiff1d(ids, row_queries.samples(table))
    if len(lone):
        yield f"{len(lone)} samples have rows but no clean row, the first is sample {lone[0]}."


def _classes(run: Run) -> Iterable[str]:
    table, classes = run.rows(), run.identity.model.classes
    if classes is None:
        return
    for name in ("label", "clean_pred", "adv_pred"):
        value = np.asarray(pc.fill_null(table[name], 0), dtype=np.int64)
        yield from rows_that(f"have a {name} outside the {classes} classes", table, (value < 0) | (value >= classes))


def _unused(run: Run) -> Iterable[str]:
    """Report stored adversarials that no row refers to: a broken sample may have been changed to robust."""
    used = Counter(run.rows()["adv_shard"].drop_null().to_pylist())
    stored = run.shards.with_adversarials() if run.images else []
    counts = {name: len(run.shards.adversarials(name).ids) for name in stored}
    unused = sum(max(n - used[name], 0) for name, n in counts.items())
    if unused:
        yield f"{unused} adversarials are stored that no row refers to."


def _box(run: Run) -> Iterable[str]:
    box = run.identity.threat.box
    if box is not None and box != BOX:
        yield f"The box of the Run is {str(box)[:60]}, not {BOX}."


WHOLE_RUN_RULES: dict[str, Callable[[Run], Iterable[str]]] = {
    "finished": _unfinished,
    "sample count": _samples,
    "skipped attacks": _skipped,
    "unused adversarials": _unused,
}
RULES: dict[str, Callable[[Run], Iterable[str]]] = {
    "box": _box,
    "radii": _radii,
    "attack names": _names,
    "plan hashes": _stages,
    "seeds": _seeds,
    "inputs and labels": _one_sample,
    "classes": _classes,
    "clean predictions": _clean,
    "adversarial references": _references,
    "verified rows": _verified_rows,
    "distances": _distances,
    "costs": _costs,
}
