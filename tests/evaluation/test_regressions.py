"""Small promises that were once broken."""

import pytest
import torch
from torch import nn

import brinell
from brinell.attacks import APGD, DDN, FAB, Bisect, Descend, Refine
from brinell.core.attack import Batch, Response
from brinell.core.criterion import Misclassified
from brinell.core.plan import plan
from brinell.core.threat import L2, Linf
from brinell.engine.attack_step import BestSoFar
from brinell.engine.best_so_far import blank
from brinell.evaluation.plan import adapt


def net(classes: int = 3, size: int = 6) -> nn.Module:
    made = nn.Linear(size, classes)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1, 1, classes * size).view(classes, size).sin())
        made.bias.zero_()
    return made.eval()


def test_function_detectors_are_told_apart() -> None:
    one, two = 0.25, 0.75
    marks = [
        brinell.wrap(net(), detector=d).fingerprint
        for d in (
            lambda x: x.mean(1) - 0.5,
            lambda x: x.mean(1) - 0.6,
            lambda x: x.sum(1) - 0.5,
            lambda x: x.mean(1) - one,
            lambda x: x.mean(1) - two,
        )
    ]
    assert len(set(marks)) == len(marks)
    assert brinell.wrap(net(), detector=lambda x: x.mean(1) - 0.5).fingerprint == marks[0]


def test_normalisation_moves_with_the_model() -> None:
    clf = brinell.wrap(net(), mean=0.5, std=0.2).to(torch.device("meta"))
    assert clf.mean is not None and clf.std is not None
    assert clf.mean.device.type == clf.std.device.type == "meta"


SEARCH = Bisect(APGD(4, "dlr"), grow=2, halve=2)


@pytest.mark.parametrize("attack", [SEARCH, Descend(APGD(4, "dlr"), before=SEARCH, rounds=2)], ids=repr)
def test_losses_of_attacks_inside_others_fit_the_classes(attack: "Bisect | Descend") -> None:
    fitted, notes = adapt(plan([attack]), Linf(0.1), classes=2)
    assert fitted.stages[0].attack.loss == "margin" and "dlr" in notes[0]


def test_a_lone_rows_distance_is_that_in_company() -> None:
    x = torch.rand(3, 60_000, generator=torch.Generator().manual_seed(0))
    ball = L2(1.0).ball(torch.arange(3), torch.device("cpu"))
    alone = L2(1.0).ball(torch.arange(1), torch.device("cpu"))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert alone.distance(0 * x[:1], x[:1])[0] == ball.distance(0 * x, x)[0]
    finally:
        torch.set_num_threads(before)


def test_a_sure_adversarial_is_not_given_up_for_a_nearer_doubtful_one() -> None:
    recorder = BestSoFar(Misclassified(), nearest=True, slack=0.01)
    x0, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
    p = Batch(x0, y, y, y - 1)
    ball = Linf(0.5).ball(torch.arange(1), torch.device("cpu"))
    r, live, attempt = blank(x0), torch.ones(1, dtype=torch.bool), y
    # Nearer by a hair's breadth of margin, then farther and certain, then nearer again in doubt.
    for at, margin in ((0.1, 0.001), (0.3, 1.0), (0.05, 0.001), (0.2, 1.0)):
        logits = torch.tensor([[0.0, margin, -1.0]])
        r = recorder.update(r, x0 + at, Response(logits, logits[:, 1]), p, ball, live, attempt)
    assert r.broken.all() and r.x[0, 0].item() == pytest.approx(0.2)


def test_points_an_inner_attack_sets_aside_stay_aside() -> None:
    data = brinell.data.load("demo", 6)
    plain, refined = (
        brinell.attack("demo", data, brinell.L2(2.0), a, early_exit=False)["distance"].to_pylist()
        for a in (FAB(6, quirks="autoattack"), Refine(FAB(6, quirks="autoattack"), 1))
    )
    assert all(b is None or (a is not None and b <= a + 1e-9) for a, b in zip(plain, refined, strict=True) if a)


def test_estimates_without_a_radius_count_every_answer() -> None:
    data = brinell.data.load("demo", 24)
    told = brinell.estimate("demo", data, brinell.L2(), DDN(steps=12))
    run = brinell.evaluate("demo", data, brinell.L2(), DDN(steps=12), progress=False)
    assert 1 / 1.2 < told.forwards / run.cost.forwards < 1.2


def test_plans_for_detectors_tell_their_cost() -> None:
    data = brinell.data.load("demo", 8)
    clf = brinell.wrap(brinell.models.demo.demo_net(), detector=lambda x: x.flatten(1).mean(1) - 0.9)
    assert brinell.estimate(clf, data, brinell.Linf(0.05), "detector").forwards > 0


def test_mistakes() -> None:
    data = brinell.data.load("demo", 4)
    with pytest.raises(brinell.InputError, match=r"launch=brinell\.distributed\.Ray\("):
        brinell.evaluate("demo", data, Linf(0.1), "fgsm", launch="gpu", progress=False)  # type: ignore[arg-type]
    with pytest.raises(brinell.InputError, match="slots of at least 1"):
        brinell.evaluate("demo", data, Linf(0.1), "fgsm", slots=True, progress=False)
