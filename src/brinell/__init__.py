"""Brinell measures how hard a classifier is to break."""

from brinell import analysis, attacks, data, gallery, launch, models, reliability, report, train
from brinell.core.problem import Problem
from brinell.core.threat import L0, L1, L2, Linf, Threat
from brinell.curves import Curve, curve, distances
from brinell.errors import BrinellError, InputError, MissingExtra, ModelError, PlanError, RunError, ThreatError
from brinell.evaluate.attack import attack
from brinell.evaluate.benchmark import benchmark
from brinell.evaluate.calibrate import calibrated
from brinell.evaluate.cost import Estimate
from brinell.evaluate.environment import version
from brinell.evaluate.estimate import estimate
from brinell.evaluate.evaluate import evaluate
from brinell.evaluate.plan import Eot, Plan, Restarts, Stage, Targets, plan
from brinell.evaluate.presets import plans
from brinell.evaluate.rescalings import rescalings
from brinell.evaluate.review import review
from brinell.evaluate.verifying import verify
from brinell.models.wrap import wrap
from brinell.reliability.active import test_attack
from brinell.results import Run, compare

__version__ = version()

__all__ = [
    "L0",
    "L1",
    "L2",
    "BrinellError",
    "Curve",
    "Eot",
    "Estimate",
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
    "analysis",
    "attack",
    "attacks",
    "benchmark",
    "calibrated",
    "compare",
    "curve",
    "data",
    "distances",
    "estimate",
    "evaluate",
    "gallery",
    "launch",
    "models",
    "plan",
    "plans",
    "reliability",
    "report",
    "rescalings",
    "review",
    "test_attack",
    "train",
    "verify",
    "wrap",
]
