"""Turn clean predictions and results of the engine into rows of a Run."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from brinell.checks.model import SAME
from brinell.core.dataset import Chunk, sample_hashes
from brinell.core.model import Output
from brinell.core.plan import Stage
from brinell.engine.best_so_far import Best
from brinell.evaluation.audit import in_audit
from brinell.evaluation.verify_points import Verified
from brinell.ops.losses import margin
from brinell.results import AUDIT, CLEAN, ROWS
from brinell.results.format.resume import StoredOutcomes
from brinell.results.format.schema import STOOD_STILL

NON_FINITE = "non-finite logits"
# An attempt with fewer unchanged answers in a row is never said to stand still.
STILL_QUERIES = 10
REJECTED = "rejected"


def _numpy(v: Tensor) -> Any:
    return v.detach().cpu().numpy()


@dataclass(frozen=True)
class FinishedRows:
    """Rows of finished samples (`table`), and the `ids` and adversarials `x` of the broken samples.

    `best` holds the best point of every row, broken or not, if the context keeps it.
    """

    table: pa.Table
    ids: npt.NDArray[np.int64] | None = None
    x: npt.NDArray[np.float32] | None = None
    best: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Clean:
    """The model's predictions on the clean samples of a chunk.

    `judged` (samples, passes) is True where a pass misclassifies or rejects the sample.
    """

    chunk: Chunk
    logits: Tensor
    pred: Tensor
    margin: Tensor
    hashes: list[str]
    judged: Tensor
    rejected: Tensor

    @property
    def correct(self) -> Tensor:
        """Whether each sample has finite logits and is correct and not rejected in at least half of the passes."""
        return (2 * self.judged.sum(1) <= self.judged.shape[1]) & self.logits.isfinite().all(1)


def clean(chunk: Chunk, draws: list[Output]) -> Clean:
    """Return the clean predictions of a chunk from the outputs of one pass or several (`draws`)."""
    logits = torch.stack([out.logits for out in draws]).mean(0)
    y = chunk.y.to(logits.device)
    refused = torch.stack([_refused(out) for out in draws], 1)
    judged = torch.stack([out.logits.argmax(1) != y for out in draws], 1) | refused
    rejected = 2 * refused.sum(1) > len(draws)
    return Clean(chunk, logits, logits.argmax(1), margin(logits, y), sample_hashes(chunk.x), judged, rejected)


def require_same_answers(c: Clean, known: StoredOutcomes) -> None:
    """Raise a RunError if the model answers a clean sample otherwise than when its row was stored.

    The fingerprint of a model covers weights and structure. Attributes, hooks, buffers that are not saved and the code
    of `forward` show only in its answers. Margins may differ by rounding, and classes only in a tie.
    """
    ids = c.chunk.ids.tolist()
    at = [k for k, i in enumerate(ids) if i in known.answers]
    if not at:
        return
    logits, margins = c.logits[at].cpu(), c.margin[at].double().cpu()
    answers = [known.answers[ids[k]] for k in at]
    before = torch.tensor([predicted for predicted, _ in answers], dtype=torch.long, device="cpu")
    stored = torch.tensor([margin for _, margin in answers], dtype=torch.float64, device="cpu")
    spread = logits.amax(1) - logits.amin(1)
    finite = spread[spread.isfinite()]
    slack = SAME * (float(finite.median()) if len(finite) else 0.0)
    # NaN or the same infinity both times counts as equal.
    same = (margins == stored) | (margins.isnan() & stored.isnan()) | ((margins - stored).abs() <= slack)
    known_class = before.clamp(0, logits.shape[1] - 1)
    tie = logits.amax(1) - logits.gather(1, known_class[:, None])[:, 0] <= slack
    same &= (c.pred[at].cpu() == before) | (tie & (before == known_class))
    for k in (~same).nonzero()[:1, 0].tolist():
        known.refuse_other_answer(ids[at[k]], int(c.pred[at[k]]), float(margins[k]))


def _refused(out: Output) -> Tensor:
    """Return a mask of the samples that the detector rejects (also if the score is NaN); False without a detector."""
    if out.reject is None:
        return torch.zeros(len(out.logits), dtype=torch.bool, device=out.logits.device)
    return ~(out.reject <= 0)


def _common(c: Clean, at: Any, seed: int, precision: Any, device: torch.device) -> dict[str, Any]:
    return {
        "sample_id": _numpy(c.chunk.ids)[at],
        "x_sha256": np.asarray(c.hashes)[at],
        "label": _numpy(c.chunk.y)[at],
        "clean_pred": _numpy(c.pred)[at],
        "clean_margin": _numpy(c.margin)[at],
        "seed": np.full(len(at), seed),
        "precision": np.broadcast_to(np.asarray(precision), len(at)),
        "device": np.full(len(at), str(device)),
        **({} if c.chunk.names is None else {"sample_name": np.asarray(c.chunk.names, dtype=object)[at]}),
    }


def _table(columns: dict[str, Any], n: int) -> pa.Table:
    arrays = [
        pa.array(columns[f.name], type=f.type, from_pandas=False) if f.name in columns else pa.nulls(n, f.type)
        for f in ROWS
    ]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def clean_rows(c: Clean, at: Any, seed: int, precision: str, seconds: float) -> pa.Table:
    """Return the rows of the clean pass, one per position `at`; each row gets an equal part of the `seconds`."""
    n = len(at)
    wrong = ~_numpy(c.correct)[at]
    columns = {
        **_common(c, at, seed, precision, c.logits.device),
        "attack": np.full(n, CLEAN),
        "attack_hash": np.full(n, ""),
        "broken": wrong,
        "adv_pred": _numpy(c.pred)[at],
        "adv_margin": _numpy(c.margin)[at],
        "distance": np.zeros(n),
        "forwards": np.ones(n, dtype=np.int64),
        "backwards": np.zeros(n, dtype=np.int64),
        "seconds": np.full(n, seconds / max(n, 1)),
        "verified": pa.array([True if w else None for w in wrong], pa.bool_()),
        "flags": [
            [NON_FINITE] * (not np.isfinite(m)) + [REJECTED] * bool(r)
            for m, r in zip(_numpy(c.margin)[at], _numpy(c.rejected)[at], strict=True)
        ],
        **_judged(c.judged[torch.as_tensor(at, device=c.judged.device)]),
    }
    return _table(columns, n)


def _judged(judged: Tensor) -> dict[str, Any]:
    return {"judged": judged.cpu().tolist()} if judged.shape[1] > 1 else {}


def _where(mask: Any, values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, type=kind, mask=~np.asarray(mask, dtype=bool))


def _stood_still(r: Best, stage: Stage) -> Any:
    """Return a mask of unbroken samples for which the model's answers did not change in half of an attempt or more."""
    least = max(STILL_QUERIES, stage.attack.queries // 2)
    return _numpy((r.longest >= least) & ~(r.found if stage.attack.minimum_norm else r.broken))


def attack_rows(
    c: Clean, at: Tensor, r: Best, v: Verified, stage: Stage, target: Tensor, seed: int, precision: Any, rate: float
) -> pa.Table:
    """Return one row per attacked sample.

    `at` are the positions of the samples in the chunk, `r` are the engine's results, `v` is their verification, and
    `rate` is the seconds per forward pass.
    """
    n, attempts = len(at), stage.attempts()
    rows = _numpy(at)
    broken, found = _numpy(r.broken), _numpy(r.found)
    attempt = _numpy(r.attempt)
    counted = broken & _numpy(v.ok)
    aims = _numpy(target)
    known = found if stage.attack.minimum_norm else broken
    chosen = (in_audit(seed, c.chunk.ids[at.cpu()], stage.sampled_share) & stage.is_audit).tolist()
    columns = {
        **_common(c, rows, seed, precision, r.x.device),
        "attack": np.full(n, stage.name),
        "attack_hash": np.full(n, stage.to_json()["hash"]),
        "restart": _where(known, np.asarray([attempts[i].restart for i in attempt]), pa.int32()),
        "target": _where(known & (aims >= 0), aims, pa.int32()),
        "broken": broken,
        "adv_pred": _where(known, _numpy(torch.where(r.broken, v.pred, r.adv_pred)), pa.int64()),
        "adv_margin": _where(np.isfinite(_numpy(r.margin)), _numpy(r.margin), pa.float32()),
        "best_loss": _where(np.isfinite(_numpy(r.loss)), _numpy(r.loss), pa.float32()),
        "distance": _where(known, _numpy(v.distance), pa.float64()),
        "first_broken_at": _where(broken & (_numpy(r.first) >= 0), _numpy(r.first), pa.int32()),
        "forwards": _numpy(r.forwards),
        "backwards": _numpy(r.backwards),
        "seconds": _numpy(r.forwards) * rate,
        "verified": _where(broken, counted, pa.bool_()),
        "verified_8bit": _where(broken, _numpy(v.ok_8bit), pa.bool_()),
        "flags": [
            [NON_FINITE] * bool(non_finite) + [AUDIT] * bool(a) + [STOOD_STILL] * bool(still)
            for non_finite, a, still in zip(_numpy(r.non_finite), chosen, _stood_still(r, stage), strict=True)
        ],
        **_judged(v.judged),
        **({} if v.chosen is None else {"chosen": _numpy(v.chosen)}),
    }
    return _table(columns, n)
