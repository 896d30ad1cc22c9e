"""The named plans, as data with citations."""

from dataclasses import replace

from brinell.attacks.black_box import HopSkipJump, Square
from brinell.attacks.detector import Alternating, Joint, Matching, SelectivePGD
from brinell.attacks.gradient import ACG, APGD, FGSM, MIFGSM, PGD, MomentumPGD
from brinell.attacks.minimum_norm import ALMA, CW, DDN, EAD, FAB, FMN, DeepFool
from brinell.attacks.pursuit import Pursuit
from brinell.attacks.search import Bisect, Descend, Refine, WarmDescend
from brinell.attacks.search.bisect import paper_pgd
from brinell.core.attack import AnyAttack
from brinell.core.plan import DEFAULT_TARGETS, Eot, Plan, Restarts, Stage, Stages, Targets, stage
from brinell.core.ranking import MaltRanking
from brinell.core.start_pool import ActivationSearch
from brinell.errors import one_of
from brinell.ops.norms import L0, L1

MADRY = "Madry et al. 2018, Towards deep learning models resistant to adversarial attacks"
CROCE = "Croce & Hein 2020, Reliable evaluation of adversarial robustness"
CROCE_L1 = "Croce & Hein 2021, Mind the box: L1-APGD for sparse adversarial attacks"
FAB_PAPER = "Croce & Hein 2020, Minimally distorted adversarial examples"
MM_PAPER = "Gao et al. 2022, Fast and reliable evaluation of adversarial robustness with minimum-margin attack"
SQUARE_PAPER = "Andriushchenko et al. 2020, Square attack"
CURVES_PAPER = "Risse et al. 2021, How to compare adversarial robustness of classifiers from a global perspective"
HSJ_PAPER = "Chen, Jordan & Wainwright 2020, HopSkipJumpAttack"

# Budgets of Croce & Hein 2020, sec. 5 and of AutoAttack's code: 100 iterations, 9 targets, 5 restarts, 5,000 queries.
RESTARTS = 5
# L1: larger radii first, five restarts, five targets (Croce & Hein 2021).
SPARSE_TARGETS = 5
SPARSE = APGD(larger_eps=True)
# Randomised models (Croce & Hein 2020, sec. 6): 20 draws, 1,000 iterations of Square, five judging passes.
DRAWS, RAND_SQUARE, RUNS = 20, 1000, 5

# Minimum-Margin: 20 adaptive steps, or fixed steps of about eps / 10 (its Tables 3 and 6).
MM_STEP = 0.1
_MM20 = APGD(steps=20, loss="minimum-margin")

APGD_CE, APGD_DLR = stage(APGD(loss="ce")), stage(APGD(loss="dlr"))
APGD_T = stage(Targets(APGD(loss="dlr-targeted")), "apgd-t")
FAB_U, FAB_T, SQUARE = stage(FAB()), Targets(FAB(targeted=True)), stage(Square())
_PROBABILITY = stage(APGD(loss="probability-margin"))
HOP_SKIP_JUMP = stage(HopSkipJump())
SPARSE_CE = Restarts(SPARSE, RESTARTS)
SPARSE_DLR = Restarts(replace(SPARSE, loss="dlr"), RESTARTS)
SPARSE_T = stage(Targets(replace(SPARSE, loss="dlr-targeted"), SPARSE_TARGETS), "apgd-t")

STAGES: dict[str, tuple[Stage, Stage]] = {
    "fgsm": (stage(FGSM()), stage(FGSM())),
    "pgd-ce": (stage(PGD()), stage(PGD())),
    "momentum-pgd-ce": (stage(MomentumPGD()), stage(MomentumPGD())),
    "pgd-margin": (stage(PGD(loss="margin")), stage(PGD(loss="margin"))),
    "apgd-ce": (APGD_CE, SPARSE_CE),
    "apgd-dlr": (APGD_DLR, SPARSE_DLR),
    "apgd-t": (APGD_T, SPARSE_T),
    "apgd-probability-margin": (_PROBABILITY, Restarts(replace(SPARSE, loss="probability-margin"), RESTARTS)),
    "acg-margin": (stage(ACG()), stage(ACG())),
    "fab": (FAB_U, FAB_U),
    "fab-t": (FAB_T, FAB_T),
    "square": (SQUARE, SQUARE),
    "hop-skip-jump": (HOP_SKIP_JUMP, HOP_SKIP_JUMP),
}
"""Stages by name, for `chain`: as they run in Linf and L2, and in L1 and L0."""
# The attacks whose last iterates rank the targets (Gao et al. 2022, appendix D), and MALT (Melamed et al. 2024).
REFERENCES: dict[str, AnyAttack | MaltRanking] = {"fgsm": FGSM(), "pgd20": PGD(steps=20), "malt": MaltRanking()}


def reference(name: str) -> AnyAttack | MaltRanking:
    """Return what ranks the target classes by its name: an attack ("fgsm", "pgd20"), at its last iterate, or "malt".

    >>> reference("malt"), reference("pgd20").queries
    (MaltRanking(candidates=100), 21)
    """
    return REFERENCES[one_of("a ranking", name, REFERENCES)]


def chain(names: list[str], name: str = "custom", description: str = "", strength: str = "weak") -> Plan:
    """Return a plan of stages given by name, such as "apgd-ce"; the norm decides their restarts and targets.

    >>> from brinell import L1, Linf
    >>> mine = chain(["apgd-ce", "fab-t"])
    >>> [s.restarts for s in mine.stages_for(Linf(0.1))], [s.restarts for s in mine.stages_for(L1(12))]
    ([1, 1], [5, 1])
    """
    pairs = [STAGES[one_of("an attack", n.strip(), STAGES)] for n in names]
    return Plan(name, by_norm(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)), description, strength=strength)


def by_norm(dense: Stages, sparse: Stages) -> dict[str, Stages]:
    """Return the stages by norm: `sparse` for L1 and L0, whose steepest steps change few coordinates, else `dense`."""
    return {"Linf": dense, **{norm.name: sparse for norm in (L1, L0)}}


def _single(name: str, description: str, citation: str, label: str = "") -> Plan:
    dense, sparse = STAGES[name]
    return Plan(label or name, by_norm((dense,), (sparse,)), description, citation)


def _restarted(*stages: Stage) -> Stages:
    return tuple(Restarts(s, RESTARTS) for s in stages)


def _mm(name: str, attack: APGD | PGD, targets: int, description: str) -> Plan:
    """Return a Minimum-Margin plan: maximise z_t − z_y for each of the likeliest wrong classes t in turn."""
    dense = stage(Targets(attack, targets), name)
    larger = replace(dense, attack=replace(attack, larger_eps=True)) if isinstance(attack, APGD) else dense
    return Plan(name, by_norm((dense,), (larger,)), description, MM_PAPER)


# The margin in natural logits, then under the six rescalings of the logits in Tables 2 and 4 of the paper.
RESCALED = ("minimum-margin", "mm-softmax", "mm-max", "mm-sum", "mm-min-max", "dlr-targeted", "mm-sigmoid")


def rescaled(attack: APGD | PGD, targets: int) -> Stages:
    """Return one stage per rescaling of the logits; all stages have the same random starts.

    >>> [s.name for s in rescaled(APGD(), 3)][:2]
    ['minimum-margin', 'mm-softmax']
    """
    # The noise key of the plans mm9-f20 and mm+ for every loss: only the loss differs.
    noise = replace(attack, loss=RESCALED[0]).name
    each = [Targets(replace(attack, loss=loss), targets) for loss in RESCALED]
    return tuple(replace(s, label=s.attack.loss, noise=noise) for s in each)


# The evidence of `fast` (docs/design/fast.md): a short search on all survivors; conjugate directions, which find what
# Pursuit misses for few passes, near the boundary; the full plan on a random share and on those at the boundary.
SEARCH, AUDIT_SHARE, NEAR, AGAIN_NEAR = 100, 1 / 200, 0.02, 0.25
# Conjugate directions do not exist in sparse norms.
_AGAIN = replace(stage(Restarts(ACG(steps=50, loss="margin"), 4), "again"), noise="again")
_AGAIN_SPARSE = replace(stage(Restarts(APGD(steps=50, loss="margin", larger_eps=True), 4), "again"), noise="again")


def _evidence(again: Stage, *stages: Stage, near: float = NEAR) -> Stages:
    search = replace(stage(Square(steps=SEARCH), "search"), noise="search")
    full = (replace(s, share=AUDIT_SHARE, near=near) for s in stages)
    return (search, replace(again, share=AUDIT_SHARE, near=AGAIN_NEAR), *full)


# Detectors: three targets, because an untargeted loss cannot balance misclassification against detection.
DETECTOR_TARGETS = 3
_DENSE, _SPARSE = (APGD_CE, APGD_T, FAB_T, SQUARE), (SPARSE_CE, SPARSE_T, FAB_T, SQUARE)
_PAPER = (*_restarted(APGD_CE, APGD_DLR, FAB_U), SQUARE)
_PAPER_SPARSE = (SPARSE_CE, SPARSE_DLR, Restarts(FAB_U, RESTARTS), SQUARE)

_ALL = [
    _single("fgsm", "One full gradient step", "Goodfellow, Shlens & Szegedy 2015"),
    _single("pgd-ce", "PGD on cross-entropy, 20 steps of eps/4, one random start", MADRY, "pgd20"),
    _single("pgd-margin", "PGD on the margin loss, 20 steps of eps/4", "Carlini & Wagner 2017", "cw20"),
    _single("apgd-ce", "Auto-PGD on cross-entropy, 100 steps", CROCE),
    _single("apgd-dlr", "Auto-PGD on the DLR loss, 100 steps", CROCE),
    _single("apgd-t", "Auto-PGD on targeted DLR, 100 steps, 9 targets", CROCE),
    _single("fab", "FAB on the nearest class, 100 steps: small perturbations", FAB_PAPER),
    _single("fab-t", "FAB towards 9 classes, 100 steps each", FAB_PAPER),
    _single("square", "Square attack, 5,000 queries, no gradients", SQUARE_PAPER),
    Plan(
        "apgd",
        by_norm((APGD_CE, APGD_T), (SPARSE_CE, SPARSE_T)),
        "Auto-PGD on cross-entropy, then on targeted DLR: the two strongest gradient attacks of AutoAttack",
        CROCE,
    ),
    Plan(
        "autoattack",
        by_norm(_DENSE, _SPARSE),
        "AutoAttack as used today (its code's standard version): APGD-CE, APGD-T, FAB-T, Square",
        f"{CROCE}; L1: {CROCE_L1}",
        "standard",
    ),
    Plan(
        "autoattack-paper",
        by_norm(_PAPER, _PAPER_SPARSE),
        "AutoAttack as in the paper: APGD-CE, APGD-DLR, FAB with 5 restarts each, Square",
        CROCE,
        "standard",
    ),
    Plan(
        "autoattack-plus",
        by_norm((*_PAPER, APGD_T, FAB_T), (*_PAPER_SPARSE, SPARSE_T, FAB_T)),
        "The paper's AA+: AutoAttack followed by targeted APGD and FAB",
        CROCE,
        "standard",
    ),
    Plan(
        "autoattack-rand",
        by_norm(
            tuple(Eot(s, DRAWS) for s in (APGD_CE, APGD_DLR, Square(steps=RAND_SQUARE))),
            tuple(Eot(s, DRAWS) for s in (SPARSE, replace(SPARSE, loss="dlr"), Square(steps=RAND_SQUARE))),
        ),
        "AutoAttack for randomised models: means over 20 passes, no FAB, judged on 5 fresh passes",
        CROCE,
        "standard",
        RUNS,
    ),
    _mm("mm3", _MM20, 3, "Minimum-Margin attack, 20 adaptive steps towards the 3 likeliest wrong classes"),
    _mm("mm5", _MM20, 5, "Minimum-Margin attack, 20 adaptive steps towards the 5 likeliest wrong classes"),
    _mm("mm9", _MM20, 9, "Minimum-Margin attack, 20 adaptive steps towards 9 classes"),
    _mm("mm+", APGD(steps=100, loss="minimum-margin"), 9, "Minimum-Margin attack, 100 steps, 9 classes"),
    Plan(
        "mm-rescalings",
        by_norm(rescaled(APGD(), DEFAULT_TARGETS), rescaled(SPARSE, DEFAULT_TARGETS)),
        "Minimum-Margin attack under seven rescalings of the logits in turn, 100 steps, 9 classes each",
        f"{MM_PAPER}, appendix C",
    ),
    _mm("mm3-f10", PGD(10, MM_STEP, "minimum-margin"), 3, "Minimum-Margin attack, 10 fixed steps of eps/10, 3 classes"),
    _mm("mm3-f20", PGD(20, MM_STEP, "minimum-margin"), 3, "Minimum-Margin attack, 20 fixed steps of eps/10, 3 classes"),
    _mm("mm9-f20", PGD(20, MM_STEP, "minimum-margin"), 9, "Minimum-Margin attack, 20 fixed steps of eps/10, 9 classes"),
    Plan(
        "fast",
        by_norm(
            (stage(Pursuit()), *_evidence(_AGAIN, *_DENSE)),
            (stage(Pursuit()), *_evidence(_AGAIN_SPARSE, *_SPARSE)),
        ),
        "AutoAttack's answer for few of its passes, margins pursued while in reach; evidence: a short black-box "
        "search, conjugate gradients near the boundary, AutoAttack at the boundary and on a random sample",
        f"Pursuit, a Brinell method, after {MM_PAPER}",
        "audited",
    ),
    Plan(
        "exact",
        (*_DENSE, Stage(MIFGSM(steps=1), label="activation-search", search=ActivationSearch())),
        "AutoAttack, then a search through the activation patterns of a ReLU network, guided by bounds (Linf)",
        f"{CROCE}; the search after Zhang et al. 2022, A branch and bound framework",
        "standard",
    ),
    Plan(
        "detector",
        (
            APGD_CE,
            stage(Targets(Alternating(loss="minimum-margin"), DETECTOR_TARGETS), "alternating"),
            stage(Targets(Joint(APGD(loss="minimum-margin")), DETECTOR_TARGETS), "joint-apgd"),
            stage(SelectivePGD(), "selective-pgd"),
            stage(SelectivePGD(orthogonal=True), "orthogonal-pgd"),
            stage(Matching(), "match-logits"),
            stage(Matching(of="features"), "match-features"),
            stage(Joint(Square()), "joint-square"),
        ),
        "For models with a detector: classifier alone, alternating projections, joint loss, selective and orthogonal "
        "PGD, imitation of natural inputs, joint random search",
        "Bryniarski et al. 2021, Evading adversarial example detection defenses with orthogonal PGD; Carlini & Wagner "
        "2017, Adversarial examples are not easily detected; Tramèr et al. 2020, On adaptive attacks",
    ),
]


# Smallest distances: each plan contains the stages of the smaller one, so a larger budget never gives larger ones.
def _labelled(attack: AnyAttack, label: str) -> Stage:
    """Return the attack as a stage whose noise key uses the label, so that the noise is the same in every plan."""
    return replace(stage(attack, label), noise=label)


_QUICK = (_labelled(FMN(steps=100), "fmn-100"),)
_TARGETED = (_labelled(FMN(loss="minimum-margin"), "fmn-t"), _labelled(Refine(FAB(targeted=True)), "fab-t"))
_SEARCHED = (_labelled(FMN(steps=1000), "fmn-1000"), _labelled(Bisect(APGD(loss="dlr-targeted")), "apgd-t-bisect"))
_DDN, _ALMA, _EAD = _labelled(DDN(steps=300), "ddn"), _labelled(ALMA(), "alma"), _labelled(EAD(), "ead")
_DOWN = _labelled(WarmDescend(Pursuit(again=2)), "pursuit-down")
_DEEPFOOL = _labelled(DeepFool(), "deepfool")
_MINIMAL = {
    "Linf": (*_TARGETED, _DOWN),
    "L2": (_DDN, *_TARGETED, _DOWN),
    "L1": (*_TARGETED, _DOWN),
    "L0": (_TARGETED[0], _DEEPFOOL),
}
_FULL = {"Linf": _SEARCHED, "L2": (_ALMA, *_SEARCHED), "L1": (_ALMA, _EAD, *_SEARCHED), "L0": _SEARCHED[:1]}


def _minimal(name: str, description: str, *parts: dict[str, Stages]) -> Plan:
    """Return a minimum-norm plan: in every norm FMN with 100 steps, then the stages that `parts` lists for the norm."""
    each = {norm: (*_QUICK, *(s for part in parts for s in part[norm])) for norm in _MINIMAL}
    citation = "Pintor et al. 2021, Fast minimum-norm adversarial attacks" + (f"; {FAB_PAPER}" if parts else "")
    return Plan(name, each, description, citation)


_ALL += [
    _minimal("minimal-quick", "Smallest distances, a first look: FMN, 100 steps"),
    _minimal(
        "minimal", "Smallest distances: FMN, also towards 9 classes; by norm FAB-T, DDN, DeepFool, Pursuit", _MINIMAL
    ),
    _minimal("minimal-full", "The same, then FMN with 1,000 steps, ALMA, EAD and bisected APGD-T", _MINIMAL, _FULL),
]
_CW = _labelled(CW(), "cw")
_ALL += [
    Plan(
        "paper-curves",
        # EAD refuses L0, for which the paper has no attack.
        {"Linf": (_labelled(paper_pgd(), "pgd-search"),), "L2": (_CW,), "L1": (_EAD,), "L0": (_EAD,)},
        "Smallest distances as in the paper on robustness curves: PGD with a search over eps (Linf), C&W (L2) or EAD",
        CURVES_PAPER,
    ),
    Plan(
        "blackbox",
        by_norm((SQUARE, HOP_SKIP_JUMP), (SQUARE,)),
        "Without gradients: Square on the scores, then HopSkipJump on the decisions (Linf, L2), 5,000 queries each",
        f"{SQUARE_PAPER}; {HSJ_PAPER}",
    ),
]
PLANS: dict[str, Plan] = {p.name: p for p in _ALL}


def _first_fast() -> Plan:
    dense, sparse = ((stage(Pursuit()), *(replace(s, share=0.125) for s in stages)) for stages in (_DENSE, _SPARSE))
    text = "AutoAttack's answer for about 1 % of its passes, margins pursued while in reach; then an audit: AutoAttack "
    citation = PLANS["fast"].citation
    return Plan("fast", by_norm(dense, sparse), f"{text}on an eighth of the survivors", citation, "audited")


def _second_fast() -> Plan:
    pairs = ((_AGAIN, _DENSE), (_AGAIN_SPARSE, _SPARSE))
    dense, sparse = ((stage(Pursuit()), *_evidence(again, *full, near=0.05)) for again, full in pairs)
    text = "AutoAttack's answer for few of its passes, margins pursued while in reach; evidence: a short black-box "
    more = "search, AutoAttack on the survivors nearest the boundary and on a random sample"
    return Plan("fast", by_norm(dense, sparse), text + more, PLANS["fast"].citation, "audited")


def _first_minimal(name: str) -> Plan:
    before = {_DDN: _labelled(DDN(), "ddn"), _DOWN: _labelled(Descend(Pursuit()), "pursuit-down")}
    return PLANS[name].with_stages(lambda stages: tuple(before.get(s, s) for s in stages))


EARLIER: tuple[Plan, ...] = (_first_fast(), _second_fast(), _first_minimal("minimal"), _first_minimal("minimal-full"))
"""Plans that earlier versions had under a name of today. Their Runs are recognised, and resumed with these plans."""


def plans() -> dict[str, str]:
    """Return a dictionary of all named plans: name → one-line description.

    >>> plans()["pgd20"]
    'PGD on cross-entropy, 20 steps of eps/4, one random start'
    """
    return {name: p.description for name, p in PLANS.items()}


# Names that users of other tools know.
ALIASES = {"aa": "autoattack", "standard": "autoattack", "rand": "autoattack-rand", "plus": "autoattack-plus"}


def by_name(name: str) -> Plan:
    """Return the plan of this name, or raise an error that offers similar names; case does not matter.

    >>> by_name("AutoAttack").name, by_name("standard").name, by_name("aa").name
    ('autoattack', 'autoattack', 'autoattack')
    """
    known = str(name).casefold()
    return PLANS[one_of("a plan", ALIASES.get(known, known if known in PLANS else name), PLANS)]
