"""Find the stored outcomes of some samples, to resume a Run; only shards that may contain the samples are read."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from brinell.errors import RunError
from brinell.results.format import files
from brinell.results.format.schema import Evidence, counted, is_evidence


@dataclass(frozen=True)
class StoredOutcomes:
    """Stored outcomes: `attacks[name][id]` says if the attack broke the sample, `hashes[id]` is its input hash.

    >>> known = StoredOutcomes({"pgd": {7: True, 8: False}})
    >>> known.seen("pgd", [7, 8, 9]), known.fell("pgd", [7, 8, 9])
    ([True, True, False], [True, False, False])
    """

    attacks: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    hashes: Mapping[int, str] = field(default_factory=dict)

    def seen(self, attack: str, ids: Sequence[int]) -> list[bool]:
        """Return for each sample whether it has a row of the attack."""
        rows = self.attacks.get(attack, {})
        return [i in rows for i in ids]

    def fell(self, attack: str, ids: Sequence[int]) -> list[bool]:
        """Return for each sample whether the attack broke it."""
        rows = self.attacks.get(attack, {})
        return [rows.get(i, False) for i in ids]

    def check(self, ids: Sequence[int], hashes: Sequence[str]) -> None:
        """Raise a RunError if the input hash of a sample differs from its stored hash."""
        for i, digest in zip(ids, hashes, strict=True):
            if self.hashes.get(i, digest) != digest:
                raise RunError(
                    expected=f"the input of sample {i} that the Run was started with",
                    got="another input with this id",
                    remedy="Pass the same data with the same preprocessing, or another folder with out= (--out).",
                )


NOTHING_STORED = StoredOutcomes()
COLUMNS = ("sample_id", "x_sha256", "attack", "broken", "verified")


class StoredRows:
    """The rows that a Run has when this object is made; memory holds only the range of ids of each shard.

    >>> StoredRows("tests/results/golden_run_v1").of([0]).seen("clean", [0])
    [True]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.spans = {name: files.span(files.rows_file(self.path, name)) for name in files.shards(self.path)}

    def count_other_samples(self, ids: Sequence[int]) -> int:
        """Return how many samples outside `ids` have a clean row."""
        count = 0
        for name in self.spans:
            rows = files.read_rows(files.rows_file(self.path, name), ("sample_id", "attack"))
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
        for name, (first, last) in self.spans.items():
            if last < low or first > high:
                continue
            rows = files.read_rows(files.rows_file(self.path, name), COLUMNS)
            broken_rows, wanted_rows = counted(rows), np.isin(np.asarray(rows["sample_id"]), ids)
            columns = (rows[c].to_pylist() for c in ("attack", "sample_id", "x_sha256"))
            for attack, i, digest, broken, wanted in zip(
                *columns, broken_rows.tolist(), wanted_rows.tolist(), strict=True
            ):
                if wanted:
                    attacks.setdefault(attack, {})[i] = broken
                    hashes[i] = digest
        return StoredOutcomes(attacks, hashes)
