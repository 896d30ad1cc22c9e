"""Training: a model, data, a threat, a method and a recipe in; a folder with a robust model out."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.environment import environment
from brinell.errors import InputError, PlanError, ThreatError
from brinell.evaluation import coerce
from brinell.evaluation.plan import audited
from brinell.models.wrap import TorchClassifier
from brinell.ops.losses import LOSSES
from brinell.train.curve import Epoch, best_of
from brinell.train.folder import Folder
from brinell.train.load import load
from brinell.train.loop import Job, Loop, arithmetic
from brinell.train.methods import Method, as_method
from brinell.train.progress import Listener, Said, listening
from brinell.train.recipe import Recipe
from brinell.train.samples import Samples, as_samples, split
from brinell.train.trainee import Trainee, as_trainee, ready

# Seconds between two checkpoints within an epoch; one is also written at the end of each.
CHECKPOINT_EVERY = 300.0


@dataclass(frozen=True)
class Trained:
    """A training on disk: its folder, the model it ended with, and the curve."""

    path: Path
    classifier: TorchClassifier
    curve: list[Epoch]

    @property
    def best(self) -> Epoch:
        """The epoch the model is from: the best robust accuracy on validation, without validation the last."""
        return best_of(self.curve)


def fit(
    model: Any,
    data: Any,
    threat: Threat,
    method: Any = "pgd",
    recipe: Recipe | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    validation: Any = None,
    plan: Any = "fast",
    device: torch.device | str | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    progress: "bool | Listener | None" = None,
) -> Trained:
    """Train a model to withstand a threat, and keep the epoch with the best robust accuracy in the folder `out`.

    `model` is a network's name, a `Network`, a module or a function that makes one; `data` is (x, y) with x as bytes or
    floats in [0, 1], a Problem, a file or a folder. `validation` is a number of samples to hold out (None: a tenth, at
    most 1,000; 0: none) or data of its own, evaluated after every epoch with `plan`. `resume=True` goes on with a
    training that was interrupted, and on a CPU in float32 ends with the very same weights.

    >>> import tempfile
    >>> from brinell import Linf
    >>> x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 3
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recipe = Recipe(epochs=2, batch=32)
    ...     made = fit(net, (x, y), Linf(0.1), recipe=recipe, out=folder, plan="fgsm", progress=False)
    >>> len(made.curve), made.curve[0].forwards
    (2, 352)
    """
    chosen, how = as_method(method), Recipe() if recipe is None else recipe
    samples, held, measured = _data(data, validation, plan, how)
    _check_threat(coerce.as_threat(threat), samples)
    trainee, classes = ready(as_trainee(model, samples, how.seed), samples, device)
    if held is not None:
        _check_held(held, samples, classes)
    _check_images(how, samples)
    _check_loss(chosen, classes)
    if not checkpoint_every >= 0:
        raise InputError(
            expected="checkpoint_every of at least 0 seconds", got=f"{checkpoint_every}", remedy="Use 300."
        )
    job = Job(trainee.classifier, classes, samples, held, threat, chosen, how, measured, checkpoint_every)
    facts = {"environment": environment(job.device)}
    with listening(progress) as listener, Folder(Path(out), _identity(job, trainee), facts, resume) as folder:
        for note in notes(job):
            listener(Said(note))
        with arithmetic(how.precision, job.device):
            curve = Loop(job, folder, listener).run()
    return Trained(Path(out), load(out, None if trainee.network else trainee.classifier, device=job.device), curve)


def _identity(job: Job, trainee: Trainee) -> dict[str, Any]:
    """What makes two trainings the same."""
    return {
        "model": trainee.to_json(job.classes),
        "data": _described(job.samples),
        "validation": _described(job.held),
        "plan": None if job.plan is None else job.plan.to_json(),
        "threat": job.threat.to_json(),
        "method": job.method.to_json(),
        "recipe": job.recipe.to_json(),
        "device": job.device.type,
    }


def _described(samples: Samples | None) -> dict[str, Any] | None:
    if samples is None:
        return None
    return {"fingerprint": samples.fingerprint(), "n": len(samples), "name": samples.name}


def _data(data: Any, validation: Any, plan: Any, recipe: Recipe) -> tuple[Samples, Samples | None, Plan | None]:
    """What to train on, what to validate on, and with which plan."""
    samples = as_samples(data)
    if validation is None or (isinstance(validation, int) and not isinstance(validation, bool)):
        samples, held = split(samples, validation, recipe.seed)
    else:
        held = as_samples(validation, "test")
    if len(samples) < 2:
        raise InputError(expected="at least 2 samples to train on", got=f"{len(samples)}", remedy="Give more data.")
    if held is None and recipe.patience is not None:
        raise PlanError(
            expected="validation samples to be patient about", got="none", remedy="Leave patience out, or validate."
        )
    return samples, held, None if held is None else _unaudited(coerce.as_plan(plan))


def _unaudited(plan: Plan) -> Plan:
    """The audit of a plan costs more than the plan, and epochs are only compared with one another."""
    return audited(plan, 0) if any(s.share is not None for s in plan.stages) else plan


def _check_threat(threat: Threat, samples: Samples) -> None:
    if isinstance(threat.eps, torch.Tensor):
        raise ThreatError(
            expected="one eps for all samples", got=f"{len(threat.eps)} of them", remedy="Train with a single radius."
        )
    if threat.unlimited:
        raise ThreatError(expected="a radius", got=f"{threat}", remedy=f"Write {threat.norm.name}(eps).")
    threat.check(tuple(samples.x.shape[1:]), None)


def _check_held(held: Samples, samples: Samples, classes: int) -> None:
    if held.x.shape[1:] != samples.x.shape[1:] or int(held.y.max()) >= classes:
        raise InputError(
            expected=f"validation samples of shape {tuple(samples.x.shape[1:])} with labels in 0..{classes - 1}",
            got=f"shape {tuple(held.x.shape[1:])}, labels up to {int(held.y.max())}",
            remedy="Validate on data of the same kind.",
        )


def _check_images(recipe: Recipe, samples: Samples) -> None:
    if (recipe.crop or recipe.flip) and samples.x.ndim != 4:
        raise InputError(
            expected="images of shape (n, channels, height, width) for crops and flips",
            got=f"shape {tuple(samples.x.shape)}",
            remedy="Leave crop and flip out.",
        )


def _check_loss(method: Method, classes: int) -> None:
    loss = None if method.attack is None or method.beta else LOSSES[method.attack.loss]
    if loss is not None and classes < loss.classes:
        raise PlanError(
            expected=f"at least {loss.classes} classes for an attack on this loss",
            got=f"{classes}",
            remedy=f"Use the loss {loss.instead} instead.",
        )


def notes(job: Job) -> list[str]:
    """What a user should know before it begins."""
    said = []
    parts = job.classifier.module.modules()
    if any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0 for m in parts):
        said.append("The model has dropout, whose noise no seed decides: a resumed training will end differently.")
    if job.method.targets > job.classes - 1:
        said.append(f"{job.classes - 1} instead of {job.method.targets} targets, since there are so few classes.")
    left = len(job.samples) % job.batch
    if left:
        said.append(f"{left} samples are left over in every epoch, others each time.")
    return said
