"""Train a model against a threat: `fit` checks the arguments, runs the training loop and writes the output folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brinell.arguments import DataLike, ModelLike, PlanLike
from brinell.core.attack import AnyAttack
from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.engine.events import Note
from brinell.environment import environment
from brinell.errors import InputError, PlanError, ThreatError
from brinell.evaluation import coerce
from brinell.evaluation.plan import audited
from brinell.models.wrap import TorchClassifier
from brinell.ops.losses import LOSSES
from brinell.train.curve import Epoch, best_epoch
from brinell.train.folder import Folder, load
from brinell.train.loop import Loop, TrainingJob, training_precision
from brinell.train.methods import Method, as_method
from brinell.train.model import TrainableModel, as_trainable, prepare
from brinell.train.progress import Listener, listening
from brinell.train.recipe import Recipe
from brinell.train.samples import TrainingSamples, as_samples, split

# Seconds between two checkpoints within an epoch. Every epoch also ends with one.
CHECKPOINT_EVERY = 300.0


@dataclass(frozen=True)
class Trained:
    """The result of `fit`: the output folder, the classifier of the best epoch, and the training curve."""

    path: Path
    classifier: TorchClassifier
    curve: list[Epoch]

    @property
    def best(self) -> Epoch:
        """The epoch of `classifier`: the one with the best robust validation accuracy; without validation, the last."""
        return best_epoch(self.curve)


def fit(
    model: ModelLike,
    data: DataLike | TrainingSamples,
    threat: Threat,
    method: str | Method | AnyAttack = "pgd",
    recipe: Recipe | None = None,
    *,
    out: str | os.PathLike[str],
    resume: bool = False,
    validation: DataLike | TrainingSamples | float | None = None,
    plan: PlanLike = "fast",
    device: torch.device | str | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
    progress: "bool | Listener | None" = None,
) -> Trained:
    """Train a model against a threat; store the weights of the epoch with the best robust accuracy in the folder `out`.

    `model` is the name of a network, a `Network`, a module, or a function that returns a module. `data` is (x, y) with
    x as bytes or floats in [0, 1], a Problem, a file or a folder. `validation` is the number of samples to hold out
    (None: a tenth, at most 1,000; 0: none) or a separate data set; the attacks of `plan` measure the robust accuracy on
    these samples after every epoch. `resume=True` continues an interrupted training. On a CPU in float32 the final
    weights are the same as without interruption.

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
    samples, validation, measured = _data(data, validation, plan, how)
    _check_threat(coerce.as_threat(threat), samples)
    trainable, classes = prepare(as_trainable(model, samples, how.seed), samples, device)
    job = TrainingJob(
        trainable.classifier, classes, samples, validation, threat, chosen, how, measured, checkpoint_every
    )
    _check_job(job)
    facts = {"environment": environment(job.device)}
    with listening(progress) as listener, Folder(Path(out), _identity(job, trainable), facts, resume) as folder:
        for note in notes(job):
            listener(Note(note))
        with training_precision(how.precision, job.device):
            curve = Loop(job, folder, listener).run()
    return Trained(Path(out), load(out, None if trainable.network else trainable.classifier, device=job.device), curve)


def _identity(job: TrainingJob, trainable: TrainableModel) -> dict[str, Any]:
    """Return the settings that must be the same when an interrupted training is resumed."""
    return {
        "model": trainable.to_json(job.classes),
        "data": _describe(job.samples),
        "validation": _describe(job.validation),
        "plan": None if job.plan is None else job.plan.to_json(),
        "threat": job.threat.to_json(),
        "method": job.method.to_json(),
        "recipe": job.recipe.to_json(),
        "device": job.device.type,
    }


def _describe(samples: TrainingSamples | None) -> dict[str, Any] | None:
    if samples is None:
        return None
    return {"fingerprint": samples.fingerprint(), "n": len(samples), "name": samples.name}


def _data(
    data: Any, validation: Any, plan: Any, recipe: Recipe
) -> tuple[TrainingSamples, TrainingSamples | None, Plan | None]:
    """Return the training samples, the validation samples and the plan that evaluates the model on the latter."""
    samples = as_samples(data)
    if validation is None or (isinstance(validation, int) and not isinstance(validation, bool)):
        samples, validation = split(samples, validation, recipe.seed)
    else:
        validation = as_samples(validation, "test")
    if len(samples) < 2:
        raise InputError(expected="at least 2 samples to train on", got=f"{len(samples)}", remedy="Pass more data.")
    if validation is None and recipe.patience is not None:
        raise PlanError(
            expected="validation samples, because `patience` needs them",
            got="no validation samples",
            remedy="Omit `patience`, or pass `validation` above 0.",
        )
    if validation is None:
        return samples, None, None
    plan = coerce.as_plan(plan)
    # The audit costs more than the plan, and epochs are only compared with one another.
    return samples, validation, audited(plan, 0) if plan.has_audit else plan


def _check_threat(threat: Threat, samples: TrainingSamples) -> None:
    if isinstance(threat.eps, torch.Tensor):
        raise ThreatError(
            expected="one eps for all samples", got=f"{len(threat.eps)} values", remedy="Pass one number as eps."
        )
    if threat.unlimited:
        raise ThreatError(
            expected="a threat with a finite radius", got=f"{threat}", remedy=f"Write e.g. {threat.norm.name}(0.1)."
        )
    threat.check(tuple(samples.x.shape[1:]), None)


def _check_job(job: TrainingJob) -> None:
    samples, validation, classes, method = job.samples, job.validation, job.classes, job.method
    shape = tuple(samples.x.shape[1:])
    if validation is not None and (validation.x.shape[1:] != shape or int(validation.y.max()) >= classes):
        raise InputError(
            expected=f"validation samples of shape {shape} with labels in 0..{classes - 1}",
            got=f"shape {tuple(validation.x.shape[1:])}, labels up to {int(validation.y.max())}",
            remedy="Pass validation data with the shape and classes of the training data.",
        )
    if (job.recipe.crop or job.recipe.flip) and samples.x.ndim != 4:
        raise InputError(
            expected="images of shape (n, channels, height, width) for crops and flips",
            got=f"shape {tuple(samples.x.shape)}",
            remedy="Omit `crop` and `flip`.",
        )
    loss = None if method.attack is None or method.beta else LOSSES[method.attack.loss]
    if loss is not None and classes < loss.classes:
        expected = f"at least {loss.classes} classes for the loss of this attack"
        raise PlanError(expected=expected, got=f"{classes} classes", remedy=f"Use the loss {loss.instead} instead.")
    if not job.checkpoint_every >= 0:
        expected = "checkpoint_every of at least 0 seconds"
        raise InputError(expected=expected, got=f"{job.checkpoint_every}", remedy="Omit it for 300 seconds.")


def notes(job: TrainingJob) -> list[str]:
    """Return messages to print at the start, about dropout without a seed, fewer targets, and samples left out."""
    messages = []
    modules = job.classifier.module.modules()
    if any(isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0 for m in modules):
        messages.append("The model has dropout, whose noise has no seed: a resumed training gives other weights.")
    if job.method.targets > job.classes - 1:
        messages.append(f"Using {job.classes - 1} targets instead of {job.method.targets}: there are too few classes.")
    unused = len(job.samples) % job.batch
    if unused:
        messages.append(f"Each epoch leaves out {unused} random samples, which do not fill a batch.")
    return messages
