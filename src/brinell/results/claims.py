"""Whether the rows of a Run that somebody else made fit its manifest and each other; the model is not asked."""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import RunError
from brinell.results import files, outcome
from brinell.results.manifest import lookup
from brinell.results.run import Run
from brinell.results.schema import CLEAN, counted

# What a check of somebody else's Run needs to know of it.
NEEDED = {
    "threat.norm": str,
    "plan.name": str,
    "plan.stages": list,
    "model.fingerprint": str,
    "data.n": int,
    "seed": int,
    "precision": str,
}
# Lists in a manifest, and what every entry must have; nothing: it is a text.
LISTED: dict[str, dict[str, Any]] = {
    "checks": {"name": str, "level": str, "message": str},
    "probes": {"attack": str, "items": {"name": str, "level": str, "sentence": str}},
    "notes": {},
}
# More judging passes than any plan has would only keep whoever checks the Run busy.
DRAWS = 100
# Distances are told in float64 and may exceed eps by rounding only.
SLACK = 1e-6


def contradictions(run: Run) -> list[str]:
    """What is wrong with a Run by itself, in sentences; an empty list for one that an honest evaluation made.

    >>> contradictions(Run.open("tests/results/golden_run_v1"))
    []
    """
    refuse_incomplete(run)
    refuse_many(run)
    return [sentence for rule in RULES for sentence in rule(run)]


def refuse_incomplete(run: Run) -> None:
    """A RunError for a manifest that lacks what a check of the Run needs."""
    for path, kind in NEEDED.items():
        value = lookup(run.manifest, f"identity.{path}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RunError(
                expected=f"a manifest with {path} as {kind.__name__}", got=repr(value)[:60], remedy="It is refused."
            )
    draws = lookup(run.manifest, "identity.plan.draws") or 1
    if not isinstance(draws, int) or not 1 <= draws <= DRAWS:
        raise RunError(expected=f"1 to {DRAWS} judging passes", got=repr(draws)[:60], remedy="The Run is refused.")
    _refuse_malformed(run)
    stages = run.manifest["identity"]["plan"]["stages"]
    if not all(isinstance(s, dict) and isinstance(s.get("name"), str) for s in stages):
        raise RunError(expected="a manifest with named stages", got=repr(stages)[:60], remedy="It is refused.")
    text, eps = (lookup(run.manifest, f"identity.threat.{k}") for k in ("eps_text", "eps"))
    if isinstance(eps, int | float) and text is not None and not same_radius(str(text), eps):
        raise RunError(
            expected=f"a radius that is what its text says, {text}", got=f"{eps}", remedy="The Run is refused."
        )


def _refuse_malformed(run: Run) -> None:
    """A RunError for checks, probes or notes that the verdict could not read."""
    for field, parts in LISTED.items():
        held = run.manifest.get(field) or []
        if not isinstance(held, list) or not all(_has(entry, parts) for entry in held):
            raise RunError(
                expected=f"a manifest with {field} as Brinell writes them", got=repr(held)[:60], remedy="It is refused."
            )


def _has(entry: object, parts: "dict[str, Any]") -> bool:
    """Whether an entry has these parts: texts, or lists of entries with parts of their own."""
    if not parts:
        return isinstance(entry, str)
    if not isinstance(entry, dict):
        return False
    return all(
        isinstance(entry.get(name), str)
        if kind is str
        else isinstance(entry.get(name), list) and all(_has(inner, kind) for inner in entry[name])
        for name, kind in parts.items()
    )


def same_radius(text: str, eps: float) -> bool:
    """Whether a radius is what its text says.

    >>> same_radius("8/255", 8 / 255), same_radius("8/255", 0.031), same_radius("a lot", 1.0)
    (True, False, False)
    """
    try:
        return abs(float(Fraction(text)) - eps) <= SLACK * abs(eps)
    except (ValueError, ZeroDivisionError):
        return False


def refuse_many(run: Run) -> None:
    """A RunError for more rows than samples and attacks can have, before any of them is read."""
    n, stages = run.manifest["identity"]["data"]["n"], len(run.attacks)
    names = files.shards(run.path / files.ROWS_FOLDER, files.ROWS_END)
    try:
        told = sum(pq.read_metadata(files.rows_file(run.path, name)).num_rows for name in names)
    except (pa.ArrowException, OSError) as error:
        raise RunError(
            expected="rows that can be read", got=f"{type(error).__name__}: {error}", remedy="They are refused."
        ) from error
    if told > n * (stages + 1):
        raise RunError(
            expected=f"at most {n * (stages + 1):,} rows, for {n:,} samples and {stages} attacks",
            got=f"{told:,}",
            remedy="It is refused.",
        )


def _unfinished(run: Run) -> Iterable[str]:
    if not run.finished:
        yield "The Run is not finished."


def _samples(run: Run) -> Iterable[str]:
    n, told = run.clean_accuracy.n, lookup(run.manifest, "identity.data.n")
    if n != told:
        yield f"There are clean rows of {n} samples, and the manifest tells of {told}."


def _names(run: Run) -> Iterable[str]:
    stages = {s["name"]: s.get("hash") for s in lookup(run.manifest, "identity.plan.stages") or []}
    table = run.rows()
    pairs = sorted(set(zip(table["attack"].to_pylist(), table["attack_hash"].to_pylist(), strict=True)))
    for name, digest in pairs:
        if name != CLEAN and name not in stages:
            yield f"There are rows of {name}, which is no attack of the plan."
        elif name != CLEAN and digest != stages[name]:
            yield f"The rows of {name} were made with other numbers than the plan's."


def _seeds(run: Run) -> Iterable[str]:
    seeds = set(pc.unique(run.rows()["seed"]).to_pylist())
    if seeds - {lookup(run.manifest, "identity.seed")}:
        yield f"Rows have the seeds {sorted(seeds)}, the manifest {lookup(run.manifest, 'identity.seed')}."


def _skipped(run: Run) -> Iterable[str]:
    skipped = run.skipped()
    if len(skipped):
        yield f"Of the samples counted as robust, {len(skipped)} lack a row of some attack, the first is {skipped[0]}."


def _clean(run: Run) -> Iterable[str]:
    if (lookup(run.manifest, "identity.plan.draws") or 1) > 1:
        return  # by the majority of several passes
    table = run.rows().filter(outcome.is_attack(run.rows(), CLEAN))
    wrong = np.asarray(table["clean_pred"]) != np.asarray(table["label"])
    broken = np.asarray(table["broken"], dtype=bool)
    # A detector that rejects and logits that are no numbers break a clean input too; a wrong class always does.
    odd = outcome.ids_of(table)[wrong & ~broken]
    if len(odd):
        yield f"{len(odd)} misclassified clean inputs are not counted as broken, the first is sample {odd[0]}."


def _references(run: Run) -> Iterable[str]:
    table = run.rows()
    refers = np.asarray(pc.is_valid(table["adv_shard"]), dtype=bool)
    odd = outcome.ids_of(table)[refers & ~np.asarray(table["broken"], dtype=bool)]
    if len(odd):
        yield f"{len(odd)} rows have an adversarial and are not broken, the first is of sample {odd[0]}."


def _distances(run: Run) -> Iterable[str]:
    eps, table = lookup(run.manifest, "identity.threat.eps"), run.rows()
    if not isinstance(eps, int | float):
        return  # one per sample, or none: the adversarials themselves are measured
    told = np.asarray(pc.fill_null(table["distance"], 0.0), dtype=np.float64)
    odd = outcome.ids_of(table)[counted(table) & ~(told <= eps * (1 + SLACK))]
    if len(odd):
        yield f"{len(odd)} rows count with a distance beyond eps, the first is of sample {odd[0]}."


def _costs(run: Run) -> Iterable[str]:
    table = run.rows()
    passes = [np.asarray(table[c], dtype=np.float64) for c in ("forwards", "backwards", "seconds")]
    odd = outcome.ids_of(table)[~np.all([np.isfinite(p) & (p >= 0) for p in passes], axis=0)]
    if len(odd):
        yield f"{len(odd)} rows cost less than nothing, or no number, the first is of sample {odd[0]}."


RULES: tuple[Callable[[Run], Iterable[str]], ...] = (
    _unfinished,
    _samples,
    _names,
    _seeds,
    _skipped,
    _clean,
    _references,
    _distances,
    _costs,
)
