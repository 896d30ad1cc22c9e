"""The content of a dossier as JSON: declarations, Runs with the outcomes of their samples, levels and numbers."""

import hashlib
import json
import os
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from brinell.dossier.check_dossier import FORMAT, canonical, numbers
from brinell.dossier.groups import read_groups
from brinell.dossier.samples import packed, sample_ids, stage_names
from brinell.dossier.system import Level, declared
from brinell.errors import InputError, RunError
from brinell.report.page import own_version
from brinell.report.paper_text import labels, threat_text
from brinell.results import Run, open_runs, row_queries
from brinell.results.format import files
from brinell.results.format.checksums import LIST
from brinell.results.format.manifest import MANIFEST
from brinell.untrusted import cleaned, read_plain

# Two radii that differ by less than this factor are the same: 8/255 and 0.0313726.
SAME = 1e-6


def make_payload(
    runs: Sequence[Run | str | os.PathLike[str]],
    *,
    system: Path | None = None,
    groups: Path | None = None,
    date: date | str | None = None,
    title: str = "",
    public_key: bytes | None = None,
) -> dict[str, Any]:
    """Return the content of a dossier about Runs as JSON data; equal arguments give equal data.

    `system` is the TOML file with the declarations, `groups` a CSV file of sample ids and subgroups. `date` is the day
    of issue (default: today, UTC). Every file of the Runs is compared with its checksum first.
    """
    # A path without a Run is an error: no Run may be left out in silence.
    opened = [run for path in runs for run in open_runs(path) or [Run.open(path)]]
    if not opened:
        raise InputError(expected="at least one Run", got="none", remedy="Pass the folder of a Run.")
    declarations = declared(system)
    # Names that differ where one model has several Runs.
    found = [run_entry(run, name, groups) for run, name in zip(opened, labels(list(opened)), strict=True)]
    if groups is not None and all(len(run["samples"]["groupings"]) == 1 for run in found):
        remedy = f"Use the ids of the samples, such as {found[0]['samples']['ids'][:3]}."
        raise InputError(expected=f"samples of the Runs in the column id of {groups}", got="other ids", remedy=remedy)
    payload = {
        "format": FORMAT,
        "brinell": own_version(),
        "date": _day(date),
        "title": title or declarations.fields["system"]["name"] or found[0]["model"]["name"] or "unnamed system",
        "public_key": None if public_key is None else public_key.hex(),
        "declared": declarations.fields,
        "declared_in_file": declarations.file,
        "unit": {"name": declarations.unit, "per_unit": declarations.per_unit},
        "runs": found,
        "levels": [entry for level in declarations.levels for entry in _levels(level, found)],
    }
    payload = cleaned(payload)
    payload["numbers"] = numbers(payload)
    _compare(opened, payload["numbers"]["shares"])
    return payload


def run_entry(run: Run, name: str, groups: Path | None = None) -> dict[str, Any]:
    """Return one Run as JSON data."""
    run.shards.check_hashes()
    identity, verdict = run.identity, run.verdict
    threat, groupings = identity.threat, [] if groups is None else read_groups(groups, sample_ids(run))
    return {
        "name": name, "folder": run.path.resolve().name, "files": _hashes(run),
        "created": run.created, "finished": run.finished, "seed": identity.seed, "precision": identity.precision,
        "criterion": identity.criterion, "randomised": run.randomised, "images": run.images,
        "threat": {**threat.raw, "text": threat_text(run)}, "size": _input_size(run),
        "model": {key: getattr(identity.model, key) for key in ("name", "fingerprint", "classes")},
        "data": {key: getattr(identity.data, key) for key in ("name", "fingerprint", "n")},
        "plan": {key: getattr(identity.plan, key) for key in ("name", "description", "citation", "strength", "draws")},
        "stages": stage_names(run), "attacks": _attacks(run), "environment": run.environment.raw, "notes": run.notes,
        "verdict": verdict.level, "reasons": list(verdict.reasons), "evidence": list(verdict.evidence),
        "untested": list(verdict.untested), "audit": _audit(run),
        "repeats": None if run.repeats is None else str(run.repeats),
        "bracket": [] if run.bracket is None else list(run.bracket.lines[1:]),
        "checks": [{"name": f.name, "level": f.level, "message": f.message} for f in run.findings],
        "probes": [{"attack": attack, "level": f.level, "message": f.message} for attack, f in run.probe_findings],
        "missing_classes": run.missing_classes, "samples": packed(run, groupings),
    }  # fmt: skip


def _audit(run: Run) -> list[str]:
    own = [] if run.audit is None else [str(run.audit)]
    return own + ([] if run.layers is None else list(run.layers.lines))


def _attacks(run: Run) -> list[dict[str, Any]]:
    """Return for each attack of the plan its parameters as stored, and the passes that its rows took."""
    table, attacks = run.numbers(), []
    stored = {stage.name: dict(stage.raw) for stage in run.identity.plan.stages}
    for name in stage_names(run):
        spent = row_queries.cost(table.filter(row_queries.is_attack(table, name)), over=1)
        known = stored.get(name, {"name": name, "attack": {"type": "counterexamples of a proof"}})
        attacks.append({**known, "forwards": spent.forwards, "backwards": spent.backwards})
    return attacks


def _hashes(run: Run) -> dict[str, str]:
    """Return the SHA-256 of every file of a Run."""
    listed = [run.path / MANIFEST, *([run.path / LIST] if run.shards.listed is not None else [])]
    rows = [files.rows_file(run.path, name) for name in run.shards.names]
    images = [files.adversarials_file(run.path, name) for name in run.shards.with_adversarials()]
    paths = [*listed, *rows, *images]
    return {p.relative_to(run.path).as_posix(): hashlib.sha256(read_plain(p)).hexdigest() for p in paths}


def _input_size(run: Run) -> int | None:
    """Return how many values an input has, if an adversarial is stored."""
    names = run.shards.with_adversarials()
    return int(np.prod(run.shards.adversarials(names[0]).x.shape[1:])) if names else None


def _levels(level: Level, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry for every Run that the level is about, or one entry without a Run."""
    about = [i for i, run in enumerate(runs) if _matches(level, run["threat"])]
    entry = {"text": str(level), "measure": level.measure, "at_least": level.at_least}
    return [{**entry, "run": i} for i in about] or [{**entry, "run": None}]


def _matches(level: Level, threat: dict[str, Any]) -> bool:
    same_norm = level.norm is None or str(threat.get("norm")).casefold() == level.norm.casefold()
    eps, radius = threat.get("eps"), level.radius
    if radius is None:
        return same_norm
    return same_norm and isinstance(eps, float | int) and abs(eps - radius) <= SAME * max(abs(eps), radius)


def _compare(runs: Sequence[Run], shares: dict[str, Any]) -> None:
    """Raise a RunError if the packed outcomes give other accuracies than the Run."""
    for i, run in enumerate(runs):
        for name, p in (("clean", run.clean_accuracy), ("robust", run.robust_accuracy)):
            if shares[f"{i}/{name}"][:2] != [p.k, p.n]:
                raise RunError(
                    expected=f"rows that give {p.k} of {p.n} ({name})",
                    got=f"{shares[f'{i}/{name}'][:2]} in {run.path}",
                    remedy="The Run has rows of attacks that its plan does not name; evaluate again.",
                )  # fmt: skip


def _day(given: date | str | None) -> str:
    if given is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return date.fromisoformat(str(given)).isoformat()
    except ValueError:
        raise InputError(expected="a day such as 2026-03-01", got=repr(given), remedy="Write YYYY-MM-DD.") from None


def differences_to(run: Run, payload: dict[str, Any]) -> list[str]:
    """Return the fields in which the entry of a Run in a dossier differs from what the Run says now."""
    now = cleaned(json.loads(canonical(run_entry(run, ""))))
    stored = next((entry for entry in payload["runs"] if entry["files"] == now["files"]), None)
    if stored is None:
        return ["files"]
    # A user gives names and subgroups, and a folder may be moved.
    now |= {"name": stored["name"], "folder": stored["folder"]}
    now["samples"]["groupings"] += stored["samples"]["groupings"][1:]
    return sorted(key for key in {*stored, *now} if stored.get(key) != now.get(key))


def payload_hash(payload: dict[str, Any]) -> str:
    """Return the SHA-256 of a payload in its canonical form, which every format of a dossier carries."""
    return hashlib.sha256(canonical(payload).encode()).hexdigest()
