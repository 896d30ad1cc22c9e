"""Find the stored outcomes of some samples, to resume a Run; only shards that may contain the samples are read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from brinell.errors import RunError
from brinell.results.format.manifest import decode
from brinell.results.format.schema import Evidence, counted, is_evidence, margin_left
from brinell.results.format.shards import Shards


@dataclass(frozen=True)
class StoredOutcomes:
    """Stored outcomes: `attacks[name][id]` says if the attack broke the sample, `hashes[id]` is its input hash.

    `answers[id]` are the class and the margin that the model gave the clean sample; empty for a randomised model.
    `left[name][id]` is the share of the clean margin that the attack left (`margin_left`).

    >>> known = StoredOutcomes({"pgd": {7: True, 8: False}})
    >>> known.seen("pgd", [7, 8, 9]), known.fell("pgd", [7, 8, 9])
    ([True, True, False], [True, False, False])
    """

    attacks: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    hashes: Mapping[int, str] = field(default_factory=dict)
    answers: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    left: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def seen(self, attack: str, ids: Sequence[int]) -> list[bool]:
        """Return for each sample whether it has a row of the attack."""
        rows = self.attacks.get(attack, {})
        return [i in rows for i in ids]

    def fell(self, attack: str, ids: Sequence[int]) -> list[bool]:
        """Return for each sample whether the attack broke it."""
        rows = self.attacks.get(attack, {})
        return [rows.get(i, False) for i in ids]

    def least_left(self, attacks: Sequence[str], ids: Sequence[int]) -> list[float]:
        """Return for each sample the smallest share of its clean margin that these attacks left (inf: none ran)."""
        rows = [self.left.get(attack, {}) for attack in attacks]
        return [min((r.get(i, np.inf) for r in rows), default=np.inf) for i in ids]

    def check(self, ids: Sequence[int], hashes: Sequence[str]) -> None:
        """Raise a RunError if the input hash of a sample differs from its stored hash."""
        for i, digest in zip(ids, hashes, strict=True):
            if self.hashes.get(i, digest) != digest:
                raise RunError(
                    expected=f"the input of sample {i} that the Run was started with",
                    got="another input with this id",
                    remedy="Pass the same data with the same preprocessing, or another folder with out= (--out).",
                )

    def refuse_other_answer(self, sample: int, predicted: int, margin: float) -> None:
        """Raise a RunError that says how the model's answer to a clean sample differs from the stored answer."""
        before, stored = self.answers[sample]
        raise RunError(
            expected="the model that the Run was started with",
            got=f"a model that gives sample {sample} class {predicted} with margin {margin:.6g}, where the Run has "
            f"class {before} with margin {stored:.6g}",
            remedy="Pass the same model in the same state: attributes, hooks, buffers and the code of forward belong "
            "to it. Evaluate another model into another folder with out= (--out).",
        )


NOTHING_STORED = StoredOutcomes()
COLUMNS = ("sample_id", "x_sha256", "attack", "broken", "verified", "clean_pred", "clean_margin", "adv_margin")


class StoredRows:
    """The rows that a Run has when this object is made; memory holds only the range of ids of each shard.

    >>> StoredRows("tests/results/golden_run_v1").of([0]).seen("clean", [0])
    [True]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        manifest = decode(Path(path))
        self.shards = Shards.open(Path(path), manifest)
        noisy = any(check.name == "randomised" and check.level != "ok" for check in manifest.checks)
        self.repeatable = manifest.identity.plan.draws == 1 and not noisy
        self.spans = {name: self.shards.span(name) for name in self.shards.names}

    def count_other_samples(self, ids: Sequence[int]) -> int:
        """Return how many samples outside `ids` have a clean row."""
        count = 0
        for name in self.spans:
            rows = self.shards.rows(name, ("sample_id", "attack"))
            stored = np.asarray(rows["sample_id"])[is_evidence(rows, Evidence.CLEAN)]
            count += int((~np.isin(stored, ids)).sum())
        return count

    def of(self, ids: Sequence[int]) -> StoredOutcomes:
        """Return the stored outcomes of the samples `ids`."""
        if not len(ids):
            return NOTHING_STORED
        low, high = min(ids), max(ids)
        attacks: dict[str, dict[int, bool]] = {}
        hashes: dict[int, str] = {}
        answers: dict[int, tuple[int, float]] = {}
        left: dict[str, dict[int, float]] = {}
        for name, (first, last) in self.spans.items():
            if last < low or first > high:
                continue
            rows = self.shards.rows(name, COLUMNS)
            broken_rows, wanted_rows = counted(rows), np.isin(np.asarray(rows["sample_id"]), ids)
            columns = (rows[c].to_pylist() for c in ("attack", "sample_id", "x_sha256", "clean_pred", "clean_margin"))
            masks = (broken_rows.tolist(), wanted_rows.tolist(), margin_left(rows).tolist())
            for attack, i, digest, predicted, margin, broken, wanted, share in zip(*columns, *masks, strict=True):
                if wanted:
                    attacks.setdefault(attack, {})[i] = broken
                    hashes[i] = digest
                    if self.repeatable:
                        answers[i] = predicted, margin
                    left.setdefault(attack, {})[i] = share
        return StoredOutcomes(attacks, hashes, answers, left)
