"""The remedy for each finding of a verdict, in a sentence or two."""

ADVICE = {
    "failed-check": "Correct the model (evaluation mode, logits instead of probabilities, samples independent "
    "of their batch) and evaluate again.",
    "no-rows": "The data was empty or files are missing. Evaluate again.",
    "certified-and-broken": "Run brinell verify with the model. If it confirms the adversarial, the certificate is a "
    "defect of the method: report it with the id of the sample.",
    "check-that-warns": "Read the checks below. If one is about gradients, evaluate again with --adaptive; "
    "brinell probe analyses attacks that fail.",
    "unverified-adversarials": "The model may be randomised (use the plan autoattack-rand), or its samples may "
    "depend on their batch.",
    "unfinished": "Continue with brinell evaluate --resume. Until then the robust accuracy is an upper bound.",
    "missing-rows": "Merge all parts (brinell merge), or evaluate again with --resume.",
    "guessing": "The clean accuracy is close to chance. Check normalisation, channel order and label order, and "
    "evaluate more samples.",
    "missing-classes": "Draw the samples at random from all classes of the model, and evaluate again.",
    "too-few-samples": "Evaluate at least 100 samples, better 1,000.",
    "weak-plan": "Run the plan fast or autoattack (--plan fast) before comparing this number with others.",
    "audit": "Evaluate at least 100 samples, pass --escalate (the full plan on all survivors), or use autoattack.",
    "black-box-wins": "The model probably masks its gradients. Evaluate again with --adaptive, or repair the gradients "
    "with brinell.models.bpda.",
    "surrogate-wins": "Take the number as an upper bound. Write an attack for this defence, e.g. with "
    "brinell.models.bpda.",
    "non-finite-logits": "Evaluate in float32, and remove divisions by zero and logarithms of zero from the model.",
    "stood-still": "Evaluate again with --adaptive. Or repair zero gradients (brinell.models.bpda), use another "
    "loss, or evaluate in float32.",
    "probe-of-gradients": "Evaluate again with --adaptive. Or repair the gradients (brinell.models.bpda), and average "
    "over more draws of a randomised model.",
    "probe-of-the-attack": "The attack fails on this model even without a radius. Attack the model that is evaluated, "
    "and try another loss or attack.",
    "probe-of-strength": "Give the attack more steps, or run the plan autoattack, and evaluate again.",
}
"""The remedies by the anchor of each rule on the verdict page of the documentation."""


def advice(docs: str) -> str:
    """Return the remedy for a finding of the verdict, given its page and anchor in the documentation; "" if unknown.

    >>> advice("verdict.md#unfinished")[:10]
    'Continue w'
    """
    return ADVICE.get(docs.partition("#")[2], "")
