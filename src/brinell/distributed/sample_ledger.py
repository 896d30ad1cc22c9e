"""The sample ledger: which samples are unfinished, which outcomes are known, and which rows are new."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import torch

from brinell.core.dataset import Chunk, sample_hashes
from brinell.evaluation.backend import AttackJob, WorkUnit, unfinished
from brinell.evaluation.rows import FinishedRows
from brinell.results import CLEAN, counted
from brinell.results.format.resume import StoredOutcomes
from brinell.results.format.schema import margin_left


class SampleLedger:
    """The samples of a job: read on demand, and kept in memory until they are finished."""

    def __init__(self, job: AttackJob) -> None:
        self.job = job
        self.finished, self.broken, self.forwards = 0, 0, 0
        self._held: dict[int, tuple[Chunk, int]] = {}
        self._fell: dict[str, dict[int, bool]] = {}
        self._left: dict[str, dict[int, float]] = {}
        self._hashes: dict[int, str] = {}

    def samples(self) -> Iterator[int]:
        """Yield the ids of unfinished samples in the order of the data set."""
        for chunk, known in self.job.read():
            ids = chunk.ids.tolist()
            if known.hashes:
                known.check(ids, sample_hashes(chunk.x))
            unfinished = self._unfinished(ids, known)
            self.finished += len(ids) - sum(unfinished)
            for row, (i, wanted) in enumerate(zip(ids, unfinished, strict=True)):
                if wanted:
                    self._held[i] = (chunk, row)
            for attack, rows in known.attacks.items():
                self._fell.setdefault(attack, {}).update({i: v for i, v in rows.items() if i in self._held})
            for attack, shares in known.left.items():
                self._left.setdefault(attack, {}).update({i: v for i, v in shares.items() if i in self._held})
            self._hashes.update({i: h for i, h in known.hashes.items() if i in self._held})
            yield from (i for i, wanted in zip(ids, unfinished, strict=True) if wanted)

    def unit(self, ids: Sequence[int]) -> WorkUnit:
        """Return these samples with their threat and their known outcomes, ready to send to a worker."""
        places = [self._held[i] for i in ids]
        chunk = Chunk(
            torch.tensor(ids, dtype=torch.long, device="cpu"),
            torch.stack([c.x[row] for c, row in places]),
            torch.stack([c.y[row] for c, row in places]),
            names=_names(places),
        )
        rows = torch.tensor([c.offset + row for c, row in places], dtype=torch.long, device="cpu")
        threat = self.job.context.threat.subset(rows)
        return WorkUnit(chunk, threat, self._known(ids), self.job.individual, self.job.reach)

    def accept(self, part: FinishedRows) -> tuple[FinishedRows | None, list[int]]:
        """Return the rows of `part` that no worker sent before (or None), and the ids of samples that they finish."""
        new = [
            i in self._held and i not in self._fell.get(attack, {})
            for i, attack in zip(part.table["sample_id"].to_pylist(), part.table["attack"].to_pylist(), strict=True)
        ]
        if not any(new):
            return None, []
        part = part if all(new) else _filter(part, np.asarray(new))
        ids = part.table["sample_id"].to_pylist()
        columns = part.table["attack"].to_pylist(), counted(part.table).tolist(), margin_left(part.table).tolist()
        for i, attack, fell, left in zip(ids, *columns, strict=True):
            self._fell.setdefault(attack, {})[i] = fell
            self._left.setdefault(attack, {})[i] = left
        self.forwards += sum(part.table["forwards"].to_pylist())
        unfinished = self._unfinished(ids, self._known(ids))
        return part, [i for i, wanted in zip(ids, unfinished, strict=True) if not wanted]

    def release(self, ids: Sequence[int]) -> None:
        """Count these samples as finished, count the broken samples among them, and free their memory."""
        for i in ids:
            if self._held.pop(i, None) is not None:
                self.finished += 1
                self._hashes.pop(i, None)
                fell = [rows.pop(i, False) for attack, rows in self._fell.items() if attack != CLEAN]
                self._fell.get(CLEAN, {}).pop(i, None)
                for shares in self._left.values():
                    shares.pop(i, None)
                self.broken += any(fell)

    def _known(self, ids: Sequence[int]) -> StoredOutcomes:
        attacks = {attack: {i: rows[i] for i in ids if i in rows} for attack, rows in self._fell.items()}
        left = {attack: {i: rows[i] for i in ids if i in rows} for attack, rows in self._left.items()}
        return StoredOutcomes(attacks, {i: self._hashes[i] for i in ids if i in self._hashes}, left=left)

    def _unfinished(self, ids: Sequence[int], known: StoredOutcomes) -> list[bool]:
        job = self.job
        return unfinished(
            job.stages,
            job.context.seed,
            torch.tensor(ids, dtype=torch.long, device="cpu"),
            known,
            individual=job.individual,
            reach=job.reach,
        )


def _filter(part: FinishedRows, keep: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> FinishedRows:
    """Return the rows in the mask `keep`, and the adversarials of the kept rows that are broken, in order."""
    table = part.table.filter(pa.array(keep))
    if part.ids is None or part.x is None:
        return FinishedRows(table)
    stay = keep[counted(part.table)]
    return FinishedRows(table, part.ids[stay], part.x[stay])


def _names(places: Sequence[tuple[Chunk, int]]) -> tuple[str, ...] | None:
    names = [None if c.names is None else c.names[row] for c, row in places]
    return None if None in names else tuple(str(name) for name in names)
