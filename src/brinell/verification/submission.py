"""Check one submission without trusting it: a bundle, the folder of a Run, or a file of adversarials."""

import hashlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
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
from brinell.verification.adversarials import CHUNK, first_defects, verify_adversarials
from brinell.verification.bundle import MEMBER_BYTES, digest, is_bundle, opened
from brinell.verification.consistency import BOX, contradictions
from brinell.verification.provenance import other_data, other_model, refuse_shapes, sample_failures
from brinell.verification.randomised import broken_again, ever_right
from brinell.verification.result import SHOWN, VerificationFindings, failures, note, objection

ENDS = (".npz", ".safetensors")
# The outcome of these checks does not depend on the samples: they must not be better in the Run than here.
MODEL_CHECKS = ("train mode", "probabilities", "mixed rows", "randomised", "optimisation in forward")
# A file may hold points that its attack could not break: these defects are no failures.
NO_CLAIM = ("not misclassified", "not misclassified, or rejected")


@dataclass(frozen=True)
class CheckedSubmission(VerificationFindings):
    """The result of checking one submission: `held` of its `checked` adversarials passed all checks.

    `rerun` samples of a Run were attacked again; `alike` of them gave bit for bit the same rows. `root` is the hash of
    the Run.
    """

    name: str
    checked: int
    held: int
    rerun: int = 0
    alike: int = 0
    root: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.held} of {self.checked} adversarials passed"
        if self.rerun:
            text += f"; {self.rerun} samples run again, {self.alike} with identical rows"
        failed, n = self.first_failures(), len(self.failures)
        return self.described(text, *([f"Failed: {failed}{f' … {n} in all' if n > SHOWN else ''}."] if n else []))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data, for scripts."""
        listed = {"objections": list(self.objections), "notes": list(self.notes)}
        failed = {str(i): message for i, message in self.failures.items()}
        numbers = {k: v for k, v in vars(self).items() if k not in ("findings", "root")}
        return {**numbers, "ok": self.ok, "failures": failed, **listed}


@dataclass(frozen=True)
class SampleStatus:
    """The status of one sample: whether its clean prediction is `right`, and the `distance` of its nearest adversarial.

    `by` names the submission with this adversarial; None if no submission breaks the sample.
    """

    id: int
    label: int
    right: bool
    distance: float | None = None
    by: str | None = None

    @property
    def standing(self) -> bool:
        """Whether the clean prediction is right and no submission breaks the sample."""
        return self.right and self.by is None


def open_submission(path: Path, stack: ExitStack) -> "Run | Adversarials":
    """Return the Run or the adversarials at a path; an unpacked bundle is removed when the stack closes."""
    if is_bundle(path):
        return stack.enter_context(opened(path))
    if path.is_dir():
        return Run.open(path)
    if path.suffix in ENDS and path.is_file():
        return _read_adversarials(path)
    raise InputError(
        expected="a bundle of brinell submit, the folder of a Run, or a .npz or .safetensors file with ids and x",
        got=str(path) if path.exists() else f"{path}, which does not exist",
        remedy="Pass the path of such a file or folder.",
    )


def _read_adversarials(path: Path) -> Adversarials:
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
            expected="an array of integer ids, and an array x in float32 with one input per id",
            got=f"ids {ids.dtype} {ids.shape}, x {x.dtype} {x.shape}",
            remedy="Submit the float32 values that were tested on the model.",
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
    """Yield every chunk that has adversarials, the chunk's rows with adversarials, and the indices of the latter."""
    for chunk in data.chunks(CHUNK):
        at = {i: r for r, i in enumerate(chunk.ids.tolist())}
        which = [k for k, i in enumerate(adversarials.ids.tolist()) if i in at]
        if which:
            rows = torch.tensor([at[int(adversarials.ids[k])] for k in which])
            yield chunk, rows, torch.tensor(which)


def distances(adversarials: Adversarials, data: Problem, threat: Threat) -> Iterator[tuple[int, float]]:
    """Yield the id and the float64 distance of every adversarial."""
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
    """Check a file of adversarials; return its valid adversarials, in a dict with the key `name`, and the result."""
    if tuple(given.x.shape[1:]) != data.shape():
        raise InputError(
            expected=f"adversarials of shape {data.shape()}",
            got=f"adversarials of shape {given.x.shape[1:]} in {name}",
            remedy="Save x in the shape of the data, one input per id.",
        )
    device = oracle.classifier.device
    good: list[int] = []
    failed: dict[int, str] = {}
    for chunk, rows, which in _rows(given, data):
        for at, k in zip(rows.split(CHUNK), which.split(CHUNK), strict=True):
            x, x0, y = torch.from_numpy(given.x[k.numpy()]).to(device), chunk.x[at].to(device), chunk.y[at].to(device)
            defects = first_defects(threat.ball(at + chunk.offset, device), criterion, oracle, x0, x, y, y, draws)
            good += [row for row, defect in zip(k.tolist(), defects, strict=True) if not defect]
            by_id = zip(chunk.ids[at].tolist(), defects, strict=True)
            failed |= {i: defect for i, defect in by_id if defect and defect not in NO_CLAIM}
    unknown = sorted(set(given.ids.tolist()) - set(samples))
    message = f"{len(unknown)} ids belong to no sample of the data, the first is {unknown[0]}." if unknown else ""
    findings = (*([objection("ids", message)] if unknown else []), *failures(failed))
    result = CheckedSubmission(name, len(given.ids), len(good), findings=findings)
    return {name: Adversarials(given.ids[good], given.x[good])}, result


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
    """Check a Run; return the result, its valid adversarials, and the adversarials found by running samples again."""
    objections = [*contradictions(run), *other_model(run, oracle.classifier), *other_data(run, data)]
    refuse_shapes(run, data)
    verified = verify_adversarials(run, oracle.classifier, data, threat, oracle)
    failed = {**verified.failures, **sample_failures(run, data, _right(run, oracle, data, samples))}
    adv = run.adversarials()
    keep = np.array([int(i) not in failed and int(i) not in verified.doubtful for i in adv.ids], dtype=bool)
    good = Adversarials(adv.ids[keep], adv.x[keep])
    notes = [finding for finding in verified.findings if finding.level == "info"]
    findings = (*objections, *failures(failed), *notes)
    result = CheckedSubmission(name, verified.checked, len(good.ids), root=digest(run.path), findings=findings)
    none = Adversarials(adv.ids[:0], adv.x[:0])
    if not rerun or not result.ok:
        return result, good, none
    try:
        plan = _plan_of(run)
    except PlanError:
        message = f"The plan {run.identity.plan.name} is not built into Brinell, so no sample was run again."
        return replace(result, findings=(*findings, note("run again", message))), good, none
    ids = _chosen_ids(run, rerun, seed)
    with tempfile.TemporaryDirectory(prefix="brinell-again-") as folder:
        try:
            again = _run_again(run, oracle.classifier, data, threat, plan, ids, Path(folder) / "run")
        except ModelError as error:
            if any(samples[i].right for i in ids):
                raise
            # The model answers none of these few samples correctly: nothing can be attacked.
            message = f"No sample was run again: {error}"
            return replace(result, findings=(*findings, note("run again", message))), good, none
        return _compare_again(result, run, again), good, again.adversarials()


def _plan_of(run: Run) -> Plan:
    """Return the built-in plan that the Run names, with the Run's share of audited samples."""
    plan = by_name(run.identity.plan.name)
    if not plan.has_audit:
        return plan
    shares = [stage.share or 0.0 for stage in run.identity.plan.stages if stage.is_audit]
    return audited(plan, shares[0] if shares and 0 < shares[0] <= 1 else 0)


def _right(run: Run, oracle: Oracle, data: Problem, samples: Mapping[int, SampleStatus]) -> dict[int, bool]:
    """Return, by id, whether the model is right on the clean sample (a randomised model: in at least one pass)."""
    draws = run.identity.plan.draws
    wrong = {i for i, status in samples.items() if not status.right} if draws > 1 else set()
    wrong -= ever_right(oracle, data, wrong, draws)
    return {i: status.right if draws == 1 else i not in wrong for i, status in samples.items()}


def _chosen_ids(run: Run, count: int, seed: int) -> list[int]:
    """Return `count` ids to run again, by a hash of seed, Run and id; neither author nor reviewer can influence it."""
    key = f"{seed}/{digest(run.path)}"
    ids = row_queries.samples(run.numbers()).tolist()
    return sorted(sorted(ids, key=lambda i: hashlib.sha256(f"{key}/{i}".encode()).digest())[:count])


def _run_again(
    run: Run, model: Classifier, data: Problem, threat: Threat, plan: Any, ids: list[int], folder: Path
) -> Run:
    """Evaluate the samples `ids` again with the Run's settings, into `folder`, and return the new Run."""
    columns = []
    for chunk in data.chunks(CHUNK):
        rows = chunk.rows_of(set(ids))
        columns.append((chunk.x[rows], chunk.y[rows], chunk.ids[rows], rows + chunk.offset))
    x, y, sample_ids, index = (torch.cat(column) for column in zip(*columns, strict=True))
    return evaluate(
        model,
        Problem(x, y, sample_ids, name=data.name),
        threat.subset(index),
        plan,
        out=folder,
        seed=run.identity.seed or 0,
        # A CPU has no lower precision.
        precision=(run.identity.precision or FLOAT32) if model.device.type == "cuda" else FLOAT32,
        individual=run.identity.individual,
        progress=False,
    )


def _compare_again(result: CheckedSubmission, run: Run, again: Run) -> CheckedSubmission:
    ids = row_queries.samples(again.numbers())
    findings = list(result.findings)
    other = differences(*(_comparable(r) for r in (run, again)))
    if any(field.startswith("plan") for field in other):
        message = f"The Run's plan has other parameters than the built-in plan {again.identity.plan.name}."
        findings.append(objection("plan", message))
    findings += [
        objection(key, f"The Run's {key} is {str(other[key][0])[:60]}, not {other[key][1]}.")
        for key in ("goal", "box")
        if key in other
    ]
    survivors = set(ids.tolist()) & set(run.survivors().tolist())
    broke = sorted(survivors - set(again.survivors().tolist()))
    if again.randomised:
        findings += broken_again(len(broke), len(survivors))
    else:
        findings += failures(dict.fromkeys(broke, "counted as robust, broken when run again"))
    objecting = {check.name for check in run.findings if check.level in ("warn", "fail")}
    for check in again.findings:
        if check.name in MODEL_CHECKS and check.level in ("warn", "fail") and check.name not in objecting:
            findings.append(objection(check.name, f"The check {check.name} finds a problem here, but not in the Run."))
    alike = sum(_outcome(run, int(i)) == _outcome(again, int(i)) for i in ids)
    return replace(result, rerun=len(ids), alike=alike, findings=tuple(findings))


def _comparable(run: Run) -> dict[str, Any]:
    """Return the settings that must be equal when some samples are evaluated again: plan, criterion and box."""
    identity = run.identity
    plan = {"draws": 1, **{k: v for k, v in identity.plan.raw.items() if k in ("stages", "strength", "draws")}}
    box = BOX if identity.threat.box is None else identity.threat.box
    return {"plan": plan, "goal": identity.criterion, "box": box}


def _outcome(run: Run, id: int) -> str:
    """Return the rows of one sample as text, without columns such as seconds that differ between equal evaluations."""
    rows = run.rows().filter(row_queries.ids_of(run.rows()) == id)
    return repr(rows.drop_columns([c for c in INCIDENTAL if c in rows.column_names]).to_pylist())
