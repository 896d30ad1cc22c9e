"""Convert the arguments of users to a classifier, a problem, a threat and a plan, or raise an error."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brinell.arguments import PlanLike
from brinell.attacks.catalogue import PLANS, STAGES, by_name, chain, reference
from brinell.core.attack import AnyAttack, Attack
from brinell.core.dataset import Chunk, Problem, first_samples, sample_hashes
from brinell.core.model import Classifier, ExpectedInputs
from brinell.core.plan import Plan, Stage
from brinell.core.plan import plan as make_plan
from brinell.core.ranking import MaltRanking
from brinell.core.samples import is_pairs
from brinell.core.threat import Threat
from brinell.core.threat import from_json as threat_from_json
from brinell.data.image_folders import Preprocessing
from brinell.data.load import load, takes_preprocessing
from brinell.errors import BrinellError, InputError, ModelError, PlanError, RunError, ThreatError, first_line
from brinell.evaluation.plan import audited, limited, ranked, with_steps, with_targets
from brinell.models.by_name import load_model
from brinell.models.functions import as_model
from brinell.models.wrap import wrap
from brinell.ops.norms import SIZES
from brinell.results import Evidence, Run, is_evidence

# Options of brinell.data.load beside the source and n.
FEW = 2
OPTIONS = ("split", "corruption", "severity", "version", "preprocessing", "paths", "mode", "root")


def as_classifier(classifier: Any, device: torch.device | str | None = None, data: Problem | None = None) -> Classifier:
    """Return a Classifier, given a Classifier, a module, a function, an estimator of scikit-learn, or a name or path.

    `models.by_name.load_model` reads names and paths. One call on the first samples of `data` tells whether a function
    takes tensors or arrays.
    """
    if isinstance(classifier, str | os.PathLike):
        classifier = load_model(os.fspath(classifier))
    if isinstance(classifier, nn.Module):
        classifier = wrap(classifier)
    # Not hasattr: on the object itself it would compute the fingerprint.
    present = {*dir(type(classifier)), *getattr(classifier, "__dict__", ())}
    missing = [name for name in vars(Classifier) if name[0] != "_" and name not in present]
    if missing:
        first = None if data is None or not callable(classifier) else next(data.chunks(FEW)).x
        adopted = as_model(classifier, first)
        if adopted is None:
            raise _no_model(classifier, missing)
        classifier = adopted
    return classifier if device is None else classifier.to(_device(device))


def _no_model(given: Any, missing: list[str]) -> ModelError:
    remedy, got = "Wrap the model: brinell.wrap(net, mean=…, std=…).", repr(given)[:80]
    if isinstance(given, dict):
        got = f"{type(given).__name__} with {len(given)} entries"
        remedy = "These are weights: build the network, then net.load_state_dict(weights) and net.eval()."
    elif given is None:
        remedy = "Check that the function that builds the model returns it."
    elif isinstance(given, type) and issubclass(given, nn.Module):
        got, remedy = f"the class {given.__name__}", f"Create an instance: {given.__name__}(…).eval()."
    elif hasattr(type(given), "forward"):
        got = f"{type(given).__name__}, which lacks {', '.join(missing)}"
        remedy = "Subclass brinell.core.model.Classifier, which has defaults for most members."
    return ModelError(expected="a Classifier, a torch.nn.Module or the name of a model", got=got, remedy=remedy)


def _device(device: torch.device | str) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen, dtype=torch.float32)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            expected="a device this machine has", got=f"{device} ({first_line(error)})", remedy="Try device='cpu'."
        ) from None
    return chosen


def as_problem(
    problem: Any, n: int | None = None, part: str | None = None, inputs: ExpectedInputs | None = None
) -> Problem:
    """Return a Problem, given a Problem, (x, y), a Dataset, a DataLoader, or a source for `brinell.data.load`.

    Options of `brinell.data.load` follow the source after commas. `n` keeps the first n samples; of these,
    `part="2/4"` keeps the second quarter. Pictures get the size of the model's
    `inputs`, unless an option says otherwise.

    >>> len(as_problem("demo", 100, "1/4"))
    25
    """
    if isinstance(problem, str | os.PathLike):
        source, options = data_options(os.fspath(problem))
        if inputs is not None and "preprocessing" not in options and takes_preprocessing(source):
            mode = "L" if len(inputs.shape) == 3 and inputs.shape[0] == 1 else "RGB"
            options["preprocessing"] = Preprocessing(inputs.resize, inputs.crop, inputs.interpolation, mode)
        problem = load(source, n, **options)
    elif not isinstance(problem, Problem):
        pair = isinstance(problem, tuple | list) and len(problem) == 2 and not is_pairs(problem)
        problem = first_samples(Problem(*problem) if pair else Problem(problem), n)
    return problem if part is None else _part(problem, part)


def as_model_and_data(
    classifier: Any, problem: Any, device: torch.device | str | None = None
) -> tuple[Classifier, Problem]:
    """Return the classifier and the problem; pictures named by a text get the size that the model was trained on."""
    if isinstance(classifier, str | os.PathLike):
        classifier = as_classifier(classifier)
    data = as_problem(problem, inputs=getattr(classifier, "inputs", None))
    return as_classifier(classifier, device, data), data


def data_options(text: str) -> tuple[str, dict[str, Any]]:
    """Split "SOURCE,option=value,…" into source and options; an existing path is a source without options.

    >>> data_options("cifar10-c,corruption=fog,severity=3")
    ('cifar10-c', {'corruption': 'fog', 'severity': 3})
    """
    source, *pairs = [text] if Path(text).exists() else text.split(",")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in OPTIONS or not value:
            raise InputError(
                expected=f"data as NAME,option=value with options among {', '.join(OPTIONS)}",
                got=repr(pair),
                remedy="Write e.g. cifar10-c,corruption=fog,severity=3.",
            )
        options[key] = int(value) if key == "severity" and value.isdecimal() else value
    return source, options


def _part(problem: Problem, part: str) -> Problem:
    try:
        i, of = (int(v) for v in part.split("/"))
    except ValueError:
        i, of = 0, 0
    if not 1 <= i <= of:
        raise InputError(expected="a part such as 2/4", got=repr(part), remedy="Write 1/4 for the first quarter.")
    return problem[(i - 1) * len(problem) // of : i * len(problem) // of]


def as_threat(threat: Any) -> Threat:
    """Return `threat` if it is a Threat, else raise a ThreatError."""
    if not isinstance(threat, Threat):
        named = isinstance(threat, str) and threat in SIZES
        remedy = f"Write brinell.{threat}(8/255)." if named else "Write brinell.Linf('8/255') or brinell.L2(0.5)."
        raise ThreatError(expected="a threat: a norm with its radius", got=repr(threat)[:80], remedy=remedy)
    return threat


def as_plan(
    chosen: PlanLike,
    *, rank_by: "str | AnyAttack | MaltRanking | None" = None, rank_eps: float | str | None = None,
    queries: int | None = None, audit: float | int | None = None, escalate: bool | None = None,
    targets: int | None = None, steps: int | None = None, rel_step: float | None = None,
) -> Plan:  # fmt: skip
    """Return a Plan, given a Plan, its name, an attack, a stage, or a list of attacks, stages or names of attacks.

    `brinell.evaluate` explains the options: the number of targets and their ranking, the number and length of
    steps, a limit of queries, the share of survivors to audit.

    >>> as_plan(["apgd-ce", "fab-t"]).name, as_plan("blackbox", queries=100).name, as_plan("mm3", targets=4).name
    ('custom', 'blackbox, 100 queries', 'mm3, 4 targets')
    """
    plan = _plan(chosen)
    if targets is not None:
        plan = with_targets(plan, targets)
    if steps is not None or rel_step is not None:
        plan = with_steps(plan, steps, rel_step)
    if rank_by is not None:
        plan = ranked(plan, reference(rank_by) if isinstance(rank_by, str) else rank_by, rank_eps)
    elif rank_eps is not None:
        raise PlanError(
            expected="rank_by together with rank_eps",
            got="rank_eps alone",
            remedy='Add e.g. rank_by="pgd20" (--rank-by pgd20).',
        )
    if queries is not None:
        plan = limited(plan, queries)
    if audit is not None:
        plan = audited(plan, audit)
    if escalate and not plan.has_audit:
        raise PlanError(
            expected="a plan with an audit, for escalate=True",
            got=f"{plan.name}, which has no audit",
            remedy="Use the plan fast (without audit=0), or the plan autoattack without escalate.",
        )
    return plan


def _plan(chosen: Any) -> Plan:
    if isinstance(chosen, Plan):
        return chosen
    if isinstance(chosen, str):
        return by_name(chosen)
    if isinstance(chosen, list | tuple):
        names = bool(chosen) and all(isinstance(part, str) and part not in PLANS.keys() - STAGES for part in chosen)
        return chain(list(chosen)) if names else make_plan(list(chosen))
    if isinstance(chosen, Stage | Attack):
        return make_plan([chosen])
    if isinstance(chosen, type):
        raise PlanError(
            expected="a plan, the name of a plan, or attacks",
            got=f"the class {chosen.__name__}",
            remedy=f"Create an instance: brinell.attacks.{chosen.__name__}().",
        )
    raise PlanError(
        expected="a plan, the name of a plan, or attacks",
        got=repr(chosen)[:80],
        remedy="Pass a name that brinell.plans() lists.",
    )


def require_folder(resume: bool, out: Any) -> None:
    """Raise an InputError if `resume` is true and `out`, the folder of the Run, is None."""
    if resume and out is None:
        raise InputError(
            expected="the folder of the Run to resume",
            got="resume without out",
            remedy="Pass out= (--out) with resume=True (--resume): a Run in a temporary folder cannot be found again.",
        )


def threat_of(run: Run) -> Threat:
    """Return the threat of a Run, or raise a RunError if it cannot be read."""
    try:
        return threat_from_json(run.identity.raw["threat"])
    except BrinellError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            expected="a threat in the manifest",
            got=f"{type(error).__name__}: {error}",
            remedy=f"The Run in {run.path} is damaged: evaluate again.",
        ) from error


def require_same_model(run: Run, classifier: Classifier) -> None:
    """Raise a RunError if the Run was made with another model."""
    if run.identity.model.fingerprint != classifier.fingerprint:
        raise RunError(
            expected=f"a Run of the given model ({classifier.name or 'unnamed'})",
            got=f"a Run of another model in {run.path}",
            remedy="Pass the evaluated model, with the same weights and normalisation.",
        )


def stored_samples(run: Run) -> dict[int, tuple[str, int]]:
    """Return a dict from sample id to (hash of the input, label) for every sample of a Run."""
    rows = run.rows().filter(is_evidence(run.rows(), Evidence.CLEAN))
    columns = (rows[c].to_pylist() for c in ("sample_id", "x_sha256", "label"))
    return {i: (digest, label) for i, digest, label in zip(*columns, strict=True)}


def require_same_samples(run: Run, known: dict[int, tuple[str, int]], chunk: Chunk) -> None:
    """Raise a RunError unless every sample of the chunk is in `known`: id, input and label of the Run's samples."""
    given = zip(chunk.ids.tolist(), sample_hashes(chunk.x), chunk.y.tolist(), strict=True)
    other = [i for i, *sample in given if known.get(i) != tuple(sample)]
    if other:
        why = "an id that the Run lacks" if other[0] not in known else "another input or label in the Run"
        raise RunError(
            expected=f"samples of the Run in {run.path}",
            got=f"{len(other)} of {len(chunk)} samples that differ: the first, {other[0]}, has {why}",
            remedy="Pass the data of the evaluation (same --n, same preprocessing).",
        )
