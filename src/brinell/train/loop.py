"""The training loop over epochs and steps.

All random numbers depend on seed, epoch and sample only, so the loop can stop and resume at any step.
"""

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brinell.core.plan import Plan
from brinell.core.threat import Threat
from brinell.engine.attack_batch import frozen_eval
from brinell.engine.oracle import default_block
from brinell.engine.precision import exact
from brinell.errors import ModelError
from brinell.evaluation.evaluate import evaluate
from brinell.models.wrap import TorchClassifier
from brinell.train.average import WeightAverage
from brinell.train.curve import Epoch, best_epoch
from brinell.train.folder import Folder, Weights, weights_of
from brinell.train.methods import Method
from brinell.train.objective import adversarial_points, training_loss
from brinell.train.progress import EpochFinished, Listener, StepFinished, TrainingStarted
from brinell.train.recipe import Recipe
from brinell.train.samples import TrainingSamples, as_points, augment, order, sample_keys
from brinell.train.schedule import radius

# Steps between two reads of the loss. Each read waits for the device.
SYNC_EVERY, SYNC_DEFAULT = {"cpu": 1}, 50


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of `fit` after all checks."""

    classifier: TorchClassifier
    classes: int
    samples: TrainingSamples
    validation: TrainingSamples | None
    threat: Threat
    method: Method
    recipe: Recipe
    plan: Plan | None
    checkpoint_every: float

    @property
    def device(self) -> torch.device:
        return self.classifier.device

    @property
    def batch(self) -> int:
        """The number of samples per step."""
        return min(self.recipe.batch, len(self.samples))

    @property
    def per_epoch(self) -> int:
        """The number of steps per epoch; samples that do not fill a batch are left out."""
        return len(self.samples) // self.batch


@contextmanager
def training_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Compute in exact float32 within the `with` block or, for bfloat16, let cuDNN choose the fastest kernels."""
    if precision == "float32":
        with exact(device):
            yield
        return
    cudnn: Any = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = True
    try:
        yield
    finally:
        cudnn.benchmark = before


class Loop:
    """The state of a training: weights, their average, the optimiser, and the position in the schedule."""

    def __init__(self, job: TrainingJob, folder: Folder, listener: Listener) -> None:
        self.job, self.folder, self.listener = job, folder, listener
        self.module = job.classifier.module.train()
        compiled: Any = torch.compile(self.module) if job.recipe.compile else self.module
        self.classifier = replace(job.classifier, module=compiled)
        self.average = WeightAverage(self.module, job.recipe.average)
        self.optimiser = job.recipe.make_optimiser(self.module)
        self.samples = job.samples.to(job.device)
        self.ball = job.threat.ball(torch.zeros(1, dtype=torch.long, device="cpu"), job.device)
        self.total = torch.zeros((), dtype=torch.float64, device=job.device)
        self.epoch, self.batch, self.spent = 0, 0, 0.0
        self.curve: list[Epoch] = []
        self.best: Weights = {}
        self.saved = self.started = time.monotonic()

    def run(self) -> list[Epoch]:
        """Train until the last epoch, or until `patience` epochs in a row are not better; return the training curve."""
        job, stored = self.job, self.folder.load()
        if stored is None:
            self._store()
        else:
            self._restore(stored)
        self.listener(TrainingStarted(job.recipe.epochs, job.per_epoch, self.epoch * job.per_epoch + self.batch))
        self.saved = self.started = time.monotonic()
        while self.epoch < job.recipe.epochs and not self._patience_is_over():
            self._train_epoch()
            self._end_epoch()
        return self.curve

    def _train_epoch(self) -> None:
        job = self.job
        places = order(job.recipe.seed, self.epoch, len(self.samples), job.device)
        look = SYNC_EVERY.get(job.device.type, SYNC_DEFAULT)
        while self.batch < job.per_epoch:
            here = places[self.batch * job.batch : (self.batch + 1) * job.batch]
            self._update(here, self.epoch * job.per_epoch + self.batch)
            self.batch += 1
            if self.batch % look == 0 or self.batch == job.per_epoch:
                self._synchronise()

    def _update(self, here: Tensor, step: int) -> None:
        """Make one step: attack the samples at positions `here`, compute the loss, update weights and average."""
        job, recipe = self.job, self.job.recipe
        part = self.samples.take(here)
        x = as_points(augment(part.x, self._keys(part, "augment"), recipe.crop, recipe.flip))
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        eps = radius(float(job.threat.eps), step, job.per_epoch, recipe.ramp)
        ball = replace(self.ball, eps=torch.full((len(here),), eps, device=x.device, dtype=torch.float32))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            with frozen_eval(self.module):
                adversarial = adversarial_points(
                    job.method, self.classifier, x, part.y, self._keys(part, "attack"), ball
                )
            loss = training_loss(job.method, self.classifier, x, adversarial, part.y, recipe.label_smoothing)
        self.optimiser.zero_grad()
        loss.backward()
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr_at(step, recipe.epochs * job.per_epoch)
        self.optimiser.step()
        self.average.update(step)
        self.total += loss.detach()

    def _keys(self, part: TrainingSamples, purpose: str) -> Tensor:
        return sample_keys(self.job.recipe.seed, part.ids, self.epoch, purpose)

    def _synchronise(self) -> None:
        """Wait for the device, check that the loss is finite, report the loss, and write a checkpoint if one is due."""
        loss = float(self.total) / self.batch
        step = self.epoch * self.job.per_epoch + self.batch
        if not math.isfinite(loss):
            raise ModelError(
                expected="a finite training loss",
                got=f"a mean loss of {loss} by step {self.batch} of epoch {self.epoch + 1}",
                remedy='Train in a new folder with a lower lr, clip=1, ramp=5 or precision="float32".',
            )
        self.listener(StepFinished(step, loss))
        if time.monotonic() - self.saved >= self.job.checkpoint_every and self.batch < self.job.per_epoch:
            self._store()

    def _end_epoch(self) -> None:
        job, module = self.job, self.average.averaged()
        seconds = self.spent + time.monotonic() - self.started
        clean, robust = (None, None) if job.validation is None else self._validate()
        forwards, backwards = (n * job.batch * job.per_epoch for n in job.method.cost(job.classes))
        last = (self.epoch + 1) * job.per_epoch - 1
        lr = job.recipe.lr_at(last, job.recipe.epochs * job.per_epoch)
        n = 0 if job.validation is None else len(job.validation)
        loss = float(self.total) / job.per_epoch
        row = Epoch(self.epoch + 1, lr, loss, clean, robust, n, forwards, backwards, round(seconds, 3))
        self.curve.append(row)
        better = best_epoch(self.curve) is row
        if better:
            self.best = weights_of(module)
        self.epoch, self.batch, self.spent = self.epoch + 1, 0, 0.0
        self.total.zero_()
        self.started = time.monotonic()
        self._store()
        self.folder.publish(self.best, weights_of(module), self.curve)
        self.listener(EpochFinished(row, better))

    def _validate(self) -> tuple[int, int]:
        """Return how many validation samples the averaged weights classify correctly, clean and under attack."""
        assert self.job.validation is not None
        assert self.job.plan is not None
        averaged = replace(self.job.classifier, module=self.average.module)
        with tempfile.TemporaryDirectory(prefix="brinell-") as folder:
            run = evaluate(
                averaged,
                self.job.validation.problem(),
                self.job.threat,
                self.job.plan,
                out=Path(folder) / "run",
                seed=self.job.recipe.seed,
                # Fixed, because new weights would otherwise be timed again after every epoch.
                slots=2 * default_block(self.job.device),
                progress=False,
            )
            return run.clean_accuracy.k, run.robust_accuracy.k

    def _patience_is_over(self) -> bool:
        if self.job.recipe.patience is None or not self.curve:
            return False
        return self.curve[-1].epoch - best_epoch(self.curve).epoch >= self.job.recipe.patience

    def _store(self) -> None:
        self._check_weights()
        self.folder.store(
            {
                "epoch": self.epoch,
                "batch": self.batch,
                "loss": self.total.cpu(),
                "seconds": self.spent + time.monotonic() - self.started,
                "curve": [row.to_json() for row in self.curve],
                "model": self.module.state_dict(),
                "average": self.average.module.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "best": self.best,
            }
        )
        self.saved = time.monotonic()

    def _check_weights(self) -> None:
        """Raise an error if the weights or their average are not finite, so that they are never stored."""
        sizes = torch.stack(torch._foreach_norm([*self.module.parameters(), *self.average.module.parameters()]))
        if not bool(sizes.isfinite().all()):
            raise ModelError(
                expected="finite weights",
                got=f"infinite or NaN weights after step {self.batch} of epoch {self.epoch + 1}, with a finite loss",
                remedy='Train in a new folder with a lower lr, clip=1 or precision="float32".',
            )

    def _restore(self, stored: dict[str, Any]) -> None:
        self.module.load_state_dict(stored["model"])
        self.average.module.load_state_dict(stored["average"])
        self.optimiser.load_state_dict(stored["optimiser"])
        self.total.copy_(stored["loss"])
        self.epoch, self.batch, self.spent = stored["epoch"], stored["batch"], stored["seconds"]
        self.curve, self.best = [Epoch(**row) for row in stored["curve"]], stored["best"]
        if self.curve and self.batch == 0:
            # The process may have stopped after the checkpoint and before the files for readers.
            self.folder.publish(self.best, weights_of(self.average.module), self.curve)
