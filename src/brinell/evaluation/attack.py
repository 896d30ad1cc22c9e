"""Run a single attack on every sample without storing a Run, for attack researchers."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.core.attack import AnyAttack
from brinell.core.dataset import Problem
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.plan import Stage
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.evaluation.run_stage import run_stage
from brinell.results import ROWS

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attack(
    classifier: Any, problem: Any, threat: Threat, attack: "AnyAttack | Stage",
    *, start: Tensor | None = None, early_exit: bool = True, progress: bool | None = False,
    **options: "Unpack[ComputeOptions]",
) -> pa.Table:  # fmt: skip
    """Run one attack on every sample, also if misclassified, and return one row per sample, in the problem's order.

    Nothing is stored. `start` gives explicit start points, one per sample. `early_exit=False` continues after a
    success to the end of the budget, as the reference implementations do. `options` are `seed`, `slots` and `device`.

    >>> import brinell
    >>> rows = brinell.attack("demo", brinell.data.load("demo")[:8], brinell.L2(1.0), brinell.attacks.APGD(steps=5))
    >>> rows.num_rows, rows["forwards"].to_pylist()[0] <= 6
    (8, True)
    """
    execution = Execution.from_options(options, ComputeOptions)
    model = coerce.as_classifier(classifier, execution.device)
    data, chosen = coerce.as_problem(problem), coerce.as_plan(attack)
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(model, data, coerce.as_threat(threat), chosen, execution, listener, early_exit=early_exit)
        starts = _start_points(start, data)
        tables = []
        for chunk in prepared.chunks():
            c = prepared.clean(chunk)
            everyone = torch.arange(len(chunk), device=c.logits.device)
            here = None if starts is None else starts[chunk.offset : chunk.offset + len(chunk)]
            results = [r for s in prepared.stages for r in run_stage(prepared.context, s, c, everyone, here)]
            tables.append(_in_order([rows.table for _, rows in results], chunk.ids))
    return pa.concat_tables(tables) if tables else ROWS.empty_table()


def _in_order(tables: list[pa.Table], ids: Tensor) -> pa.Table:
    place = {i: k for k, i in enumerate(ids.tolist())}
    table = pa.concat_tables(tables)
    order = np.argsort([place[i] for i in table["sample_id"].to_pylist()], kind="stable")
    return table.take(pa.array(order))


def _start_points(start: Tensor | None, problem: Problem) -> Tensor | None:
    if start is None:
        return None
    begin = torch.as_tensor(start, dtype=torch.float32)
    wanted = (len(problem), *problem.shape())
    if tuple(begin.shape) != wanted or not bool(begin.isfinite().all()):
        raise InputError(
            expected=f"finite start points of shape {wanted}",
            got=f"points of shape {tuple(begin.shape)}, or points that are not finite",
            remedy="Pass one point per sample in start, without NaN and inf.",
        )
    return begin
