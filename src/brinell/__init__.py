"""Brinell measures how hard a classifier is to break."""

from brinell import analysis, attacks, data, defences, distributed, gallery, launch, models, reliability, report, train
from brinell.analysis.rescalings import rescalings
from brinell.attacks.catalogue import plans
from brinell.core.dataset import Problem
from brinell.core.execution import Execution
from brinell.core.plan import Eot, Plan, Restarts, Stage, Targets, plan
from brinell.core.threat import L0, L1, L2, Linf, Threat
from brinell.cost.budget import Estimate
from brinell.cost.estimate import estimate
from brinell.curves import Curve, curve, distances
from brinell.environment import version
from brinell.errors import BrinellError, InputError, MissingExtra, ModelError, PlanError, RunError, ThreatError
from brinell.evaluation.attack import attack
from brinell.evaluation.calibrate_detector import calibrated
from brinell.evaluation.evaluate import evaluate, evaluate_seeds
from brinell.finding import Finding
from brinell.leaderboard.benchmark import benchmark
from brinell.models.wrap import wrap
from brinell.reliability.binarization.test import test_attack
from brinell.results import Run, compare
from brinell.verification.review import review
from brinell.verification.verify import verify

__version__ = version()

__all__ = [
    "L0",
    "L1",
    "L2",
    "BrinellError",
    "Curve",
    "Eot",
    "Estimate",
    "Execution",
    "Finding",
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
    "defences",
    "distances",
    "distributed",
    "estimate",
    "evaluate",
    "evaluate_seeds",
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
