"""What a classifier says about samples: as they are, as a Run left them, or after an attack on every one of them."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from brinell.analysis.intervals import Bools, Floats, Ints
from brinell.checks import model as model_checks
from brinell.core.attack import AnyAttack, Batch
from brinell.core.dataset import Chunk, Problem, sample_hashes
from brinell.core.model import Classifier, Output
from brinell.core.threat import Threat
from brinell.engine import precision as precisions
from brinell.engine.attack_batch import attack_batch
from brinell.engine.oracle import Oracle, default_block
from brinell.errors import InputError, ModelError, RunError
from brinell.ops import rng
from brinell.results import Evidence, Run, is_evidence
from brinell.results.format.manifest import MISCLASSIFY

# Samples read at a time, at most and at least (whole blocks of every kind of device), and values: half a thousand
# pictures of ImageNet, some thousand small ones.
MOST, LEAST, VALUES = 4096, 512, 1 << 24
AnyRun: TypeAlias = Run | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Ids, labels and logits of samples, on the CPU."""

    ids: Ints
    y: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def right(self) -> Bools:
        """Whether the class with the largest logit is the label."""
        return np.asarray((self.logits.argmax(1) == self.y).numpy())

    @property
    def log_confidence(self) -> Floats:
        """The logarithm of the largest probability: in order where the probabilities themselves would all round to 1.

        >>> z = torch.tensor([[40.0, 0.0], [50.0, 0.0]])
        >>> found = Predictions(np.arange(2), torch.zeros(2, dtype=torch.long), z).log_confidence
        >>> bool(found[0] < found[1])
        True
        """
        z = self.logits.double()
        best = z.argmax(1, keepdim=True)
        others = (z - z.gather(1, best)).scatter(1, best, -torch.inf)
        return np.asarray((-others.exp().sum(1).log1p()).numpy())

    @property
    def true_confidence(self) -> Floats:
        """The logarithm of the label's probability."""
        return np.asarray(self.logits.double().log_softmax(1).gather(1, self.y[:, None])[:, 0].numpy())


def read_chunks(problem: Problem) -> Iterator[Chunk]:
    """The samples in order, as many at a time as memory is well used for."""
    blocks = VALUES // (LEAST * math.prod(problem.shape()))
    return problem.chunks(LEAST * max(1, min(MOST // LEAST, blocks)))


def predict(classifier: Classifier, chunks: Iterable[Chunk], labelled: bool = True) -> Predictions:
    """What the classifier says about the samples, in float32 and always in the same batch shape.

    Cost: one forward per sample.
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
            remedy="Find where the model overflows: confidences cannot be computed from these.",
        )
    return Predictions(torch.cat(ids).numpy(), torch.cat(labels), z)


def _output(oracle: Oracle, chunk: Chunk) -> Output:
    device = oracle.classifier.device
    if chunk.offset == 0:
        model_checks.first_forward(oracle, Chunk(chunk.ids[:1], chunk.x[:1], chunk.y[:1]))
    return oracle.output(chunk.x.to(device), chunk.ids.to(device))


def open_run(run: AnyRun) -> Run:
    """A Run from itself or its folder."""
    return run if isinstance(run, Run) else Run.open(run)


def require_same_model(run: Run, classifier: Classifier) -> None:
    """Refuse a Run of another model."""
    stored = run.identity.model.fingerprint
    if stored is not None and stored != classifier.fingerprint:
        raise RunError(
            expected=f"a Run of {classifier.name or 'this model'}",
            got=f"one of another model in {run.path}",
            remedy="Give the model that was evaluated, with the same weights and normalisation.",
        )


def require_misclassification(run: Run) -> None:
    """Refuse a Run whose goal is not simply another class."""
    criterion = run.identity.criterion
    if criterion != MISCLASSIFY:
        raise RunError(
            expected="a Run whose goal is misclassification",
            got=f"the goal {criterion} in {run.path}",
            remedy="Evaluate the model without its detector.",
        )


def with_adversarials(run: Run, problem: Problem) -> Iterator[Chunk]:
    """The samples with the Run's adversarials in place of the inputs; a sample without one stays as it is."""
    found = run.adversarials()
    place = {int(i): k for k, i in enumerate(found.ids)}
    known = _clean_rows(run)
    for chunk in read_chunks(problem):
        _same_samples(run, known, chunk)
        at = [(r, place[i]) for r, i in enumerate(chunk.ids.tolist()) if i in place]
        x = chunk.x.clone()
        if at:
            mine, theirs = (list(v) for v in zip(*at, strict=True))
            x[mine] = torch.from_numpy(found.x[theirs])
        yield Chunk(chunk.ids, x, chunk.y, chunk.offset)


def _clean_rows(run: Run) -> dict[int, tuple[str, int]]:
    """Of every sample of a Run: the hash of its input, and its label."""
    rows = run.rows()
    clean = is_evidence(rows, Evidence.CLEAN)
    columns = (np.asarray(rows[c])[clean].tolist() for c in ("sample_id", "x_sha256", "label"))
    return {i: (digest, label) for i, digest, label in zip(*columns, strict=True)}


def _same_samples(run: Run, known: dict[int, tuple[str, int]], chunk: Chunk) -> None:
    seen = zip(sample_hashes(chunk.x), chunk.y.tolist(), strict=True)
    other = [i for i, sample in zip(chunk.ids.tolist(), seen, strict=True) if known.get(i) != sample]
    if other:
        why = "no such sample" if other[0] not in known else "another input or label"
        raise RunError(
            expected="the samples the Run was made from",
            got=f"{why} in {run.path} for {len(other)} of {len(chunk)}, the first with id {other[0]}",
            remedy="Give the same data (same --n, same preprocessing) as in the evaluation.",
        )


def largest_loss_points(
    classifier: Classifier, problem: Problem, threat: Threat, attack: AnyAttack, seed: int = 0
) -> Iterator[Chunk]:
    """The samples with the point of largest loss that an attack finds for each, whether that breaks it or not.

    Cost: that of the attack's whole budget for every sample.
    """
    model_checks.check_train_mode(classifier)
    model_checks.require_gradients(classifier)
    if threat.unlimited:
        raise InputError(
            expected="a threat with a radius", got=str(threat), remedy="The largest loss within it is looked for."
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
    # Whole blocks, the last filled up with its first row: a row's answer may depend on the shape of its batch.
    size, device = default_block(classifier.device), classifier.device
    index = torch.arange(len(chunk))
    index = torch.cat([index, torch.zeros(size - len(index), dtype=torch.long)])
    ids = chunk.ids[index].to(device)
    key = rng.fold(rng.keys(seed, ids), rng.digest(attack.name))
    y = chunk.y[index].to(device)
    rows = Batch(chunk.x[index].to(device), y, key, torch.full_like(y, -1), id=ids)
    ball = threat.ball(index + chunk.offset, device)
    return attack_batch(classifier, attack, rows, ball, keep="best")[: len(chunk)].cpu()
