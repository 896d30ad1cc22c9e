"""Where the short plan's answer is in doubt, the full plan sees every survivor, and nowhere else."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from brinell import Plan, PlanError, Run, wrap
from brinell.evaluation import run_stage
from brinell.evaluation.plan import audited
from brinell.models.bpda import bpda
from brinell.results import Writer

pytestmark = pytest.mark.usefixtures("unchecked", "few")


def files(folder: Path) -> dict[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    found.pop(".lock", None)
    return found


def attacked(run: Run, name: str) -> set[int]:
    return {r["sample_id"] for r in run.rows().to_pylist() if r["attack"] == name}


def same_adversarials(a: Run, b: Run) -> None:
    one, two = a.adversarials(), b.adversarials()
    assert len(one.ids) > 5
    assert np.array_equal(one.ids, two.ids)
    assert np.array_equal(one.x, two.x)


@pytest.fixture(scope="module")
def doubtful(truth: Any, careless: Plan, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A Run whose audit objects."""
    run = truth.evaluate(careless, out=tmp_path_factory.mktemp("doubtful") / "run")
    assert run.audit.objects
    return run


@pytest.fixture(scope="module")
def escalated(truth: Any, careless: Plan) -> Run:
    return truth.evaluate(careless, escalate=True)


def test_every_survivor_meets_the_full_plan(escalated: Run, truth: Any) -> None:
    left = escalated.survivors().tolist()
    assert set(left) == truth.everyone - truth.breakable
    for name in escalated.attacks:
        assert attacked(escalated, name) >= set(left)
    assert escalated.audit is not None
    assert escalated.audit.complete and not escalated.audit.objects
    assert escalated.audit.missed == 0
    assert escalated.finished
    assert escalated.verdict.level == "reliable", escalated.verdict


def test_the_audit_s_own_numbers_stay(escalated: Run, doubtful: Run) -> None:
    """What the random share told does not change because the others were attacked too."""
    a, b = escalated.audit, doubtful.audit
    assert a is not None and b is not None
    assert (a.survivors, a.audited, a.found, a.at_least) == (b.survivors, b.audited, b.found, b.at_least)
    assert a.rest == 0 < b.rest
    assert a.cost.forwards > b.cost.forwards


def test_escalating_is_asking_for_everything(
    escalated: Run, truth: Any, careless: Plan, outcome: Any, meant: list[str]
) -> None:
    """Sample by sample what a Run with an audit of all survivors gives."""
    whole = truth.evaluate(audited(careless, 1.0))
    assert outcome(escalated, meant).equals(outcome(whole, meant))
    same_adversarials(escalated, whole)
    assert escalated.robust_accuracy == whole.robust_accuracy


@pytest.fixture(scope="module")
def sound(careful: Plan) -> Plan:
    """A plan that misses nothing, with an audit that is large enough to say so."""
    return audited(careful, 0.5)


def test_without_doubt_nothing_more_runs(truth: Any, sound: Plan, outcome: Any) -> None:
    plain, willing = truth.evaluate(sound), truth.evaluate(sound, escalate=True)
    assert plain.audit is not None and plain.audit.found == 0 and plain.audit.rest > 0
    assert plain.verdict.level == "reliable"
    assert outcome(plain).equals(outcome(willing))
    same_adversarials(plain, willing)
    assert all(c["level"] not in ("warn", "fail") for c in willing.checks), "the test tests nothing"


def test_a_finished_run_is_escalated_when_resumed(
    doubtful: Run, escalated: Run, truth: Any, careless: Plan, tmp_path: Path, outcome: Any
) -> None:
    out = tmp_path / "run"
    shutil.copytree(doubtful.path, out)
    before = files(out)
    truth.evaluate(careless, out=out, resume=True)
    assert files(out) == before, "resumed without escalating, it stays as it is"
    run = truth.evaluate(careless, out=out, resume=True, escalate=True)
    grown = ("manifest.json", "checksums.jsonl")
    assert all(files(out)[name] == data for name, data in before.items() if name not in grown)
    assert files(out)["checksums.jsonl"].startswith(before["checksums.jsonl"])
    assert run.finished
    assert outcome(run).equals(outcome(escalated))
    same_adversarials(run, escalated)
    after = files(out)
    truth.evaluate(careless, out=out, resume=True, escalate=True)
    assert files(out) == after, "there is nothing left to do"


def test_an_audit_that_is_too_small_is_doubt_enough(truth: Any, careful: Plan) -> None:
    """Nothing was found, but too few were looked at to say so."""
    plan = audited(careful, 0.05)
    plain = truth.evaluate(plan)
    assert plain.audit is not None and plain.audit.found == 0
    assert "too small" in str(plain.verdict)
    run = truth.evaluate(plan, escalate=True)
    assert run.audit is not None and run.audit.complete
    assert run.verdict.level == "reliable", run.verdict
    assert run.survivors().tolist() == plain.survivors().tolist()


def test_a_finished_run_without_doubt_stays(truth: Any, sound: Plan, tmp_path: Path) -> None:
    truth.evaluate(sound, out=tmp_path / "run")
    before = files(tmp_path / "run")
    truth.evaluate(sound, out=tmp_path / "run", resume=True, escalate=True)
    assert files(tmp_path / "run") == before


class Interrupted(Exception):  # noqa: N818
    pass


def interrupted(patch: pytest.MonkeyPatch, k: int) -> None:
    """Let the writer fail after k shards."""
    append, left = Writer.append, [k]

    def failing(self: Writer, *args: Any) -> None:
        if not left[0]:
            raise Interrupted
        left[0] -= 1
        append(self, *args)

    patch.setattr(Writer, "append", failing)


def shards(run: Run) -> int:
    return len(list((run.path / "rows").glob("[!.]*.parquet")))


@pytest.mark.parametrize("more", [1, 3])
def test_an_interrupted_escalation_goes_on(
    more: int, escalated: Run, truth: Any, careless: Plan, tmp_path: Path, outcome: Any
) -> None:
    """Torn while the full plan runs on the rest, after so many shards of it; resumed with other slots."""
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 10)
        before = shards(truth.evaluate(careless, out=tmp_path / "plain", slots=7))
        with pytest.MonkeyPatch.context() as inner:
            interrupted(inner, before + more)
            with pytest.raises(Interrupted):
                truth.evaluate(careless, out=out, slots=7, escalate=True)
        torn = Run.open(out)
        assert not torn.finished
        assert torn.audit is not None and escalated.audit is not None
        assert torn.rows().num_rows < escalated.rows().num_rows
        assert torn.audit.audited == escalated.audit.audited
        assert torn.audit.rest > 0
        assert "upper bound" in str(torn.verdict)
        run = truth.evaluate(careless, out=out, slots=32, resume=True, escalate=True)
    assert run.finished
    assert outcome(run).equals(outcome(escalated))
    same_adversarials(run, escalated)
    assert run.audit is not None and run.audit.complete


def test_an_escalation_that_is_given_up_says_so(truth: Any, careless: Plan, tmp_path: Path) -> None:
    """Resumed without escalating, a torn one is finished as far as it came; the audit still objects."""
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 10)
        before = shards(truth.evaluate(careless, out=tmp_path / "plain"))
        with pytest.MonkeyPatch.context() as inner:
            interrupted(inner, before + 2)
            with pytest.raises(Interrupted):
                truth.evaluate(careless, out=out, escalate=True)
    run = truth.evaluate(careless, out=out, resume=True)
    assert run.finished
    assert run.audit is not None and run.audit.objects
    assert run.verdict.level == "suspicious"


class Half(nn.Module):
    """Logits of another model, beside a weight in half precision that changes nothing: a check warns."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float16), False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def test_a_check_that_warns_is_doubt_enough(truth: Any, sound: Plan) -> None:
    model = wrap(Half(truth.world.weight, truth.world.bias).eval())
    plain = truth.evaluate(sound, model=model)
    assert [c["name"] for c in plain.checks if c["level"] == "warn"] == ["half-precision weights"]
    assert plain.audit is not None and not plain.audit.objects and plain.audit.rest > 0
    assert "audit" not in str(plain.verdict)
    run = truth.evaluate(sound, model=model, escalate=True)
    assert run.audit is not None and run.audit.complete
    assert run.survivors().tolist() == plain.survivors().tolist()
    for name in run.attacks:
        assert attacked(run, name) >= set(run.survivors().tolist())


class Bent(Half):
    """The same logits with a backward pass that the user replaced: the gradients of another model."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight, bias)
        self.unused = None
        self.bent = bpda(nn.Identity(), lambda x: x.flip(1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.bent(x), self.weight, self.bias)


def test_replaced_gradients_are_doubt_enough(truth: Any, sound: Plan) -> None:
    model = wrap(Bent(truth.world.weight, truth.world.bias).eval())
    run = truth.evaluate(sound, model=model, escalate=None)
    assert [c["level"] for c in run.checks if c["name"] == "finite differences"] == ["info"]
    assert run.audit is not None and run.audit.complete
    assert any(note.startswith("Replaced gradients are not those of the model") for note in run.notes)
    held = truth.evaluate(sound, model=model)
    assert "Replaced gradients (bpda)" in str(held.verdict) and held.verdict.level != "reliable"


def test_plans_without_an_audit_have_nothing_to_escalate(truth: Any, careful: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a plan with an audit, for escalate"):
        truth.evaluate(audited(careful, 0), escalate=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_audit_has_looked_at_fewer(truth: Any, careless: Plan, doubtful: Run, tmp_path: Path) -> None:
    """Only who fell or met all of it counts as audited; what an unfinished audit has found is no less true."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 10)
        last = shards(truth.evaluate(careless, out=tmp_path / "plain")) - 1
        interrupted(patch, last)
        with pytest.raises(Interrupted):
            truth.evaluate(careless, out=tmp_path / "run")
    torn = Run.open(tmp_path / "run")
    rows = torn.rows().to_pylist()
    seen = {name: {r["sample_id"] for r in rows if r["attack"] == name} for name in torn.attacks[1:]}
    fell = {r["sample_id"] for r in rows if r["broken"] and r["attack"] in seen}
    assert torn.audit is not None and doubtful.audit is not None
    assert torn.audit.audited == len(set.intersection(*seen.values()) | fell)
    assert torn.audit.audited < doubtful.audit.audited
    assert torn.audit.found == len(fell)


def test_samples_in_several_chunks(
    escalated: Run, truth: Any, careless: Plan, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second passage over the data finds what the first one stored, chunk by chunk."""
    monkeypatch.setattr(sys.modules["brinell.evaluation.context"], "CHUNK", 25)
    assert outcome(truth.evaluate(careless, escalate=True)).equals(outcome(escalated))
