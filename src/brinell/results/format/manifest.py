"""The manifest of a Run: what was evaluated, where, and what the checks found; accuracies are not stored.

`Manifest` and the classes of its fields are the typed form of ``manifest.json``; docs/run-format.md describes the file.
The identity says what was evaluated and how: a Run is resumed only by an evaluation with an equal identity. A field
whose name differs from its key in the file gives the key in its `metadata`: the keys in the file never change.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from brinell.errors import InputError, RunError
from brinell.finding import Finding
from brinell.results.format.schema import SCHEMA_VERSION
from brinell.results.format.typed_json import StoredObject
from brinell.untrusted import cleaned, read_json

MANIFEST = "manifest.json"
# The fields with the checksums: of the list of shards, and of the manifest itself.
CHECKSUMS, SEAL = "checksums", "sha256"
ABSENT = "nothing"
# Names do not make two evaluations different.
LABELS = ("threat.eps_text", "model.name", "data.name")
MISCLASSIFY, EVADE = "misclassify", "evade"
BLACK_BOX = "logits"


@dataclass(frozen=True)
class ThreatRecord(StoredObject):
    """The threat: `eps` is one radius, a list with one radius per sample, or None for an unbounded threat."""

    norm: str | None = None
    eps: float | list[float] | None = None
    eps_text: str | None = None
    box: list[Any] | None = None
    mask: dict[str, Any] | None = None

    @property
    def per_sample(self) -> bool:
        """Whether every sample has a radius of its own."""
        return isinstance(self.eps, list)

    @property
    def unbounded(self) -> bool:
        """Whether the threat has no radius: attacks search for the smallest perturbation."""
        return "eps" in self.raw and self.eps is None


@dataclass(frozen=True)
class StageRecord(StoredObject):
    """One stage of the plan.

    `share` is the fraction of the survivors that a stage of the audit attacks, None for other stages. `near` is the
    share of the clean margin below which such a stage attacks every survivor, None if it attacks only the drawn ones.
    `requires` is what the attack needs from the model, such as "logits"; it is None in Runs that early versions of
    Brinell wrote.
    `via` is the surrogate whose gradients the attack follows, None if it follows the model's own.
    """

    name: str
    hash: str | None = None
    share: float | None = None
    near: float | None = None
    requires: str | None = field(default=None, metadata={"key": "needs"})
    via: Mapping[str, Any] | None = None

    @property
    def is_audit(self) -> bool:
        """Whether the stage belongs to the audit, which attacks a random share of the survivors."""
        return self.share is not None

    @property
    def black_box(self) -> bool:
        """Whether the attack uses logits only, no gradients."""
        return self.requires == BLACK_BOX


@dataclass(frozen=True)
class PlanRecord(StoredObject):
    """The plan as it was run; `draws` is the number of passes that decide whether a point is adversarial."""

    name: str = "unnamed"
    strength: str | None = None
    description: str | None = None
    citation: str | None = None
    draws: int = 1
    stages: tuple[StageRecord, ...] = ()

    @property
    def main_stages(self) -> tuple[StageRecord, ...]:
        """The stages that attack every sample not yet broken."""
        return tuple(stage for stage in self.stages if not stage.is_audit)

    @property
    def audit_stages(self) -> tuple[StageRecord, ...]:
        """The stages of the audit."""
        return tuple(stage for stage in self.stages if stage.is_audit)

    @property
    def audited(self) -> bool:
        """Whether the plan has the strength "audited": its audit bounds how many samples it missed."""
        return self.strength == "audited"


@dataclass(frozen=True)
class ModelRecord(StoredObject):
    """The evaluated model: its fingerprint, name and number of classes."""

    fingerprint: str | None = None
    name: str | None = None
    classes: int | None = None


@dataclass(frozen=True)
class DataRecord(StoredObject):
    """The data: fingerprint, number of samples and name; in a merged Run, `sources` describes the data of each part."""

    fingerprint: str | None = None
    n: int | None = None
    name: str | None = None
    sources: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Identity(StoredObject):
    """The identity of a Run: what was evaluated, and how. To resume a Run, it must be equal (names may differ)."""

    threat: ThreatRecord = ThreatRecord()
    criterion: str = field(default=MISCLASSIFY, metadata={"key": "goal"})
    plan: PlanRecord = PlanRecord()
    individual: bool = False
    model: ModelRecord = ModelRecord()
    data: DataRecord = DataRecord()
    seed: int | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Environment(StoredObject):
    """Versions and hardware of an evaluation; `raw` has all facts that were stored."""

    brinell: str | None = None
    torch: str | None = None
    device: str | None = None
    git_commit: str | None = None


@dataclass(frozen=True)
class CheckRecord(StoredObject):
    """The result of one check, as stored in the manifest."""

    name: str
    level: str
    message: str


@dataclass(frozen=True)
class ProbeItemRecord(StoredObject):
    """One finding of a probe, as stored in the manifest; `sentence` is its message."""

    name: str
    level: str
    sentence: str


@dataclass(frozen=True)
class ProbeRecord(StoredObject):
    """The probe of one attack of the plan, as stored in the manifest; `items` are its findings."""

    attack: str
    items: tuple[ProbeItemRecord, ...]

    @property
    def findings(self) -> list[Finding]:
        """The findings of the probe as `Finding` objects."""
        return [Finding.from_json(item.raw) for item in self.items]


@dataclass(frozen=True)
class Manifest(StoredObject):
    """The content of ``manifest.json``.

    `resumed` has an entry for each resume in another environment, `merged_from` has an entry for each merged Run.
    `images` says whether adversarials were kept. `certifiers` are the methods that added certificates, with their
    settings; `certifying` says that the attacks are complete and that certificates are being added. If
    `identity.threat.eps` is a list, sample `sample_ids[k]` has radius `eps[k]`. `checksums` ties the list of shards to
    the manifest.

    >>> manifest = Manifest.read({"identity": {"goal": "evade", "data": {"n": 3}}, "added_later": 1})
    >>> manifest.identity.criterion, manifest.identity.data.n, manifest.identity.plan.draws, manifest.finished
    ('evade', 3, 1, False)
    >>> Manifest.read({"identity": {"data": {"n": "many"}}})
    Traceback (most recent call last):
    brinell.errors.RunError: expected a manifest with data.n as int, got 'many'. The Run is refused: ...
    """

    identity: Identity
    environment: Environment = Environment()
    resumed: Sequence[Mapping[str, Any]] = ()
    merged_from: Sequence[Mapping[str, Any]] = ()
    workers: Sequence[Mapping[str, Any]] = ()
    checks: tuple[CheckRecord, ...] = ()
    probes: tuple[ProbeRecord, ...] = ()
    notes: Sequence[str] = ()
    sample_ids: list[int] | None = None
    images: bool = True
    created: str | None = None
    finished: bool = False
    wall_seconds: float | None = None
    startup_seconds: float | None = None
    asked_rows: int | None = None
    certifiers: Sequence[Mapping[str, Any]] = ()
    certifying: bool = False
    checksums: Mapping[str, Any] | None = None

    @property
    def findings(self) -> list[Finding]:
        """The results of the checks as `Finding` objects."""
        return [Finding.from_json(check.raw) for check in self.checks]

    @property
    def last_environment(self) -> Mapping[str, Any]:
        """The environment of the last process that wrote the Run."""
        last: Mapping[str, Any] = self.resumed[-1]["environment"] if self.resumed else self.environment.raw
        return last

    @property
    def sample_radii(self) -> dict[int, float] | None:
        """The radius of each sample by its id; None if all samples share one radius or `sample_ids` is missing.

        >>> Manifest.read({"identity": {"threat": {"eps": [0.1, 0.2]}}, "sample_ids": [7, 3]}).sample_radii
        {7: 0.1, 3: 0.2}
        """
        eps = self.identity.threat.eps
        if not isinstance(eps, list) or self.sample_ids is None:
            return None
        radii = dict(zip(self.sample_ids, eps, strict=False))
        if len(self.sample_ids) != len(eps) or len(radii) != len(eps):
            raise RunError(
                expected=f"a sample id for each of {len(eps)} radii in the manifest",
                got=f"{len(radii)} different ids in sample_ids",
                remedy="Restore manifest.json from a copy, or evaluate into a new folder.",
            )
        return radii


def new_manifest(identity: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of a new, unfinished Run as a JSON object; `created` is the current time.

    >>> manifest = new_manifest({"seed": 0}, {"brinell": "1.0"})
    >>> manifest["schema_version"], manifest["finished"], manifest["identity"]
    (1, False, {'seed': 0})
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": dict(identity),
        "environment": dict(environment),
        "checks": [],
        "notes": [],
        "created": now(),
        "finished": False,
        "wall_seconds": None,
    }


def now() -> str:
    """Return the current UTC time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def encode(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest as JSON bytes; raise an InputError for values that JSON does not allow, such as NaN."""
    try:
        return (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            expected="a manifest of plain, finite JSON values",
            got=str(error),
            remedy="Use str, int, finite float, bool, None, list and dict only.",
        ) from error


def seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with a hash of all its values in the field `sha256`, so that damage is noticed.

    >>> seal({"seed": 0}) == seal(seal({"seed": 0})) != seal({"seed": 1})
    True
    """
    body = {key: value for key, value in manifest.items() if key != SEAL}
    text = json.dumps(json.loads(json.dumps(body)), sort_keys=True, separators=(",", ":"))
    return {**body, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def decode(path: Path) -> Manifest:
    """Return the manifest in the folder `path`; raise a RunError if it is missing or invalid."""
    file = path / MANIFEST
    try:
        raw = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            expected=f"a Run with a manifest at {file}",
            got="no such file",
            remedy="Pass the folder that an evaluation wrote (brinell evaluate --out FOLDER).",
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("identity"), dict):
        raise _unreadable(file, "JSON without an identity")
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version > SCHEMA_VERSION:
        raise RunError(
            expected=f"a Run of schema version {SCHEMA_VERSION} or earlier",
            got=f"version {version} in {file}",
            remedy="Update Brinell: pip install --upgrade brinell.",
        )
    # Runs of earlier versions have neither field.
    if (SEAL in raw or CHECKSUMS in raw) and raw.get(SEAL) != seal(raw)[SEAL]:
        raise RunError(
            expected=f"{file} as Brinell wrote it",
            got="other content than its own field sha256 says",
            remedy="Restore the file from a copy, or evaluate into a new folder.",
        )
    try:
        return Manifest.read(cleaned(raw))
    except RunError as error:
        raise RunError(expected=error.expected, got=f"{error.got} in {file}", remedy=error.remedy) from None


def attack_hash(stage: Mapping[str, Any]) -> str:
    """Return a hash (16 hex digits) of a stage, a JSON object with its attack and all its settings.

    >>> attack_hash({"name": "fgsm"}) == attack_hash({"name": "fgsm"}) != attack_hash({"name": "pgd"})
    True
    """
    text = json.dumps(stage, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two identities differ: a dict from dotted path to (value in `a`, value in `b`).

    >>> differences({"threat": {"eps": 1, "norm": "L2"}, "seed": 0}, {"threat": {"eps": 2, "norm": "L2"}})
    {'seed': (0, 'nothing'), 'threat.eps': (1, 2)}
    """
    flat_a, flat_b = (_flatten(json.loads(encode(identity)), "") for identity in (a, b))
    pairs = {path: (flat_a.get(path, ABSENT), flat_b.get(path, ABSENT)) for path in sorted({*flat_a, *flat_b})}
    return {path: (old, new) for path, (old, new) in pairs.items() if old != new}


def material(fields: Mapping[str, Any]) -> bool:
    """Return whether a difference in `fields` matters: at least one field is not only a name (as `model.name` is)."""
    return any(path not in LABELS for path in fields)


def _flatten(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict) and (value or not path):
        flat = [_flatten(v, f"{path}.{k}" if path else k) for k, v in value.items()]
    elif isinstance(value, list) and any(isinstance(v, dict) for v in value):
        flat = [_flatten(v, f"{path}[{i}]") for i, v in enumerate(value)]
    else:
        return {path: value}
    return {k: v for entry in flat for k, v in entry.items()}


def _unreadable(file: Path, got: str) -> RunError:
    return RunError(
        expected=f"readable JSON in {file}",
        got=got,
        remedy="Restore the file from a copy, or evaluate into a new folder.",
    )
