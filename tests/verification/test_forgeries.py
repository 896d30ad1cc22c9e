"""A Run that was edited so that its model looks more robust does not pass; the same Run without the edit does."""

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from brinell import InputError, Linf, Problem, Run, RunError, evaluate, review, verify
from brinell.attacks import PGD
from brinell.core.attack import Attack
from brinell.evaluation.certificates.certifiers import call_again
from brinell.evaluation.coerce import as_plan
from brinell.models import smoothed
from brinell.results.format.manifest import attack_hash
from brinell.results.statistics import hidden, sample_size
from brinell.verification.bundle import pack
from brinell.verification.sampling import Rerun, half_interval


def _tool() -> Any:
    place = Path(__file__).parents[2] / "benchmarks" / "fortress_forge.py"
    spec = importlib.util.spec_from_file_location("fortress_forge", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fortress_forge"] = module
    spec.loader.exec_module(module)
    return module


FORGE = _tool()
# Attacks every sample again: what the seed chooses depends on the bytes of the Run, and these on the time of day.
ALL: dict[str, Any] = {"hidden": 1, "confidence": 1 - 1e-9}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return FORGE.World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def forged(world: Any, tmp_path: Path) -> Callable[..., Path]:
    """A function that edits a copy of an honest Run and seals it anew."""

    def make(change: Callable[[Any], Any], name: str = "plain") -> Path:
        copy = FORGE.Copy.of(world.run(name), world.data, random.Random(0), world.reach)
        change(copy)
        copy.save(tmp_path / "forged")
        return tmp_path / "forged"

    return make


@pytest.mark.parametrize("name", FORGE.RUNS)
def test_an_unchanged_copy_passes(name: str, world: Any, tmp_path: Path) -> None:
    FORGE.refuse_faulty(world, tmp_path, name)


def hide_all(copy: Any) -> None:
    copy.hide(copy.broken())


def objections(world: Any, run: Path, **options: Any) -> str:
    found = verify(run, world.net, world.data, **options)
    assert not found.ok
    return " ".join([*found.objections, *found.failures.values()])


def test_hidden_samples_are_found_by_the_default_and_counted(world: Any, forged: Any) -> None:
    run = forged(hide_all)
    told = Run.open(run)
    assert told.robust_accuracy.value == pytest.approx(0.9) and verify(run).ok
    found = verify(run, world.net, world.data, seed=1)
    assert not found.ok and found.again is not None and 0 < found.again.broke == len(found.failures)
    assert set(found.failures.values()) == {"counted as robust, broken when run again"}
    everything = verify(run, world.net, world.data, rerun=FORGE.N)
    honest = Run.open(world.run("plain")).survivors().tolist()
    assert set(everything.failures) == set(told.survivors().tolist()) - set(honest)


@pytest.mark.parametrize("name", ["autoattack-v2", "AutoAttack", "mine"])
def test_a_renamed_plan_is_run_again(name: str, world: Any, forged: Any, tmp_path: Path) -> None:
    def rename(copy: Any) -> None:
        copy.identity["plan"]["name"] = name
        hide_all(copy)

    run = forged(rename)
    assert "broken when run again" in objections(world, run, seed=2)
    pack(Run.open(run), tmp_path / "b.zip")
    assert not review([tmp_path / "b.zip"], world.net, world.data, seed=2).ok


def test_a_known_name_with_other_numbers_is_refused(world: Any, forged: Any) -> None:
    def name(copy: Any) -> None:
        copy.identity["plan"]["name"] = "autoattack"

    said = "other parameters than the built-in plan"
    assert f"{said} autoattack" in objections(world, forged(name))
    assert f"{said} pgd20" in objections(world, forged(lambda copy: copy.stages(steps=200)))
    renamed = forged(lambda copy: copy.identity["plan"].update(name="mine", strength="standard"))
    assert f"{said} pgd20: strength 'standard', not 'weak'" in objections(world, renamed)


@pytest.mark.parametrize("fingerprint", [True, False])
def test_samples_chosen_afterwards_are_noticed(fingerprint: bool, world: Any, forged: Any) -> None:
    run = forged(lambda copy: copy.drop([*copy.broken(), *copy.wrong()], fingerprint=fingerprint))
    assert Run.open(run).robust_accuracy.value == 1
    said = objections(world, run)
    assert "not on the first ones" in said and ("on other data" in said) is not fingerprint


def test_the_first_samples_are_no_choice(world: Any, tmp_path: Path) -> None:
    run = evaluate(world.net, world.data[:20], Linf(FORGE.EPS), "fgsm", out=tmp_path / "run", progress=False)
    found = verify(run, world.net, world.data)
    assert found.ok and "first 20 of the 40 samples" in str(found)
    later = evaluate(world.net, world.data[20:], Linf(FORGE.EPS), "fgsm", out=tmp_path / "later", progress=False)
    assert "not on the first ones" in objections(world, later.path)
    assert verify(later, world.net, world.data[20:]).ok


def test_an_adversarial_that_holds_counts(world: Any, forged: Any) -> None:
    run = forged(FORGE.not_verified)
    uncounted = set(Run.open(run).unverified["sample_id"].to_pylist())
    found = verify(run, world.net, world.data, rerun=0)
    assert uncounted and dict(found.failures) == dict.fromkeys(
        sorted(uncounted), "its stored adversarial holds, and the Run does not count it"
    )


def test_adversarials_said_to_fail_and_not_stored_are_run_again(world: Any, forged: Any) -> None:
    run = forged(FORGE.not_verified_not_stored)
    uncounted = set(Run.open(run).unverified["sample_id"].to_pylist())
    assert uncounted & set(verify(run, world.net, world.data, seed=0).failures)


@pytest.mark.parametrize("judged", [False, True])
def test_several_draws_excuse_no_clean_outcome(judged: bool, world: Any, forged: Any) -> None:
    def several(copy: Any) -> None:
        copy.random = random.Random(0)
        copy.random.random = lambda: 0.0 if judged else 1.0  # type: ignore[method-assign]
        FORGE.draws(copy)

    wrong = [
        r["sample_id"]
        for r in Run.open(world.run("plain")).rows().to_pylist()
        if r["attack"] == "clean" and r["broken"]
    ]
    run = forged(several)
    found = verify(run, world.net, world.data)
    said = " ".join(found.objections)
    assert not found.ok and "draws" in said and set(wrong) <= set(found.failures)
    assert ("were not judged by" in said) is not judged


def test_audit_rows_are_those_that_were_drawn(world: Any, forged: Any) -> None:
    assert "did not attack" in objections(world, forged(FORGE.audit_rows, "audited"))
    unflagged = forged(lambda copy: [row.update(flags=[]) for row in copy.rows], "audited")
    assert "were drawn and are not flagged" in objections(world, unflagged)
    assert verify(world.run("audited"), world.net, world.data, seed=3).ok


def test_made_up_audits_are_run_again_with_the_audit(world: Any, forged: Any) -> None:
    """The short plan misses samples, the audit finds some: rows that say that it finds none else are run again."""
    honest = Run.open(world.run("audited"))
    assert honest.audit is not None and honest.audit.found > 1 and honest.verdict.level == "suspicious"
    for change in (FORGE.escalation, lambda copy: copy.hide([i for i in copy.broken() if i not in short(copy)])):
        told = Run.open(forged(change, "audited"))
        assert told.audit is not None and (told.audit.complete or told.audit.found == 0) and verify(told).ok
        assert "broken when run again" in objections(world, told.path, **ALL)


def short(copy: Any) -> set[int]:
    """The samples that the short plan breaks."""
    return {row["sample_id"] for row in copy.rows if row["attack"] == "short" and row["broken"]}


def test_unfinished_and_merged_runs(world: Any, forged: Any) -> None:
    assert "not finished" in objections(world, forged(FORGE.unfinished))
    for seed in range(4):
        run = forged(
            lambda copy, seed=seed: (setattr(copy, "random", random.Random(seed)), FORGE.parts_dropped(copy)), "merged"
        )
        assert objections(world, run)


def test_checks_cannot_be_left_out(world: Any, forged: Any) -> None:
    run = forged(FORGE.checks_deleted, "scaled")
    found = verify(run, world.model("scaled"), world.data, seed=0)
    assert "The check probabilities finds a problem here, but not in the Run." in found.objections


@pytest.mark.parametrize("kind", ["costs", "larger eps", "labels", "ids exchanged", "clean rows", "predicted classes"])
def test_other_forgeries_are_noticed(kind: str, world: Any, forged: Any) -> None:
    name, change = FORGE.KINDS[kind]
    assert objections(world, forged(change, name), seed=5)


def test_the_attack_that_broke_a_sample_is_run_again(world: Any, forged: Any) -> None:
    """What the audit found is given to the short plan: the verdict would no longer object to it."""
    run = forged(lambda copy: (setattr(copy, "some", lambda ids: ids), FORGE.other_attack(copy)), "audited")
    told = Run.open(run)
    assert told.audit is not None and told.audit.found == 0 and verify(run).ok
    assert "not broken by the attack that the Run says" in objections(world, run, **ALL)


# What `verify` says about certificates that are no proofs, and about layers that did not find what they say.
SAID = {
    "certificates made up": "not when certified again: crown: the bound is not above 0",
    "unknown certifier": "Pass it: brinell.verify(…, certifier=mine)",
    "time of certificates": "again",
    "methods of certificates": "certif",
    "broken samples certified": "both certified and broken",
    "certificates for a larger eps": "not when certified again",
    "radii of certificates": "in the Run, not when certified again, only for 0.016",
    "open samples dropped": "open samples were not tried by",
    "counterexamples hidden": "broken when",
    "layers: margins raised": "counted as robust, broken when run again",
    "layers: hidden samples": "counted as robust, broken when run again",
    "surrogate, hidden samples": "counted as robust, broken when run again",
    "surrogate that does not fit": "No sample was run again",
}


@pytest.mark.parametrize("kind", SAID)
def test_forged_certificates_and_layers_are_noticed(kind: str, world: Any, forged: Any, tmp_path: Path) -> None:
    name, change = FORGE.KINDS[kind]
    run = forged(change, name)
    found = verify(run, world.model(name), world.data, **ALL)
    assert not found.ok and SAID[kind] in " ".join([*found.objections, *found.failures.values()])
    pack(Run.open(run), tmp_path / "b.zip")
    assert not review([tmp_path / "b.zip"], world.model(name), world.data, **ALL).ok


def test_the_check_of_certificates_says_what_it_shows(world: Any) -> None:
    found = verify(world.run("certified"), world.model("certified"), world.data, seed=0)
    assert found.ok
    assert "8 of 19 certified samples certified again (seed 0); 5 or more false ones would be found with 95 %." in str(
        found
    )
    searched = verify(world.run("searched"), world.model("searched"), world.data, rerun=2, seed=0)
    assert "2 of 20 certified samples certified again" in str(searched)
    assert "certified again" not in str(verify(world.run("searched"), world.model("searched"), world.data, rerun=0))


def test_draws_that_nobody_can_repeat_are_refused() -> None:
    net = smoothed(FORGE.Plain(torch.eye(2, 4), torch.zeros(2)), 0.5)
    settings = {"methods": ["smoothing"], "seconds": 1.0, "sigma": 0.5}
    good = {**settings, "select": 9, "n": 99, "alpha": 0.01}
    call = call_again(net, {**good, "hash": attack_hash(good)})
    assert call is not None and (call.certifier.n, call.certifier.alpha) == (99, 0.01)
    for change in ({"n": 10**12}, {"n": True}, {"n": "99"}, {"alpha": 0.5}, {"alpha": None}, {"seconds": -1}):
        bad = {**good, **change}
        with pytest.raises(RunError, match="a certifier with"):
            call_again(net, {**bad, "hash": attack_hash(bad)})
    with pytest.raises(RunError, match="settings that give their hash"):
        call_again(net, {**good, "hash": "0"})


class Unknown(PGD):
    """An attack that only this file knows."""

    @property
    def stored_type(self) -> str:  # type: ignore[override]
        return "NobodyKnows"


def test_a_repetition_that_did_not_happen_is_no_success(world: Any, tmp_path: Path) -> None:
    assert issubclass(Unknown, Attack)
    run = evaluate(world.net, world.data[:8], Linf(FORGE.EPS), [Unknown()], out=tmp_path / "run", progress=False)
    found = verify(run, world.net, world.data[:8])
    assert not found.ok and "No sample was run again" in found.objections[0] and found.again is None
    assert verify(run, world.net, world.data[:8], rerun=0).ok
    assert verify(run, world.net, world.data[:8], plan=[Unknown()]).ok
    assert not verify(run, world.net, world.data[:8], plan=[PGD()]).ok
    assert not review([run.path], world.net, world.data[:8]).ok


def test_the_seed_repeats_the_choice(world: Any) -> None:
    run = world.run("plain")
    first, second = (verify(run, world.net, world.data, seed=9).again for _ in range(2))
    assert first == second and first is not None and first.alike == first.ran < first.population
    fresh = {verify(run, world.net, world.data, rerun=1).again.seed for _ in range(2)}
    assert len(fresh) == 2


@pytest.mark.parametrize("options", [{"rank_by": "malt"}, {"rank_by": "fgsm"}, {"targets": 2}, {"steps": 5}])
def test_plans_with_options_are_built_again(options: dict[str, Any], world: Any, tmp_path: Path) -> None:
    plan = as_plan("mm3", **options)
    run = evaluate(world.net, world.data[:6], Linf(FORGE.EPS), plan, out=tmp_path / "run", progress=False)
    found = verify(run, world.net, world.data[:6], hidden=1)
    assert found.ok and found.again is not None and found.again.alike == found.again.ran > 0


@pytest.mark.parametrize(("population", "marked"), [(21, 6), (500, 25), (500, 1), (30, 30), (9, 4)])
def test_the_size_finds_what_is_stated(population: int, marked: int) -> None:
    """Counted: the share of draws without a marked item is at most 5 %, and with one item fewer it is more."""
    size = sample_size(marked, population)

    def missed(m: int) -> float:
        share = 1.0
        for i in range(m):
            share *= max(0, population - marked - i) / (population - i)
        return share

    assert missed(size) <= 0.05 and (size == 1 or missed(size - 1) > 0.05 - 1e-9)
    assert hidden(0, size, population)[1] == marked - 1 or hidden(0, size, population)[1] < marked
    assert Rerun(population, size).found <= marked


def test_the_default_finds_more_than_the_sampling_error(world: Any) -> None:
    run = Run.open(world.run("plain"))
    found = verify(run, world.net, world.data)
    assert found.again is not None and found.again.found <= half_interval(run.robust_accuracy) == 5
    assert "5 or more wrong ones would have been noticed (95 %)" in str(found)


def test_options_exclude_each_other(world: Any) -> None:
    for options in ({"rerun": 1, "hidden": 1}, {"hidden": 0}, {"rerun": -1}, {"confidence": 1.0}):
        with pytest.raises(InputError):
            verify(world.run("plain"), world.net, world.data, **options)
    with pytest.raises(InputError, match="--data"):
        verify(world.run("plain"), world.net)


def test_a_larger_distance_is_found_without_a_radius(tmp_path: Path, world: Any) -> None:
    """Without a radius the distances are the result; a point farther away is adversarial too."""
    honest = evaluate(
        world.net, world.data[:10], Linf(float("inf")), "minimal-quick", out=tmp_path / "run", progress=False
    )
    assert verify(honest, world.net, world.data[:10]).ok
    copy = FORGE.Copy.of(honest.path, Problem(world.data.x[:10], world.data.y[:10]), random.Random(0))
    FORGE.farther_points(copy)
    copy.save(tmp_path / "forged")
    found = verify(tmp_path / "forged", world.net, world.data[:10], hidden=1)
    assert not found.ok and any("when run again" in why for why in found.failures.values())
