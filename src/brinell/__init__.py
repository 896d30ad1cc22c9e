"""Brinell measures how hard a classifier is to break."""

from brinell import attacks, data, launch, models, train
from brinell.core.problem import Problem
from brinell.core.threat import L1, L2, Linf, Threat
from brinell.errors import BrinellError, InputError, MissingExtra, ModelError, PlanError, RunError, ThreatError
from brinell.evaluate.environment import version
from brinell.evaluate.evaluate import attack, evaluate, verify
from brinell.evaluate.plan import Eot, Plan, Restarts, Stage, Targets, plan
from brinell.evaluate.presets import plans
from brinell.evaluate.rescalings import rescalings
from brinell.models.wrap import wrap
from brinell.results import Run, compare

__version__ = version()

__all__ = [
    "L1",
    "L2",
    "BrinellError",
    "Eot",
    "InputError",
    "Linf",
    "MissingExtra",
    "ModelError",
    "Plan",
    "PlanError",
    "Problem",
    "Restarts",
    "Run",
    "RunError",
    "Stage",
    "Targets",
    "Threat",
    "ThreatError",
    "attack",
    "attacks",
    "compare",
    "data",
    "evaluate",
    "launch",
    "models",
    "plan",
    "plans",
    "rescalings",
    "train",
    "verify",
    "wrap",
]
