"""Predictions of a classifier on clean samples, on the adversarials of a Run, or after an attack."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from brinell.analysis.intervals import Bools, Floats, Ints
from brinell.checks import model as model_checks
from brinell.core.attack import AnyAttack, Batch
from brinell.core.dataset import Chunk, Problem
from brinell.core.model import Classifier, Output
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.attack_batch import attack_batch
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, RunError
from brinell.evaluation import coerce
from brinell.ops import rng
from brinell.results import Proportion, Run
from brinell.results.analyses import Cell, Table
from brinell.results.format.manifest import MISCLASSIFY

# Samples read at a time, at most and at least (whole blocks on every device), and values at most.
MOST, LEAST, VALUES = 4096, 512, 1 << 24
Side = TypeVar("Side")
AnyRun: TypeAlias = Run | str | os.PathLike[str]


@dataclass(frozen=True)
class CleanAndAdversarial(Generic[Side]):
    """The results of one analysis of a model on clean and, if measured, on adversarial inputs."""

    model: str
    clean: Side
    adversarial: Side | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """The result on clean inputs and, if measured, the result on adversarial inputs."""
        return (self.clean,) if self.adversarial is None else (self.clean, self.adversarial)

    def table(self, title: str, rows: Mapping[str, Callable[[Side], Cell]]) -> Table:
        """Return a table with columns clean and adversarial; `rows` maps row names to functions from result to cell."""
        columns = ("", "clean", "adversarial")[: 1 + len(self.sides)]
        return Table(title, columns, tuple((name, *map(cell, self.sides)) for name, cell in rows.items()))


@dataclass(frozen=True, eq=False)
class Predictions:
    """A classifier's predictions: ids (n,), labels (n,) and logits (n, classes) of n samples, on the CPU."""

    ids: Ints
    y: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def accuracy(self) -> Proportion:
        """The share of samples with the label as their predicted class."""
        return Proportion.of(self.right)

    @property
    def right(self) -> Bools:
        """A mask (n,) of the samples with the label as their predicted class."""
        return np.asarray((self.logits.argmax(1) == self.y).numpy())

    @property
    def log_confidence(self) -> Floats:
        """The log of every sample's largest class probability, distinct even for probabilities that round to 1.

        >>> z = torch.tensor([[40.0, 0.0], [50.0, 0.0]])
        >>> first, second = Predictions(np.arange(2), torch.zeros(2, dtype=torch.long), z).log_confidence
        >>> bool(first < second)
        True
        """
        z = self.logits.double()
        best = z.argmax(1, keepdim=True)
        others = (z - z.gather(1, best)).scatter(1, best, -torch.inf)
        return np.asarray((-others.exp().sum(1).log1p()).numpy())

    @property
    def true_confidence(self) -> Floats:
        """The log-probability of every sample's label."""
        return np.asarray(self.logits.double().log_softmax(1).gather(1, self.y[:, None])[:, 0].numpy())


def read_chunks(problem: Problem) -> Iterator[Chunk]:
    """Yield the samples in order, in chunks of at most 4,096 samples, fewer if the inputs are large."""
    blocks = VALUES // (LEAST * math.prod(problem.shape()))
    return problem.chunks(LEAST * max(1, min(MOST // LEAST, blocks)))


def predict(classifier: Classifier, chunks: Iterable[Chunk], labelled: bool = True) -> Predictions:
    """Return the classifier's predictions on all chunks, in float32 and with a fixed batch shape.

    `labelled=False` skips the check that all labels are classes of the model. Cost: one forward per sample.
    """
    model_checks.check_train_mode(classifier)
    ids, labels, logits = [], [], []
    oracle = Oracle(classifier, default_block(classifier.device))
    with precisions.exact(classifier.device):
        for chunk in chunks:
            out = _output(oracle, chunk)
            if labelled:
                model_checks.require_known_labels(chunk, out.logits.shape[1])
            ids.append(chunk.ids)
            labels.append(chunk.y)
            logits.append(out.logits.cpu())
    z = torch.cat(logits)
    if not bool(z.isfinite().all()):
        raise ModelError(
            expected="finite logits",
            got=model_checks.check_finite_logits(z).message,
            remedy="Find the layer of the model that overflows, or leave these samples out.",
        )
    return Predictions(torch.cat(ids).numpy(), torch.cat(labels), z)


def _output(oracle: Oracle, chunk: Chunk) -> Output:
    device = oracle.classifier.device
    if chunk.offset == 0:
        model_checks.first_forward(oracle, Chunk(chunk.ids[:1], chunk.x[:1], chunk.y[:1]))
    return oracle.output(chunk.x.to(device), chunk.ids.to(device))


def open_run_of(run: AnyRun, classifier: Classifier | None) -> Run:
    """Open a Run; raise an error if its criterion is not misclassification or its model is another classifier."""
    run = Run.open(run)
    if classifier is not None:
        coerce.require_same_model(run, classifier)
    criterion = run.identity.criterion
    if criterion != MISCLASSIFY:
        raise RunError(
            expected="a Run with the criterion misclassification",
            got=f"the criterion {criterion} in {run.path}",
            remedy="Pass a Run of the model without its detector.",
        )
    return run


def with_adversarials(run: Run, problem: Problem) -> Iterator[Chunk]:
    """Yield the samples of the problem in chunks; the Run's adversarials replace the inputs of broken samples."""
    adversarials = run.adversarials()
    index = {int(i): k for k, i in enumerate(adversarials.ids)}
    known = coerce.stored_samples(run)
    for chunk in read_chunks(problem):
        coerce.require_same_samples(run, known, chunk)
        pairs = [(row, index[i]) for row, i in enumerate(chunk.ids.tolist()) if i in index]
        x = chunk.x.clone()
        if pairs:
            rows, stored = (list(v) for v in zip(*pairs, strict=True))
            x[rows] = torch.from_numpy(adversarials.x[stored])
        yield Chunk(chunk.ids, x, chunk.y, chunk.offset)


def largest_loss_points(
    classifier: Classifier, problem: Problem, threat: Threat, attack: AnyAttack, seed: int = 0
) -> Iterator[Chunk]:
    """Yield the samples in chunks; each input is replaced by the point of largest loss that the attack finds.

    Cost: the full budget of the attack for every sample.
    """
    model_checks.check_train_mode(classifier)
    model_checks.require_gradients(classifier)
    if threat.unlimited:
        raise InputError(
            expected="a threat with a radius", got=str(threat), remedy="Pass a radius, e.g. Linf('8/255')."
        )
    threat.check(problem.shape(), len(problem))
    for chunk in read_chunks(problem):
        with precisions.exact(classifier.device):
            x = torch.cat(
                [_attack_block(classifier, part, threat, attack, seed) for part in _blocks(classifier, chunk)]
            )
        yield Chunk(chunk.ids, x, chunk.y, chunk.offset)


def _blocks(classifier: Classifier, chunk: Chunk) -> Iterator[Chunk]:
    size = default_block(classifier.device)
    for i in range(0, len(chunk), size):
        part = slice(i, i + size)
        yield Chunk(chunk.ids[part], chunk.x[part], chunk.y[part], chunk.offset + i)


def _attack_block(classifier: Classifier, chunk: Chunk, threat: Threat, attack: AnyAttack, seed: int) -> Tensor:
    # Pad the last block with its first row: a row's output may depend on the batch shape.
    size, device = default_block(classifier.device), classifier.device
    index = torch.arange(len(chunk), device="cpu")
    index = torch.cat([index, torch.zeros(size - len(index), dtype=torch.long, device="cpu")])
    ids = chunk.ids[index].to(device)
    key = rng.fold(rng.keys(seed, ids), rng.digest(attack.name))
    y = chunk.y[index].to(device)
    rows = Batch(chunk.x[index].to(device), y, key, torch.full_like(y, -1), id=ids)
    ball = threat.ball(index + chunk.offset, device)
    return attack_batch(classifier, attack, rows, ball, keep="best")[: len(chunk)].cpu()
