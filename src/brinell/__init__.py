"""Brinell measures how hard a classifier is to break."""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from brinell.environment import version

if TYPE_CHECKING:
    from brinell import (
        analysis,
        attacks,
        data,
        defences,
        distributed,
        gallery,
        launch,
        models,
        reliability,
        report,
        train,
    )
    from brinell.analysis.rescalings import rescalings
    from brinell.attacks.catalogue import plans
    from brinell.core.dataset import Problem
    from brinell.core.execution import Execution
    from brinell.core.plan import Eot, Plan, Restarts, Stage, Targets, plan
    from brinell.core.threat import L0, L1, L2, Linf, Threat
    from brinell.cost.budget import Estimate
    from brinell.cost.estimate import estimate
    from brinell.curves.class_distances import distances
    from brinell.curves.curve import Curve
    from brinell.curves.measure import curve
    from brinell.errors import (
        BrinellError,
        InputError,
        MissingExtra,
        ModelError,
        PlanError,
        RunError,
        StorageError,
        ThreatError,
    )
    from brinell.evaluation.attack import attack
    from brinell.evaluation.calibrate_detector import calibrated
    from brinell.evaluation.certificates.certify import certify
    from brinell.evaluation.evaluate import evaluate, evaluate_seeds
    from brinell.finding import Finding
    from brinell.leaderboard.benchmark import benchmark
    from brinell.models.wrap import wrap
    from brinell.reliability.binarization.test import test_attack
    from brinell.results import Run, compare
    from brinell.verification.review import review
    from brinell.verification.verify import verify

# Without it, Intel's library on some processors rounds the rows of one product differently by their position. It reads
# the setting at its first product, so it is set before torch is imported.
os.environ.setdefault("MKL_CBWR", "AUTO")

# The public names by the module that defines them; the other public names are modules. A name is imported when it is
# first used, so that the command line starts without torch.
HOMES = {
    "brinell.analysis.rescalings": ("rescalings",),
    "brinell.attacks.catalogue": ("plans",),
    "brinell.core.dataset": ("Problem",),
    "brinell.core.execution": ("Execution",),
    "brinell.core.plan": ("Eot", "Plan", "Restarts", "Stage", "Targets", "plan"),
    "brinell.core.threat": ("L0", "L1", "L2", "Linf", "Threat"),
    "brinell.cost.budget": ("Estimate",),
    "brinell.cost.estimate": ("estimate",),
    "brinell.curves.class_distances": ("distances",),
    "brinell.curves.curve": ("Curve",),
    "brinell.curves.measure": ("curve",),
    "brinell.errors": (
        "BrinellError",
        "InputError",
        "MissingExtra",
        "ModelError",
        "PlanError",
        "RunError",
        "StorageError",
        "ThreatError",
    ),
    "brinell.evaluation.attack": ("attack",),
    "brinell.evaluation.calibrate_detector": ("calibrated",),
    "brinell.evaluation.certificates.certify": ("certify",),
    "brinell.evaluation.evaluate": ("evaluate", "evaluate_seeds"),
    "brinell.finding": ("Finding",),
    "brinell.leaderboard.benchmark": ("benchmark",),
    "brinell.models.wrap": ("wrap",),
    "brinell.reliability.binarization.test": ("test_attack",),
    "brinell.results": ("Run", "compare"),
    "brinell.verification.review": ("review",),
    "brinell.verification.verify": ("verify",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in HOMES.items() for name in names}

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
    "StorageError",
    "Targets",
    "Threat",
    "ThreatError",
    "analysis",
    "attack",
    "attacks",
    "benchmark",
    "calibrated",
    "certify",
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


# What people look for here and is elsewhere.
INSTEAD = {
    "load": "brinell.Run.open(folder), brinell.data.load(name) or brinell.models.load(name)",
    "open": "brinell.Run.open(folder)",
    "load_run": "brinell.Run.open(folder)",
    "load_data": "brinell.data.load(name)",
    "load_model": "brinell.models.load(name)",
    "AutoAttack": "brinell.evaluate(net, (x, y), threat), or brinell.compat.AutoAttack for scripts of AutoAttack",
    "PGD": "brinell.attacks.PGD",
}


def __getattr__(name: str) -> Any:
    """Import a public name or a module of the package when it is first used."""
    if name in _HOME_OF:
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value
    if not name.startswith("_") and find_spec(f"brinell.{name}") is not None:
        return import_module(f"brinell.{name}")
    if name.startswith("_"):
        raise AttributeError(f"module 'brinell' has no attribute {name!r}")
    from brinell.errors import MissingName, did_you_mean

    remedy = f"Use {INSTEAD[name]}." if name in INSTEAD else did_you_mean(name, __all__, "See help(brinell).")
    raise MissingName(expected="a public name of brinell", got=name, remedy=remedy)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
