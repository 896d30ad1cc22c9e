"""Sections that close a dossier: residual risk, re-test triggers, clauses, files and hashes, signature."""

from brinell.dossier.check_dossier import fingerprint
from brinell.dossier.clauses import CLAUSES, DISCLAIMER
from brinell.dossier.markup import DossierView, Html, Section, badge, element, facts, items, join, table
from brinell.dossier.payload import payload_hash

TRIGGERS = (
    "The model changes: weights, architecture, precision, compilation, quantisation, or its preprocessing.",
    "The data change: source, sensors, population, labels, or the share of the classes in operation.",
    "The threat model changes: an adversary gains access or knowledge, or a larger radius becomes plausible.",
    "An attack is published that is stronger on comparable models, or a defence used here is broken.",
    "Brinell or its attacks are corrected in a way that can change an outcome of these Runs.",
    "An incident shows an input that the model misclassifies and that this threat model covers.",
)
BADGES = {"evidence": "ok", "partly": "info", "declared": "info", "not covered": "warn"}
SHOWS = (
    "The signature shows that the holder of the private key signed this content and that no byte has changed since.",
    "It does not show who holds the key: compare the fingerprint with one received from the signer by another channel.",
    "It does not show when it was signed, nor that the content is true: the signer could sign a false statement.",
    "Every share and interval follows from the outcomes of the samples, which are inside this file; the checker "
    "computes them again. That the outcomes are those of the model follows from the Runs: their files have the hashes "
    "above, and “brinell verify” checks every adversarial example in them on the model itself.",
)
NO_IMAGES = "The adversarial examples of this Run were verified when found and are not stored."


def risk(view: DossierView) -> Section:
    """Return the section about residual risk."""
    declared, parts = view.declared["risk"], []
    for i, run in enumerate(view.runs):
        (clean, n, *_), (robust, *_) = view.shares[f"{i}/clean"], view.shares[f"{i}/robust"]
        certified = view.shares.get(f"{i}/certified", [0])[0]
        parts.append(
            f"{run['name']}, {run['threat']['text']}: of {n:,} samples, {n - clean:,} are misclassified without an "
            f"attack, {clean - robust:,} more under attack, and {robust:,} withstood; {certified:,} are certified."
        )
    return Section("risk", "Residual risk", join(
        element("h3", "From the Runs"), items(parts),
        element("p", "What was not tested is a residual risk as well."),
        element("h3", "Declared by the provider"),
        facts([("Risks that remain", declared["residual"]), ("Other measures", declared["measures"])]),
    ))  # fmt: skip


def retest(view: DossierView) -> Section:
    """Return the section about events after which the evaluation is repeated."""
    extra = view.declared["risk"]["retest"]
    own = join(element("h3", "Declared by the provider"), items(extra)) if extra else Html("")
    text = element(
        "p", "This dossier describes the model with the hash above. Repeat the evaluation after each of these:"
    )
    return Section("retest", "Re-test triggers", join(text, items(TRIGGERS), own))


def clauses(view: DossierView) -> Section:
    """Return the section that maps clauses to evidence, or says that they are not covered."""
    rows = []
    for clause in CLAUSES:
        status, where = clause.status(view)
        rows.append((f"{clause.source}, {clause.number}", clause.summary, badge(BADGES[status], status), where))
    heads = ("Clause", "Subject, in our words", "Status", "Where, or why not")
    return Section("clauses", "Clauses and evidence", join(element("p", DISCLAIMER), table("Clauses", heads, rows)))


def files(view: DossierView) -> Section:
    """Return the section with the hashes of the Runs' files."""
    parts: list[Html] = []
    for run in view.runs:
        rows = [(name, element("code", digest)) for name, digest in sorted(run["files"].items())]
        heading = element("h3", run["name"], ", folder ", run["folder"])
        parts += [heading, table(f"Files of {run['folder']}", ("File", "SHA-256"), rows)]
        parts += [] if run["images"] else [element("p", NO_IMAGES, kind="gap")]
    text = "The dossier rests on these files. Whoever has them can compare the hashes, and verify them on the model."
    return Section("files", "Files and hashes", join(element("p", text), *parts))


def signature(view: DossierView) -> Section:
    """Return the section about the signature."""
    key = view.payload["public_key"]
    digest = element("code", payload_hash(view.payload))
    commands = element("pre", "python check_dossier.py DOSSIER --key FINGERPRINT --run RUN")
    if key is None:
        draft = element("p", "This is a draft without a signature. Anybody can have changed it.", kind="gap")
        return Section("signature", "Signature", join(draft, facts([("SHA-256 of the content", digest)])))
    public = bytes.fromhex(key)
    return Section("signature", "Signature", join(
        facts([("Method", "Ed25519 (RFC 8032)"), ("Public key", element("code", key)),
               ("Fingerprint (SHA-256 of the key)", element("code", fingerprint(public))),
               ("SHA-256 of the content", digest)]),
        items(SHOWS), element("p", "To check it without Brinell:"), commands,
    ))  # fmt: skip
