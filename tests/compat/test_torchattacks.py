"""The call of torchattacks: `adv_images = PGD(model, eps, alpha, steps)(images, labels)`."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import brinell
from brinell.compat import torchattacks
from brinell.models.demo import demo_net

N = 12
NET = demo_net()
X, Y = brinell.data.load("demo", N)


@pytest.mark.parametrize(
    ("attack", "norm"),
    [
        (torchattacks.FGSM(NET, eps=0.1), "Linf"),
        (torchattacks.BIM(NET, eps=0.1, alpha=0.02, steps=4), "Linf"),
        (torchattacks.PGD(NET, eps=0.1, alpha=0.02, steps=4), "Linf"),
        (torchattacks.PGDL2(NET, eps=1.0, alpha=0.3, steps=4), "L2"),
        (torchattacks.EOTPGD(NET, eps=0.1, alpha=0.03, steps=3), "Linf"),
        (torchattacks.APGD(NET, norm="L2", eps=1.0, steps=4), "L2"),
        (torchattacks.MIFGSM(NET, eps=0.1, alpha=0.02, steps=4), "Linf"),
        (torchattacks.DIFGSM(NET, eps=0.1, alpha=0.02, steps=5), "Linf"),
        (torchattacks.TIFGSM(NET, eps=0.1, alpha=0.02, steps=5, len_kernel=3), "Linf"),
        (torchattacks.APGDT(NET, eps=0.1, steps=3, n_classes=3), "Linf"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_every_image_moves_and_stays_in_the_ball(attack: Any, norm: str) -> None:
    """As in torchattacks: also images that do not fool this model, since they may fool another one."""
    moved = attack(X, Y)
    d = (moved.double() - X.double()).flatten(1)
    length = d.abs().amax(1) if norm == "Linf" else d.norm(dim=1)
    assert float(length.max()) <= attack.eps * (1 + 1e-6) and float(length.min()) > 0
    assert float(moved.min()) >= 0 and float(moved.max()) <= 1
    before, after = (float((NET(x).argmax(1) == Y).float().mean()) for x in (X, moved))
    assert after < before


@pytest.mark.parametrize(
    "attack",
    [
        torchattacks.CW(NET, steps=30, lr=0.05, rounds=3), torchattacks.DeepFool(NET, steps=8),
        torchattacks.FAB(NET, eps=0.2, steps=3),
        torchattacks.FAB(NET, eps=0.2, steps=2, multi_targeted=True, n_classes=3),
        torchattacks.Square(NET, eps=0.25, n_queries=40),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_images_change_where_the_model_is_fooled(attack: Any) -> None:
    moved = attack(X, Y)
    changed = (moved != X).flatten(1).any(1)
    wrong = NET(X).argmax(1) != Y
    assert torch.equal(NET(moved).argmax(1) != Y, changed | wrong) and int(changed.sum()) > 2


def test_targeted_modes() -> None:
    attack = torchattacks.PGD(NET, eps=0.3, alpha=0.05, steps=10)
    assert (attack.get_mode(), attack.targeted) == ("default", False)
    target = (Y + 1) % 10
    attack.set_mode_targeted_by_label(quiet=True)
    by_label = attack(X, target)
    assert attack.targeted and int((NET(by_label).argmax(1) == target).sum()) > N // 2
    attack.set_mode_targeted_by_function(lambda images, labels: (labels + 1) % 10)
    assert torch.equal(attack(X, Y), by_label)
    attack.set_mode_targeted_least_likely()
    least = NET(X).scatter(1, Y[:, None], torch.inf).argmin(1)
    assert torch.equal(attack._target(X, Y), least)
    attack.set_mode_targeted_random()
    drawn = attack._target(X, Y)
    assert (drawn != Y).all() and len(drawn.unique()) > 2
    attack.set_mode_default()
    assert attack.get_mode() == "default"


def test_normalised_images() -> None:
    """Images normalised for the model are attacked in [0, 1] and come back normalised."""
    mean, std = [0.3], [0.25]

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return NET(x * 0.25 + 0.3)

    attack = torchattacks.PGD(Inner().eval(), eps=0.1, alpha=0.02, steps=4, random_start=False)
    attack.set_normalization_used(mean=mean, std=std)
    moved = attack((X - 0.3) / 0.25, Y)
    plain = torchattacks.PGD(NET, eps=0.1, alpha=0.02, steps=4, random_start=False)(X, Y)
    assert torch.allclose(moved * 0.25 + 0.3, plain, atol=1e-5)


def test_the_ensemble(capsys: Any) -> None:
    attack = torchattacks.AutoAttack(NET, eps=0.1, version="rand", verbose=False)
    attack.set_mode_targeted_by_label()
    with pytest.raises(brinell.InputError, match="targeted"):
        attack(X, Y)
    assert isinstance(attack, torchattacks.AutoAttack) and capsys.readouterr().out == ""


def test_several_attacks_in_turn(capsys: Any) -> None:
    """Every image comes from the first attack that breaks it; the others stay as they are, as in torchattacks."""
    fgsm = torchattacks.FGSM(NET, eps=0.1)
    pgd = torchattacks.BIM(NET, eps=0.2, alpha=0.05, steps=5)
    both = torchattacks.MultiAttack([fgsm, pgd], verbose=True)
    moved, first, second = both(X, Y), fgsm(X, Y), pgd(X, Y)
    hit, late = NET(first).argmax(1) != Y, NET(second).argmax(1) != Y
    late &= ~hit
    wanted = X.clone()
    wanted[hit], wanted[late] = first[hit], second[late]
    assert torch.equal(moved, wanted) and hit.any() and late.any()
    rates = [100 * int(n) / N for n in (hit.sum(), (hit | late).sum())]
    assert f"Attack success rate: {rates[0]:.2f} % | {rates[1]:.2f} %" in capsys.readouterr().out
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    accuracy, saved, _, _ = both.save(loader, verbose=False, return_verbose=True)
    assert saved == pytest.approx(rates) and accuracy == pytest.approx(100 - rates[1])
    other = torchattacks.FGSM(nn.Flatten().eval(), eps=0.1)
    for attacks, remedy in (([fgsm], "two or more"), ([fgsm, other], "one model")):
        with pytest.raises(brinell.InputError, match=remedy):
            torchattacks.MultiAttack(attacks)
    with pytest.raises(brinell.InputError, match="single attacks"):
        both.set_mode_targeted_random()
    pgd.set_mode_targeted_by_label(quiet=True)
    with pytest.raises(brinell.InputError, match="by_function"):
        both(X, Y)


def test_what_is_missing_names_what_to_use() -> None:
    for name, remedy in (("SPSA", "Square"), ("Attack", "own-attack"), ("PDG", "PGD")):
        with pytest.raises(AttributeError, match=remedy):
            getattr(torchattacks, name)
    assert not hasattr(torchattacks, "nothing") and not hasattr(torchattacks, "Nothing")
    with pytest.raises(ImportError, match="Did you mean 'PGD'"):
        from brinell.compat.torchattacks import PDG  # noqa: F401
    for attack in (torchattacks.CW(NET, kappa=1), torchattacks.Square(NET, resc_schedule=True)):
        with pytest.raises(brinell.InputError):
            attack(X, Y)
    for options, remedy in (({"norm": "L2"}, "PGDL2"), ({"epsilon": 0.1}, "eps"), ({"eps": 8}, "8/255")):
        with pytest.raises(brinell.InputError, match=remedy):
            torchattacks.PGD(NET, **options)
    with pytest.raises(brinell.InputError, match="got limited"):
        torchattacks.PGD(NET, limited=False)
    attack = torchattacks.PGD(NET, eps="8/255")
    assert attack.eps == 8 / 255
    attack.steps = 3
    assert attack.part().steps == 3
    with pytest.raises(brinell.InputError, match="stepz"):
        attack.stepz = 3


def test_methods_of_torchattacks_answer_or_name_what_to_use() -> None:
    attack = torchattacks.PGD(NET, eps=0.1, steps=2)
    attack.set_device("cpu")
    attack.set_model_training_mode(False)
    assert attack.to("cpu") is attack and attack.device == torch.device("cpu")
    assert repr(attack).startswith("PGD(eps=0.1") and pickle.loads(pickle.dumps(attack)).eps == 0.1
    for call, remedy in (("set_return_type", "uint8"), ("set_mode_targeted", "by_label")):
        with pytest.raises(AttributeError, match=remedy):
            getattr(attack, call)
    with pytest.raises(brinell.InputError, match="eval"):
        attack.set_model_training_mode(True)


def test_transfer_keeps_the_largest_margin() -> None:
    x_adv = brinell.attacks.PGD(8)("demo", X, Y, brinell.Linf(0.02), transfer=True)
    with torch.no_grad():
        better = brinell.ops.losses.margin(NET(x_adv), Y) >= brinell.ops.losses.margin(NET(X), Y)
    assert better.all() and (x_adv != X).flatten(1).any(1).all()
    # Broken samples come back as their verified adversarials.
    called = brinell.attacks.PGD(8)("demo", X, Y, brinell.Linf(0.02))
    fooled = NET(called).argmax(1) != Y
    assert ((NET(x_adv).argmax(1) != Y) | ~fooled).all()
    with pytest.raises(brinell.PlanError, match="fixed radius"):
        brinell.attacks.FMN(5)("demo", X, Y, brinell.L2(), transfer=True)


@pytest.mark.parametrize("kind", ["float", "int"])
def test_a_loader_is_attacked_saved_and_loaded(kind: str, tmp_path: Path, capsys: Any) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=5)
    attack, file = torchattacks.BIM(NET, eps=0.1, alpha=0.02, steps=4), tmp_path / "x.pt"
    told = attack.save(loader, file, return_verbose=True, save_predictions=True, save_clean_inputs=True, save_type=kind)
    batches = list(torchattacks.BIM.load(file, 4, load_predictions=True, load_clean_inputs=True))
    back = [torch.cat(part) for part in zip(*batches, strict=True)]
    x_adv, preds = attack(X, Y), NET(attack(X, Y)).argmax(1)
    for got, wanted in zip(back, (x_adv, Y, preds, X), strict=True):
        assert torch.allclose(got.double(), wanted.double(), atol=0.5 / 255 if kind == "int" else 0)
    wrong = preds != Y
    assert told[:2] == pytest.approx(
        (100 * float((~wrong).double().mean()), float((x_adv - X).flatten(1)[wrong].norm(dim=1).mean()))
    )
    assert f"Robust Accuracy: {told[0]:.2f} %" in capsys.readouterr().out
    scaled = next(iter(attack.load(file, N, normalize={"mean": [0.5], "std": [0.5]})))[0]
    assert torch.allclose(scaled, (back[0] - 0.5) / 0.5)
    assert attack.save(loader, tmp_path / "less.pt", verbose=False) is None
    with pytest.raises(brinell.InputError, match="save_predictions=True"):
        attack.load(tmp_path / "less.pt", load_predictions=True)
