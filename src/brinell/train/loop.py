"""The loop over epochs and steps. Everything random depends on seed, epoch and sample, so that it can stop anywhere."""

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
from brinell.train.augment import augment
from brinell.train.average import Average
from brinell.train.curve import Epoch, best_of, from_json
from brinell.train.folder import Folder, Weights, weights_of
from brinell.train.methods import Method
from brinell.train.objective import objective, perturbed
from brinell.train.progress import Begun, Listener, Measured, Stepped
from brinell.train.recipe import Recipe
from brinell.train.samples import Samples, as_points, order, sample_keys
from brinell.train.schedule import radius

# Steps between two looks of the host at the loss; looking waits for the device.
LOOK, LOOK_ELSEWHERE = {"cpu": 1}, 50


@dataclass(frozen=True)
class Job:
    """Everything that was asked for, checked."""

    classifier: TorchClassifier
    classes: int
    samples: Samples
    held: Samples | None
    threat: Threat
    method: Method
    recipe: Recipe
    plan: Plan | None
    checkpoint_every: float

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.classifier.device

    @property
    def batch(self) -> int:
        """Samples per step."""
        return min(self.recipe.batch, len(self.samples))

    @property
    def per_epoch(self) -> int:
        """Steps per epoch; what does not fill a batch is left over."""
        return len(self.samples) // self.batch


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """True float32, or whatever is fastest where bfloat16 is asked for."""
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
    """A training under way: weights, their average, the optimiser, and the place in the schedule."""

    def __init__(self, job: Job, folder: Folder, listener: Listener) -> None:
        self.job, self.folder, self.listener = job, folder, listener
        self.module = job.classifier.module.train()
        compiled: Any = torch.compile(self.module) if job.recipe.compile else self.module
        self.classifier = replace(job.classifier, module=compiled)
        self.average = Average(self.module, job.recipe.average)
        self.optimiser = job.recipe.make_optimiser(self.module)
        self.samples = job.samples.to(job.device)
        self.ball = job.threat.ball(torch.zeros(1, dtype=torch.long), job.device)
        self.total = torch.zeros((), dtype=torch.float64, device=job.device)
        self.epoch, self.batch, self.spent = 0, 0, 0.0
        self.curve: list[Epoch] = []
        self.best: Weights = {}
        self.saved = self.begun = time.monotonic()

    def run(self) -> list[Epoch]:
        """Train to the end and return the curve."""
        stored = self.folder.load()
        if stored is None:
            self._store()
        else:
            self._restore(stored)
        job = self.job
        self.listener(Begun(job.recipe.epochs, job.per_epoch, self.epoch * job.per_epoch + self.batch))
        self.saved = self.begun = time.monotonic()
        while self.epoch < job.recipe.epochs and not self._patience_is_over():
            self._train_epoch()
            self._end_epoch()
        return self.curve

    def _train_epoch(self) -> None:
        job = self.job
        places = order(job.recipe.seed, self.epoch, len(self.samples), job.device)
        look = LOOK.get(job.device.type, LOOK_ELSEWHERE)
        while self.batch < job.per_epoch:
            here = places[self.batch * job.batch : (self.batch + 1) * job.batch]
            self._update(here, self.epoch * job.per_epoch + self.batch)
            self.batch += 1
            if self.batch % look == 0 or self.batch == job.per_epoch:
                self._look()

    def _update(self, here: Tensor, step: int) -> None:
        """One step: craft, loss, gradient, weights, average."""
        job, recipe = self.job, self.job.recipe
        part = self.samples.take(here)
        x = as_points(augment(part.x, self._keys(part, "augment"), recipe.crop, recipe.flip))
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        eps = radius(float(job.threat.eps), step, job.per_epoch, recipe.ramp)
        ball = replace(self.ball, eps=torch.full((len(here),), eps, device=x.device))
        with torch.autocast(x.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            with frozen_eval(self.module):
                crafted = perturbed(job.method, self.classifier, x, part.y, self._keys(part, "attack"), ball)
            loss = objective(job.method, self.classifier, x, crafted, part.y, recipe.label_smoothing)
        self.optimiser.zero_grad()
        loss.backward()
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), recipe.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.lr_at(step, recipe.epochs * job.per_epoch)
        self.optimiser.step()
        self.average.update(step)
        self.total += loss.detach()

    def _keys(self, part: Samples, purpose: str) -> Tensor:
        return sample_keys(self.job.recipe.seed, part.ids, self.epoch, purpose)

    def _look(self) -> None:
        """Wait for the device, refuse to go on with a loss that is no number, tell, and store where it is time."""
        loss = float(self.total) / self.batch
        step = self.epoch * self.job.per_epoch + self.batch
        if not math.isfinite(loss):
            raise ModelError(
                expected="a finite training loss",
                got=f"{loss} by step {self.batch} of epoch {self.epoch + 1}",
                remedy="Train with a lower lr, clip=1, a ramp of the radius or float32; the last checkpoint is sound.",
            )
        self.listener(Stepped(step, loss))
        if time.monotonic() - self.saved >= self.job.checkpoint_every and self.batch < self.job.per_epoch:
            self._store()

    def _end_epoch(self) -> None:
        job, module = self.job, self.average.settle()
        seconds = self.spent + time.monotonic() - self.begun
        clean, robust = (None, None) if job.held is None else self._validate()
        forwards, backwards = (n * job.batch * job.per_epoch for n in job.method.cost(job.classes))
        last = (self.epoch + 1) * job.per_epoch - 1
        lr = job.recipe.lr_at(last, job.recipe.epochs * job.per_epoch)
        n = 0 if job.held is None else len(job.held)
        loss = float(self.total) / job.per_epoch
        row = Epoch(self.epoch + 1, lr, loss, clean, robust, n, forwards, backwards, round(seconds, 3))
        self.curve.append(row)
        better = best_of(self.curve) is row
        if better:
            self.best = weights_of(module)
        self.epoch, self.batch, self.spent = self.epoch + 1, 0, 0.0
        self.total.zero_()
        self.begun = time.monotonic()
        self._store()
        self.folder.publish(self.best, weights_of(module), self.curve)
        self.listener(Measured(row, better))

    def _validate(self) -> tuple[int, int]:
        """Correct and robust counts of the averaged weights on the validation samples."""
        assert self.job.held is not None
        assert self.job.plan is not None
        averaged = replace(self.job.classifier, module=self.average.module)
        with tempfile.TemporaryDirectory(prefix="brinell-") as folder:
            run = evaluate(
                averaged,
                self.job.held.problem(),
                self.job.threat,
                self.job.plan,
                out=Path(folder) / "run",
                seed=self.job.recipe.seed,
                # Given: weights that are new after every epoch would be measured anew each time.
                slots=2 * default_block(self.job.device),
                progress=False,
            )
            return run.clean_accuracy.k, run.robust_accuracy.k

    def _patience_is_over(self) -> bool:
        if self.job.recipe.patience is None or not self.curve:
            return False
        return self.curve[-1].epoch - best_of(self.curve).epoch >= self.job.recipe.patience

    def _store(self) -> None:
        self._check_weights()
        self.folder.store(
            {
                "epoch": self.epoch,
                "batch": self.batch,
                "loss": self.total.cpu(),
                "seconds": self.spent + time.monotonic() - self.begun,
                "curve": [row.to_json() for row in self.curve],
                "model": self.module.state_dict(),
                "average": self.average.module.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "best": self.best,
            }
        )
        self.saved = time.monotonic()

    def _check_weights(self) -> None:
        """Nothing that is no number is ever stored."""
        sizes = torch.stack(torch._foreach_norm([*self.module.parameters(), *self.average.module.parameters()]))
        if not bool(sizes.isfinite().all()):
            raise ModelError(
                expected="finite weights",
                got=f"others after step {self.batch} of epoch {self.epoch + 1}, at a finite loss",
                remedy="Train with a lower lr, clip=1 or float32; the last checkpoint is sound.",
            )

    def _restore(self, stored: dict[str, Any]) -> None:
        self.module.load_state_dict(stored["model"])
        self.average.module.load_state_dict(stored["average"])
        self.optimiser.load_state_dict(stored["optimiser"])
        self.total.copy_(stored["loss"])
        self.epoch, self.batch, self.spent = stored["epoch"], stored["batch"], stored["seconds"]
        self.curve, self.best = from_json(stored["curve"]), stored["best"]
        if self.curve and self.batch == 0:
            # The process may have ended between the checkpoint and the files for readers.
            self.folder.publish(self.best, weights_of(self.average.module), self.curve)
