"""Measure a model under the rules of a leaderboard: restrictions, clean accuracy, plan, record."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brinell.analysis.corruptions import Baseline
from brinell.analysis.corruptions import table as corruption_table
from brinell.analysis.corruptions.baselines import ALEXNET_ROBUSTBENCH
from brinell.arguments import DataLike, ModelLike
from brinell.checks import model as model_checks
from brinell.checks.leaderboard import DETERMINISTIC, check_restrictions
from brinell.core.dataset import Problem
from brinell.core.execution import Execution, ExecutionOptions
from brinell.core.model import Classifier
from brinell.core.threat import Linf, Threat
from brinell.core.threat import threat as threat_by_name
from brinell.data.catalogue import CORRUPTIONS_3D as CORRUPTIONS_3D_NAMES
from brinell.data.corruptions import COMMON
from brinell.data.image_folders import LISTED
from brinell.data.load import ROBUSTBENCH, load
from brinell.environment import version
from brinell.errors import InputError, ModelError
from brinell.evaluation import coerce
from brinell.evaluation.backend import IN_PROCESS, Backend
from brinell.evaluation.evaluate import evaluate, over_seeds
from brinell.leaderboard import records
from brinell.leaderboard.definitions import Leaderboard, find_leaderboard
from brinell.leaderboard.records import CORRUPTIONS_3D, RECORD, Record
from brinell.models import zoo
from brinell.results import Proportion, Run, SeedRuns
from brinell.results.format.folders import AUTO
from brinell.results.format.manifest import now

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The fields of a record for the accuracy and the mean corruption error.
ACCURACIES, ACCURACIES_3D = ("corruptions", "corruptions_mce"), ("corruptions_3d", "corruptions_mce_3d")


def benchmark(
    classifier: ModelLike,
    dataset: str = "cifar10",
    threat: str = "Linf",
    *,
    n: int | None = None,
    data: DataLike | None = None,
    corrupted: Any = None,
    preprocessing: Any = None,
    eps: float | str | None = None,
    name: str | None = None,
    about: Mapping[str, Any] | None = None,
    strict: bool = True,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    launch: Backend = IN_PROCESS,
    **options: "Unpack[ExecutionOptions]",
) -> Record:
    """Measure a model under the rules of a leaderboard, and return its record.

    A model that violates a restriction of the leaderboard is refused; with `strict=False` it is measured and the
    record states the violation. Then the plan of the leaderboard runs on the first `n` samples. The Run is written to
    `out`, with a `record.json`. `data` replaces the data set that `dataset` names: a Problem, (x, y), a file or a
    folder. `corrupted`, for the threats "corruptions" and "corruptions_3d", is the folder of the corrupted data, or a
    function from corruption and severity to a Problem. `preprocessing` turns images into inputs (`brinell.data.load`);
    zoo models have their own preprocessing. `eps` replaces the leaderboard's radius, and the record states `eps`.
    `about` holds facts such as authors, venue and link (`brinell.leaderboard.records.ABOUT`). `resume`, `progress` and
    `launch` are arguments of `brinell.evaluate`, `options` are arguments of `brinell.Execution`.

    >>> import brinell
    >>> record = brinell.benchmark("demo", "demo", "Linf", n=4, eps=0.5, progress=False)
    >>> record.key, record.n, record.autoattack, record.restrictions
    ('demo/Linf/demo', 4, 0.0, ())
    """
    coerce.require_folder(resume, out)
    execution = Execution.from_options(options)
    chosen, model = find_leaderboard(dataset, threat), coerce.as_classifier(classifier, execution.device)
    if chosen.ball is None and eps is not None:
        raise InputError(expected="no eps for corruptions", got=f"eps={eps}", remedy="Omit eps (--eps).")
    model_checks.check_train_mode(model)
    label = name or _label(model)
    own = model.name.startswith(chosen.zoo)  # a model of the zoo on its own leaderboard
    published = records.find(records.published(), model.name) if own else None
    facts = {**({k: getattr(published, k) for k in records.ABOUT} if published else {}), **(about or {})}
    records.with_facts(Record(dataset, threat, label), facts)  # fails before hours are spent
    card = zoo.cards().get(model.name) if own else None
    problem = points(chosen, data, n, preprocessing or (card and card.preprocessing))
    if chosen.ball is None:
        source = corrupted if callable(corrupted) else partial(_cell, chosen, _count(chosen, n), corrupted)
        folder = Path(out) if out not in (None, AUTO) else Path(tempfile.mkdtemp(prefix="brinell-"))
        return _corrupted(chosen, model, label, facts, problem, source, strict, folder, resume)
    ball = chosen.ball if eps is None else threat_by_name(chosen.ball.norm.name, eps)
    violated = _violated(model, problem, ball, strict)
    run = evaluate(
        model, problem, ball, chosen.plan,
        out=out, resume=resume, execution=execution, progress=progress, launch=launch, name=name,
    )  # fmt: skip
    record = replace(records.of_run(run, dataset, threat, label, facts), restrictions=violated)
    record.write(run.path / RECORD)
    return record


def benchmark_seeds(
    classifier: ModelLike, dataset: str = "cifar10", threat: str = "Linf",
    *, seeds: int, seed: int = 0, out: str | os.PathLike[str] | None = None, **options: Any,
) -> tuple[tuple[Record, ...], SeedRuns]:  # fmt: skip
    """Measure a model with `seeds` seeds from `seed` on; return the records, and the Runs with mean and deviation.

    The Runs are stored in the folders seed-0, seed-1, … of `out`. `options` are passed to `benchmark`.
    """
    if find_leaderboard(dataset, threat).ball is None:
        raise InputError(
            expected="a leaderboard with attacks if seeds are given",
            got=f"{dataset}/{threat}, which needs no random numbers",
            remedy="Omit seeds (--seeds).",
        )
    made: list[Record] = []

    def run(s: int, folder: Path | str | None) -> Run:
        made.append(benchmark(classifier, dataset, threat, seed=s, out=folder, **options))
        return Run.open(made[-1].run or "")

    runs = over_seeds(run, seeds, seed, out)
    return tuple(made), runs


def points(chosen: Leaderboard, data: Any, n: int | None, preprocessing: Any = None) -> Problem:
    """Return the first n samples of `data`, or of the leaderboard's data set if `data` is None.

    A leaderboard on ImageNet needs the pictures of RobustBench's list, and refuses other pictures.
    """
    wanted = _count(chosen, n)
    if isinstance(data, str | os.PathLike) or data is None:
        source, options = coerce.data_options(os.fspath(chosen.dataset if data is None else data))
        if preprocessing is not None:
            options.setdefault("preprocessing", preprocessing)
        if chosen.listed and (source == chosen.dataset or Path(source).is_dir()):
            options.setdefault("paths", ROBUSTBENCH)
        problem = load(source, wanted, **options)
    else:
        problem = coerce.as_problem(data)[:wanted]
    _require_listed(chosen, problem)
    if n is not None and len(problem) < n:
        raise InputError(
            expected=f"at least {n} samples in the data", got=f"{len(problem)}", remedy="Lower n (--n), or omit it."
        )
    return problem


def _require_listed(chosen: Leaderboard, problem: Problem) -> None:
    """Raise an error if the leaderboard needs the pictures of RobustBench's list and the samples are not these."""
    if chosen.listed and not problem.name.endswith(LISTED):
        raise InputError(
            expected=f"the 5,000 pictures on which {chosen.name} is measured, in the order of RobustBench's list",
            got=f"other pictures: {problem.name or 'data without a name'}",
            remedy="Leave --data out, or write --data imagenet,paths=LIST.txt,root=FOLDER with that list "
            '(in Python: brinell.data.load("imagenet", paths="robustbench")).',
        )


def _count(chosen: Leaderboard, n: int | None) -> int:
    if n is not None and not 1 <= n <= chosen.points:
        expected = f"n from 1 to {chosen.points:,}, the samples of {chosen.name}"
        raise InputError(expected=expected, got=f"{n}", remedy="Leave n out for all samples.")
    return chosen.points if n is None else n


def _label(model: Classifier) -> str:
    """Return the last part of the name of the model, with characters that are safe in file names."""
    return re.sub(r"[^\w.+ -]", "_", model.name.rpartition("/")[2]).lstrip(". +-") or "unnamed"


def _violated(model: Classifier, problem: Problem, ball: Threat, strict: bool, only: str = "") -> tuple[str, ...]:
    """Return a sentence per violated restriction, of all or of the one named `only`; if `strict`, raise an error."""
    failed = (c for c in check_restrictions(model, problem, ball) if c.level == "fail" and only in ("", c.name))
    sentences = tuple(f"{c.name}: {c.message}" for c in failed)
    if sentences and strict:
        raise ModelError(
            expected="a model that satisfies the restrictions of the leaderboard",
            got=" ".join(sentences).rstrip("."),
            remedy="Use brinell evaluate, or pass strict=False (--anyway): the record then states the violation.",
        )
    return sentences


def _corrupted(
    chosen: Leaderboard,
    model: Classifier,
    label: str,
    facts: Mapping[str, Any],
    problem: Problem,
    source: corruption_table.Source,
    strict: bool,
    folder: Path,
    resume: bool,
) -> Record:
    """Measure the mean accuracy over all corruptions and severities, without attacks, and return the record.

    On ImageNet the record has the mean corruption error relative to AlexNet, as RobustBench computes it.
    """
    n = len(problem)
    violated = _violated(model, problem, Linf("1/255"), strict, only=DETERMINISTIC)
    fingerprint = model.fingerprint
    identity = {"model": fingerprint, "data": problem.fingerprint(), "n": n}

    def cell(corruption: str, severity: int) -> Problem:
        images = source(corruption, severity)[:n]
        _require_listed(chosen, images)
        return images

    is_3d = chosen.threat == CORRUPTIONS_3D
    names = CORRUPTIONS_3D_NAMES if is_3d else COMMON
    table = corruption_table.measure_table(model, cell, identity, folder, resume, names)
    # RobustBench has errors of AlexNet for ImageNet only.
    mce = records.percent(table.mce(Baseline.named(ALEXNET_ROBUSTBENCH))) if chosen.listed else None
    fields = ACCURACIES_3D if is_3d else ACCURACIES
    accuracies: dict[str, Any] = dict(zip(fields, (records.percent(table.mean), mce), strict=True))
    clean = Proportion(*corruption_table.count_correct(model, problem))
    low, high = table.interval
    record = Record(
        chosen.dataset, chosen.threat, label, clean=records.percent(clean.value),
        clean_interval=records.interval_of(clean), **accuracies,
        interval=(records.percent(low), records.percent(high)), n=table.right.shape[1], plan=chosen.plan,
        fingerprint=fingerprint, restrictions=violated, run=str(folder), date=now(), version=version(),
    )  # fmt: skip
    record = records.with_facts(record, facts)
    record.write(folder / RECORD)
    return record


def _cell(chosen: Leaderboard, n: int, root: Any, corruption: str, severity: int) -> Problem:
    """Load the first n samples of one corruption at one severity from the corrupted version of the data set."""
    where: dict[str, Any] = {} if root is None else {"root": root}
    if chosen.listed:
        where["paths"] = ROBUSTBENCH
    return load(chosen.corrupted, n, corruption=corruption, severity=severity, **where)  # type: ignore[call-arg, unused-ignore]
