"""Attack random survivors of a Run again: an attack alone can show that a sample counted as robust is not."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from brinell.core.dataset import Problem
from brinell.core.execution import Blocks, Execution
from brinell.core.model import Classifier
from brinell.core.plan import Plan, Stage
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import FLOAT32, candidates
from brinell.engine.surrogate_oracle import SurrogateOracle
from brinell.errors import ModelError, PlanError, error_text
from brinell.evaluation.adaptive.single_rows import SINGLE, one_row_at_a_time
from brinell.evaluation.evaluate import evaluate
from brinell.evaluation.prepare import prepare, with_settings
from brinell.evaluation.rows import NON_FINITE
from brinell.finding import Finding
from brinell.models.surrogate import surrogate_of
from brinell.reliability.attach import UNSUITED, small_test
from brinell.results import Adversarials, Run, row_queries
from brinell.results.evidence import BINARIZATION
from brinell.results.format.files import joined
from brinell.results.format.schema import AUDIT, STOOD_STILL, counted, flagged
from brinell.results.layers import left_of_margins
from brinell.results.row_queries import INCIDENTAL
from brinell.results.statistics import mcnemar
from brinell.verification.plans import overspent, plan_to_repeat, with_audit_of
from brinell.verification.provenance import samples_of
from brinell.verification.randomised import broken_again
from brinell.verification.result import failures, note, objection
from brinell.verification.sampling import Rerun, RerunSample, half_interval, ordered

BROKE = "counted as robust, broken when run again"
# A distance found again that is smaller by more than this share is another result, not rounding.
NEARER = 0.01
# The number of passes on the same samples may differ by this share on other hardware.
OTHER_COST = 0.1
# The share of broken samples that another attack may break on other hardware.
ELSEWHERE = 0.1
# A difference between two evaluations of a randomised model that chance explains less often than this.
UNLIKELY = 1e-3
# The samples on which the checks of a model are repeated: more than one block.
FIRST = 512
COMPARED = ("warn", "fail")
# The checks whose outcome chance does not change, even if the model is randomised.
STEADY_CHECKS = ("train mode", "probabilities", "mixed rows", "randomised", "optimisation in forward")
# The level of the check "randomised" for a model that is not: for plans with one judging pass, and with several.
LEVEL_OF_STEADY = {False: "ok", True: "info"}


@dataclass(frozen=True)
class Again:
    """The result of attacking samples again: the repetition, its findings, and the adversarials that were found."""

    rerun: Rerun | None
    findings: tuple[Finding, ...]
    adversarials: Adversarials


NONE = joined(())


def run_again(
    run: Run, oracle: Oracle, data: Problem, threat: Threat, sampling: RerunSample, progress: bool | None = False,
    given: Plan | None = None,
) -> Again:  # fmt: skip
    """Repeat the checks of the model and attack random survivors again, with the plan and the seed of the Run.

    If the plan cannot be built again and is not `given`, that is an objection: what was asked for did not happen.
    """
    try:
        plan = plan_to_repeat(run, threat, oracle, data, given)
    except PlanError as error:
        message = f"No sample was run again: {error} To do without, pass rerun=0 (--rerun 0)."
        return Again(None, (objection("run again", message),), NONE)
    findings = list(overspent(run, plan))
    population = _population(run, threat)
    ids = chosen_ids(run, population, sampling)
    broken = [] if threat.unlimited or sampling.count is not None else _some_broken(run, sampling)
    try:
        _require_surrogates(oracle, data, plan.stages_for(threat))
        findings += _worse_checks(run, oracle.classifier, data, threat, plan)
        findings += _tested(run, oracle.classifier, data, threat, plan)
    except ModelError as error:
        return Again(None, (objection("run again", f"No sample was run again: {error_text(error)}"),), NONE)
    if not ids:
        message = "No sample counts as robust, so none was run again."
        return Again(Rerun(len(population), 0, seed=sampling.seed), (*findings, note("run again", message)), NONE)
    with tempfile.TemporaryDirectory(prefix="brinell-again-") as folder:
        place, made = Path(folder), _layers_of(run, plan, threat, {*ids, *broken}, sampling)
        again = _evaluated(run, oracle.classifier, data, threat, plan, made, place, progress)
        near = _left_out(run, again, plan, threat, made)
        again += _evaluated(run, oracle.classifier, data, threat, plan, near, place / "near", progress)
        rows = pa.concat_tables([part.rows() for part in again])
        x = [part.adversarials() for part in again]
        randomised = any(_noisy(part.findings, plan) for part in again)
        passes = sum(part.cost.forwards + part.cost.backwards for part in again)
    weaker = _weaker(run, rows, ids, threat)
    findings += _randomised(run, rows, ids) if randomised else failures(weaker)
    if _precision(run, oracle.classifier) == (run.identity.precision or FLOAT32):
        findings += [*_flags(run, rows, ids), *_costs(run, rows)]
    findings += _elsewhere(run, oracle.classifier, weaker)
    findings += [] if randomised else _by_others(run, rows, broken, oracle.classifier)
    what = "samples" if threat.unlimited else "survivors"
    alike = sum(_found_again(run, rows, i) for i in ids)
    if alike < len(ids) and not randomised:
        message = f"{len(ids) - alike} of {len(ids)} samples gave other rows when run again, bit for bit: they were "
        findings.append(note("other rows", f"{message}computed on other hardware, or not by this evaluation."))
    result = Rerun(
        len(population), len(ids), len(weaker), alike, sampling.seed, sampling.confidence, what, randomised,
        audited=sum(bool(made[i]) for i in ids), near=len(near), broken=len(broken),
        passes=passes, run_passes=run.cost.forwards + run.cost.backwards,
    )  # fmt: skip
    return Again(result, tuple(findings), joined(x))


def _population(run: Run, threat: Threat) -> list[int]:
    """Return the samples that may hide something: the survivors; without a radius, all that are classified right."""
    if threat.unlimited:
        return [int(i) for i in row_queries.survivors(run.numbers(), [])]
    return [int(i) for i in run.survivors()]


def _some_broken(run: Run, sampling: RerunSample) -> list[int]:
    """Return broken samples to run again: the verdict depends on which attack breaks a sample."""
    if len(run.identity.plan.stages) < 2:
        return []
    broken = sorted(_fell(run.rows()) & {int(i) for i in row_queries.survivors(run.numbers(), [])})
    return ordered(run, broken, sampling.seed)[: sampling.size(len(broken), half_interval(run.robust_accuracy))]


def _breaker(table: pa.Table, names: Sequence[str]) -> dict[int, int]:
    """Return the place in the plan of the first attack that broke each sample."""
    table = table.filter(pa.array(counted(table)))
    first: dict[int, int] = {}
    for i, name in zip(table["sample_id"].to_pylist(), table["attack"].to_pylist(), strict=True):
        if name in names:
            first[i] = min(first.get(i, len(names)), names.index(name))
    return first


def _by_others(run: Run, rows: pa.Table, broken: Sequence[int], model: Classifier) -> Iterator[Finding]:
    """Yield a finding if samples are not broken here by the attack that broke them in the Run, but later or not at all.

    On the stated hardware and version of torch no sample may differ, elsewhere a tenth of them.
    """
    stored, here = (_breaker(table, run.attacks) for table in (run.rows(), rows))
    later = [i for i in broken if here.get(i, len(run.attacks)) > stored.get(i, len(run.attacks))]
    if len(later) > (0 if _same_place(run, model) else ELSEWHERE * len(broken)):
        message = (
            f"{len(later)} of {len(broken)} broken samples run again are not broken by the attack that the Run says"
        )
        yield objection("attacks", f"{message}, but later or not at all: the first is sample {min(later)}.")


def chosen_ids(run: Run, population: Sequence[int], sampling: RerunSample) -> list[int]:
    """Return the ids to run again, sorted, in an order by a hash of seed, Run and id that nobody can influence.

    These are the first samples of the population. Unless their number is given, samples that the whole audit attacked
    are added, enough to find as large a share of hidden ones among them (at least one), and the samples with an
    adversarial that did not pass verification, at most as many again.
    """
    order = ordered(run, population, sampling.seed)
    half = half_interval(run.robust_accuracy)
    size = sampling.size(len(order), half)
    if sampling.count is not None or not size:
        return sorted(order[:size])
    audited = _audited(run)
    drawn = [i for i in order if i in audited]
    share = max(1, half * len(drawn) // max(len(order), 1))
    unverified = set(row_queries.ids_of(run.unverified).tolist())
    doubtful = [i for i in order if i in unverified]
    return sorted({*order[:size], *drawn[: sampling.size(len(drawn), share)], *doubtful[:size]})


def _attacked_by(run: Run, stage: str) -> set[int]:
    """Return the samples that a stage attacked in the Run."""
    table = run.numbers()
    return set(row_queries.ids_of(table)[row_queries.is_attack(table, stage)].tolist())


def _audited(run: Run) -> set[int]:
    """Return the samples that every stage of the audit attacked."""
    attacked = [_attacked_by(run, stage.name) for stage in run.identity.plan.audit_stages]
    return set[int].intersection(*attacked) if attacked else set()


def _audit_names(plan: Plan, threat: Threat) -> tuple[str, ...]:
    return tuple(stage.name for stage in plan.stages_for(threat) if stage.is_audit)


def _layers_of(
    run: Run, plan: Plan, threat: Threat, ids: Collection[int], sampling: RerunSample
) -> dict[int, frozenset[str]]:
    """Return the stages of the audit that attack each sample again: those that attacked it in the Run.

    A sample that the audit broke in the Run gets all of them, until one breaks it again. So does every sample if the
    `sampling` says so.
    """
    names = _audit_names(plan, threat)
    attacked = {name: _attacked_by(run, name) for name in names}
    fell = _fell(run.rows().filter(pc.is_in(run.rows()["attack"], pa.array(names, pa.string()))))
    everyone = sampling.full_plan
    return {i: frozenset(n for n in names if everyone or i in fell or i in attacked[n]) for i in ids}


def _evaluated(
    run: Run, model: Classifier, data: Problem, threat: Threat, plan: Plan, layers: Mapping[int, frozenset[str]],
    folder: Path, progress: bool | None,
) -> list[Run]:  # fmt: skip
    """Evaluate samples again with the Run's settings, each with the stages of the audit that `layers` names for it."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, names in sorted(layers.items()):
        groups.setdefault(tuple(sorted(names)), []).append(i)
    runs = []
    for k, (audit, ids) in enumerate(groups.items()):
        problem, index = _subset(data, ids)
        runs.append(
            evaluate(
                model,
                problem,
                threat.subset(index),
                with_audit_of(plan, threat, audit),
                out=folder / str(k),
                execution=_execution(run, model),
                individual=run.identity.individual,
                progress=progress,
            )
        )
        runs[-1].rows()
    return runs


def _left_out(
    run: Run, again: Sequence[Run], plan: Plan, threat: Threat, made: Mapping[int, frozenset[str]]
) -> dict[int, frozenset[str]]:
    """Return the samples that come so near the boundary here that more stages had to attack them, and these stages."""
    layers, due = run.layers, dict[int, frozenset[str]]()
    if layers is None or not layers.rings:
        return due
    # A Run that did not go as far as it must says so itself.
    reach = layers.reach if layers.complete else layers.rings[0].high
    audit = [stage for stage in plan.stages_for(threat) if stage.is_audit]
    survivors = run.survivors()
    for part in again:
        here = np.intersect1d(row_queries.samples(part.numbers()), survivors)
        for i, left in zip(here.tolist(), left_of_margins(part, here).tolist(), strict=True):
            names = frozenset(stage.name for stage in audit if left < max(reach, stage.near or 0.0))
            if names - made[i]:
                due[i] = names - made[i]
    return due


def _precision(run: Run, model: Classifier) -> str:
    """Return the precision of the Run where the device has it, else float32."""
    stored = run.identity.precision or FLOAT32
    return stored if stored in candidates(model.device) else FLOAT32


def block_of(run: Run, model: Classifier) -> int:
    """Return the rows per call for a Run's points: one if its model was asked row by row, else the device's."""
    stored = Blocks.read(run.identity.raw)
    return 1 if stored == SINGLE else default_block(model.device)


def _execution(run: Run, model: Classifier) -> Execution:
    """Return the settings of the Run, as far as the device has them."""
    how = Execution(seed=run.identity.seed or 0, precision=_precision(run, model))
    how = one_row_at_a_time(how) if block_of(run, model) == 1 else how
    return with_settings(how, run.identity, run.environment) if model.device.type == "cuda" else how


def _subset(data: Problem, ids: Collection[int]) -> tuple[Problem, torch.Tensor]:
    """Return the samples `ids` in the order of the data, and their positions in the data."""
    wanted, order, index = set(ids), list[int](), list[int]()
    for chunk in data.chunks(FIRST):
        rows = chunk.rows_of(wanted)
        order += chunk.ids[rows].tolist()
        index += (rows + chunk.offset).tolist()
        if len(order) == len(wanted):
            break
    x, y = samples_of(data, order)
    places = torch.tensor(index, dtype=torch.long, device="cpu")
    return Problem(x, y, order, name=data.name), places


def _worse_checks(run: Run, model: Classifier, data: Problem, threat: Threat, plan: Plan) -> Iterator[Finding]:
    """Repeat the checks of an evaluation on the first samples of the Run; yield those that are better in the Run."""
    samples = set(row_queries.samples(run.numbers()).tolist())
    first = [i for chunk in data.chunks(FIRST) for i in chunk.ids.tolist() if i in samples][:FIRST]
    problem, index = _subset(data, first)
    how, individual = _execution(run, model), run.identity.individual
    prepared = prepare(model, problem, threat.subset(index), plan, how, individual=individual)
    objecting = {check.name for check in run.findings if check.level in COMPARED}
    criterion = prepared.context.criterion.name
    if run.identity.criterion != criterion:
        yield objection("goal", f"The Run's goal is {run.identity.criterion[:60]}, not {criterion}.")
    noisy = _noisy(prepared.checks, plan)
    for check in prepared.checks:
        if check.level in COMPARED and check.name not in objecting and (check.name in STEADY_CHECKS or not noisy):
            yield objection(check.name, f"The check {check.name} finds a problem here, but not in the Run.")


def _require_surrogates(oracle: Oracle, data: Problem, stages: Sequence[Stage]) -> None:
    """Raise a ModelError if the surrogates of a plan do not fit the model: the author of a Run chose them."""
    first = next(data.chunks(1))
    x = first.x.to(oracle.classifier.device)
    for stage in stages:
        if stage.via is None:
            continue
        surrogate = SurrogateOracle.through(surrogate_of(oracle.classifier, stage.via), oracle)
        with oracle.calls.named():
            shape, wanted = (one.output(x, first.ids).logits.shape for one in (surrogate, oracle))
        if shape != wanted:
            raise ModelError(
                expected=f"a surrogate with {wanted[1]} logits", got=f"{stage.via}: shape {tuple(shape)}",
                remedy="Name submodules whose outputs are logits.",
            )  # fmt: skip


def _tested(run: Run, model: Classifier, data: Problem, threat: Threat, plan: Plan) -> Iterator[Finding]:
    """Make the small binarization test of a Run that says *reliable*, which might have left it out or made it up."""
    try:
        found = small_test(run, model, data, threat, plan)
    except UNSUITED:
        return  # it does not apply to this model
    if found is not None and found.level == "warn":
        message = f"The verdict of the Run is reliable, but the binarization test fails here: {found.message}"
        yield objection(BINARIZATION, message)


def _noisy(checks: Sequence[Finding], plan: Plan) -> bool:
    """Return whether the checks that were made here say that the model is randomised."""
    return any(check.name == "randomised" and check.level != LEVEL_OF_STEADY[plan.draws > 1] for check in checks)


def _fell(table: pa.Table) -> set[int]:
    return set(row_queries.ids_of(table)[counted(table)].tolist())


def _nearest(table: pa.Table) -> dict[int, float]:
    nearest: dict[int, float] = {}
    attacked = table.filter(pa.array(counted(table)))
    for i, d in zip(attacked["sample_id"].to_pylist(), attacked["distance"].to_pylist(), strict=True):
        nearest[i] = min(nearest.get(i, np.inf), np.inf if d is None else d)
    return nearest


def _weaker(run: Run, rows: pa.Table, ids: Sequence[int], threat: Threat) -> dict[int, str]:
    """Return the samples that are less robust here than in the Run, and why, by id."""
    survivors = set(run.survivors().tolist())
    weaker = {i: BROKE for i in ids if i in survivors and i in _fell(rows)}
    if threat.unlimited:
        stored, here = _nearest(run.rows()), _nearest(rows)
        for i in ids:
            if i in here and i in stored and here[i] < (1 - NEARER) * stored[i]:
                weaker[i] = f"the distance is {here[i]:.6g} when run again, the Run stores {stored[i]:.6g}"
    return weaker


def _randomised(run: Run, rows: pa.Table, ids: Sequence[int]) -> list[Finding]:
    """Return what the repetition of a randomised model shows: differences that chance does not explain."""
    survivors = set(run.survivors().tolist()) & set(ids)
    broke = len(survivors & _fell(rows))
    findings = broken_again(broke, len(survivors))
    if not any(finding.level == "fail" for finding in findings) and broke and mcnemar(broke, 0) < UNLIKELY:
        rest = len(survivors) - broke
        if broke > rest:
            findings.append(objection("run again", f"{broke} survivors broke when run again, only {rest} did not."))
    return findings


def _flags(run: Run, rows: pa.Table, ids: Sequence[int]) -> Iterator[Finding]:
    """Yield a finding if attacks show signs of trouble here on samples where the Run shows none."""
    table = run.rows()
    for flag, few in ((NON_FINITE, 0.0), (STOOD_STILL, 0.1)):
        stored = set(row_queries.ids_of(table)[flagged(table, flag)].tolist())
        here = set(row_queries.ids_of(rows)[flagged(rows, flag)].tolist())
        missing = (here - stored) & set(ids)
        if len(missing) > few * len(ids) + (few > 0):
            message = f"{len(missing)} of {len(ids)} samples get the flag '{flag}' when run again, but not in the Run."
            yield objection("flags", message)


def _costs(run: Run, rows: pa.Table) -> Iterator[Finding]:
    """Yield a finding if the Run states more passes than are made here, where no attack succeeds: the verdict counts.

    Only rows that are unbroken in both evaluations are compared.
    """
    for column in ("forwards", "backwards"):
        stored, here = (_passes(table, column) for table in (run.rows(), rows))
        stated, made = (sum(part[key] for key in stored.keys() & here.keys()) for part in (stored, here))
        if stated > (1 + OTHER_COST) * made:
            message = f"The Run states {stated:,} {column} for the samples run again, but {made:,} were made here."
            yield objection("costs", message)


def _passes(table: pa.Table, column: str) -> dict[tuple[int, str], int]:
    """Return the passes of every unbroken row, by sample and attack."""
    table = table.filter(pc.invert(table["broken"]))
    keys = zip(table["sample_id"].to_pylist(), table["attack"].to_pylist(), strict=True)
    return dict(zip(keys, table[column].to_pylist(), strict=True))


def _elsewhere(run: Run, model: Classifier, weaker: Collection[int]) -> Iterator[Finding]:
    """Yield a note if samples broke and the Run was made on other hardware or with another version of torch."""
    version, devices = run.environment.torch, sorted(set(pc.unique(run.rows()["device"]).to_pylist()))
    if weaker and not _same_place(run, model):
        message = (
            f"The Run states torch {version} on {', '.join(devices)[:60]}; here it is torch {torch.__version__} on "
            f"{model.device.type}. A sample close to the decision boundary can change its outcome by rounding."
        )
        yield note("environment", message)


def _same_place(run: Run, model: Classifier) -> bool:
    """Return whether the Run states the version of torch and the type of device that are used here."""
    devices = {device.split(":")[0] for device in pc.unique(run.rows()["device"]).to_pylist()}
    return run.environment.torch == torch.__version__ and devices == {model.device.type}


def _found_again(run: Run, rows: pa.Table, id: int) -> bool:
    """Return whether the rows of one sample in the Run are the same here.

    Layers of an audit that the Run did not need for this sample may have attacked it here: these rows do not count.
    """
    stored, here = _outcome(run.rows(), id), _outcome(rows, id)
    layers = {stage.name for stage in run.identity.plan.audit_stages}
    return {attack: row for attack, row in here.items() if attack in stored or attack not in layers} == stored


# What differs between equal evaluations: seconds and places, the plan around a stage, and names, which are compared
# with those of the data.
APART = (*INCIDENTAL, "attack_hash", "sample_name")


def _outcome(table: pa.Table, id: int) -> dict[str, str]:
    """Return the rows of one sample as text, by attack."""
    rows = table.filter(row_queries.ids_of(table) == id)
    rows = rows.drop_columns([c for c in APART if c in rows.column_names]).to_pylist()
    return {row["attack"]: repr({**row, "flags": [f for f in row["flags"] if f != AUDIT]}) for row in rows}
