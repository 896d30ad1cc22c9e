"""The interface of the README, keyword by keyword."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch import nn

import brinell
from brinell import L2, Linf, PlanError, Problem, Run, attack, attacks, evaluate, plans, verify, wrap
from brinell.models.demo import demo_net
from brinell.models.wrap import TorchClassifier
from brinell.results import ROWS
from brinell.results.verdict import VERDICT_LEVELS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, problem: Problem) -> Run:
    clf = wrap(demo_net(), mean=0.0, std=1.0)
    folder = tmp_path_factory.mktemp("api") / "run"
    whole = Problem(problem.x, problem.y, ids=None)
    return evaluate(clf, whole, threat=Linf("8/255"), plan="pgd20", out=folder, seed=0, progress=False)


def test_calls_as_in_other_libraries_are_told_ours(problem: Problem) -> None:
    net, x, y, pair = demo_net(), problem.x, problem.y, r"evaluate\(net, \(x, y\), brinell\.Linf\(8/255\)"
    guesses: list[tuple[tuple[object, ...], dict[str, object], str]] = [
        ((net, x, y), {"eps": 0.1}, pair), ((net, x, y), {}, pair), ((net, (x, y), "Linf", 0.1), {}, r"Linf\(8/255\)"),
        ((net, (x, y), Linf(0.1)), {"slot": 3}, "Did you mean 'slots'"),
    ]  # fmt: skip
    for given, options, remedy in guesses:
        with pytest.raises(brinell.InputError, match=remedy):
            evaluate(*given, **options)  # type: ignore[arg-type]
    for name, hint in (("load", r"Run\.open"), ("linf", "'Linf'"), ("AutoAttack", "compat")):
        with pytest.raises(AttributeError, match=hint):
            getattr(brinell, name)


def test_a_run_is_opened_by_its_name_too(made: Run, tmp_path: Path, problem: Problem) -> None:
    assert Run(str(made.path)).robust_accuracy == made.robust_accuracy
    assert made.report(tmp_path / "a.json", data=problem).exists()


def test_printed_run_says_everything(made: Run) -> None:
    text = str(made)
    for part in ("clean accuracy", "robust accuracy", "n = 40", "forwards", "backwards", "verdict", "Linf", "8/255"):
        assert part in text
    assert made.sentence() in text
    assert "\n" not in made.sentence()
    assert made.sentence().endswith(".")


def test_robust_accuracy_is_a_number_with_an_interval(made: Run) -> None:
    p = made.robust_accuracy
    assert 0 <= p.low <= float(p) <= p.high <= 1
    assert p.n == 40
    assert float(p) <= float(made.clean_accuracy)
    assert p <= made.clean_accuracy and p > -1 and 2 * p == 2 * float(p) and sorted([2, p])[0] is p
    assert f"{p:.3f}" == f"{float(p):.3f}" and round(p, 3) == round(float(p), 3)
    assert json.loads(json.dumps({"accuracy": p})) == {"accuracy": float(p)}


def test_runs_problems_and_threats_print_and_compare(made: Run, problem: Problem) -> None:
    assert all(text in repr(made) for text in (str(made.path), "Linf 8/255", "pgd20", "finished", "n = 40"))
    assert f"{len(problem)} samples of 1 × 28 × 28" in repr(problem)
    assert Linf("8/255") == Linf(8 / 255) != Linf("4/255") and hash(Linf("8/255")) == hash(Linf(8 / 255))


def test_rows_become_a_frame(made: Run) -> None:
    pytest.importorskip("pandas")
    frame = made.to_pandas()
    assert len(frame) == made.rows().num_rows and list(frame.columns) == made.rows().column_names


def test_rows_are_one_per_sample_and_attack(made: Run) -> None:
    rows = made.rows()
    assert rows.schema.equals(ROWS)
    keys = list(zip(rows["sample_id"].to_pylist(), rows["attack"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    assert {a for _, a in keys} == {"clean", "pgd-ce"}
    clean = rows.filter(pc.equal(rows["attack"], "clean"))
    right = clean.filter(pc.invert(clean["broken"]))["sample_id"].to_pylist()
    assert sorted(i for i, a in keys if a == "pgd-ce") == right


def test_adversarials_have_ids_and_float32_images(made: Run, problem: Problem) -> None:
    adv = made.adversarials()
    assert len(adv.ids) == len(adv.x) > 0
    assert adv.x.dtype == np.float32
    assert adv.x.shape[1:] == (1, 28, 28)
    moved = np.abs(adv.x.astype(np.float64) - problem.x.numpy()[adv.ids]).reshape(len(adv.ids), -1).max(1)
    assert (moved <= 8 / 255 * (1 + 1e-6)).all()
    assert (moved > 0).all()
    fallen = set(range(40)) - set(made.survivors().tolist())
    assert set(adv.ids.tolist()) <= fallen


def test_open_reads_the_same(made: Run) -> None:
    again = Run.open(made.path)
    assert again.rows().equals(made.rows())
    assert str(again) == str(made)


def test_verdict_starts_with_its_level(made: Run) -> None:
    assert str(made.verdict).split(":")[0] in VERDICT_LEVELS


def test_verify_takes_run_or_folder(made: Run, problem: Problem) -> None:
    for run in (made, made.path, str(made.path)):
        result = verify(run, "demo", problem)
        assert result.ok
        assert result.checked == len(made.adversarials().ids)


def test_attack_returns_rows_in_the_order_of_the_problem(problem: Problem) -> None:
    clf = wrap(demo_net())
    some = Problem(problem.x[:12], problem.y[:12], ids=torch.arange(12).flip(0) * 7)
    method = attacks.APGD(steps=100, loss="dlr", quirks=None)
    rows = attack(clf, some, L2(0.5), method, seed=0, slots=None, start=None)
    assert rows.schema.equals(ROWS)
    assert rows["sample_id"].to_pylist() == some.ids.tolist()
    assert set(rows["attack"].to_pylist()) == {"apgd-dlr"}
    assert max(rows["forwards"].to_pylist()) == 101


def test_attack_starts_where_told(problem: Problem) -> None:
    some = problem[:8]
    method = attacks.PGD(steps=1, rel_step=1e-6)
    at_rest = attack("demo", some, Linf(0.1), method, start=some.x)
    labels = demo_net()(some.x).argmax(1)
    assert at_rest["broken"].to_pylist() == (labels != some.y).tolist()
    one = attack("demo", some, Linf(0.1), attacks.APGD(steps=3), start=(some.x + 0.05).clamp(0, 1))
    other = attack("demo", some, Linf(0.1), attacks.APGD(steps=3))
    assert one["best_loss"].to_pylist() != other["best_loss"].to_pylist()


def test_fixed_budget(problem: Problem) -> None:
    rows = attack("demo", problem[:8], Linf(0.1), attacks.APGD(steps=4), early_exit=False)
    assert rows["forwards"].to_pylist() == [5] * 8
    assert rows["backwards"].to_pylist() == [5] * 8


def test_plans_are_names_and_descriptions() -> None:
    assert {"fgsm", "pgd20", "apgd-ce", "apgd"} <= set(plans())
    assert all(isinstance(text, str) and text for text in plans().values())


@pytest.mark.parametrize("model", ["demo", "module", "classifier"])
@pytest.mark.parametrize("data", ["problem", "pair", "list"])
def test_bare_things_are_wrapped(model: str, data: str, problem: Problem) -> None:
    clf = {"demo": "demo", "module": demo_net(), "classifier": wrap(demo_net())}[model]
    x, y = problem.x[:6], problem.y[:6]
    some = {"problem": Problem(x, y), "pair": (x, y), "list": [x, y]}[data]
    run = evaluate(clf, some, Linf(0.1), "fgsm", progress=False)
    assert run.robust_accuracy.n == 6
    assert verify(run, clf, some).ok
    assert attack(clf, some, Linf(0.1), attacks.FGSM()).num_rows == 6


def test_demo_data_by_name() -> None:
    rows = attack("demo", "demo", Linf(0.1), attacks.FGSM(), slots=1000)
    assert rows.num_rows == 1000


def test_numpy_arrays_are_data(problem: Problem) -> None:
    x, y = problem.x.numpy()[:6].astype(np.float64), problem.y.numpy()[:6]
    assert attack("demo", (x, y), Linf(0.1), attacks.FGSM()).num_rows == 6


@pytest.mark.parametrize(
    "chosen",
    [
        attacks.FGSM(),
        [attacks.FGSM(), attacks.PGD(steps=2)],
        brinell.Restarts(attacks.PGD(steps=2), 2),
        brinell.plan([attacks.FGSM()], name="mine"),
    ],
    ids=["attack", "list", "stage", "plan"],
)
def test_what_may_be_a_plan(chosen: object, problem: Problem) -> None:
    assert evaluate("demo", problem[:6], Linf(0.1), chosen, progress=False).finished


def test_without_a_folder_every_run_gets_its_own(problem: Problem) -> None:
    a, b = (evaluate("demo", problem[:4], Linf(0.1), "fgsm", progress=False) for _ in range(2))
    assert a.path != b.path


def test_all_keywords(tmp_path: Path, problem: Problem) -> None:
    run = evaluate(
        demo_net(),
        problem[:32],
        Linf(0.1),
        plan="fgsm",
        out=str(tmp_path / "run"),
        resume=False,
        seed=7,
        slots=5,
        precision="float32",
        device="cpu",
        progress=False,
        expected_clean_accuracy=0.85,
        individual=False,
    )
    identity = run.manifest["identity"]
    assert (identity["seed"], identity["precision"]) == (7, "float32")
    assert set(run.rows()["device"].to_pylist()) == {"cpu"}
    assert set(run.rows()["seed"].to_pylist()) == {7}


def test_slots_change_nothing(problem: Problem, outcome) -> None:
    method = attacks.PGD(steps=4)
    runs = [evaluate("demo", problem, Linf(0.1), method, slots=s, progress=False) for s in (3, 17, None)]
    assert outcome(runs[0].rows()).equals(outcome(runs[1].rows()))
    assert outcome(runs[0].rows()).equals(outcome(runs[2].rows()))


def test_another_seed_is_another_evaluation(problem: Problem) -> None:
    a, b = (evaluate("demo", problem[:16], Linf(0.1), "pgd20", seed=s, progress=False) for s in (0, 1))
    assert a.rows()["best_loss"].to_pylist() != b.rows()["best_loss"].to_pylist()


def test_individual_shows_every_attack_every_correct_sample(problem: Problem) -> None:
    stages = [attacks.PGD(steps=3), attacks.APGD(steps=3)]
    run = evaluate("demo", problem, Linf(0.1), stages, individual=True, progress=False)
    rows = run.rows()
    clean = rows.filter(pc.equal(rows["attack"], "clean"))
    right = clean.filter(pc.invert(clean["broken"]))["sample_id"].to_pylist()
    for name in run.attacks:
        assert rows.filter(pc.equal(rows["attack"], name))["sample_id"].to_pylist() == right
    chain = evaluate("demo", problem, Linf(0.1), stages, progress=False)
    assert chain.rows().num_rows < rows.num_rows
    assert chain.robust_accuracy == run.robust_accuracy
    assert verify(run, "demo", problem).ok


def test_a_model_with_batch_normalisation(problem: Problem) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 5, stride=3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(10))
    net(problem.x)
    run = evaluate(net.eval(), problem[:8], Linf(0.1), "fgsm", progress=False)
    assert run.finished
    assert all(c["level"] == "ok" for c in run.checks if c["name"] == "mixed rows")


def test_per_sample_eps_and_mask(problem: Problem) -> None:
    some, eps = problem[:16], torch.linspace(0.01, 0.2, 16)
    mask = torch.zeros(1, 28, 28, dtype=torch.bool)
    mask[:, :14] = True
    run = evaluate("demo", some, Linf(eps, mask=mask), "pgd20", progress=False)
    adv = run.adversarials()
    moved = np.abs(adv.x - some.x.numpy()[adv.ids])
    assert len(adv.ids)
    assert (moved[:, :, 14:] == 0).all()
    assert (moved.reshape(len(adv.ids), -1).max(1) <= eps.numpy()[adv.ids] * (1 + 1e-5)).all()
    assert verify(run, "demo", some).ok


def test_ids_decide_the_noise(problem: Problem, outcome) -> None:
    whole = evaluate("demo", problem[:12], Linf(0.1), "pgd20", progress=False)
    mixed = Problem(problem.x[[7, 2, 9]], problem.y[[7, 2, 9]], ids=[7, 2, 9])
    part = evaluate("demo", mixed, Linf(0.1), "pgd20", progress=False)
    kept = whole.rows().filter(pc.is_in(whole.rows()["sample_id"], pa.array([7, 2, 9])))
    assert outcome(kept).equals(outcome(part.rows()))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_all_weights_are_read_once_for_the_fingerprint(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    asked, whole = [], TorchClassifier.fingerprint.fget
    assert whole is not None
    monkeypatch.setattr(TorchClassifier, "fingerprint", property(lambda c: asked.append(1) or whole(c)))
    run = evaluate("demo", problem[:4], Linf(0.1), "fgsm", device=device, progress=False)
    assert len(asked) == 1
    assert run.manifest["identity"]["model"]["fingerprint"] == whole(wrap(demo_net()))


def test_the_name_of_a_plan_is_no_list_of_attacks() -> None:
    with pytest.raises(PlanError, match=r"got the text 'fast'\. Pass plan='fast' to brinell.evaluate"):
        brinell.plan("fast")
