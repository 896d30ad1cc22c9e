"""What is the same for every adapter, and functions as black boxes; no framework is needed."""

import ast
import importlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import InputError, MissingExtra, ModelError, PlanError
from brinell.attacks.catalogue import by_name
from brinell.core.model import Classifier
from brinell.evaluation.plan import limited
from brinell.models.adapters.bridge import FLOOR, Bridge, as_logits, classifier
from brinell.testing import check_classifier, linear_world

WORLD = linear_world(3, shape=(1, 4, 4), n=6)


def scores(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1) @ WORLD.weight.numpy().T + WORLD.bias.numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    z = np.exp(scores(x).astype(np.float64))
    return z / z.sum(1, keepdims=True)


class Elsewhere(Bridge):
    """Stands for another framework: computes behind numpy, gradients by hand."""

    calls = 0

    def logits(self, x: Tensor) -> Tensor:
        assert not x.requires_grad
        return torch.from_numpy(scores(x.numpy()))

    def differentiate(self, x: Tensor):
        type(self).calls += 1
        return self.logits(x), lambda g: (g @ WORLD.weight).view_as(x)


def foreign() -> brinell.models.TorchClassifier:
    return classifier(Elsewhere("weights", ("float16",)), name="elsewhere", differentiable=True)


def test_gradients_pass_through():
    mine, theirs = foreign(), WORLD.classifier
    check_classifier(mine, WORLD.x)
    grads = []
    for c in (mine, theirs):
        x = WORLD.x.clone().requires_grad_()
        grads.append(torch.autograd.grad(c.forward(x).logits.square().sum(), x)[0])
    assert torch.allclose(*grads, atol=1e-5)


def test_the_forward_pass_is_not_repeated_for_further_gradients():
    before = Elsewhere.calls
    x = WORLD.x.clone().requires_grad_()
    logits = foreign().forward(x).logits
    for k in range(3):
        torch.autograd.grad(logits[:, k].sum(), x, retain_graph=True)
    assert Elsewhere.calls == before + 1


def test_every_kind_of_question_works():
    """Losses, Jacobians and plain answers: same outcome as the torch twin."""
    plan = brinell.plan([brinell.attacks.APGD(5), brinell.attacks.DeepFool(3), brinell.attacks.Square(5)])
    threat = brinell.L2(float(WORLD.distance("L2").median()))
    runs = [
        brinell.evaluate(c, (WORLD.x, WORLD.y), threat, plan, progress=False) for c in (foreign(), WORLD.classifier)
    ]
    assert runs[0].survivors().tolist() == runs[1].survivors().tolist() and 0 < len(runs[0].survivors()) < 6


def test_facts():
    c = foreign()
    assert isinstance(c, Classifier) and c.dtypes() == {"float16"} and c.modes() == [] and c.name == "elsewhere"
    other = classifier(Elsewhere("other weights"), name="elsewhere", differentiable=True)
    assert c.fingerprint == foreign().fingerprint != other.fingerprint
    assert c.to(torch.device("cpu")).device == torch.device("cpu")


def test_channels_last():
    seen = []

    def look(x):
        seen.append(x.shape)
        return x.mean((1, 2))

    c = brinell.models.from_function(look, version="1", channels_last=True)
    x = torch.rand(5, 3, 4, 2)
    assert torch.allclose(c.forward(x).logits, x.mean((2, 3))) and seen == [(5, 4, 2, 3)]


def test_what_is_known_of_the_frameworks_that_are_missing(monkeypatch):
    real = importlib.import_module
    gone = ("jax", "tensorflow", "onnxruntime", "sklearn", "joblib")

    def without(name, *more):
        if name.partition(".")[0] in gone:
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    for make, extra in (
        (brinell.models.from_jax, "jax"),
        (brinell.models.from_tensorflow, "tensorflow"),
        (brinell.models.from_onnx, "onnx"),
        (brinell.models.from_sklearn, "sklearn"),
    ):
        with pytest.raises(MissingExtra, match=rf"pip install 'brinell\[{extra}\]'"):
            make(lambda x: x)


def test_nothing_is_imported_before_it_is_used():
    """No adapter imports its framework at the top, nor inside by a statement: only by `framework`."""
    allowed = {"brinell", "torch", "numpy", *sys.stdlib_module_names}
    for file in Path(brinell.models.adapters.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {n.partition(".")[0] for n in names} <= allowed, file.name


# ----------------------------------------------------------------------------------------------------------- functions


@pytest.mark.parametrize(
    ("function", "outputs"),
    [(scores, "logits"), (softmax, "probabilities"), (lambda x: scores(x).argmax(1), "labels")],
)
def test_a_function_is_a_black_box(function, outputs):
    c = brinell.models.from_function(function, version="1", outputs=outputs, classes=3, name="box")
    check_classifier(c, WORLD.x)
    assert not c.differentiable and (c.forward(WORLD.x).logits.argmax(1) == WORLD.y).all()
    with pytest.raises(ModelError, match="black box"):
        brinell.evaluate(c, (WORLD.x, WORLD.y), brinell.Linf(0.01), "pgd20", progress=False)


@pytest.mark.usefixtures("unchecked")
def test_labels_alone_are_enough_for_the_plan_blackbox():
    """Outside of the distance of the closed form some samples fall, inside none does."""
    c = brinell.models.from_function(lambda x: scores(x).argmax(1), version="1", outputs="labels", classes=3)
    truth = WORLD.distance("L2")
    eps = float(truth.median()) * 1.5
    plan = limited(by_name("blackbox"), 1200)
    run = brinell.evaluate(c, (WORLD.x, WORLD.y), brinell.L2(eps), plan, progress=False)
    standing = set(run.survivors().tolist())
    assert {i for i in range(6) if truth[i] > eps} <= standing and len(standing) <= 4


def test_versions_tell_functions_apart():
    first, same, second = (brinell.models.from_function(scores, version=v) for v in "112")
    assert first.fingerprint == same.fingerprint != second.fingerprint
    with pytest.raises(InputError, match="a version for a function"):
        brinell.models.from_function(scores, version="")


def test_functions_travel():
    c = pickle.loads(pickle.dumps(brinell.models.from_function(scores, version="1")))
    assert torch.allclose(c.forward(WORLD.x).logits, WORLD.classifier.forward(WORLD.x).logits, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- outputs


def test_probabilities_become_logarithms_with_a_floor():
    z = as_logits([[0.0, 1.0], [0.25, 0.75]], "probabilities", 2)
    assert torch.allclose(z, torch.tensor([[np.log(FLOOR), 0.0], [np.log(0.25), np.log(0.75)]]).float())
    assert torch.equal(as_logits([0.75], "probabilities", 1), as_logits([[0.25, 0.75]], "probabilities", 1))


def test_a_single_logit_becomes_two():
    c = brinell.models.from_function(lambda x: x.sum((1, 2, 3)), version="1")
    assert c.forward(WORLD.x).logits.shape == (6, 2)


@pytest.mark.parametrize(
    ("raw", "outputs", "why"),
    [
        ([[1.0, 2.0]], "logits", "for 2 inputs"),
        ([[0.5, 1.5], [0, 1]], "probabilities", "between 0 and 1"),
        ([[0.5, np.nan], [0, 1]], "probabilities", "between 0 and 1"),
        ([0, 5], "labels", r"labels in 0\.\.2"),
        ([0.5, 1.0], "labels", "whole numbers"),
        ([["a", "b"], ["c", "d"]], "logits", "array of numbers"),
        ([[[1.0]], [[2.0]]], "logits", "shape"),
    ],
)
def test_wrong_answers(raw, outputs, why):
    with pytest.raises(ModelError, match=why):
        as_logits(raw, outputs, 2, 3)


def test_labels_need_the_number_of_classes():
    with pytest.raises(InputError, match="number of classes"):
        as_logits([0, 1], "labels", 2)
    with pytest.raises(PlanError, match="outputs among"):
        brinell.models.from_function(scores, version="1", outputs="score")


def test_a_bridge_without_gradients_says_so():
    class Plain(Elsewhere):
        differentiate = Bridge.differentiate

    with pytest.raises(ModelError, match="a black box"):
        classifier(Plain("x"), name="p", differentiable=False).forward(WORLD.x.clone().requires_grad_())


def test_wrapped_modules_report_their_own_kinds():
    assert brinell.wrap(nn.Linear(2, 2).half().eval()).dtypes() == {"float16"}
