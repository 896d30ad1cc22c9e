"""Turn certificates into rows of a Run; a counterexample counts if the model confirms it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.certificate import Certificate
from brinell.core.criterion import Misclassified
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.evaluation.rows import Clean, FinishedRows
from brinell.evaluation.verify_points import Verified, verify_points
from brinell.results import ROWS
from brinell.results.format.schema import CERTIFICATE

UNCONFIRMED = "a counterexample that the model does not confirm"


def certificate_rows(
    c: Clean, found: Sequence[Certificate], threat: Threat, oracle: Oracle, digest: str, seed: int
) -> FinishedRows:
    """Return one row per sample of the chunk `c`, with the verified counterexamples as adversarials."""
    at = [k for k, certificate in enumerate(found) if certificate.counterexample is not None]
    x, verified = _verified(c, found, at, threat, oracle)
    place = {k: i for i, k in enumerate(at)}
    rows = [_row(c, k, found[k], digest, seed, oracle, verified, place.get(k)) for k in range(len(found))]
    broken = [i for i, k in enumerate(at) if rows[k]["broken"]]
    ids = c.chunk.ids[[at[i] for i in broken]].numpy() if broken else np.zeros(0, np.int64)
    images = x[broken].float().cpu().numpy() if broken else np.zeros(0, np.float32)
    return FinishedRows(pa.Table.from_pylist(rows, schema=ROWS), ids, images)


def _verified(
    c: Clean, found: Sequence[Certificate], at: list[int], threat: Threat, oracle: Oracle
) -> tuple[Tensor, Verified | None]:
    if not at:
        return torch.zeros(0, device="cpu", dtype=torch.float32), None
    device = oracle.classifier.device
    points = (
        torch.stack([p for p in (found[k].counterexample for k in at) if p is not None]).detach().to(device).float()
    )
    index = torch.tensor(at, dtype=torch.long, device="cpu")
    x0, y = c.chunk.x[index].to(device), c.chunk.y[index].to(device)
    ball = threat.ball(index, device)
    return points, verify_points(oracle, Misclassified(), x0, points, y, y, ball)


def _row(
    c: Clean, k: int, found: Certificate, digest: str, seed: int, oracle: Oracle, verified: Verified | None,
    place: int | None,
) -> dict[str, Any]:  # fmt: skip
    row = {
        "sample_id": int(c.chunk.ids[k]), "x_sha256": c.hashes[k], "label": int(c.chunk.y[k]),
        "clean_pred": int(c.pred[k]), "clean_margin": float(c.margin[k]),
        "attack": f"{CERTIFICATE}{found.method}", "attack_hash": digest, "seed": seed, "broken": False,
        "forwards": 0, "backwards": 0, "seconds": found.seconds, "precision": found.precision,
        "device": str(oracle.classifier.device), "flags": [], "certified": found.certified,
        "radius": found.radius if found.certified else 0.0, "bound": found.margin, "passes": found.passes,
        "stopped": "" if found.certified else found.stopped,
    }  # fmt: skip
    if verified is None or place is None:
        return row
    if not bool(verified.ok[place]):
        finder = (found.stopped or found.method).partition(": ")[0]
        return row | {"stopped": f"{finder}: {UNCONFIRMED}"}
    return row | {
        "broken": True, "verified": True, "verified_8bit": bool(verified.ok_8bit[place]),
        "adv_pred": int(verified.pred[place]), "distance": float(verified.distance[place]),
    }  # fmt: skip
