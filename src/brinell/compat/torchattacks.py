"""Attacks under the names of torchattacks: `from brinell.compat import torchattacks`."""

import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from brinell import attacks as ours
from brinell.compat.autoattack import AutoAttack as _Ensemble
from brinell.compat.autoattack.transcript import Log
from brinell.compat.functions import Function, as_classifier, predictions, refuse_unless
from brinell.compat.missing import refuse_name
from brinell.core.attack import AnyAttack
from brinell.core.plan import Eot, Restarts, Stage, Targets, stage
from brinell.core.threat import Threat, parse_eps, threat
from brinell.errors import InputError, did_you_mean, one_of
from brinell.models.wrap import wrap
from brinell.ops import rng
from brinell.storage import write_atomic

# What attacks of torchattacks have and those here have not, by what to use.
METHODS = {
    "set_return_type": "(adv_images * 255).round().to(torch.uint8), and test the model on these images again",
    "get_return_type": "adv_images.dtype: images are returned as floats",
    "set_training_mode": "net.eval(): attacks see the model that is used",
    "normalization_used": "set_normalization_used(mean, std)",
}
# The remedies for `norm=`, by attack.
IN_NAME = {
    "PGD": "The norm is part of the name: PGD is for Linf, PGDL2 for L2; APGD, FAB and Square have norm=.",
    "CW": "CW is for L2; leave norm out.",
    "DeepFool": "DeepFool is for L2; leave norm out.",
}
SAVED = ("float", "int")
DEFAULT, BY_LABEL, LEAST, BY_RANDOM = "default", "targeted(label)", "targeted(least-likely)", "targeted(random)"


@dataclass
class _Call:
    """An attack `attack(images, labels)` that returns one image per sample.

    Attacks of a fixed radius return the verified adversarial image or, where they do not break the model, the point
    of the largest margin that they met, as is usual for transfer. Other attacks return the input there.
    """

    model: Any = field(repr=False)

    transfers: ClassVar[bool] = True
    limited: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Give the class the name by which users know it."""
        cls.__name__ = cls.__qualname__ = cls.__name__.lstrip("_")

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Refuse options that the attack lacks."""
        names = [f.name for f in fields(cls) if f.init]
        for name in options:
            if name not in names:
                known, remedy = f"arguments of {cls.__name__}: {', '.join(names)}", did_you_mean(name, names)
                remedy = IN_NAME.get(cls.__name__, IN_NAME["PGD"]) if name == "norm" else remedy
                raise InputError(expected=known, got=name, remedy=remedy)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.attack_mode, self.targeted = DEFAULT, False
        self._target: Callable[[Tensor, Tensor], Tensor] | None = None
        self._mean: Tensor | None = None
        self._std: Tensor | None = None
        self._threat()

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse attributes that would be ignored."""
        names = [f.name for f in fields(self)]
        if name not in names and name[0] != "_" and name not in ("attack_mode", "targeted"):
            known = f"attributes of {type(self).__name__}: {', '.join(names)}"
            raise InputError(expected=known, got=name, remedy=did_you_mean(name, names))
        super().__setattr__(name, parse_eps(value) if name == "eps" and isinstance(value, str) else value)

    def __getattr__(self, name: str) -> Any:
        """Raise that torchattacks' method or attribute is missing here; the remedy names what to use."""
        methods = [k for k in dir(type(self)) if k.startswith(("set_", "get_"))]
        refuse_name(type(self).__name__, name, [*(f.name for f in fields(self)), "device", "to", *methods], METHODS)

    @property
    def device(self) -> torch.device:
        """The device of the model, to which images are moved."""
        return self._classifier().device

    def set_device(self, device: Any) -> None:
        """Accept the device of the model; to change it, move the model."""
        wanted, is_there = torch.device(device), self.device
        same = wanted.type == is_there.type and wanted.index in (None, is_there.index)
        refuse_unless(same, f"the device of the model, {is_there}", str(device), "Write attack.to(device).")

    def to(self, device: Any) -> "_Call":
        """Move the model to a device."""
        self.model = self.model.to(device)
        return self

    def set_model_training_mode(
        self, model_training: bool = False, batchnorm_training: bool = False, dropout_training: bool = False
    ) -> None:
        """Accept the evaluation mode, in which attacks see the model that is used."""
        trains = model_training or batchnorm_training or dropout_training
        refuse_unless(not trains, "a model in evaluation mode", "a training mode", "Leave it out and call net.eval().")

    def part(self) -> AnyAttack | Stage:
        """Return the attack of Brinell."""
        raise NotImplementedError

    def _norm(self) -> str:
        return "Linf"

    def _threat(self) -> Threat:
        """Return the threat; raise an error for a radius that cannot be meant."""
        eps = getattr(self, "eps", None) if self.limited else "inf"
        refuse_unless(eps is not None, "eps, the radius of the attack", "eps=None", "Write e.g. eps=8 / 255.")
        return threat(self._norm(), eps)  # type: ignore[arg-type]

    def get_mode(self) -> str:
        """Return the mode: "default" or one of the targeted modes."""
        return self.attack_mode

    def _mode(self, mode: str, target: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        self.attack_mode, self.targeted, self._target = mode, target is not None, target

    def set_mode_default(self) -> None:
        """Attack the labels: any other class is a success."""
        self._mode(DEFAULT, None)

    def set_mode_targeted_by_label(self, quiet: bool = False) -> None:
        """Take the labels of the call as the classes that the model shall predict."""
        self._mode(BY_LABEL, lambda x, y: y)

    def set_mode_targeted_by_function(self, target_map_function: Callable[..., Tensor], quiet: bool = False) -> None:
        """Take `target_map_function(images, labels)` as the classes that the model shall predict."""
        self._mode("targeted(custom)", target_map_function)

    def set_mode_targeted_least_likely(self, kth_min: int = 1, quiet: bool = False) -> None:
        """Take the class with the k-th smallest logit that is not the label."""
        self._mode(LEAST, lambda x, y: self._wrong_classes(x, y)[:, -kth_min])

    def set_mode_targeted_random(self, quiet: bool = False) -> None:
        """Take a random class other than the label, by the position of the sample."""

        def draw(x: Tensor, y: Tensor) -> Tensor:
            wrong = self._wrong_classes(x, y)
            which = rng.integers(rng.keys(0, torch.arange(len(y), device="cpu")), wrong.shape[1])
            return wrong[torch.arange(len(y), device="cpu"), which.view(-1)]

        self._mode(BY_RANDOM, draw)

    def _wrong_classes(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the classes other than the label, likeliest first."""
        classifier = self._classifier()
        with torch.no_grad():
            logits = classifier.forward(self._plain(x).to(classifier.device)).logits.cpu()
        return logits.scatter(1, y.cpu()[:, None], torch.inf).argsort(dim=1, descending=True, stable=True)[:, 1:]

    def set_normalization_used(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Say that images are normalised: they are attacked in [0, 1] and returned normalised."""
        self._mean, self._std = (torch.as_tensor(v, dtype=torch.float32, device="cpu") for v in (mean, std))

    def _plain(self, x: Tensor) -> Tensor:
        """Return images in [0, 1]; rounding may leave them by 1e-6."""
        if self._mean is None or self._std is None:
            return x
        return (x * _channels(self._std, x) + _channels(self._mean, x)).clamp(0, 1)

    def _classifier(self) -> Any:
        if self._mean is None or self._std is None:
            return as_classifier(self.model)
        module = self.model if isinstance(self.model, torch.nn.Module) else Function(self.model).eval()
        return wrap(module, self._mean.tolist(), self._std.tolist())

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        classifier, x = self._classifier(), self._plain(images)
        y = labels if self._target is None else self._target(images, labels)
        limit, seed = self._threat(), getattr(self, "seed", None) or 0
        x_adv = stage(self.part())(classifier, x, y, limit, seed=seed, targeted=self.targeted, transfer=self.transfers)
        if self._mean is None or self._std is None:
            return x_adv
        back = ((x_adv - _channels(self._mean, x)) / _channels(self._std, x)).to(images)
        return torch.where((x_adv != x).flatten(1).any(1).view(-1, *[1] * (x.ndim - 1)), back, images)

    forward = __call__

    def save(
        self, data_loader: Iterable[tuple[Tensor, Tensor]], save_path: str | os.PathLike[str] | None = None,
        verbose: bool = True, return_verbose: bool = False, save_predictions: bool = False,
        save_clean_inputs: bool = False, save_type: str = "float",
    ) -> tuple[float, float, float] | None:  # fmt: skip
        """Attack every batch of a loader and store the images, in [0, 1], and the labels in a file for `torch.load`.

        Print, and return if `return_verbose`, the robust accuracy in per cent, the mean L2 distance of the images that
        fool the model, and the seconds of a batch.
        """
        one_of("a save_type", save_type, SAVED)
        parts: dict[str, list[Tensor]] = {"adv_inputs": [], "labels": [], "preds": [], "clean_inputs": []}
        begun, classifier = time.perf_counter(), as_classifier(self._classifier())
        for images, labels in data_loader:
            x_adv, x = self._plain(self(images, labels)).cpu(), self._plain(images).cpu()
            batch = x_adv, labels.cpu(), predictions(classifier, x_adv), x
            for part, values in zip(parts.values(), batch, strict=True):
                part.append(values)
        seconds = (time.perf_counter() - begun) / max(len(parts["labels"]), 1)
        made = {name: torch.cat(values) for name, values in parts.items()}
        wrong = made["preds"] != made["labels"]
        moved = (made["adv_inputs"] - made["clean_inputs"]).double().flatten(1)[wrong].norm(dim=1)
        accuracy, l2 = 100 * (1 - float(wrong.double().mean())), float(moved.mean())
        if save_path is not None:
            kept = {"preds": save_predictions, "clean_inputs": save_clean_inputs}
            stored = {name: values for name, values in made.items() if kept.get(name, True)}
            for name in ("adv_inputs", "clean_inputs") if save_type == "int" else ():
                stored |= {name: (stored[name] * 255).round().to(torch.uint8)} if name in stored else {}
            data = io.BytesIO()
            torch.save({**stored, "save_type": save_type}, data)
            write_atomic(Path(save_path), data.getvalue())
        Log(verbose, None)(f"Robust Accuracy: {accuracy:.2f} %, L2: {l2:.5f}, {seconds:.3f} s/batch")
        return (accuracy, l2, seconds) if return_verbose else None

    @staticmethod
    def load(
        load_path: str | os.PathLike[str], batch_size: int = 128, shuffle: bool = False,
        normalize: dict[str, Sequence[float]] | None = None, load_predictions: bool = False,
        load_clean_inputs: bool = False,
    ) -> DataLoader[tuple[Tensor, ...]]:  # fmt: skip
        """Return a loader of what `save` stored: images, labels, then predictions and clean images if asked for."""
        names = ["adv_inputs", "labels", *["preds"] * load_predictions, *["clean_inputs"] * load_clean_inputs]
        stored = torch.load(load_path, map_location="cpu", weights_only=True)
        for name in names:
            remedy = "Save with save_predictions=True, save_clean_inputs=True."
            refuse_unless(name in stored, f"{name} in the file", ", ".join(map(str, stored)), remedy)
        for name in names:
            if name not in ("adv_inputs", "clean_inputs"):
                continue
            x = stored[name] if stored[name].is_floating_point() else stored[name].float() / 255
            if normalize is not None:
                mean, std = (torch.as_tensor(normalize[k], dtype=torch.float32, device="cpu") for k in ("mean", "std"))
                x = (x - _channels(mean, x)) / _channels(std, x)
            stored[name] = x
        return DataLoader(TensorDataset(*(stored[name] for name in names)), batch_size, shuffle)


def _channels(values: Tensor, x: Tensor) -> Tensor:
    return values.to(x.device).view(1, -1, *[1] * (x.ndim - 2))


@dataclass
class _FGSM(_Call):
    """One step of length eps in Linf."""

    eps: float = 8 / 255

    def part(self) -> AnyAttack:
        return ours.FGSM()


@dataclass
class _Iterated(_Call):
    eps: float = 8 / 255
    alpha: float = 2 / 255
    steps: int = 10


@dataclass
class _BIM(_Iterated):
    """PGD in Linf from the clean image."""

    def part(self) -> AnyAttack:
        return ours.PGD(self.steps, self.alpha / self.eps, random_start=False)


@dataclass
class _PGD(_Iterated):
    """PGD in Linf."""

    random_start: bool = True

    def part(self) -> AnyAttack | Stage:
        return ours.PGD(self.steps, self.alpha / self.eps, random_start=self.random_start)


@dataclass
class _PGDL2(_PGD):
    """PGD in L2."""

    eps: float = 1.0
    alpha: float = 0.2
    eps_for_division: float = 1e-10

    def _norm(self) -> str:
        return "L2"


@dataclass
class _EOTPGD(_Iterated):
    """PGD in Linf on the mean of `eot_iter` passes."""

    eot_iter: int = 2
    random_start: bool = True

    def part(self) -> Stage:
        return Eot(ours.PGD(self.steps, self.alpha / self.eps, random_start=self.random_start), self.eot_iter)


@dataclass
class _MIFGSM(_Iterated):
    """Iterated FGSM with momentum (`decay`), for images that fool other models."""

    decay: float = 1.0

    def part(self) -> AnyAttack:
        return ours.MIFGSM(self.steps, self.alpha / self.eps, self.decay)


@dataclass
class _DIFGSM(_Iterated):
    """Iterated FGSM on resized and padded images."""

    decay: float = 0.0
    resize_rate: float = 0.9
    diversity_prob: float = 0.5
    random_start: bool = False

    def part(self) -> AnyAttack:
        refuse_unless(not self.random_start, "random_start=False", "random_start=True", "Leave it out.")
        rel, share, rate = self.alpha / self.eps, self.diversity_prob, self.resize_rate
        return ours.DIFGSM(self.steps, rel, self.decay, probability=share, rate=rate)


@dataclass
class _TIFGSM(_DIFGSM):
    """DI-FGSM with gradients smoothed by a Gaussian kernel."""

    kernel_name: str = "gaussian"
    len_kernel: int = 15
    nsig: float = 3

    def part(self) -> AnyAttack:
        refuse_unless(
            (self.kernel_name, self.nsig, self.random_start) == ("gaussian", 3, False),
            "kernel_name='gaussian', nsig=3 and random_start=False",
            f"{self.kernel_name!r}, {self.nsig} and {self.random_start}",
            "Leave them out.",
        )
        rel, share, rate = self.alpha / self.eps, self.diversity_prob, self.resize_rate
        return ours.TIFGSM(self.steps, rel, self.decay, probability=share, rate=rate, kernel=self.len_kernel)


@dataclass
class _CW(_Call):
    """Carlini and Wagner's attack in L2. The constant starts at `c` and is searched for in `rounds` rounds."""

    c: float = 1
    kappa: float = 0
    steps: int = 50
    lr: float = 0.01
    rounds: int = 10
    transfers: ClassVar[bool] = False
    limited: ClassVar[bool] = False

    def part(self) -> AnyAttack:
        refuse_unless(self.kappa == 0, "kappa=0", f"kappa={self.kappa}", "Leave kappa out, or use PGDL2 with a radius.")
        return ours.CW(self.steps, self.rounds, self.lr, float(self.c))

    def _norm(self) -> str:
        return "L2"


@dataclass
class _DeepFool(_Call):
    """DeepFool in L2."""

    steps: int = 50
    overshoot: float = 0.02
    transfers: ClassVar[bool] = False
    limited: ClassVar[bool] = False

    def part(self) -> AnyAttack:
        return ours.DeepFool(self.steps, self.overshoot)

    def _norm(self) -> str:
        return "L2"


@dataclass
class _InNorm(_Call):
    norm: str = "Linf"
    eps: float = 8 / 255

    def _norm(self) -> str:
        return self.norm


@dataclass
class _APGD(_InNorm):
    """Auto-PGD."""

    steps: int = 10
    n_restarts: int = 1
    seed: int = 0
    loss: str = "ce"
    eot_iter: int = 1
    rho: float = 0.75
    verbose: bool = False

    def part(self) -> Stage:
        return Eot(Restarts(ours.APGD(self.steps, self.loss, self.rho), self.n_restarts), self.eot_iter)


@dataclass
class _APGDT(_InNorm):
    """Auto-PGD towards the likeliest wrong classes, all of `n_classes`."""

    steps: int = 10
    n_restarts: int = 1
    seed: int = 0
    eot_iter: int = 1
    rho: float = 0.75
    verbose: bool = False
    n_classes: int = 10

    def part(self) -> Stage:
        each = Restarts(ours.APGD(self.steps, "dlr-targeted", self.rho), self.n_restarts)
        return Eot(Targets(each, self.n_classes - 1), self.eot_iter)


@dataclass
class _FAB(_InNorm):
    """FAB; images within eps, or the input."""

    steps: int = 10
    n_restarts: int = 1
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    verbose: bool = False
    seed: int = 0
    multi_targeted: bool = False
    n_classes: int = 10
    transfers: ClassVar[bool] = False

    def part(self) -> Stage:
        one = stage(ours.FAB(self.steps, self.multi_targeted, self.alpha_max, self.eta, self.beta))
        return Restarts(Targets(one, self.n_classes - 1) if self.multi_targeted else one, self.n_restarts)


@dataclass
class _Square(_InNorm):
    """Square; the schedule is that of AutoAttack, so `resc_schedule` is False."""

    n_queries: int = 5000
    n_restarts: int = 1
    p_init: float = 0.8
    loss: str = "margin"
    resc_schedule: bool = False
    seed: int = 0
    verbose: bool = False
    transfers: ClassVar[bool] = False

    def part(self) -> Stage:
        refuse_unless(not self.resc_schedule, "resc_schedule=False", "resc_schedule=True", "Leave it out.")
        return Restarts(ours.Square(self.n_queries, self.p_init, self.loss), self.n_restarts)


@dataclass
class _AutoAttack(_InNorm):
    """AutoAttack; it has no targeted mode."""

    version: str = "standard"
    n_classes: int = 10
    seed: int | None = None
    verbose: bool = False
    run: Any = field(default=None, repr=False)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        refuse_unless(not self.targeted, "the default mode", self.attack_mode, "Use APGD or PGD for chosen classes.")
        adversary = _Ensemble(self._classifier(), self.norm, self.eps, self.seed, self.verbose, version=self.version)
        x = self._plain(images)
        x_adv = adversary.run_standard_evaluation(x, labels)
        self.run = adversary.run
        if self._mean is None or self._std is None:
            return x_adv
        back = ((x_adv - _channels(self._mean, x)) / _channels(self._std, x)).to(images)
        return torch.where((x_adv != x).flatten(1).any(1).view(-1, *[1] * (x.ndim - 1)), back, images)

    forward = __call__


@dataclass
class _MultiAttack(_Call):
    """Attacks in turn, each on the images that the ones before it left correct; unbroken images stay as they are.

    Modes are those of the single attacks.
    """

    model: Any = field(init=False, repr=False)
    attacks: Sequence[_Call] = ()
    verbose: bool = False
    limited: ClassVar[bool] = False

    def __post_init__(self) -> None:
        models = {id(attack.model) for attack in self.attacks}
        refuse_unless(len(self.attacks) > 1, "two or more attacks", str(len(self.attacks)), "Call one attack itself.")
        refuse_unless(len(models) == 1, "attacks on one model", f"{len(models)} models", "Give all the same model.")
        self.model = self.attacks[0].model
        # After each attack, the images that are still correct, summed over the batches; the first number is all images.
        self._left = torch.zeros(len(self.attacks) + 1, dtype=torch.long, device="cpu")
        super().__post_init__()

    def _mode(self, mode: str, target: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        remedy = "Set the mode of the single attacks: set_mode_targeted_by_function, _random or _least_likely."
        refuse_unless(target is None, "the default mode for MultiAttack", mode, remedy)
        for attack in self.attacks:
            attack.set_mode_default()

    def set_normalization_used(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Say that images are normalised, to all attacks."""
        super().set_normalization_used(mean, std)
        for attack in self.attacks:
            attack.set_normalization_used(mean, std)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        for attack in self.attacks:
            remedy = "Use set_mode_targeted_by_function: the attacks need the labels to know which images are broken."
            refuse_unless(attack.attack_mode != BY_LABEL, "attacks of the labels", BY_LABEL, remedy)
        classifier, made = as_classifier(self._classifier()), images.clone()
        open_ = torch.arange(len(images), device="cpu")
        left = [len(images)]
        for attack in self.attacks:
            if len(open_):
                at = open_.to(images.device)
                x_adv, y = attack(images[at], labels[open_.to(labels.device)]), labels.cpu()[open_]
                broken = predictions(classifier, self._plain(x_adv)) != y
                made[at[broken.to(at.device)]] = x_adv[broken.to(x_adv.device)].to(made)
                open_ = open_[~broken]
            left.append(len(open_))
        self._left = self._left + torch.tensor(left, dtype=torch.long, device="cpu")
        if self.verbose:
            rates = " | ".join(
                f"{rate:.2f} %" for rate in _success_rates(torch.tensor(left, dtype=torch.long, device="cpu"))
            )
            Log(True, None)(f"Attack success rate: {rates}")
        return made

    forward = __call__

    def save(self, *args: Any, **options: Any) -> Any:
        """Store images as the single attacks do; `return_verbose` returns the success rates after each attack too."""
        self._left, verbose, self.verbose = torch.zeros_like(self._left), self.verbose, False
        rates = super().save(*args, **options)
        self.verbose = verbose
        return None if rates is None else (rates[0], _success_rates(self._left), *rates[1:])


def _success_rates(left: Tensor) -> list[float]:
    """Return the share of images, in per cent, that are broken after each attack."""
    rates: list[float] = (100 * (1 - left[1:].double() / left[0].clamp(min=1))).tolist()
    return rates


# The names of torchattacks, for attacks that have these names in Brinell too.
FGSM, BIM, PGD, PGDL2, EOTPGD = _FGSM, _BIM, _PGD, _PGDL2, _EOTPGD
MIFGSM, DIFGSM, TIFGSM = _MIFGSM, _DIFGSM, _TIFGSM
CW, DeepFool, APGD, APGDT, FAB, Square, AutoAttack = _CW, _DeepFool, _APGD, _APGDT, _FAB, _Square, _AutoAttack
MultiAttack = _MultiAttack
# What torchattacks has and this module has not, by what to use.
INSTEAD = {
    "Attack": "brinell.core.attack.Attack, and see docs/howto/own-attack.md",
    "Jitter": "PGD",
    "GN": "torch.randn: it is no attack",
    "VANILA": "the images themselves",
    "EADL1": "brinell.attacks.EAD",
    "EADEN": "brinell.attacks.EAD",
    "SPSA": "brinell.attacks.Square",
    "OnePixel": "brinell.attacks.RandomSearch under brinell.L0",
    "Pixle": "brinell.attacks.RandomSearch under brinell.L0",
    "SparseFool": "brinell.attacks.FMN under brinell.L0",
    "JSMA": "brinell.attacks.FMN under brinell.L0",
    "TPGD": "brinell.attacks.PGD",
    "FFGSM": "PGD with steps=1",
    "RFGSM": "PGD",
    "UPGD": "brinell.attacks.MomentumPGD",
    "LGV": "MIFGSM, DIFGSM or TIFGSM",
    "NIFGSM": "MIFGSM",
    "SINIFGSM": "MIFGSM",
    "VMIFGSM": "MIFGSM",
    "VNIFGSM": "MIFGSM",
}


def robust_accuracy(model: Any, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the model classifies as their labels."""
    return float((predictions(as_classifier(model), images) == labels.cpu()).float().mean())


def __getattr__(name: str) -> Any:
    """Raise that torchattacks' attack is missing here; the remedy names what to use."""
    known = [k for k, v in globals().items() if isinstance(v, type) and issubclass(v, _Call) and k[0] != "_"]
    refuse_name(__name__, name, known, INSTEAD, "See brinell.attacks.")
