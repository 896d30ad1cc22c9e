"""One submission of somebody else, checked from the ground up: a bundle, a Run, or a file of any attack's finds."""

import hashlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from brinell.attacks.catalogue import by_name
from brinell.core.criterion import Criterion
from brinell.core.dataset import Problem
from brinell.core.model import Classifier
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.engine.precision import FLOAT32
from brinell.errors import InputError, ModelError, PlanError, error_text
from brinell.evaluation.evaluate import evaluate
from brinell.evaluation.plan import audited
from brinell.results import Adversarials, Run, row_queries
from brinell.results.format.manifest import differences
from brinell.results.row_queries import INCIDENTAL
from brinell.verification.adversarials import reasons, recheck
from brinell.verification.bundle import MEMBER_BYTES, digest, is_bundle, opened
from brinell.verification.consistency import BOX, contradictions
from brinell.verification.provenance import CHUNK, facts, foreign, other_data, refuse_shapes
from brinell.verification.randomised import ever_right, fallen

ENDS = (".npz", ".safetensors")
# Checks whose outcome does not depend on which samples are looked at: they must not be better than here.
STEADY = ("train mode", "probabilities", "mixed rows", "randomised", "optimisation in forward")
# Of an image that fails for this reason nothing is claimed: attacks hand in what they could not break, too.
NO_CLAIM = ("not misclassified", "not misclassified, or rejected")


@dataclass(frozen=True)
class CheckedSubmission:
    """One submission: how many of its adversarials hold, what is wrong with which sample, and what else is wrong.

    `rerun` samples of a Run were attacked again, of `alike` of them every row came out the same to the bit; `root` is
    the hash of the Run.
    """

    name: str
    checked: int
    held: int
    failures: Mapping[int, str] = field(default_factory=dict)
    objections: tuple[str, ...] = ()
    rerun: int = 0
    alike: int = 0
    notes: tuple[str, ...] = ()
    root: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything that is claimed holds."""
        return not self.failures and not self.objections

    def __str__(self) -> str:
        text = f"{self.name}: {self.held} of {self.checked} adversarials hold"
        if self.rerun:
            text += f"; {self.rerun} samples run again, {self.alike} alike to the bit"
        some = [f"sample {i} ({why})" for i, why in list(self.failures.items())[:5]]
        more = f" … {len(self.failures)} in all" if len(self.failures) > 5 else ""
        bad = [*self.objections, *([f"Failed: {', '.join(some)}{more}."] if some else [])]
        told = [*([f"Refused: {' '.join(bad)}"] if bad else []), *self.notes]
        return ". ".join([text, " ".join(told)]) if told else text


@dataclass(frozen=True)
class SampleStatus:
    """What is known of one sample: whether the clean input is right, and the nearest adversarial that holds."""

    id: int
    label: int
    right: bool
    distance: float | None = None
    by: str | None = None

    @property
    def standing(self) -> bool:
        """Whether nobody has broken it."""
        return self.right and self.by is None


def open_submission(path: Path, stack: ExitStack) -> "Run | Adversarials":
    """What a path holds; a bundle is unpacked for as long as the stack lasts."""
    if is_bundle(path):
        return stack.enter_context(opened(path))
    if path.is_dir():
        return Run.open(path)
    if path.suffix in ENDS and path.is_file():
        return _file(path)
    raise InputError(
        expected="a bundle of brinell submit, the folder of a Run, or a .npz or .safetensors file with ids and x",
        got=str(path) if path.exists() else f"{path}, which does not exist",
        remedy="Check the path.",
    )


def _file(path: Path) -> Adversarials:
    try:
        stored = dict(load_file(path)) if path.suffix == ".safetensors" else _npz(path)
        ids, x = stored["ids"], stored["x"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, SafetensorError) as error:
        raise InputError(
            expected=f"arrays ids and x in {path.name}",
            got=error_text(error),
            remedy="Save them with numpy.savez(path, ids=ids, x=x).",
        ) from error
    whole = np.issubdtype(ids.dtype, np.integer) and ids.ndim == 1
    if not whole or x.dtype != np.float32 or len(x) != len(ids):
        raise InputError(
            expected="ids (whole numbers, one each) and as many x in float32, in [0, 1]",
            got=f"ids {ids.dtype} {ids.shape}, x {x.dtype} {x.shape}",
            remedy="Hand in the very float32 values that were tested on the model.",
        )
    return Adversarials(ids.astype(np.int64), x)


def _npz(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        large = [e.filename for e in archive.infolist() if e.file_size > MEMBER_BYTES]
    if large:
        raise ValueError(f"{large[0]} has more than {MEMBER_BYTES:,} bytes")
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in ("ids", "x")}


def _rows(adversarials: Adversarials, data: Problem) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Chunk by chunk: the chunk, its rows that have adversarials, and which ones; a sample may have several."""
    for chunk in data.chunks(CHUNK):
        at = {i: r for r, i in enumerate(chunk.ids.tolist())}
        which = [k for k, i in enumerate(adversarials.ids.tolist()) if i in at]
        if which:
            rows = torch.tensor([at[int(adversarials.ids[k])] for k in which])
            yield chunk, rows, torch.tensor(which)


def distances(adversarials: Adversarials, data: Problem, threat: Threat) -> Iterator[tuple[int, float]]:
    """The id and the distance in float64 of every adversarial."""
    for chunk, rows, which in _rows(adversarials, data):
        x = torch.from_numpy(adversarials.x[which.numpy()])
        ball = threat.ball(rows + chunk.offset, x.device)
        yield from zip(chunk.ids[rows].tolist(), ball.distance(chunk.x[rows], x).tolist(), strict=True)


def check_file(
    name: str,
    given: Adversarials,
    oracle: Oracle,
    data: Problem,
    threat: Threat,
    criterion: Criterion,
    draws: int,
    samples: Mapping[int, SampleStatus],
) -> tuple[dict[str, Adversarials], CheckedSubmission]:
    """The adversarials of a file that hold, and what was found about all of them."""
    if tuple(given.x.shape[1:]) != data.shape():
        raise InputError(
            expected=f"adversarials of shape {data.shape()}", got=f"{given.x.shape[1:]} in {name}", remedy="Check x."
        )
    device = oracle.classifier.device
    good: list[int] = []
    failures: dict[int, str] = {}
    for chunk, rows, which in _rows(given, data):
        for at, k in zip(rows.split(CHUNK), which.split(CHUNK), strict=True):
            x, x0, y = torch.from_numpy(given.x[k.numpy()]).to(device), chunk.x[at].to(device), chunk.y[at].to(device)
            said = reasons(threat.ball(at + chunk.offset, device), criterion, oracle, x0, x, y, y, draws)
            good += [row for row, why in zip(k.tolist(), said, strict=True) if not why]
            found = zip(chunk.ids[at].tolist(), said, strict=True)
            failures |= {i: why for i, why in found if why and why not in NO_CLAIM}
    unknown = sorted(set(given.ids.tolist()) - set(samples))
    objections = (f"{len(unknown)} ids are of no sample of the data, the first is {unknown[0]}.",) if unknown else ()
    part = CheckedSubmission(name, len(given.ids), len(good), failures, objections)
    return {name: Adversarials(given.ids[good], given.x[good])}, part


def check_run(
    name: str,
    run: Run,
    oracle: Oracle,
    data: Problem,
    threat: Threat,
    samples: Mapping[int, SampleStatus],
    rerun: int,
    seed: int,
) -> tuple[CheckedSubmission, Adversarials, Adversarials]:
    """A Run: its adversarials that hold, those of the samples that were run again, and all that is wrong with it."""
    objections = [*contradictions(run), *foreign(run, oracle.classifier), *other_data(run, data)]
    refuse_shapes(run, data)
    found = recheck(run, oracle.classifier, data, threat, oracle)
    failures = {**found.failures, **facts(run, data, _right(run, oracle, data, samples))}
    adv = run.adversarials()
    keep = np.array([int(i) not in failures and int(i) not in found.doubtful for i in adv.ids], dtype=bool)
    good = Adversarials(adv.ids[keep], adv.x[keep])
    root = digest(run.path)
    part = CheckedSubmission(
        name, found.checked, len(good.ids), failures, tuple(objections), notes=found.notes, root=root
    )
    none = Adversarials(adv.ids[:0], adv.x[:0])
    if not rerun or not part.ok:
        return part, good, none
    try:
        plan = _plan_of(run)
    except PlanError:
        said = f"The plan {run.identity.plan.name} is none of Brinell's: nothing was run again."
        return replace(part, notes=(*part.notes, said)), good, none
    ids = _chosen(run, rerun, seed)
    with tempfile.TemporaryDirectory(prefix="brinell-again-") as folder:
        try:
            again = _again(run, oracle.classifier, data, threat, plan, ids, Path(folder) / "run")
        except ModelError as error:
            if any(samples[i].right for i in ids):
                raise
            # None of these few gets an answer that could be attacked, which says nothing about the model.
            return replace(part, notes=(*part.notes, f"Nothing was run again: {error}")), good, none
        return _compared(part, run, again), good, again.adversarials()


def _plan_of(run: Run) -> Plan:
    """The plan of that name with an audit as large as the Run's, which is its maker's choice; the verdict judges it."""
    plan = by_name(run.identity.plan.name)
    if not plan.has_audit:
        return plan
    shares = [stage.share for stage in run.identity.plan.stages if stage.share is not None]
    return audited(plan, shares[0] if shares and 0 < shares[0] <= 1 else 0)


def _right(run: Run, oracle: Oracle, data: Problem, samples: Mapping[int, SampleStatus]) -> dict[int, bool]:
    """Whether the model is right about every clean input; a randomised one is where it ever is."""
    draws = run.identity.plan.draws
    wrong = {i for i, known in samples.items() if not known.right} if draws > 1 else set()
    wrong -= ever_right(oracle, data, wrong, draws)
    return {i: known.right if draws == 1 else i not in wrong for i, known in samples.items()}


def _chosen(run: Run, count: int, seed: int) -> list[int]:
    """The samples to run again: by a hash that neither side can steer, of this seed, the Run and the sample."""
    key = f"{seed}/{digest(run.path)}"
    ids = row_queries.samples(run.numbers()).tolist()
    return sorted(sorted(ids, key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())[:count])


def _again(run: Run, model: Classifier, data: Problem, threat: Threat, plan: Any, ids: list[int], folder: Path) -> Run:
    """The same evaluation of some samples; a sample's outcome does not depend on the others."""
    parts = []
    for chunk in data.chunks(CHUNK):
        rows = torch.tensor([r for r, i in enumerate(chunk.ids.tolist()) if i in set(ids)], dtype=torch.long)
        parts.append((chunk.x[rows], chunk.y[rows], chunk.ids[rows], rows + chunk.offset))
    x, y, own, places = (torch.cat(column) for column in zip(*parts, strict=True))
    return evaluate(
        model,
        Problem(x, y, own, name=data.name),
        threat.subset(places),
        plan,
        out=folder,
        seed=run.identity.seed or 0,
        # Lower precisions steer alike only where they exist.
        precision=(run.identity.precision or FLOAT32) if model.device.type == "cuda" else FLOAT32,
        individual=run.identity.individual,
        progress=False,
    )


def _compared(part: CheckedSubmission, run: Run, again: Run) -> CheckedSubmission:
    """What the samples that were run again say about the Run."""
    ids = row_queries.samples(again.numbers())
    objections, failures, notes = list(part.objections), dict(part.failures), list(part.notes)
    other = differences(*(_terms(r) for r in (run, again)))
    if any(field.startswith("plan") for field in other):
        objections.append(f"Its plan has other numbers than {again.identity.plan.name} has here.")
    objections += [f"Its {k} is {str(other[k][0])[:60]}, not {other[k][1]}." for k in ("goal", "box") if k in other]
    stood = set(ids.tolist()) & set(run.survivors().tolist())
    fell = sorted(stood - set(again.survivors().tolist()))
    if _random(again):
        wrong, explained = fallen(len(fell), len(stood))
        objections, notes = [*objections, *wrong], [*notes, *explained]
    else:
        failures |= dict.fromkeys(fell, "counted as robust, broken when run again")
    objecting = {check.name for check in run.findings if check.level in ("warn", "fail")}
    for check in again.findings:
        if check.name in STEADY and check.level in ("warn", "fail") and check.name not in objecting:
            objections.append(f"The check {check.name} objects here and not in the Run.")
    alike = sum(_outcome(run, int(i)) == _outcome(again, int(i)) for i in ids)
    part = replace(part, failures=failures, objections=tuple(objections), notes=tuple(notes))
    return replace(part, rerun=len(ids), alike=alike)


def _random(run: Run) -> bool:
    """Whether the plan judges by several passes, and the model answered differently."""
    steady = any(check.name == "randomised" and check.level == "info" for check in run.findings)
    return run.identity.plan.draws > 1 and not steady


def _terms(run: Run) -> dict[str, Any]:
    """What an evaluation of other samples has in common with this one, as far as outcome and verdict follow from it."""
    identity = run.identity
    plan = {"draws": 1, **{k: v for k, v in identity.plan.raw.items() if k in ("stages", "strength", "draws")}}
    box = BOX if identity.threat.box is None else identity.threat.box
    return {"plan": plan, "goal": identity.criterion, "box": box}


def _outcome(run: Run, id: int) -> str:
    """The rows of one sample without what may differ between two equal evaluations."""
    rows = run.rows().filter(row_queries.ids_of(run.rows()) == id)
    return repr(rows.drop_columns([c for c in INCIDENTAL if c in rows.column_names]).to_pylist())
