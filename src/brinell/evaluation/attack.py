"""Run a single attack on every sample without storing a Run: its rows, its adversarial images, or both."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.dataset import Chunk, Problem
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.evaluation.rows import FinishedRows
from brinell.evaluation.run_stage import run_stage
from brinell.results import ROWS

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attack(
    classifier: Any, problem: Any, threat: Threat, attack: "AnyAttack | Stage",
    *, start: Tensor | None = None, early_exit: bool = True, images: bool = False, progress: bool | None = False,
    **options: "Unpack[ComputeOptions]",
) -> Any:  # fmt: skip
    """Run one attack on every sample, also if misclassified, and return one row per sample, in the problem's order.

    Nothing is stored. `images=True` returns (rows, images): the verified adversarial of every broken sample, and the
    unchanged input of every other sample. `start` gives explicit start points, one per sample. `early_exit=False`
    continues after a success to the end of the budget, as the reference implementations do. `options` are `seed`,
    `slots` and `device`.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:8]
    >>> rows, images = brinell.attack("demo", data, brinell.L2(1.0), brinell.attacks.APGD(steps=5), images=True)
    >>> rows.num_rows, rows["forwards"].to_pylist()[0] <= 6, tuple(images.shape)
    (8, True, (8, 1, 28, 28))
    """
    execution = Execution.from_options(options, ComputeOptions)
    model = coerce.as_classifier(classifier, execution.device)
    data, chosen = coerce.as_problem(problem), coerce.as_plan(attack)
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(model, data, coerce.as_threat(threat), chosen, execution, listener, early_exit=early_exit)
        starts = _start_points(start, data)
        tables, points = [], []
        for chunk in prepared.chunks():
            c = prepared.clean(chunk)
            everyone = torch.arange(len(chunk), device=c.logits.device)
            here = None if starts is None else starts[chunk.offset : chunk.offset + len(chunk)]
            results = [r for s in prepared.stages for r in run_stage(prepared.context, s, c, everyone, here)]
            tables.append(_in_order([rows.table for _, rows in results], chunk.ids))
            if images:
                points.append(_images(chunk, [rows for _, rows in results]))
    table = pa.concat_tables(tables) if tables else ROWS.empty_table()
    return (table, torch.cat(points)) if images else table


def perturb(
    method: "AnyAttack | Stage", classifier: Any, x: Any, y: Any, threat: Threat, **options: "Unpack[ComputeOptions]"
) -> Tensor:
    """Return the adversarial images of an attack, on the device of `x`; inputs that it does not break stay as they are.

    >>> import brinell
    >>> x, y = brinell.data.load("demo", 8)
    >>> x_adv = perturb(brinell.attacks.PGD(steps=20), "demo", x, y, brinell.Linf(0.1))
    >>> float((x_adv - x).abs().max()) <= 0.1 + 1e-6
    True
    """
    _, images = attack(classifier, (x, y), threat, method, images=True, **options)
    return images.to(x.device) if isinstance(x, Tensor) else images


def _images(chunk: Chunk, finished: list[FinishedRows]) -> Tensor:
    """Return the chunk's inputs with the adversarials of broken samples in their place."""
    x, place = chunk.x.clone(), {i: k for k, i in enumerate(chunk.ids.tolist())}
    for rows in finished:
        if rows.ids is not None and rows.x is not None:
            x[[place[int(i)] for i in rows.ids]] = torch.from_numpy(rows.x)
    return x


def _in_order(tables: list[pa.Table], ids: Tensor) -> pa.Table:
    place = {i: k for k, i in enumerate(ids.tolist())}
    table = pa.concat_tables(tables)
    order = np.argsort([place[i] for i in table["sample_id"].to_pylist()], kind="stable")
    return table.take(pa.array(order))


def _start_points(start: Tensor | None, problem: Problem) -> Tensor | None:
    if start is None:
        return None
    begin = torch.as_tensor(start, dtype=torch.float32, device="cpu")
    wanted = (len(problem), *problem.shape())
    if tuple(begin.shape) != wanted or not bool(begin.isfinite().all()):
        raise InputError(
            expected=f"finite start points of shape {wanted}",
            got=f"points of shape {tuple(begin.shape)}, or points that are not finite",
            remedy="Pass one point per sample in start, without NaN and inf.",
        )
    return begin
