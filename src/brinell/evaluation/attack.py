"""Run a single attack on every sample without storing a Run: its rows, its adversarial images, or both."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from brinell.arguments import AttackLike, DataLike, ModelLike, TargetsLike
from brinell.core.attack import AnyAttack
from brinell.core.dataset import Chunk, Problem
from brinell.core.execution import ComputeOptions, Execution
from brinell.core.keywords import ELSEWHERE, RADIUS
from brinell.core.plan import Stage, Stages
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.errors import InputError, PlanError
from brinell.evaluation import coerce
from brinell.evaluation.context import PreparedEvaluation, StageContext
from brinell.evaluation.plan import adapt
from brinell.evaluation.prepare import prepare
from brinell.evaluation.progress import show_progress
from brinell.evaluation.rows import Clean, FinishedRows
from brinell.evaluation.run_stage import run_stage
from brinell.models.targeted import TargetedClassifier, target_logits
from brinell.results import ROWS

if TYPE_CHECKING:
    from typing_extensions import Unpack


# The value of `images` for the best point of every sample.
BEST = "best"


@overload
def attack(
    classifier: ModelLike, problem: DataLike, threat: Threat, attack: AttackLike,
    *, targets: TargetsLike = ..., start: Tensor | None = ..., early_exit: bool = ..., images: Literal[False] = ...,
    progress: bool | None = ..., **options: "Unpack[ComputeOptions]",
) -> pa.Table: ...  # fmt: skip


@overload
def attack(
    classifier: ModelLike, problem: DataLike, threat: Threat, attack: AttackLike,
    *, targets: TargetsLike = ..., start: Tensor | None = ..., early_exit: bool = ..., images: bool | str,
    progress: bool | None = ..., **options: "Unpack[ComputeOptions]",
) -> tuple[pa.Table, Tensor]: ...  # fmt: skip


def attack(
    classifier: ModelLike, problem: DataLike, threat: Threat, attack: AttackLike,
    *, targets: TargetsLike = None, start: Tensor | None = None, early_exit: bool = True, images: bool | str = False,
    progress: bool | None = False, **options: "Unpack[ComputeOptions]",
) -> pa.Table | tuple[pa.Table, Tensor]:  # fmt: skip
    """Run one attack on every sample, also if misclassified, and return one row per sample, in the problem's order.

    Nothing is stored. `images=True` returns (rows, images): the verified adversarial of every broken sample, and the
    unchanged input of every other sample. `images="best"` returns for these the point of the largest margin that the
    attack met, for transfer to other models; only attacks of a fixed radius have it.

    `targets` are chosen classes, one per sample (or one for all): only the prediction of this class then counts, and
    every attack follows the margin z_target − max z_other (Carlini & Wagner 2017), whatever its loss; margins in the
    rows are this margin. `start` gives explicit start points, one per sample. `early_exit=False` continues after a
    success to the end of the budget, as the reference implementations do. `options` are `seed`, `slots` and `device`.

    >>> import brinell
    >>> data = brinell.data.load("demo")[:8]
    >>> rows, images = brinell.attack("demo", data, brinell.L2(1.0), brinell.attacks.APGD(steps=5), images=True)
    >>> rows.num_rows, rows["forwards"].to_pylist()[0] <= 6, tuple(images.shape)
    (8, True, (8, 1, 28, 28))
    """
    execution = Execution.from_options(options, ComputeOptions)
    data, chosen = coerce.as_problem(problem), coerce.as_plan(attack)
    model = coerce.as_classifier(classifier, execution.device, data)
    with precisions.exact(model.device), show_progress(progress) as listener:
        prepared = prepare(model, data, coerce.as_threat(threat), chosen, execution, listener, early_exit=early_exit)
        if images == BEST:
            prepared = _keeping_best(prepared)
        starts = _start_points(start, data)
        aims = None if targets is None else _target_classes(targets, prepared)
        tables, points = [], []
        for chunk in prepared.chunks():
            c, stages, context = prepared.clean(chunk), prepared.stages, prepared.context
            everyone = torch.arange(len(chunk), device=c.logits.device)
            span = slice(chunk.offset, chunk.offset + len(chunk))
            here, aim = (None if each is None else each[span] for each in (starts, aims))
            if aim is not None:
                context, stages, c = _aimed(prepared, c, aim)
            results = [r for s in stages for r in run_stage(context, s, c, everyone, here)]
            table = _in_order([rows.table for _, rows in results], chunk.ids)
            tables.append(table if aim is None else _with_classes(table, prepared.clean(chunk), aim))
            if images:
                points.append(_images(chunk, [rows for _, rows in results]))
    table = pa.concat_tables(tables) if tables else ROWS.empty_table()
    return (table, torch.cat(points)) if images else table


def perturb(
    method: "AnyAttack | Stage", classifier: Any, x: Any, y: Any, threat: Any, *, targeted: bool = False,
    transfer: bool = False, **options: "Unpack[ComputeOptions]",
) -> Tensor:  # fmt: skip
    """Return the adversarial images of an attack, on the device of `x`; inputs that it does not break stay as they are.

    With `targeted=True`, `y` are the target classes. With `transfer=True` the attack uses its whole budget, and every
    input becomes the point of the largest margin, whether it breaks this model or not.

    >>> import brinell
    >>> x, y = brinell.data.load("demo", 8)
    >>> x_adv = perturb(brinell.attacks.PGD(steps=20), "demo", x, y, brinell.Linf(0.1))
    >>> float((x_adv - x).abs().max()) <= 0.1 + 1e-6
    True
    """
    _refuse_threat_keywords(options)
    aims = y if targeted else None
    kept = BEST if transfer else True
    _, images = attack(
        classifier, (x, y), threat, method, targets=aims, images=kept, early_exit=not transfer, **options
    )
    return images.to(x.device) if isinstance(x, Tensor) else images


def _keeping_best(s: PreparedEvaluation) -> PreparedEvaluation:
    """Return the evaluation, which then keeps the best point of every sample; only for attacks of a fixed radius."""
    free = [stage.name for stage in s.stages if stage.attack.minimum_norm]
    if free or s.context.threat.unlimited:
        raise PlanError(
            expected="attacks of a fixed radius, for images that transfer to other models",
            got=", ".join(free) or "a threat without a radius",
            remedy="Use e.g. PGD(steps=20, momentum=1.0) under brinell.Linf('8/255').",
        )
    return replace(s, context=replace(s.context, keep_best=True))


def _refuse_threat_keywords(options: Any) -> None:
    """Refuse `eps` and its like in the call of an attack: the radius belongs to the threat."""
    for name in options:
        if name in ELSEWHERE[RADIUS]:
            raise InputError(expected="the radius in a threat", got=f"{name}={options[name]!r}", remedy=RADIUS)


def _target_classes(targets: Any, s: PreparedEvaluation) -> Tensor:
    """Return one target class per sample, on the device of the model, or raise an InputError."""
    n, classes = len(s.problem), s.first_logits.shape[1]
    aims = (
        torch.as_tensor(targets, device="cpu").expand(n)
        if isinstance(targets, int)
        else torch.as_tensor(targets, device="cpu")
    )
    whole = not (aims.is_floating_point() or aims.dtype == torch.bool)
    if tuple(aims.shape) != (n,) or not whole or not bool(((aims >= 0) & (aims < classes)).all()):
        raise InputError(
            expected=f"one target class per sample, {n} whole numbers in 0..{classes - 1}",
            got=f"{str(aims.dtype).removeprefix('torch.')} of shape {tuple(aims.shape)}"
            + (f", from {int(aims.min())} to {int(aims.max())}" if aims.numel() and whole else ""),
            remedy="Pass e.g. targets=(y + 1) % classes.",
        )
    return aims.to(s.first_logits.device, torch.long)


def _aimed(s: PreparedEvaluation, c: Clean, aims: Tensor) -> tuple[StageContext, Stages, Clean]:
    """Return context, stages and clean predictions for the attack of a chunk at chosen classes (`TargetedClassifier`).

    With two classes the losses DLR and minimum margin become the margin; so does the cross-entropy here, since it
    vanishes where the target is unlikely.
    """
    ids, order = c.chunk.ids.to(aims.device).sort()
    model = TargetedClassifier(s.oracle.classifier, ids, aims[order])
    # Captured graphs belong to the model itself, and so do the sizes of blocks at which its rows do not change.
    oracle = replace(s.oracle, classifier=model, sizes=())
    logits = target_logits(c.logits, aims)
    plan, _ = adapt(s.plan.with_stages(_on_margins), s.context.threat, classes=2, image=c.chunk.x.ndim == 4)
    here = replace(
        c, chunk=replace(c.chunk, y=torch.zeros_like(c.chunk.y)), logits=logits, margin=logits[:, 1] - logits[:, 0]
    )
    return replace(s.context, oracle=oracle, graph_cache=None), plan.stages_for(s.context.threat), here


def _on_margins(stages: Stages) -> Stages:
    return tuple(replace(s, attack=_on_margin(s.attack)) for s in stages)


def _on_margin(a: AnyAttack) -> AnyAttack:
    """Return the attack, and the attacks that it wraps, with the margin as loss in place of the cross-entropy."""
    names = {f.name for f in fields(a)}  # type: ignore[arg-type]
    inner: dict[str, Any] = {part: _on_margin(getattr(a, part)) for part in a.parts if part in names}
    if "loss" in names and a.loss == "ce":
        inner["loss"] = "margin"
    return replace(a, **inner) if inner else a  # type: ignore[type-var]


def _with_classes(table: pa.Table, c: Clean, aims: Tensor) -> pa.Table:
    """Return the rows of an attack at chosen classes with the model's classes in place of the two of the attack."""
    broken = table["broken"].to_numpy(zero_copy_only=False)
    place = {i: k for k, i in enumerate(c.chunk.ids.tolist())}
    at = [place[i] for i in table["sample_id"].to_pylist()]
    aim = aims.cpu().numpy()[at]
    columns = {
        "label": (c.chunk.y.numpy()[at], None),
        "clean_pred": (c.pred.cpu().numpy()[at], None),
        "target": (aim, ~broken),
        "adv_pred": (aim, ~broken),
    }
    for name, (values, mask) in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(
            index, table.schema.field(index), pa.array(values, table.schema.field(index).type, mask)
        )
    return table


def _images(chunk: Chunk, finished: list[FinishedRows]) -> Tensor:
    """Return the chunk's inputs with the adversarials of broken samples in their place."""
    x, place = chunk.x.clone(), {i: k for k, i in enumerate(chunk.ids.tolist())}
    for rows in finished:
        if rows.best is not None:
            x[[place[i] for i in rows.table["sample_id"].to_pylist()]] = torch.from_numpy(rows.best)
        elif rows.ids is not None and rows.x is not None:
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
