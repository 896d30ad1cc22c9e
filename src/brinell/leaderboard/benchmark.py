"""A model on a leaderboard: restrictions, clean accuracy, the leaderboard's plan, and a record of it all."""

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from brinell.analysis.corruptions import table as corruption_table
from brinell.checks import model as model_checks
from brinell.checks.leaderboard import DETERMINISTIC, check_restrictions
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.threat import Linf, Threat
from brinell.core.threat import threat as threat_by_name
from brinell.data.load import load
from brinell.environment import version
from brinell.errors import InputError, ModelError
from brinell.evaluation import coerce
from brinell.evaluation.backend import IN_PROCESS, Backend
from brinell.evaluation.evaluate import evaluate
from brinell.leaderboard import records
from brinell.leaderboard.definitions import Leaderboard, find_leaderboard
from brinell.leaderboard.records import RECORD, Record
from brinell.models import zoo
from brinell.results import Proportion
from brinell.results.format.manifest import now


def benchmark(
    classifier: Any,
    dataset: str = "cifar10",
    threat: str = "Linf",
    *,
    n: int | None = None,
    data: Any = None,
    corrupted: Any = None,
    preprocessing: Any = None,
    eps: float | str | None = None,
    name: str | None = None,
    about: Mapping[str, Any] | None = None,
    strict: bool = True,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    slots: int | None = None,
    precision: str = "float32",
    execution: str = "auto",
    device: torch.device | str | None = None,
    progress: bool | None = None,
    launch: Backend = IN_PROCESS,
) -> Record:
    """Measure a model as the leaderboard of a data set and a threat does, and return the record of it.

    Restrictions are looked at first; a model that violates one is refused, or measured all the same with `strict=False`
    and the violation in its record. Then follow clean accuracy and the leaderboard's plan on its first `n` points; the
    Run is in `out`, `record.json` in it. `data` are the points where `dataset` is not at hand by its name: a Problem,
    (x, y), a file or a folder; `corrupted` is the folder of the corrupted set, or a function from corruption and
    severity to a Problem. `preprocessing` is how pictures become inputs (`brinell.data.load`); models of the zoo bring
    their own. `eps` is another radius, which the record tells. `about` are facts for the leaderboard:
    authors, venue, link and the like (`brinell.leaderboard.records.ABOUT`). `resume` and everything after it are as for
    `brinell.evaluate`.

    >>> import brinell
    >>> record = brinell.benchmark("demo", "demo", "Linf", n=4, eps=0.5, progress=False)
    >>> record.key, record.n, record.autoattack, record.restrictions
    ('demo/Linf/demo', 4, 0.0, ())
    """
    coerce.require_folder(resume, out)
    chosen, model = find_leaderboard(dataset, threat), coerce.as_classifier(classifier, device)
    if chosen.ball is None and eps is not None:
        raise InputError(expected="no eps for corruptions", got=f"{eps}", remedy="Leave it out.")
    model_checks.check_train_mode(model)
    label = name or _label(model)
    facts = {**_published_facts(model, chosen), **(about or {})}
    records.with_facts(Record(dataset, threat, label), facts)  # told before hours are spent
    problem = points(chosen, data, n, preprocessing or _own_preprocessing(model, chosen))
    if chosen.ball is None:
        source = corrupted if callable(corrupted) else partial(_cell, dataset, _count(chosen, n), corrupted)
        folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="brinell-"))
        return _corrupted(chosen, model, label, facts, problem, source, strict, folder, resume)
    ball = chosen.ball if eps is None else threat_by_name(chosen.ball.norm.name, eps)
    violated = _violated(model, problem, ball, strict)
    run = evaluate(
        model,
        problem,
        ball,
        chosen.plan,
        out=out,
        resume=resume,
        seed=seed,
        slots=slots,
        precision=precision,
        execution=execution,
        progress=progress,
        launch=launch,
    )
    record = replace(records.of_run(run, dataset, threat, label, facts), restrictions=violated)
    record.write(run.path / RECORD)
    return record


def points(chosen: Leaderboard, data: Any, n: int | None, preprocessing: Any = None) -> Problem:
    """The first n points of a leaderboard's data set, from where it is known by its name or from `data`."""
    wanted = _count(chosen, n)
    if isinstance(data, str | os.PathLike) or data is None:
        how: dict[str, Any] = {} if preprocessing is None else {"preprocessing": preprocessing}
        problem = load(chosen.dataset if data is None else data, wanted, **how)
    else:
        problem = coerce.as_problem(data)[:wanted]
    if n is not None and len(problem) < n:
        raise InputError(expected=f"at least {n} samples", got=f"{len(problem)}", remedy="Leave n out, or lower it.")
    return problem


def _count(chosen: Leaderboard, n: int | None) -> int:
    if n is not None and not 1 <= n <= chosen.points:
        raise InputError(
            expected=f"n from 1 to {chosen.points:,}, the points of {chosen.name}",
            got=f"{n}",
            remedy="Leave it out for all of them.",
        )
    return chosen.points if n is None else n


def _label(model: Classifier) -> str:
    """The last part of the model's name, in letters that may be part of a file's name."""
    return re.sub(r"[^\w.+ -]", "_", model.name.rpartition("/")[2]).lstrip(". +-") or "unnamed"


def _own_preprocessing(model: Classifier, chosen: Leaderboard) -> str | None:
    """What a model of the zoo on its own leaderboard wants done to pictures."""
    card = zoo.cards().get(model.name) if model.name.startswith(f"{chosen.name}/") else None
    return None if card is None else card.preprocessing


def _published_facts(model: Classifier, chosen: Leaderboard) -> dict[str, Any]:
    """What is published about a model of the zoo on its own leaderboard."""
    known = records.find(records.published(), model.name) if model.name.startswith(f"{chosen.name}/") else None
    return {} if known is None else {k: getattr(known, k) for k in records.ABOUT}


def _violated(model: Classifier, problem: Problem, ball: Threat, strict: bool, only: str = "") -> tuple[str, ...]:
    """The restrictions the model violates, as sentences; an error where that is not allowed."""
    found = [c for c in check_restrictions(model, problem, ball) if c.level == "fail" and only in ("", c.name)]
    said = tuple(f"{c.name}: {c.message}" for c in found)
    if said and strict:
        raise ModelError(
            expected="a model that keeps to the leaderboard's restrictions",
            got=" ".join(said).rstrip("."),
            remedy="Measure it with brinell evaluate, or here with strict=False (--anyway): its record will say so.",
        )
    return said


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
    """A record of the mean accuracy over the published corruptions and severities; nothing is attacked."""
    n = len(problem)
    violated = _violated(model, problem, Linf("1/255"), strict, only=DETERMINISTIC)
    fingerprint = model.fingerprint
    identity = {"model": fingerprint, "data": problem.fingerprint(), "n": n}
    table = corruption_table.measure_table(model, lambda c, s: source(c, s)[:n], identity, folder, resume)
    clean = Proportion(*corruption_table.count_correct(model, problem))
    record = Record(
        chosen.dataset,
        chosen.threat,
        label,
        clean=round(100 * clean.value, 2),
        clean_interval=(round(100 * clean.low, 2), round(100 * clean.high, 2)),
        corruptions=round(100 * table.mean, 2),
        interval=(round(100 * table.interval[0], 2), round(100 * table.interval[1], 2)),
        n=table.right.shape[1],
        plan=chosen.plan,
        fingerprint=fingerprint,
        restrictions=violated,
        run=str(folder),
        date=now(),
        version=version(),
    )
    record = records.with_facts(record, facts)
    record.write(folder / RECORD)
    return record


def _cell(dataset: str, n: int, root: Any, corruption: str, severity: int) -> Problem:
    """One corruption at one severity of the corrupted set, named after the clean one."""
    where: dict[str, Any] = {} if root is None else {"root": root}
    return load(f"{dataset}-c", n, corruption=corruption, severity=severity, **where)  # type: ignore[call-arg, unused-ignore]
