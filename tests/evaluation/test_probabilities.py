"""Outputs that are probabilities are told from logits that happen to be small."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, ModelError, evaluate, wrap
from brinell.checks import model as model_checks
from brinell.finding import Finding
from brinell.models.demo import demo_net

DATA = brinell.data.load("demo", 32)


class Ends(nn.Module):
    """The demo net with a function of its logits at the end."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.end = demo_net(), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.net(x))


def looked(end: Callable[[Tensor], Tensor], allow: bool = True) -> Finding:
    classifier = wrap(Ends(end).eval(), allow=["probabilities"] if allow else [])
    with torch.no_grad():
        logits = classifier.forward(DATA.x).logits
    return model_checks.check_probabilities(classifier, DATA.x, logits)


SQUASHED = {
    "softmax": lambda z: z.softmax(1),
    "half-precision softmax": lambda z: z.bfloat16().softmax(1),  # sums to 1 within 0.01 only
    "written softmax": lambda z: z.exp() / z.exp().sum(1, keepdim=True),
    "sigmoid": torch.sigmoid,
    "narrow sigmoid": lambda z: (z / 100).sigmoid(),  # all near 1/2
    "reshaped sigmoid": lambda z: z[:, :, None].sigmoid().squeeze(2).clone(),
    "single sigmoid": lambda z: z[:, :1].sigmoid(),
    "flat single sigmoid": lambda z: z[:, 0].sigmoid(),
    "layer": nn.Sequential(nn.Hardsigmoid()),
}


@pytest.mark.parametrize("name", SQUASHED)
def test_probabilities_are_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(ModelError, match=r"expected logits, got outputs in \[0, 1\].* Remove the final") as caught:
        looked(SQUASHED[name], allow=False)
    assert ("softmax" if "softmax" in name else "sigmoid") in caught.value.remedy
    assert ("always mean class 1" in caught.value.got) is ("single" in name)
    assert looked(SQUASHED[name]).level == "fail"  # allowed, and told


def positive(z: Tensor) -> Tensor:
    return z - z.amin() if not z.requires_grad else z - z.detach().amin()


LOGITS = {
    "logits": lambda z: z,
    "small logits": lambda z: 1e-3 * z,
    "small positive logits": lambda z: positive(z) / 100,
    "logits that fill three quarters": lambda z: 0.75 * positive(z) / positive(z).detach().amax() + 0.1,
    "logarithm of softmax": lambda z: z.log_softmax(1),
    "scores of a cosine": lambda z: 0.5 + 0.3 * nn.functional.normalize(z),
    "sigmoids inside": lambda z: 5 * z.sigmoid() - 2,
    "hinges": lambda z: torch.relu(z) / 40,
    "a small single logit": lambda z: z[:, :1] / 100,
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_are_no_probabilities(name: str) -> None:
    assert looked(LOGITS[name], allow=False).level == "ok"


def test_what_fills_the_interval_by_other_means_is_warned_of() -> None:
    check = looked(lambda z: 1 / (1 + (-z).exp()), allow=False)
    assert check.level == "warn" and "look like probabilities" in check.message


def test_a_black_box_that_gives_independent_probabilities_is_warned_of() -> None:
    net = demo_net()

    def scores(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(torch.from_numpy(x)).sigmoid().numpy()

    box = brinell.models.adapters.from_function(scores, classes=10, version="1")
    check = model_checks.check_probabilities(box, DATA.x, box.forward(DATA.x).logits)
    assert check.level == "warn"


def test_a_refused_model_leaves_nothing(tmp_path) -> None:
    with pytest.raises(ModelError, match="final sigmoid"):
        evaluate(Ends(torch.sigmoid).eval(), DATA, Linf(0.1), "fgsm", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    allowed = wrap(Ends(torch.sigmoid).eval(), allow=["probabilities"])
    run = evaluate(allowed, DATA, Linf(0.1), "fgsm", progress=False)
    assert run.verdict.level == "invalid" and "from a final sigmoid" in str(run.verdict)
