"""Check the model before an evaluation: refuse defects that make results wrong, warn about signs of trouble."""

import torch
from torch import Tensor

from brinell.core.dataset import Chunk
from brinell.core.model import Classifier, Output
from brinell.engine.oracle import Oracle
from brinell.errors import BrinellError, InputError, ModelError, error_text
from brinell.finding import Finding, n_samples
from brinell.ops.losses import margin
from brinell.ops.rowwise import flat
from brinell.results.evidence import ACCESS

# Two outputs for the same row are different if they differ by more than this share of the spread of the logits.
SAME = 1e-4
PROBABILITY_SLACK = 1e-5
# Logits may lie in [0, 1] by chance. This many that come this close to both 0 and 1 are taken for probabilities.
MANY, EDGE = 40, 0.02
# Numbers of channels of images.
CHANNELS = (1, 3, 4)
# The names that autograd gives to functions that return probabilities, and to those that change no value.
SQUASHING = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Hardsigmoid": "hard sigmoid"}
RESHAPING = {
    "Alias", "Cat", "Clone", "Permute", "Reshape", "ReshapeAlias", "Select", "Slice", "Squeeze", "Stack", "T", "ToCopy",
    "Transpose", "UnsafeView", "Unsqueeze", "View",
}  # fmt: skip


def _refuse_unless_allowed(classifier: Classifier, defect: str, **message: str) -> Finding:
    """Raise a ModelError with this message, or return a failed check with it if `classifier.allow` has the defect."""
    if defect not in classifier.allow:
        raise ModelError(**message)
    return Finding(defect, "fail", f"{message['got']}, allowed by the user; expected {message['expected']}.")


def check_train_mode(classifier: Classifier) -> Finding:
    """Check that no part of the model is in train mode."""
    modules = classifier.modes()
    if not modules:
        return Finding("train mode", "ok", "every module is in evaluation mode")
    return _refuse_unless_allowed(
        classifier,
        "train mode",
        expected="a model in evaluation mode",
        got=f"train mode in {', '.join(modules[:3])}{', …' if len(modules) > 3 else ''}",
        remedy="Call net.eval() first: batch normalisation and dropout behave differently in training.",
    )


def first_forward(oracle: Oracle, chunk: Chunk) -> Output:
    """Return the model's output for the first samples; turn an exception into a ModelError with a remedy."""
    try:
        return oracle.output(chunk.x.to(oracle.classifier.device))
    except BrinellError:
        raise
    except Exception as error:
        raise ModelError(
            expected=f"a model that accepts a batch of float32 inputs of shape {tuple(chunk.x.shape[1:])}",
            got=error_text(error),
            remedy=_remedy(oracle.classifier, tuple(chunk.x.shape[1:]), str(error)),
        ) from error


def _remedy(classifier: Classifier, shape: tuple[int, ...], error: str) -> str:
    """Return the remedy for a model that fails on inputs of this shape, chosen by the most likely cause."""
    advice = "Check the shape of the inputs and the model's dtype: net(x) must work for the data."
    if len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS:
        return f"Move the channels first: x.permute(0, 3, 1, 2). {advice}"
    if shape[0] == 3 and "to have 1 channels" in error:
        return f'For files of grey pictures read one channel: --data FOLDER,mode=L, or load(…, mode="L"). {advice}'
    return f"Add a channel axis: x[:, None]. {advice}" if len(shape) == 2 else advice


def check_input_size(classifier: Classifier, x: Tensor) -> list[Finding]:
    """Check that inputs have the shape that the model was trained on, if it is known."""
    if classifier.inputs is None:
        return []
    wanted, given = (" × ".join(map(str, shape)) for shape in (classifier.inputs.shape, x.shape[1:]))
    if wanted == given:
        return [Finding("input size", "ok", f"inputs are {given}, as in training")]
    message = f"The model was trained on inputs of {wanted}, these are {given}: resize and crop them."
    return [Finding("input size", "warn", message)]


def single_logit(logits: Tensor) -> list[str]:
    """Return a list with a note if the model has a single logit z, evaluated as logits (0, z); else an empty list."""
    if logits.shape[1] == 2 and not bool(logits[:, 0].any()):
        return ["The model has one logit z: it is evaluated with two classes and the logits (0, z)."]
    return []


def require_known_labels(chunk: Chunk, classes: int) -> None:
    """Raise an InputError unless every label is a class of the model."""
    if int(chunk.y.max()) >= classes:
        raise InputError(
            expected=f"labels in 0..{classes - 1}, since the model has {classes} classes",
            got=f"label {int(chunk.y.max())}",
            remedy="Check that the labels belong to this model and start at 0.",
        )


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest |a − b| of logits, divided by the median over rows of the range (max − min) of `a`."""
    spreads = a.amax(1) - a.amin(1)
    spreads = spreads[spreads.isfinite()]
    spread = float(spreads.median().clamp(min=1e-12)) if len(spreads) else 1.0
    # NaN or infinite both times counts as equal.
    same = (a == b) | (a.isnan() & b.isnan())
    return float((a - b).abs().masked_fill(same, 0).nan_to_num(nan=torch.inf).max()) / spread


def check_probabilities(classifier: Classifier, x: Tensor, logits: Tensor) -> Finding:
    """Check that the outputs are logits: probabilities flatten every gradient.

    Outputs in [0, 1] are refused if they sum to one, or if they come from a sigmoid or softmax. Other outputs in [0, 1]
    that come near both ends get a warning. Other small logits pass.
    """
    name, slack = "probabilities", PROBABILITY_SLACK
    outputs = logits[:, 1:] if single_logit(logits) else logits
    low, high = float(outputs.min()), float(outputs.max())
    if not (low > -slack and high < 1 + slack):
        return Finding(name, "ok", "outputs are not probabilities")
    sums = outputs.shape[1] > 1 and float((outputs.sum(1) - 1).abs().max()) < slack
    last = "" if sums else last_function(classifier, x)
    if sums or last:
        one = outputs.shape[1] == 1
        return _refuse_unless_allowed(
            classifier,
            name,
            expected="logits",
            got=f"outputs in [0, 1] {'that sum to 1' if sums else f'from a final {last}'}: probabilities"
            f"{', which as a single logit would always mean class 1' if one else ''}",
            remedy=f"Remove the final {last or 'softmax'} (or return its {'argument' if one else 'logarithm'}).",
        )
    if outputs.numel() >= MANY and low < EDGE and high > 1 - EDGE:
        return Finding(
            name,
            "warn",
            f"all outputs lie in [0, 1] and come near both ends ({low:.2g} to {high:.2g}): they look like "
            "probabilities, which flatten gradients; if they are, remove the final sigmoid or softmax.",
        )
    return Finding(name, "ok", "outputs are not probabilities")


def last_function(classifier: Classifier, x: Tensor) -> str:
    """Return the last function of the model: "sigmoid", "hard sigmoid", "softmax", or "" for any other function."""
    try:
        with torch.enable_grad():
            node = classifier.forward(x.detach().clone().requires_grad_()).logits.grad_fn
    except Exception:  # a black box, or whatever the model itself raises: other checks report it
        return ""
    while node is not None:
        kind = type(node).__name__.partition("Backward")[0]
        if kind in SQUASHING:
            return SQUASHING[kind]
        before = [function for function, _ in node.next_functions if function is not None]
        if kind not in RESHAPING or len(before) != 1:
            return ""
        node = before[0]
    return ""


def check_randomised(oracle: Oracle, x: Tensor, logits: Tensor) -> Finding:
    """Check that the same input gets the same output."""
    worst = max(relative_difference(logits, oracle.output(x).logits) for _ in range(2))
    if worst <= SAME:
        return Finding("randomised", "ok", "repeated passes agree")
    return Finding(
        "randomised",
        "warn",
        f"repeated passes on the same input differ by {worst:.2g} of the logits' spread: the model is randomised, and "
        "one lucky draw can pass for an adversarial example; use the plan autoattack-rand.",
    )


def check_mixed_rows(oracle: Oracle, x: Tensor, logits: Tensor) -> Finding:
    """Check that the output for an input does not depend on the other inputs of its batch."""
    n = oracle.block
    batch = x.repeat(-(-n // len(x)), *[1] * (x.ndim - 1))[:n]
    keep = (torch.arange(n, device=x.device) % 2 == 0)[: len(batch)]
    others = torch.where(keep.view(-1, *[1] * (x.ndim - 1)), batch, 1 - batch.flip(0))
    a, b = oracle.output(batch).logits[keep], oracle.output(others).logits[keep]
    worst = relative_difference(a, b)
    if worst <= SAME:
        return Finding("mixed rows", "ok", "outputs do not depend on the other inputs of a batch")
    return _refuse_unless_allowed(
        oracle.classifier,
        "mixed rows",
        expected="a model whose output for an input does not depend on the other inputs of the batch",
        got=f"outputs that change by {worst:.2g} of the logits' spread when the other inputs change",
        remedy="Put batch normalisation in evaluation mode and remove anything computed over the batch.",
    )


# Margins are equal if they differ by at most this share. Of so many samples, no more than this share and this number
# may be equal.
EQUAL, MARGINS, EQUAL_SHARE, EQUAL_SAMPLES = 1e-3, 128, 0.1, 5


def check_equal_margins(x: Tensor, y: Tensor, logits: Tensor) -> Finding:
    """Check that different inputs have different margins: hard labels, votes and saturated outputs are almost constant.

    Such outputs hide how near the decision is, and gradients through them vanish or mean nothing.
    """
    x, y, logits = x[:MARGINS], y[:MARGINS], logits[:MARGINS]
    _, group = flat(x).unique(dim=0, return_inverse=True)
    first = torch.zeros_like(group).scatter_reduce(
        0, group, torch.arange(len(x), device=x.device), "amin", include_self=False
    )
    y, logits = y[first.unique()], logits[first.unique()]
    sizes = -margin(logits, y)
    sizes = sizes[(sizes > 0) & sizes.isfinite()].sort().values
    last = torch.searchsorted(sizes, sizes * (1 + EQUAL), right=True)
    count = int((last - torch.arange(len(sizes), device=sizes.device)).max()) if len(sizes) else 0
    most = max(EQUAL_SAMPLES, EQUAL_SHARE * len(sizes))
    share = count / max(len(sizes), 1)
    if count <= most:
        return Finding(
            "equal margins",
            "ok",
            f"at most {count} of {n_samples(len(sizes), kind='margin')} {'is' if len(sizes) == 1 else 'are'} equal",
            value=share,
        )
    return Finding(
        "equal margins",
        "warn",
        f"{count} of {len(sizes)} clean inputs have the same margin (within {100 * EQUAL:g} %): hard labels, votes or "
        "saturated outputs hide how near the decision is",
        "Return the logits before rounding, voting, softmax or another part that flattens them.",
        value=share,
        threshold=EQUAL_SHARE,
    )


def describe_access(classifier: Classifier) -> list[Finding]:
    """Return a finding that states that the model gives no gradients; nothing for a model that does."""
    if classifier.differentiable:
        return []
    return [Finding(ACCESS, "info", "the model is a black box: it gives logits and no gradients")]


def require_gradients(classifier: Classifier) -> None:
    """Raise a ModelError if the model is marked as a black box, or was made in torch.inference_mode."""
    if not classifier.differentiable:
        raise ModelError(
            expected="a model with gradients with respect to its input",
            got="a model that is marked as a black box",
            remedy="Use a plan without gradients: blackbox.",
        )
    module = classifier.torch_module
    weights = () if module is None else (*module.named_parameters(), *module.named_buffers())
    made = next((name for name, v in weights if v.is_inference()), None)
    if made is not None:
        raise ModelError(
            expected="weights that autograd accepts",
            got=f"weights made in torch.inference_mode(), such as {made}",
            remedy="Build or load the model outside torch.inference_mode().",
        )


def check_finite_logits(logits: Tensor) -> Finding:
    """Check that the logits are finite; raise a ModelError if every input has a non-finite logit."""
    bad = int((~logits.isfinite()).any(1).sum())
    if not bad:
        return Finding("non-finite logits", "ok", "all logits are finite")
    if bad == len(logits):
        raise ModelError(
            expected="finite logits",
            got=f"NaN or infinity for all {bad} clean inputs checked",
            remedy="Check that the weights were loaded whole and are finite: "
            "all(p.isfinite().all() for p in net.parameters()).",
        )
    return Finding("non-finite logits", "fail", f"{bad} of {len(logits)} clean inputs get NaN or infinite logits.")


def run_model_checks(oracle: Oracle, x: Tensor, logits: Tensor) -> list[Finding]:
    """Run every check of this file on one block of samples."""
    numbers = check_finite_logits(logits)
    noise = check_randomised(oracle, x, oracle.output(x).logits)
    checks = [numbers, check_probabilities(oracle.classifier, x, logits), noise]
    return checks if noise.level != "ok" else [*checks, check_mixed_rows(oracle, x, logits)]
