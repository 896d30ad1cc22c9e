"""Whether the rows of a Run that somebody else made fit its manifest and each other; the model is not asked."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import RunError
from brinell.results import row_queries
from brinell.results.format import files
from brinell.results.format.manifest import attack_hash
from brinell.results.format.schema import CLEAN, counted
from brinell.results.run import Run

# More judging passes than any plan has would only keep whoever checks the Run busy.
DRAWS = 100
STRENGTHS = ("weak", "standard", "audited")
# Inputs live here.
BOX = [0.0, 1.0]
# Distances are told in float64 and may exceed eps by rounding only.
SLACK = 1e-6


def contradictions(run: Run, whole: bool = True) -> list[str]:
    """What is wrong with a Run by itself, in sentences; an empty list for one that an honest evaluation made.

    Without `whole`, rows that are still to come are no fault.

    >>> contradictions(Run.open("tests/results/golden_run_v1"))
    []
    """
    refuse_incomplete(run)
    refuse_many(run)
    return [sentence for rule in (*(WHOLE if whole else ()), *RULES) for sentence in rule(run)]


def refuse_incomplete(run: Run) -> None:
    """A RunError for a manifest that lacks what a check of the Run needs."""
    plan, threat = run.identity.plan, run.identity.threat
    needed = {
        "threat.norm": threat.norm,
        "plan.name": plan.raw.get("name"),
        "plan.stages": plan.raw.get("stages"),
        "model.fingerprint": run.identity.model.fingerprint,
        "data.n": run.identity.data.n,
        "seed": run.identity.seed,
        "precision": run.identity.precision,
    }
    for path, value in needed.items():
        if value is None:
            raise RunError(expected=f"a manifest with {path}", got="none", remedy="The Run is refused.")
    if not 1 <= plan.draws <= DRAWS:
        raise RunError(expected=f"1 to {DRAWS} judging passes", got=f"{plan.draws}", remedy="The Run is refused.")
    _refuse_radii(run)
    if plan.strength is not None and plan.strength not in STRENGTHS:
        got = plan.strength[:60]
        raise RunError(expected=f"a plan that is {' or '.join(STRENGTHS)}", got=got, remedy="The Run is refused.")
    text, eps = threat.eps_text, threat.eps
    if not isinstance(eps, list) and text and not same_radius(text, math.inf if eps is None else eps):
        raise RunError(
            expected=f"a radius that is what its text says, {text}", got=f"{eps}", remedy="The Run is refused."
        )


def _refuse_radii(run: Run) -> None:
    """A RunError for radii of single samples that are not as many as there are samples."""
    threat, n = run.identity.threat, run.identity.data.n
    if "eps" not in threat.raw:
        raise RunError(expected="a threat in the manifest with its eps", got="none", remedy="The Run is refused.")
    if isinstance(threat.eps, list) and len(threat.eps) != n:
        raise RunError(
            expected=f"a radius for each of {n} samples", got=f"{len(threat.eps)}", remedy="The Run is refused."
        )


def same_radius(text: str, eps: float) -> bool:
    """Whether a radius is what its text says.

    >>> same_radius("8/255", 8 / 255), same_radius("8/255", 0.031), same_radius("a lot", 1.0)
    (True, False, False)
    >>> same_radius("8 / 255", 8 / 255)  # spaces are allowed where a threat is made
    True
    """
    if math.isinf(eps):
        return text == "inf"
    try:
        return abs(float(Fraction(text.replace(" ", ""))) - eps) <= SLACK * abs(eps)
    except (ValueError, ZeroDivisionError):
        return False


def refuse_many(run: Run) -> None:
    """A RunError for more rows than samples and attacks can have, before any of them is read."""
    n, stages = run.identity.data.n or 0, len(run.attacks)
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
    n, told = run.clean_accuracy.n, run.identity.data.n
    if n != told:
        yield f"There are clean rows of {n} samples, and the manifest tells of {told}."


def _names(run: Run) -> Iterable[str]:
    stages = {stage.name: stage.hash for stage in run.identity.plan.stages}
    table = run.rows()
    pairs = sorted(set(zip(table["attack"].to_pylist(), table["attack_hash"].to_pylist(), strict=True)))
    for name, digest in pairs:
        if name != CLEAN and name not in stages:
            yield f"There are rows of {name}, which is no attack of the plan."
        elif name != CLEAN and digest != stages[name]:
            yield f"The rows of {name} were made with other numbers than the plan's."


def _seeds(run: Run) -> Iterable[str]:
    seeds = set(pc.unique(run.rows()["seed"]).to_pylist())
    if seeds - {run.identity.seed}:
        yield f"Rows have the seeds {sorted(seeds)}, the manifest {run.identity.seed}."


def _skipped(run: Run) -> Iterable[str]:
    skipped = run.skipped()
    if len(skipped):
        yield f"Of the samples counted as robust, {len(skipped)} lack a row of some attack, the first is {skipped[0]}."


def _clean(run: Run) -> Iterable[str]:
    if run.identity.plan.draws > 1:
        return  # by the majority of several passes
    table = run.rows().filter(row_queries.is_attack(run.rows(), CLEAN))
    wrong = np.asarray(table["clean_pred"]) != np.asarray(table["label"])
    broken = np.asarray(table["broken"], dtype=bool)
    # A detector that rejects and logits that are no numbers break a clean input too; a wrong class always does.
    odd = row_queries.ids_of(table)[wrong & ~broken]
    if len(odd):
        yield f"{len(odd)} misclassified clean inputs are not counted as broken, the first is sample {odd[0]}."


def _references(run: Run) -> Iterable[str]:
    table = run.rows()
    refers = np.asarray(pc.is_valid(table["adv_shard"]), dtype=bool)
    odd = row_queries.ids_of(table)[refers & ~np.asarray(table["broken"], dtype=bool)]
    if len(odd):
        yield f"{len(odd)} rows have an adversarial and are not broken, the first is of sample {odd[0]}."


def _judged(run: Run) -> Iterable[str]:
    """What broke was looked at again, and nothing else was; the first Runs said so of every clean input too."""
    table = run.rows()
    looked, broken = np.asarray(pc.is_valid(table["verified"]), dtype=bool), np.asarray(table["broken"], dtype=bool)
    attacked = np.asarray(table["attack"]) != CLEAN
    odd = row_queries.ids_of(table)[(broken & ~looked) | (attacked & looked & ~broken)]
    if len(odd):
        yield f"{len(odd)} rows are broken and not verified, or the reverse, the first is of sample {odd[0]}."


def _radius(run: Run) -> Any:
    """The radius of every row, or one for all; None where there is none, or the manifest does not say whose it is."""
    eps, radii = run.identity.threat.eps, run.sample_radii
    if radii is None:
        return None if isinstance(eps, list) else eps
    return np.array([radii.get(i, 0.0) for i in row_queries.ids_of(run.rows()).tolist()])


def _owners(run: Run) -> Iterable[str]:
    radii = run.sample_radii
    odd = [] if radii is None else [i for i in row_queries.samples(run.numbers()).tolist() if i not in radii]
    if odd:
        yield f"{len(odd)} samples have no radius in the manifest, the first is {odd[0]}."


def _distances(run: Run) -> Iterable[str]:
    eps, table = _radius(run), run.rows()
    if eps is None:
        return  # no radius, or nobody knows whose: the adversarials themselves are measured
    told = np.asarray(pc.fill_null(table["distance"], 0.0), dtype=np.float64)
    odd = row_queries.ids_of(table)[counted(table) & ~(told <= eps * (1 + SLACK))]
    if len(odd):
        yield f"{len(odd)} rows count with a distance beyond eps, the first is of sample {odd[0]}."


def _costs(run: Run) -> Iterable[str]:
    table = run.rows()
    passes = [np.asarray(table[c], dtype=np.float64) for c in ("forwards", "backwards", "seconds")]
    odd = row_queries.ids_of(table)[~np.all([np.isfinite(p) & (p >= 0) for p in passes], axis=0)]
    if len(odd):
        yield f"{len(odd)} rows cost less than nothing, or no number, the first is of sample {odd[0]}."


def _stages(run: Run) -> Iterable[str]:
    """The numbers of an attack that a manifest tells give the hash it tells; Runs before these had none."""
    for stage in run.identity.plan.stages:
        body = {k: v for k, v in stage.raw.items() if k != "hash"}
        attack = body.get("attack")
        if not isinstance(attack, dict):
            yield f"The attack {stage.name} of the plan has no numbers."
        elif (stage.requires is not None or "type" in attack) and stage.hash != attack_hash(body):
            yield f"The numbers of {stage.name} in the plan are not those of its hash."
    names = run.attacks
    if len(set(names)) < len(names) or CLEAN in names:
        yield "Two attacks of the plan have the same name."


def _one_sample(run: Run) -> Iterable[str]:
    """Every row of a sample is about the same input and label, and one of them about the clean input."""
    table = run.rows()
    ids, first = np.unique(row_queries.ids_of(table), return_index=True)
    start = first[np.searchsorted(ids, row_queries.ids_of(table))]
    for name, what in (("label", "label"), ("x_sha256", "input")):
        column = np.array(table[name].to_pylist(), dtype=object)
        odd = row_queries.ids_of(table)[column != column[start]] if len(column) else ids
        if len(odd):
            yield f"The rows of {len(set(odd.tolist()))} samples disagree about their {what}, the first is {odd[0]}."
    lone = np.setdiff1d(ids, row_queries.samples(table))
    if len(lone):
        yield f"{len(lone)} samples have rows and no clean one, the first is {lone[0]}."


def _classes(run: Run) -> Iterable[str]:
    table, classes = run.rows(), run.identity.model.classes
    if classes is None:
        return
    for name in ("label", "clean_pred", "adv_pred"):
        value = np.asarray(pc.fill_null(table[name], 0), dtype=np.int64)
        odd = row_queries.ids_of(table)[(value < 0) | (value >= classes)]
        if len(odd):
            yield f"{len(odd)} rows have a {name} that is none of {classes} classes, the first is of sample {odd[0]}."


def _unused(run: Run) -> Iterable[str]:
    """Adversarials without a row: whoever calls a broken sample robust would leave them behind."""
    table, folder = run.rows(), run.path / files.ADVERSARIALS_FOLDER
    stored = files.shards(folder, files.ADVERSARIALS_END) if run.images else []
    used = Counter(table["adv_shard"].drop_null().to_pylist())
    rest = {name: len(files.read_adversarials(files.adversarials_file(run.path, name)).ids) for name in stored}
    odd = sum(max(n - used[name], 0) for name, n in rest.items())
    if odd:
        yield f"{odd} adversarials are stored that no row refers to."


def _box(run: Run) -> Iterable[str]:
    box = run.identity.threat.box
    if box is not None and box != BOX:
        yield f"Its box is {str(box)[:60]}, not {BOX}."


WHOLE: tuple[Callable[[Run], Iterable[str]], ...] = (_unfinished, _samples, _skipped, _unused)
RULES: tuple[Callable[[Run], Iterable[str]], ...] = (
    _box,
    _owners,
    _names,
    _stages,
    _seeds,
    _one_sample,
    _classes,
    _clean,
    _references,
    _judged,
    _distances,
    _costs,
)
