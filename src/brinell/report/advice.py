"""What to do about each reason of a verdict, in a sentence; the documentation says more."""

ADVICE = {
    "failed-check": "Correct the model (evaluation mode, logits instead of probabilities, rows that do not depend on "
    "each other) and evaluate again.",
    "no-rows": "The data was empty or files were lost: evaluate again.",
    "check-that-warns": "Look at the checks below; brinell probe looks deeper into attacks that fail.",
    "unverified-adversarials": "The model may be randomised (use the plan autoattack-rand) or depend on its batch.",
    "unfinished": "Go on with brinell evaluate --resume; until then the robust accuracy is an upper bound.",
    "missing-rows": "Merge all parts (brinell merge), or evaluate again with --resume.",
    "guessing": "The model hardly knows the classes: check its normalisation, channel order and label order, and "
    "evaluate more samples.",
    "weak-plan": "Run the plan autoattack, or fast with its audit, before comparing this number with others.",
    "audit": "Evaluate with an audit and --escalate, which runs the full plan on the rest, or use the plan autoattack.",
    "black-box-wins": "Gradients are probably masked: look with brinell probe, repair them with brinell.models.bpda, "
    "and evaluate again.",
    "non-finite-logits": "Evaluate in float32 and remove what divides by zero or takes logarithms of it.",
    "probe-of-gradients": "Repair the gradients (brinell.models.bpda), average over more draws of a randomised model, "
    "and evaluate again.",
    "probe-of-the-attack": "The attack does not work on this model even without a radius: attack the very model "
    "that is evaluated, and try another loss or attack.",
    "probe-of-strength": "Give the attack more steps, or run the plan autoattack, and evaluate again.",
}
"""By the anchor of each rule on the page of the verdict."""


def advice(docs: str) -> str:
    """What to do about a reason, given where the documentation explains it.

    >>> advice("verdict.md#unfinished")[:10]
    'Go on with'
    """
    return ADVICE.get(docs.partition("#")[2], "")
