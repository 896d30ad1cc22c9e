"""What users may pass where a classifier, a problem, a threat or a plan is expected."""

import os
from typing import Any

import torch
from torch import nn

from brinell.attacks.catalogue import by_name
from brinell.core.attack import AnyAttack
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.plan import Plan, Stage, plan
from brinell.core.threat import Threat
from brinell.core.threat import from_json as threat_from_json
from brinell.data.load import load
from brinell.errors import BrinellError, InputError, ModelError, PlanError, RunError, ThreatError, first_line
from brinell.models.demo import demo_net
from brinell.models.wrap import wrap
from brinell.results import Run

DEMO = "demo"


def as_classifier(classifier: Any, device: torch.device | str | None = None) -> Classifier:
    """A Classifier from itself, a torch module, or "demo"."""
    if classifier == DEMO:
        classifier = wrap(demo_net(), name=DEMO)
    elif isinstance(classifier, nn.Module):
        classifier = wrap(classifier)
    # Not hasattr: on the object itself it would compute the fingerprint.
    present = {*dir(type(classifier)), *getattr(classifier, "__dict__", ())}
    missing = [name for name in vars(Classifier) if name[0] != "_" and name not in present]
    if missing:
        raise _no_model(classifier, missing)
    return classifier if device is None else classifier.to(_device(device))


def _no_model(given: Any, missing: list[str]) -> ModelError:
    """What is often passed instead of a model, and what to do about each."""
    remedy, got = "Wrap the model: brinell.wrap(net, mean=…, std=…).", repr(given)[:80]
    if isinstance(given, dict):
        got = f"{type(given).__name__} with {len(given)} entries"
        remedy = "These are weights: build the network, then net.load_state_dict(weights) and net.eval()."
    elif given is None:
        remedy = "Check that the function that makes the model returns it."
    elif isinstance(given, type) and issubclass(given, nn.Module):
        got, remedy = f"the class {given.__name__}", f"Make a network of it: {given.__name__}(…).eval()."
    elif isinstance(given, str | os.PathLike):
        remedy = "Load the model first: brinell.wrap(net) around the network, or brinell.models.zoo.load(name)."
    elif callable(given):
        got = f"a function, {getattr(given, '__name__', type(given).__name__)}"
        remedy = "Put it into a module's forward, or make a black box of it: brinell.models.adapters.from_function(…)."
    elif hasattr(type(given), "forward"):
        got = f"{type(given).__name__}, which lacks {', '.join(missing)}"
        remedy = "Subclass brinell.core.model.Classifier, which has defaults for most members."
    return ModelError(expected='a Classifier, a torch.nn.Module or "demo"', got=got, remedy=remedy)


def _device(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            expected="a device this machine has",
            got=f"{device} ({first_line(error)})",
            remedy="Try device='cpu'.",
        ) from None
    return found


def as_problem(problem: Any) -> Problem:
    """A Problem from itself, (x, y), a Dataset, a DataLoader, or the name of a data set such as "demo"."""
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, str):
        return load(problem)
    if isinstance(problem, tuple | list) and len(problem) == 2:
        return Problem(*problem)
    return Problem(problem)


def as_threat(threat: Any) -> Threat:
    """A Threat, or an error that shows how to make one."""
    if not isinstance(threat, Threat):
        raise ThreatError(
            expected="a threat", got=repr(threat)[:80], remedy="Write brinell.Linf('8/255') or brinell.L2(0.5)."
        )
    return threat


def as_plan(chosen: "str | Plan | Stage | AnyAttack | list[Any]") -> Plan:
    """A Plan from itself, a name, an attack, a stage or a list of these."""
    if isinstance(chosen, Plan):
        return chosen
    if isinstance(chosen, str):
        return by_name(chosen)
    if isinstance(chosen, list | tuple):
        return plan(list(chosen))
    if isinstance(chosen, Stage) or (hasattr(chosen, "step") and not isinstance(chosen, type)):
        return plan([chosen])
    if isinstance(chosen, type):
        raise PlanError(
            expected="a plan, its name or attacks",
            got=f"the class {chosen.__name__}",
            remedy=f"Make an attack of it: brinell.attacks.{chosen.__name__}().",
        )
    raise PlanError(
        expected="a plan, its name or attacks", got=repr(chosen)[:80], remedy="brinell.plans() lists the names."
    )


def refuse_nowhere(resume: bool, out: Any) -> None:
    """An InputError where somebody wants to go on and does not say with what."""
    if resume and out is None:
        raise InputError(
            expected="the folder of the Run to go on with",
            got="resume without out",
            remedy="Pass out= (--out) with resume=True (--resume): a Run in a temporary folder cannot be found again.",
        )


def threat_of(run: Run) -> Threat:
    """The threat a Run was made under; a RunError for one that cannot be read, whoever made it."""
    try:
        return threat_from_json(run.identity.raw["threat"])
    except BrinellError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(
            expected="a threat in the manifest", got=f"{type(error).__name__}: {error}", remedy="The Run is refused."
        ) from error
