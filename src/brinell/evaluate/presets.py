"""Plans by name, as data with citations."""

import difflib

from brinell.attacks import APGD, FGSM, PGD
from brinell.errors import PlanError
from brinell.evaluate.plan import Plan, Restarts, Stage, Targets, stage

MADRY = "Madry et al. 2018, Towards deep learning models resistant to adversarial attacks"
CROCE = "Croce & Hein 2020, Reliable evaluation of adversarial robustness"
CROCE_L1 = "Croce & Hein 2021, Mind the box: L1-APGD for sparse adversarial attacks"

# L1: larger radii first; five restarts and five targets (Croce & Hein 2021).
_SPARSE_CE = Restarts(APGD(loss="ce", larger_eps=True), 5)
_SPARSE_T = Stage(APGD(loss="dlr-targeted", larger_eps=True), tuple(range(2, 7)), label="apgd-t")
_APGD_T = Stage(APGD(loss="dlr-targeted"), Targets(APGD(loss="dlr-targeted")).ranks, label="apgd-t")

_ALL = [
    Plan("fgsm", (stage(FGSM()),), "One full gradient step", "Goodfellow, Shlens & Szegedy 2015"),
    Plan("pgd20", (stage(PGD(steps=20)),), "PGD on cross-entropy, 20 steps of eps/4, one random start", MADRY),
    Plan(
        "cw20",
        (stage(PGD(steps=20, loss="margin")),),
        "PGD on the margin loss, 20 steps of eps/4",
        "Carlini & Wagner 2017",
    ),
    Plan("apgd-ce", (stage(APGD()),), "Auto-PGD on cross-entropy, 100 steps", CROCE, sparse_stages=(_SPARSE_CE,)),
    Plan("apgd-dlr", (stage(APGD(loss="dlr")),), "Auto-PGD on the DLR loss, 100 steps", CROCE),
    Plan("apgd-t", (_APGD_T,), "Auto-PGD on targeted DLR, 100 steps, 9 targets", CROCE, sparse_stages=(_SPARSE_T,)),
    Plan(
        "apgd",
        (stage(APGD()), _APGD_T),
        "Auto-PGD on cross-entropy, then on targeted DLR: the two strongest gradient attacks of AutoAttack",
        CROCE,
        strength="standard",
        sparse_stages=(_SPARSE_CE, _SPARSE_T),
    ),
]
PLANS: dict[str, Plan] = {p.name: p for p in _ALL}


def plans() -> dict[str, str]:
    """Names and one-line descriptions of the plans.

    >>> plans()["pgd20"]
    'PGD on cross-entropy, 20 steps of eps/4, one random start'
    """
    return {name: p.description for name, p in PLANS.items()}


def by_name(name: str) -> Plan:
    """The plan of that name, or an error with the nearest names."""
    if name in PLANS:
        return PLANS[name]
    near = difflib.get_close_matches(name, PLANS, n=3, cutoff=0.4)
    raise PlanError(
        expected=f"a plan among {', '.join(PLANS)}",
        got=repr(name),
        remedy=f"Did you mean {' or '.join(map(repr, near))}?" if near else "brinell plans lists them.",
    )
