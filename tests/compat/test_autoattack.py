"""The original's class: its constructor, calls and attributes, on Brinell's engine."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config
from torch import Tensor, nn

import brinell
from brinell import InputError, Linf, PlanError, Run, evaluate
from brinell.compat.autoattack import APGDAttack, APGDAttack_targeted, AutoAttack, FABAttack_PT, SquareAttack
from brinell.evaluation import run_stage
from brinell.models.demo import demo_net
from brinell.results import Writer

N, EPS = 24, 0.15


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """No checks of shapes at run time: other tests make them on the same code, and they take most of the time."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    problem = brinell.data.load("demo")[:N]
    return problem.x, problem.y


def small(model: Any = None, **more: Any) -> AutoAttack:
    """The adversary with budgets for tests."""
    adversary = AutoAttack(model or demo_net(), **{"eps": EPS, "verbose": False, **more})
    adversary.apgd.n_iter = adversary.apgd_targeted.n_iter = 4
    adversary.apgd.n_restarts = min(adversary.apgd.n_restarts, 2)
    adversary.apgd_targeted.n_target_classes = 2
    adversary.fab.n_iter, adversary.fab.n_target_classes = 2, 2
    adversary.fab.n_restarts = min(adversary.fab.n_restarts, 2)
    adversary.square.n_queries = 10
    adversary.apgd.eot_iter = min(adversary.apgd.eot_iter, 2)
    return adversary


@pytest.fixture(scope="module")
def standard(data: Any) -> tuple[AutoAttack, Tensor, Tensor]:
    """The standard version on the demonstration model: the object, its images and their classes."""
    adversary = small(norm="Linf", version="standard", seed=0)
    x_adv, y_adv = adversary.run_standard_evaluation(*data, bs=250, return_labels=True)
    return adversary, x_adv, y_adv


def test_signatures_are_the_originals() -> None:
    names = list(inspect.signature(AutoAttack).parameters)
    assert names[:10] == [
        "model", "norm", "eps", "seed", "verbose", "attacks_to_run", "version", "is_tf_model", "device", "log_path",
    ]  # fmt: skip
    defaults = {k: p.default for k, p in inspect.signature(AutoAttack).parameters.items()}
    assert (defaults["norm"], defaults["eps"], defaults["seed"], defaults["version"]) == ("Linf", 0.3, None, "standard")
    call = inspect.signature(AutoAttack.run_standard_evaluation).parameters
    assert list(call)[1:] == ["x_orig", "y_orig", "bs", "return_labels", "state_path"]
    assert call["bs"].default == 250
    call = inspect.signature(AutoAttack.run_standard_evaluation_individual).parameters
    assert list(call)[1:] == ["x_orig", "y_orig", "bs", "return_labels"]
    assert list(inspect.signature(AutoAttack.clean_accuracy).parameters)[1:] == ["x_orig", "y_orig", "bs"]


def test_full_budgets_are_the_originals() -> None:
    def attempts(adversary: AutoAttack) -> list[tuple[str, int, int, int, int]]:
        plan = adversary.plan(adversary.attacks_to_run)
        return [(s.name, s.attack.steps, len(s.ranks), s.restarts, s.eot) for s in plan.stages]

    net = demo_net()
    assert attempts(AutoAttack(net)) == [
        ("apgd-ce", 100, 0, 1, 1), ("apgd-t", 100, 9, 1, 1), ("fab-t", 100, 9, 1, 1), ("square", 5000, 0, 1, 1),
    ]  # fmt: skip
    assert attempts(AutoAttack(net, norm="L1")) == [
        ("apgd-ce", 100, 0, 5, 1), ("apgd-t", 100, 5, 1, 1), ("fab-t", 100, 9, 1, 1), ("square", 5000, 0, 1, 1),
    ]  # fmt: skip
    assert all(s.attack.larger_eps for s in AutoAttack(net, norm="L1").plan(["apgd-ce", "apgd-t"]).stages)
    assert attempts(AutoAttack(net, version="plus")) == [
        ("apgd-ce", 100, 0, 5, 1), ("apgd-dlr", 100, 0, 5, 1), ("fab", 100, 0, 5, 1), ("square", 5000, 0, 1, 1),
        ("apgd-t", 100, 9, 1, 1), ("fab-t", 100, 9, 1, 1),
    ]  # fmt: skip
    assert attempts(AutoAttack(net, version="rand")) == [("apgd-ce", 100, 0, 1, 20), ("apgd-dlr", 100, 0, 1, 20)]
    other = AutoAttack(net)
    other.set_version("plus")
    assert attempts(other) == attempts(AutoAttack(net, version="plus"))


def test_standard_evaluation(standard: Any, data: Any) -> None:
    adversary, x_adv, y_adv = standard
    (x, y), run = data, adversary.run
    assert run.attacks == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert x_adv.shape == x.shape
    assert x_adv.dtype == torch.float32
    # Within eps and box, in float64 with the slack of rounding to float32.
    assert float((x_adv.double() - x.double()).abs().max()) <= EPS * (1 + 1e-6)
    assert 0 <= float(x_adv.min()) <= float(x_adv.max()) <= 1
    # Misclassified exactly where the Run says so.
    standing = torch.zeros(N, dtype=torch.bool)
    standing[run.survivors().tolist()] = True
    assert torch.equal(y_adv == y, standing)
    assert torch.equal(demo_net()(x_adv).argmax(1) == y, standing)
    assert 0 < int(standing.sum()) < run.clean_accuracy.k < N
    # Untouched where nothing was found or nothing had to be.
    found = set(run.adversarials().ids.tolist())
    for i in range(N):
        assert torch.equal(x_adv[i], x[i]) == (i not in found)


def test_the_same_as_evaluate(standard: Any, data: Any) -> None:
    adversary, _, _ = standard
    again = evaluate(demo_net(), data, Linf(EPS), adversary.plan(adversary.attacks_to_run), progress=False)
    assert again.survivors().tolist() == adversary.run.survivors().tolist()


def test_only_the_images_come_back_by_default(standard: Any, data: Any) -> None:
    images = small(seed=0).run_standard_evaluation(*data, bs=7)
    assert isinstance(images, Tensor)
    # Nor does the batch size matter.
    assert torch.equal(images, standard[1])


def test_seeds(standard: Any, data: Any) -> None:
    assert torch.equal(small(seed=None).run_standard_evaluation(*data), standard[1])
    assert not torch.equal(small(seed=3).run_standard_evaluation(*data), standard[1])


def test_inputs_are_left_alone(data: Any) -> None:
    x, y = data[0].clone(), data[1].clone()
    small(version="custom", attacks_to_run=["apgd-ce"]).run_standard_evaluation(x, y)
    assert torch.equal(x, data[0])
    assert torch.equal(y, data[1])


def test_individual(data: Any) -> None:
    adversary = small()
    found = adversary.run_standard_evaluation_individual(*data, bs=50)
    assert list(found) == ["apgd-ce", "apgd-t", "fab-t", "square"]
    net, y = demo_net(), data[1]
    for name, images in found.items():
        single = small(version="custom", attacks_to_run=[name])
        single.apgd.n_restarts = adversary.apgd.n_restarts
        assert torch.equal(single.run_standard_evaluation(*data), images)
        assert int((net(images).argmax(1) == y).sum()) == single.run.robust_accuracy.k
    labelled = adversary.run_standard_evaluation_individual(*data, return_labels=True)
    images, classes = labelled["apgd-ce"]
    assert torch.equal(images, found["apgd-ce"])
    assert torch.equal(classes, net(images).argmax(1))


def test_custom_lists(data: Any) -> None:
    adversary = small(version="custom", attacks_to_run=["square", "apgd-dlr", "fab"])
    adversary.run_standard_evaluation(*data)
    assert adversary.run.attacks == ["square", "apgd-dlr", "fab"]
    late = small(version="custom")
    late.attacks_to_run = ["apgd-ce"]
    late.run_standard_evaluation(*data)
    assert late.run.attacks == ["apgd-ce"]
    with pytest.raises(InputError, match="custom"):
        AutoAttack(demo_net(), attacks_to_run=["apgd-ce"])
    with pytest.raises(PlanError, match="apgd-ce"):
        AutoAttack(demo_net(), version="custom", attacks_to_run=["apgd-cee"]).run_standard_evaluation(*data)
    with pytest.raises(PlanError, match="standard"):
        AutoAttack(demo_net(), version="standrd")


@pytest.mark.parametrize(
    ("attack", "part", "name", "value", "queries"),
    [
        ("apgd-ce", "apgd", "n_iter", 2, 2 * 3),
        ("apgd-ce", "apgd", "n_restarts", 3, 3 * 5),
        ("apgd-ce", "apgd", "eot_iter", 3, 2 * 3 * 5),
        ("apgd-t", "apgd_targeted", "n_iter", 2, 2 * 3),
        ("apgd-t", "apgd_targeted", "n_target_classes", 5, 5 * 5),
        ("apgd-t", "apgd_targeted", "n_restarts", 2, 2 * 2 * 5),
        ("fab", "fab", "n_iter", 3, None),
        ("fab", "fab", "n_restarts", 3, None),
        ("fab-t", "fab", "n_target_classes", 4, None),
        ("square", "square", "n_queries", 17, 18),
        ("square", "square", "n_restarts", 2, 2 * 11),
    ],
)
def test_numbers_can_be_set(attack: str, part: str, name: str, value: int, queries: int | None, data: Any) -> None:
    """Seen in the passes a surviving sample costs, at a radius where nearly all survive."""

    def cost(changed: bool) -> int:
        adversary = small(eps=1e-4, version="custom", attacks_to_run=[attack])
        if changed:
            setattr(getattr(adversary, part), name, value)
        adversary.run_standard_evaluation(data[0][:4], data[1][:4])
        rows = adversary.run.rows().to_pylist()
        return max(r["forwards"] for r in rows if r["attack"] == attack)

    after = cost(True)
    assert after != cost(False)
    if queries is not None:
        assert after == queries


def test_clean_accuracy(data: Any) -> None:
    x, y = data
    wanted = float((demo_net()(x).argmax(1) == y).float().mean())
    assert small().clean_accuracy(x, y) == pytest.approx(wanted)
    assert small().clean_accuracy(x, y, bs=5) == pytest.approx(wanted)


def test_log(standard: Any, data: Any, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "log.txt"
    adversary = small(log_path=str(path), seed=0)
    adversary.run_standard_evaluation(*data)
    text = path.read_text()
    run = standard[0].run
    assert f"initial accuracy: {100 * run.clean_accuracy.value:.2f}%" in text
    for name, p in run.accuracy_after():
        assert f"robust accuracy after {name.upper()}: {100 * p.value:.2f}%" in text
    assert capsys.readouterr().out == ""
    adversary.run_standard_evaluation(*data)
    times = re.compile(r"total time .* s")
    assert times.sub("", path.read_text()) == 2 * times.sub("", text)


def test_lines_are_printed_while_it_runs(data: Any, capsys: Any) -> None:
    """Each attack prints its lines before the next one asks the model."""
    net, seen = demo_net(), list[str]()

    def forward(x: Tensor) -> Any:
        seen.append(capsys.readouterr().out)
        return net(x)

    attacks = ["apgd-ce", "square"]
    small(forward, verbose=True, version="custom", attacks_to_run=attacks).run_standard_evaluation(*data, bs=10)
    early, late = "".join(seen), capsys.readouterr().out
    order = [
        "using custom version",
        "initial accuracy: ",
        "apgd-ce - 1/",
        "robust accuracy after APGD-CE: ",
        "square - 1/",
    ]
    assert [early.index(line) for line in order] == sorted(early.index(line) for line in order)
    counts = re.findall(r"apgd-ce - \d/\d - (\d+) out of (\d+) successfully", early)
    clean, after = (float(share) for share in re.findall(r"(?:initial accuracy|APGD-CE): ([\d.]+)%", early))
    n, (broken, attacked) = len(data[0]), (sum(map(int, part)) for part in zip(*counts, strict=True))
    assert len(counts) > 1 and attacked == round(clean * n / 100)  # every line counts one batch
    assert attacked - broken == round(after * n / 100)
    assert early.count("robust accuracy after APGD-CE") == 1 and "robust accuracy after APGD-CE" not in late
    assert "max Linf perturbation: " in late and "verdict: " in late


@pytest.mark.parametrize(
    ("part", "name", "meant"),
    [
        ("apgd", "n_iters", "n_iter"), ("apgd", "restarts", "n_restarts"), ("fab", "n_restart", "n_restarts"),
        ("square", "n_query", "n_queries"), ("apgd_targeted", "n_targets", "n_target_classes"),
        ("apgd", "eps", "AutoAttack(eps="), ("square", "resc_schedule", "SquareAttack"), ("apgd", "loss", "APGDAttack"),
    ],
)  # fmt: skip
def test_unknown_numbers_raise(part: str, name: str, meant: str) -> None:
    adversary = AutoAttack(demo_net(), verbose=False)
    with pytest.raises(InputError, match=part) as caught:
        setattr(getattr(adversary, part), name, 5)
    assert meant in caught.value.remedy
    assert not hasattr(getattr(adversary, part), name)


def test_other_names_of_the_original_take_effect() -> None:
    adversary = AutoAttack(demo_net(), verbose=False)
    adversary.apgd.thr_decr, adversary.square.resc_schedule, adversary.apgd.use_rs = 0.5, False, True
    adversary.attacks_to_run = ["apgd-ce"]
    assert adversary.plan(["apgd-ce"]).stages[0].attack.rho == 0.5
    with pytest.raises(InputError, match="attacks_to_run"):
        adversary.attack_to_run = ["square"]


@pytest.mark.parametrize(
    "made",
    [
        lambda net, eps: APGDAttack(net, n_iter=5, norm="L2", eps=eps, loss="dlr", seed=3),
        lambda net, eps: APGDAttack_targeted(net, n_iter=4, norm="L2", eps=eps, n_target_classes=2),
        lambda net, eps: SquareAttack(net, norm="L2", n_queries=60, eps=eps, resc_schedule=False),
        lambda net, eps: FABAttack_PT(net, norm="L2", n_iter=3, eps=eps, targeted=True, n_target_classes=2),
    ],
    ids=["apgd", "apgd-t", "square", "fab-t"],
)
def test_single_attacks(made: Any, data: Any) -> None:
    net, (x, y) = demo_net(), data
    x_adv = made(net, 1.5).perturb(x, y)
    size = (x_adv.double() - x.double()).flatten(1).norm(dim=1)
    assert float(size.max()) <= 1.5 * (1 + 1e-6)
    before, after = net(x).argmax(1), net(x_adv).argmax(1)
    assert torch.equal(after != y, (size > 0) | (before != y))
    assert 0 < int((size > 0).sum()) < N and (size[before != y] == 0).all()
    with pytest.raises(AttributeError):
        made(net, 1.5).n_iters = 3


def test_single_attacks_without_labels_and_at_targets(data: Any, capsys: Any) -> None:
    net, (x, y) = demo_net(), data
    attack = SquareAttack(net, n_queries=150, eps=0.4, targeted=True, resc_schedule=False, verbose=True)
    x_adv = attack.perturb(x[:8], (y[:8] + 1) % 10)
    hit = net(x_adv).argmax(1) == (y[:8] + 1) % 10
    assert int(hit.sum()) > 0 and f"reached {hit.float().mean():.2%}" in capsys.readouterr().out
    # Without labels the predictions are attacked.
    free = APGDAttack(net, n_iter=3, eps=0.5).perturb(x[:8])
    assert (net(free).argmax(1) != net(x[:8]).argmax(1)).all()
    for bad in (APGDAttack(net), APGDAttack(net, eps=0.1, topk=0.5), SquareAttack(net, eps=0.1), attack):
        with pytest.raises(InputError):
            bad.perturb(x[:2])


def test_an_interrupted_evaluation_goes_on(standard: Any, data: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The original's state file cannot be read back: it raises at every attempt."""
    monkeypatch.setattr(run_stage, "BATCH", 4)
    state, append, left = tmp_path / "state", Writer.append, [4]

    def failing(self: Writer, *args: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "append", failing)
        with pytest.raises(KeyboardInterrupt):
            small(seed=0).run_standard_evaluation(*data, bs=4, state_path=state)
    torn = Run.open(state)
    assert not torn.finished
    before = torn.rows().num_rows
    adversary = small(seed=0)
    images = adversary.run_standard_evaluation(*data, bs=9, state_path=str(state))
    assert adversary.run.path == state
    assert adversary.run.finished
    assert adversary.run.rows().num_rows > before
    # Adversarials found before the interruption come back too.
    assert torch.equal(images, standard[1])
    # And once more, for nothing.
    assert torch.equal(small(seed=0).run_standard_evaluation(*data, state_path=state), standard[1])


def test_functions_norms_and_other_shapes(data: Any) -> None:
    net = demo_net()
    for norm, eps in (("L2", 1.0), ("L1", 5.0)):
        adversary = small(lambda x: net(x), norm=norm, eps=eps)
        images = adversary.run_standard_evaluation(data[0][:8], data[1][:8])
        distance = (images.double() - data[0][:8].double()).flatten(1).norm(p={"L2": 2, "L1": 1}[norm], dim=1)
        assert float(distance.max()) <= eps * (1 + 1e-6)
    flat = nn.Sequential(nn.Linear(6, 3)).eval().requires_grad_(False)
    x = torch.rand(5, 6)
    assert small(flat).run_standard_evaluation(x, flat(x).argmax(1)).shape == (5, 6)


def test_rand(data: Any) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = demo_net()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x + 0.05 * torch.randn_like(x))

    torch.manual_seed(0)
    adversary = small(Noisy().eval(), version="rand")
    adversary.run_standard_evaluation(*data)
    assert {len(j) for j in adversary.run.rows()["judged"].to_pylist()} == {5}
    assert adversary.run.repeats is not None


def test_tensorflow_models_are_refused() -> None:
    with pytest.raises(InputError, match="torch"):
        AutoAttack(demo_net(), is_tf_model=True)
