"""The same network in torch and in another framework: same gradients, same survivors. Run with `make adapters`."""

import pickle
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import brinell
from brinell import InputError, ModelError
from brinell.attacks import APGD, FAB, HopSkipJump, Square
from brinell.attacks.catalogue import by_name
from brinell.evaluation.plan import limited
from brinell.models import from_jax, from_onnx, from_sklearn, from_tensorflow
from brinell.models.adapters.bridge import FLOOR
from brinell.models.by_name import load_model
from brinell.ops import rng
from brinell.testing import check_classifier

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.usefixtures("unchecked"),
    # What the frameworks themselves warn of is not ours to fail on.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
# Every kind of question: gradients of a loss, all gradients at once, answers alone.
EVERY = [APGD(20), FAB(10), Square(100)]
BLACK_BOX = limited(by_name("blackbox"), 400)


def requires(name: str) -> Any:
    """The framework, or a skip; what it says on being imported is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def travelled(classifier):
    return pickle.loads(pickle.dumps(classifier))


# ----------------------------------------------------------------------------------------------------------------- JAX


@pytest.fixture
def jax() -> ModuleType:
    return requires("jax")


def jax_net(params, x):
    import jax.numpy as jnp

    w1, b1, w2, b2 = params
    return jnp.tanh(x.reshape(len(x), -1) @ w1.T + b1) @ w2.T + b2


def jax_twin(jax, twins, **options):
    return from_jax(jax_net, [jax.numpy.asarray(w) for w in twins.weights], **options)


def test_jax(jax, twins):
    c = jax_twin(jax, twins)
    check_classifier(c, twins.x)
    twins.gradients_agree(c)
    twins.same_outcomes(c, brinell.plan(EVERY))


def test_jax_facts(jax, twins):
    c = jax_twin(jax, twins)
    assert (c.name, c.differentiable, c.dtypes(), c.modes()) == ("jax_net", True, {"float32"}, [])
    other = from_jax(jax_net, [jax.numpy.asarray(w * 1.0001) for w in twins.weights])
    marks = {c.fingerprint, other.fingerprint, jax_twin(jax, twins, version="2").fingerprint}
    assert c.fingerprint == jax_twin(jax, twins).fingerprint and len(marks) == 3
    assert torch.equal(travelled(c).forward(twins.x).logits, c.forward(twins.x).logits)
    with pytest.raises(InputError, match="a version for a JAX function"):
        from_jax(lambda x: x)


def test_jax_traces_once_per_shape_and_kind_of_question(jax, twins):
    traces = []

    def counted(params, x):
        traces.append(x.shape)
        return jax_net(params, x)

    c = from_jax(counted, [jax.numpy.asarray(w) for w in twins.weights])
    for _ in range(3):
        twins.gradients_agree(c)
        c.forward(twins.x)
    assert len(traces) == 2


def test_jax_modules_that_are_trees(jax, twins):
    """As Equinox makes them: arrays and other things in one tree that can be called."""

    @jax.tree_util.register_pytree_node_class
    class Module:
        def __init__(self, params, bend):
            self.params, self.bend = params, bend

        def __call__(self, x):
            w1, b1, w2, b2 = self.params
            return self.bend(x.reshape(len(x), -1) @ w1.T + b1) @ w2.T + b2

        def tree_flatten(self):
            return (self.params, self.bend), None

        @classmethod
        def tree_unflatten(cls, aux, parts):
            return cls(*parts)

    c = from_jax(Module([jax.numpy.asarray(w) for w in twins.weights], jax.numpy.tanh))
    twins.gradients_agree(c)
    assert c.name == "Module"


def test_jax_normalisation_channels_and_low_precision(jax, twins):
    params = [jax.numpy.asarray(w).astype("bfloat16") for w in twins.weights]
    assert "bfloat16" in from_jax(jax_net, params).dtypes()
    seen = []

    def look(x):
        seen.append(x.shape)
        return x.mean((1, 2))

    c = from_jax(look, version="1", channels_last=True, mean=0.5, std=0.25)
    x = torch.rand(4, 3, 5, 2)
    assert torch.allclose(c.forward(x).logits, (x.mean((2, 3)) - 0.5) / 0.25, atol=1e-5) and seen == [(4, 5, 2, 3)]


# -------------------------------------------------------------------------------------------------------- scikit-learn


@pytest.fixture
def sklearn() -> ModuleType:
    return requires("sklearn")


def perceptron(twins, classes: int = 5):
    """An MLPClassifier with the network's own weights."""
    from sklearn.neural_network import MLPClassifier

    made = MLPClassifier((16,), activation="tanh", max_iter=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(np.random.default_rng(0).random((50, 36)), np.arange(50) % classes)
    w1, b1, w2, b2 = twins.weights
    if classes == 5:
        made.coefs_, made.intercepts_ = [w1.T, w2.T], [b1, b2]
    return made


def test_sklearn_perceptron(sklearn, twins):
    c = from_sklearn(perceptron(twins))
    check_classifier(c, twins.x)
    assert c.differentiable
    twins.gradients_agree(c)
    twins.same_outcomes(c, brinell.plan(EVERY))


@pytest.mark.parametrize("classes", [2, 3])
def test_sklearn_gradients_are_those_of_its_own_answers(sklearn, twins, classes):
    """Against central differences of what the estimator itself says, in float64."""
    from sklearn.linear_model import LogisticRegression

    x, y = twins.x.flatten(1).numpy(), (np.arange(24) % classes)
    for estimator in (LogisticRegression().fit(x, y), perceptron(twins, classes)):
        c = from_sklearn(estimator)
        check_classifier(c, twins.x)
        ask = estimator.decision_function if hasattr(estimator, "decision_function") else estimator.predict_log_proba
        point = twins.x[:4].clone().requires_grad_()
        grad = torch.autograd.grad(c.forward(point).logits[:, -1].sum(), point)[0].flatten(1).numpy()
        h, base = 1e-5, x[:4].astype(np.float64)
        for j in (0, 7, 35):
            step = np.eye(36)[j] * h
            up, down = ask(base + step), ask(base - step)
            slope = ((up - down) / (2 * h)).reshape(4, -1)[:, -1]
            assert np.allclose(grad[:, j], slope, atol=1e-5)


def test_sklearn_black_boxes(sklearn, twins):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    x, y = twins.x.flatten(1).numpy(), twins.y.numpy()
    forest = RandomForestClassifier(10, random_state=0).fit(x, y)
    c = from_sklearn(forest)
    assert not c.differentiable and from_sklearn(LinearSVC().fit(x, y)).differentiable
    wanted = np.log(np.maximum(forest.predict_proba(x), FLOOR))
    assert np.allclose(c.forward(twins.x).logits.numpy(), wanted, atol=1e-4)
    assert not from_sklearn(make_pipeline(StandardScaler(), LinearSVC()).fit(x, y)).differentiable
    labels = from_sklearn(forest, outputs="labels")
    assert (
        labels.forward(twins.x).logits.argmax(1).numpy() == np.searchsorted(forest.classes_, forest.predict(x))
    ).all()
    places = torch.from_numpy(np.searchsorted(forest.classes_, y))
    run = brinell.evaluate(labels, (twins.x, places), brinell.L2(0.5), BLACK_BOX, progress=False)
    assert len(run.survivors()) < 24 and brinell.verify(run, labels, (twins.x, places)).ok


def test_sklearn_facts(sklearn, twins):
    c = from_sklearn(perceptron(twins))
    other = perceptron(twins)
    other.coefs_[0] = other.coefs_[0] * 1.0001
    assert c.fingerprint == from_sklearn(perceptron(twins)).fingerprint != from_sklearn(other).fingerprint
    again = travelled(c)
    assert again.fingerprint == c.fingerprint == from_sklearn(again.module.estimator).fingerprint
    twins.gradients_agree(again)
    from sklearn.linear_model import LinearRegression, LogisticRegression

    for unfit in (LogisticRegression(), LinearRegression()):
        with pytest.raises(InputError, match="fitted scikit-learn classifier"):
            from_sklearn(unfit)


# ---------------------------------------------------------------------------------------------------------------- ONNX


@pytest.fixture
def onnx() -> ModuleType:
    requires("onnxruntime")
    return requires("onnx")


def onnx_model(onnx, twins, rows: "int | str" = "n", softmax: bool = False):
    h, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = ("w1", "b1", "w2", "b2")
    weights = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(w), n) for w, n in zip(twins.weights, names, strict=True)
    ]
    nodes = [
        h.make_node("Flatten", ["x"], ["flat"]),
        h.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"], transB=1),
        h.make_node("Tanh", ["hidden"], ["bent"]),
        h.make_node("Gemm", ["bent", "w2", "b2"], ["logits"], transB=1),
        h.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        h.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    ends = [
        h.make_tensor_value_info("label", onnx.TensorProto.INT64, [rows]),
        h.make_tensor_value_info("probabilities" if softmax else "logits", kind, [rows, 5]),
    ]
    entry = h.make_tensor_value_info("x", kind, [rows, 1, 6, 6])
    graph = h.make_graph(nodes, "twin", [entry], ends, weights)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def test_onnx(onnx, twins):
    c = from_onnx(onnx_model(onnx, twins))
    check_classifier(c, twins.x)
    assert torch.allclose(c.forward(twins.x).logits, twins.net(twins.x), atol=1e-5)
    twins.same_outcomes(c, BLACK_BOX, brinell.Linf(0.1))
    assert c.differentiable
    twins.same_outcomes(c, brinell.attacks.PGD(steps=5), brinell.Linf(0.1))


def exported(onnx, nodes, weights, shape, opset: int = 17, batch: "int | str" = "n") -> bytes:
    """A model from nodes and arrays, with input x and output z."""
    h, kind = onnx.helper, onnx.TensorProto.FLOAT
    tensors = [onnx.numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()]
    ends = [h.make_tensor_value_info("x", kind, [batch, *shape]), h.make_tensor_value_info("z", kind, None)]
    graph = h.make_graph([h.make_node(*a, **k) for *a, k in nodes], "net", ends[:1], ends[1:], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8).SerializeToString()


def draw(*shape: int) -> np.ndarray:
    return (rng.uniform(rng.keys(sum(shape), torch.arange(shape[0])), (*shape[1:], 1))[..., 0] - 0.5).numpy()


def graphs() -> dict[str, tuple[list, dict]]:
    conv = {"w": draw(4, 3, 3, 3), "b": draw(4), "s": draw(4), "m": draw(4), "v": draw(4) + 1, "k": draw(5, 4)}
    pool = {"kernel_shape": [3, 3], "strides": [2, 2]}
    size = np.array([0, -1], np.int64)
    return {
        "convolutions": (
            [
                ("Conv", ["x", "w", "b"], ["a"], {"pads": [1, 0, 1, 2], "strides": [1, 2]}),
                ("BatchNormalization", ["a", "s", "b", "m", "v"], ["c"], {}),
                ("LeakyRelu", ["c"], ["d"], {"alpha": 0.2}),
                ("MaxPool", ["d"], ["e"], {**pool, "pads": [1, 1, 0, 0]}),
                ("GlobalAveragePool", ["e"], ["f"], {}),
                ("Flatten", ["f"], ["g"], {}),
                ("Gemm", ["g", "k"], ["z"], {"transB": 1, "alpha": 0.5}),
            ],
            conv,
        ),
        "shapes": (
            [
                ("Shape", ["x"], ["h"], {}),
                ("Gather", ["h", "zero"], ["rows"], {"axis": 0}),
                ("Unsqueeze", ["rows", "axis"], ["one"], {}),
                ("Concat", ["one", "rest"], ["size"], {"axis": 0}),
                ("Pad", ["x", "pads"], ["p"], {}),
                ("Slice", ["p", "from", "to", "axes"], ["cut"], {}),
                ("Transpose", ["cut"], ["t"], {"perm": [0, 1, 3, 2]}),
                ("AveragePool", ["t"], ["u"], {"kernel_shape": [8, 4], "strides": [8, 4]}),
                ("Reshape", ["u", "size"], ["r"], {}),
                ("Clip", ["r", "low"], ["y"], {}),
                ("Sigmoid", ["y"], ["q"], {}),
                ("ReduceMean", ["x"], ["mean"], {"axes": [1, 2, 3], "keepdims": 1}),
                ("Squeeze", ["mean", "last"], ["flat"], {}),
                ("Mul", ["q", "flat"], ["product"], {}),
                ("Sub", ["product", "y"], ["z"], {}),
            ],
            {
                "zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1]), "low": np.float32(0.3),
                "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]), "from": np.array([1]), "to": np.array([9]),
                "axes": np.array([2]), "last": np.array([2, 3]),
            },
        ),
        "old softmax": (
            [
                ("Reshape", ["x", "size"], ["f"], {}),
                ("MatMul", ["f", "k"], ["m"], {}),
                ("Softmax", ["m"], ["p"], {}),
                ("Log", ["p"], ["z"], {}),
            ],
            {"size": size, "k": draw(192, 6)},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["convolutions", "shapes", "old softmax"])
def test_onnx_gradients_are_those_of_finite_differences(onnx, name):
    nodes, weights = graphs()[name]
    c = from_onnx(exported(onnx, nodes, weights, (3, 8, 8), 11 if name == "old softmax" else 13), gradients=True)
    x = rng.uniform(rng.keys(5, torch.arange(4)), (3, 8, 8))
    assert c.differentiable
    check_classifier(c, x)


def test_onnx_without_gradients_says_why(onnx, tmp_path):
    weights = {"k": draw(192, 6)}
    nodes = [("Flatten", ["x"], ["f"], {}), ("MatMul", ["f", "k"], ["m"], {}), ("Sinh", ["m"], ["z"], {})]
    path = tmp_path / "own.onnx"
    path.write_bytes(exported(onnx, nodes, weights, (3, 8, 8)))
    with pytest.warns(UserWarning, match="own is a black box.*Sinh is not translated"):
        assert not load_model(str(path)).differentiable
    with pytest.raises(ModelError, match="Sinh"):
        from_onnx(path, gradients=True)
    assert not from_onnx(path, gradients=False).differentiable


def test_onnx_gradients_are_compared_with_onnxruntime(onnx, twins, monkeypatch):
    from brinell.models.adapters import onnx_torch

    plain = onnx_torch.operators
    monkeypatch.setattr(onnx_torch, "operators", lambda v: {**plain(v), "Tanh": lambda v, a: 1.1 * v[0].tanh()})
    with pytest.warns(UserWarning, match="differs from onnxruntime"):
        assert not from_onnx(onnx_model(onnx, twins)).differentiable


def test_onnx_probabilities_have_gradients_where_the_model_is_sure(onnx):
    """The gradient of log p_i − log p_j is that of the logits, also where p_i rounds to 1."""
    weights = {"k": draw(192, 6)}
    nodes = [("Flatten", ["x"], ["f"], {}), ("MatMul", ["f", "k"], ["m"], {}), ("Softmax", ["m"], ["z"], {"axis": 1})]
    c = from_onnx(exported(onnx, nodes, weights, (3, 8, 8)), outputs="probabilities")
    x = rng.uniform(rng.keys(5, torch.arange(4)), (3, 8, 8)).requires_grad_()
    logits = c.forward(x).logits
    (grad,) = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), x)
    wanted = torch.from_numpy(weights["k"][:, 0] - weights["k"][:, 1]).float()
    assert c.differentiable and torch.allclose(grad.flatten(1), wanted.expand(4, -1), atol=1e-5)


def test_an_onnx_file_is_a_model(onnx, twins, tmp_path):
    path = tmp_path / "twin.onnx"
    path.write_bytes(onnx_model(onnx, twins).SerializeToString())
    run = brinell.evaluate(str(path), (twins.x, twins.y), brinell.Linf(0.1), "fgsm", progress=False, test=False)
    assert run.identity.model.name == "twin" and run.robust_accuracy.k < run.clean_accuracy.k


def test_onnx_files_batches_and_outputs(onnx, twins, tmp_path):
    path = tmp_path / "small.onnx"
    path.write_bytes(onnx_model(onnx, twins, rows=5).SerializeToString())
    fixed = from_onnx(path)
    assert fixed.name == "small" and fixed.differentiable and fixed.dtypes() == {"float32"}
    for n in (1, 5, 7, 24):
        assert torch.allclose(fixed.forward(twins.x[:n]).logits, twins.net(twins.x[:n]), atol=1e-5)
    back = travelled(fixed)
    path.unlink()
    assert torch.equal(back.forward(twins.x).logits, fixed.forward(twins.x).logits)
    soft = from_onnx(onnx_model(onnx, twins, softmax=True), outputs="probabilities")
    assert torch.allclose(soft.forward(twins.x).logits, twins.net(twins.x).log_softmax(1), atol=1e-4)
    labels = from_onnx(onnx_model(onnx, twins), outputs="labels", classes=5)
    assert (labels.forward(twins.x).logits.argmax(1) == twins.y).all()
    with pytest.raises(ModelError, match="an output of the ONNX model"):
        from_onnx(onnx_model(onnx, twins), output="features")
    with pytest.raises(ModelError, match="onnxruntime can open"):
        from_onnx(b"nothing")
    with pytest.raises(InputError, match="an ONNX file"):
        from_onnx(tmp_path / "absent.onnx")


def test_onnx_fingerprints(onnx, twins):
    model = onnx_model(onnx, twins)
    marks = {
        from_onnx(m).fingerprint for m in (model, model.SerializeToString(), onnx_model(onnx, twins, softmax=True))
    }
    assert len(marks) == 2


def test_estimators_wrap_themselves():
    linear_model = requires("sklearn.linear_model")
    data = brinell.data.load("demo", 64)
    x, y = data.x.flatten(1).numpy(), data.y.numpy() % 3
    fitted = linear_model.LogisticRegression(max_iter=200).fit(x, y)
    run = brinell.evaluate(fitted, (data.x, y), brinell.Linf(0.05), "fgsm", progress=False, test=False)
    assert run.identity.model.name == "LogisticRegression" and run.clean_accuracy.k == (fitted.predict(x) == y).sum()
    with pytest.raises(InputError, match="Call fit first"):
        brinell.evaluate(linear_model.LogisticRegression(), (data.x, y), brinell.Linf(0.05), "fgsm", progress=False)
    odd = linear_model.LogisticRegression(max_iter=200).fit(x, 2 * y)
    with pytest.raises(InputError, match="searchsorted"):
        brinell.evaluate(odd, (data.x, 2 * y), brinell.Linf(0.05), "fgsm", progress=False)


# ---------------------------------------------------------------------------------------------------------- TensorFlow


@pytest.fixture
def tf() -> ModuleType:
    return requires("tensorflow")


def keras_twin(tf, twins, **options):
    w1, b1, w2, b2 = twins.weights
    layers = tf.keras.layers
    net = tf.keras.Sequential(
        [layers.Input((6, 6, 1)), layers.Flatten(), layers.Dense(16, "tanh"), layers.Dense(5)], name="small"
    )
    net.set_weights([w1.T, b1, w2.T, b2])
    return from_tensorflow(net, **options)


def test_keras(tf, twins):
    c = keras_twin(tf, twins)
    check_classifier(c, twins.x)
    twins.gradients_agree(c)
    twins.same_outcomes(c, brinell.plan([APGD(10), FAB(3), Square(20)]))


def test_keras_facts(tf, twins):
    c = keras_twin(tf, twins)
    assert (c.name, c.differentiable, c.dtypes(), c.modes()) == ("small", True, {"float32"}, [])
    assert c.fingerprint == keras_twin(tf, twins).fingerprint != keras_twin(tf, twins, version="2").fingerprint


def test_keras_elsewhere(tf, twins, monkeypatch):
    monkeypatch.setattr(tf.keras.backend, "backend", lambda: "jax")
    with pytest.raises(ModelError, match="the backend jax"):
        keras_twin(tf, twins)


def test_tensorflow_functions(tf, twins):
    w1, b1, w2, b2 = map(tf.constant, twins.weights)

    def net(x):
        hidden = tf.tanh(tf.matmul(tf.reshape(x, (len(x), -1)), w1, transpose_b=True) + b1)
        return tf.matmul(hidden, w2, transpose_b=True) + b2

    c = from_tensorflow(net, version="1", channels_last=False)
    twins.gradients_agree(c)
    with pytest.raises(InputError, match="a version for a TensorFlow function"):
        from_tensorflow(net)


def test_keras_drops_nothing_out_and_names_its_softmax(tf, twins):
    layers = tf.keras.layers
    net = tf.keras.Sequential(
        [layers.Input((6, 6, 1)), layers.Flatten(), layers.Dropout(0.5), layers.Dense(5, "softmax")]
    )
    c = from_tensorflow(net)
    assert torch.equal(c.forward(twins.x).logits, c.forward(twins.x).logits)
    with pytest.raises(ModelError, match="probabilities"):
        brinell.evaluate(c, (twins.x, twins.y), brinell.Linf(0.01), HopSkipJump(3), progress=False)


# ------------------------------------------------------------------------------------------------------- documentation

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [("frameworks.md", f) for f in ("jax", "tensorflow", "sklearn", "onnx")] + [("howto/jax.md", "jax")]


@pytest.mark.parametrize(("page", "framework"), PAGES)
def test_the_example_of_the_documentation_runs(page, framework, tmp_path, monkeypatch, capsys):
    requires(framework)
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```py\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    [code] = [e for e in examples if re.match(rf"(import|from) {framework}", e)]
    exec(compile(code, page, "exec"), {"__name__": "__docs__"})
    assert "n = 8" in capsys.readouterr().out
