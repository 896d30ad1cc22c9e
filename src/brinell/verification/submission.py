"""Check one submission without trusting it: a bundle, the folder of a Run, or a file of adversarials."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brinell.core.criterion import Criterion
from brinell.core.dataset import Problem
from brinell.core.samples import as_names, id_of
from brinell.core.threat import Threat
from brinell.engine.oracle import Oracle
from brinell.errors import InputError, error_text
from brinell.results import Adversarials, Run
from brinell.results.format.files import joined
from brinell.untrusted import npz_arrays, safetensors_arrays
from brinell.verification.adversarials import CHUNK, first_defects, verify_adversarials
from brinell.verification.attacked import all_contradictions
from brinell.verification.bundle import digest, is_bundle, opened
from brinell.verification.certificates import certify_again
from brinell.verification.plans import other_plan
from brinell.verification.provenance import (
    other_classes,
    other_data,
    other_model,
    others,
    refuse_shapes,
    sample_failures,
    selection,
)
from brinell.verification.randomised import ever_right
from brinell.verification.rerun import run_again
from brinell.verification.result import SHOWN, VerificationFindings, failures, objection
from brinell.verification.sampling import Rerun, RerunSample

ENDS = (".npz", ".safetensors")
# A file may hold points that its attack could not break: these defects are no failures.
NO_CLAIM = ("not misclassified", "not misclassified, or rejected")


@dataclass(frozen=True)
class CheckedSubmission(VerificationFindings):
    """The result of checking one submission: `held` of its `checked` adversarials passed all checks.

    `again` says which survivors of a Run were attacked again and what that shows, None if none were. `root` is the
    hash of the Run.
    """

    name: str
    checked: int
    held: int
    again: Rerun | None = None
    root: str = ""

    @property
    def rerun(self) -> int:
        """The number of samples that were attacked again."""
        return 0 if self.again is None else self.again.ran

    @property
    def alike(self) -> int:
        """How many of the samples that were attacked again gave bit for bit the same rows."""
        return 0 if self.again is None else self.again.alike

    def __str__(self) -> str:
        text = f"{self.name}: {self.held} of {self.checked} adversarials passed"
        if self.again is not None and self.rerun:
            text += f"; {self.again}; {self.alike} with identical rows"
        failed, n = self.first_failures(), len(self.failures)
        text = self.described(text, *([f"Failed: {failed}{f' … {n} in all' if n > SHOWN else ''}."] if n else []))
        return "\n  ".join(filter(None, [text, "" if self.again is None else self.again.reasons]))

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-compatible data, for scripts."""
        listed = {"objections": list(self.objections), "notes": list(self.notes)}
        failed = {str(i): message for i, message in self.failures.items()}
        numbers = {
            "name": self.name,
            "checked": self.checked,
            "held": self.held,
            "rerun": self.rerun,
            "alike": self.alike,
        }
        again = None if self.again is None else self.again.to_json()
        return {**numbers, "again": again, "ok": self.ok, "failures": failed, **listed}


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
        stored = safetensors_arrays(path) if path.suffix == ".safetensors" else npz_arrays(path)
        ids, x = stored["ids"], stored["x"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            expected=f"arrays ids and x in {path.name}",
            got=error_text(error),
            remedy="Save them with numpy.savez(path, ids=ids, x=x).",
        ) from error
    names = as_names(ids)
    ids = ids if names is None else np.array([id_of(name) for name in names], dtype=np.int64)
    whole = np.issubdtype(ids.dtype, np.integer) and ids.ndim == 1
    if not whole or x.dtype != np.float32 or x.ndim == 0 or len(x) != len(ids):
        raise InputError(
            expected="an array of integer ids or names, and an array x in float32 with one input per id",
            got=f"ids {ids.dtype} {ids.shape}, x {x.dtype} {x.shape}",
            remedy="Submit the float32 values that were tested on the model.",
        )
    return Adversarials(ids.astype(np.int64), x)


def _rows(adversarials: Adversarials, data: Problem) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """Yield every chunk that has adversarials, the chunk's rows with adversarials, and the indices of the latter."""
    for chunk in data.chunks(CHUNK):
        at = {i: r for r, i in enumerate(chunk.ids.tolist())}
        which = [k for k, i in enumerate(adversarials.ids.tolist()) if i in at]
        if which:
            rows = torch.tensor([at[int(adversarials.ids[k])] for k in which], dtype=torch.long, device="cpu")
            yield chunk, rows, torch.tensor(which, dtype=torch.long, device="cpu")


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
    sampling: RerunSample,
    progress: bool | None = False,
) -> tuple[CheckedSubmission, Adversarials, Adversarials]:
    """Check a Run; return the result, its valid adversarials, and the adversarials found by running samples again."""
    nothing = Adversarials(np.empty(0, np.int64), np.empty((0, *data.shape()), np.float32))
    if other := others(sample_failures(run, data), run):
        return CheckedSubmission(name, 0, 0, root=digest(run.path), findings=tuple(other)), nothing, nothing
    objections = [*all_contradictions(run), *other_model(run, oracle.classifier), *other_data(run, data)]
    objections += [*selection(run, data), *other_plan(run, threat, oracle, data), *other_classes(run, oracle, data)]
    refuse_shapes(run, data)
    verified = verify_adversarials(run, oracle.classifier, data, threat, oracle)
    failed = {**verified.failures, **sample_failures(run, data, _right(run, oracle, data, samples))}
    adv = run.adversarials()
    keep = np.array([int(i) not in failed and int(i) not in verified.doubtful for i in adv.ids], dtype=bool)
    good = Adversarials(adv.ids[keep], adv.x[keep])
    notes = [finding for finding in verified.findings if finding.level == "info"]
    findings = (*objections, *failures(failed), *notes)
    result = CheckedSubmission(name, verified.checked, len(good.ids), root=digest(run.path), findings=findings)
    if sampling.count == 0 or not result.ok:
        return result, good, nothing
    proofs = certify_again(run, oracle, data, threat, sampling)
    again = run_again(run, oracle, data, threat, sampling, progress)
    found = joined([again.adversarials, proofs.adversarials])
    return replace(result, again=again.rerun, findings=(*findings, *proofs.findings, *again.findings)), good, found


def _right(run: Run, oracle: Oracle, data: Problem, samples: Mapping[int, SampleStatus]) -> dict[int, bool]:
    """Return, by id, whether the model is right on the clean sample (a randomised model: in at least one pass)."""
    draws = run.identity.plan.draws
    wrong = {i for i, status in samples.items() if not status.right} if draws > 1 else set()
    wrong -= ever_right(oracle, data, wrong, draws)
    return {i: status.right if draws == 1 else i not in wrong for i, status in samples.items()}
