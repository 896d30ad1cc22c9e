"""Keywords of other libraries: attacks and `brinell.evaluate` refuse them and name their own."""

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from brinell.errors import InputError, PlanError, did_you_mean

if TYPE_CHECKING:
    # Type checkers refuse every keyword of this type.
    Unknown: TypeAlias = NoReturn
else:
    Unknown = object

CALL = "attack(model, x, y, brinell.Linf('8/255'))"
RADIUS = f"The radius belongs to the threat: {CALL}."
TARGETS = "attack(model, x, target, threat, targeted=True)"
# Names of other libraries, by the field that they mean.
FIELDS = {
    "steps": (
        *("num_iter", "nb_iter", "max_iter", "n_iter", "n_iters", "niter", "iters", "iterations", "num_iterations"),
        *("num_steps", "n_steps", "nb_steps", "nsteps", "perturb_steps", "max_iterations", "n_queries", "query_limit"),
        *("max_queries", "step"),
    ),
    "rel_step": ("alpha", "step_size", "stepsize", "eps_iter", "eps_step", "rel_stepsize", "abs_stepsize", "eta"),
    "random_start": ("rand_init", "rand_minit", "random_init", "rand_start", "rs"),
    "momentum": ("decay", "decay_factor", "mu"),
    "loss": ("loss_fn", "loss_name", "criterion"),
    "p0": ("p_init",),
}
# What belongs elsewhere, by the sentence that says where.
ELSEWHERE = {
    RADIUS: ("eps", "epsilon", "epsilons", "eps_max", "max_norm"),
    f"The norm belongs to the threat: {CALL}.": ("norm", "order", "ord", "p"),
    "Restart it with brinell.Restarts(attack, n).": ("n_restarts", "nb_restarts", "restarts", "num_random_init"),
    f"Choose labels in the call, {TARGETS}, or the likeliest classes: brinell.Targets(attack, k=9).": (
        *("targeted", "target", "targets", "y_target", "n_target_classes", "n_classes", "num_classes"),
    ),
    "Average over passes with brinell.Eot(attack, 20).": ("eot_iter", "eot", "n_samples"),
    "The seed belongs to the call: attack(model, x, y, threat, seed=0).": ("seed", "random_seed"),
    "Inputs lie in [0, 1]; leave it out.": ("clip_min", "clip_max", "bounds", "clip_values"),
    f"The model belongs to the call: {CALL}.": ("model", "estimator", "classifier", "fmodel", "predict"),
    "The number of samples attacked at a time belongs to the call: attack(model, x, y, threat, slots=64).": (
        *("batch_size", "bs", "device"),
    ),
}

EVALUATE = "brinell.evaluate(net, (x, y), brinell.Linf(8/255))"
# Keywords of other libraries, by the sentence that says what to write.
ARGUMENTS = {
    f"Radius and norm belong to the threat: {EVALUATE}.": ("eps", "epsilon", "epsilons", "norm", "p", "threat_model"),
    f"Inputs and labels are one argument: {EVALUATE}.": ("x", "y", "inputs", "images", "labels", "targets_y"),
    f"The model comes first: {EVALUATE}.": ("model", "net", "estimator"),
    f"The data come second: {EVALUATE}.": ("data", "dataset", "loader", "dataloader"),
    f'The plan comes fourth, or as plan=: {EVALUATE[:-1]}, "fast").': (
        "attack",
        "attacks",
        "version",
        "attacks_to_run",
    ),
    "Write slots=64, the number of samples attacked at a time.": ("batch_size", "bs"),
    "Write progress=False for silence.": ("verbose", "quiet"),
}


def refuse_keywords(attack: str, given: Iterable[str], fields: Iterable[str]) -> None:
    """Raise a PlanError for a keyword that is not a field of the attack; its remedy names the field to use.

    >>> refuse_keywords("PGD", ["num_iter"], ["steps", "rel_step"])
    Traceback (most recent call last):
    brinell.errors.PlanError: expected hyper-parameters of PGD: steps, rel_step, got num_iter. Write steps=….
    """
    names = list(fields)
    for keyword in given:
        if keyword not in names:
            known = ", ".join(names) or "none"
            raise PlanError(
                expected=f"hyper-parameters of {attack}: {known}", got=keyword, remedy=_remedy(attack, keyword, names)
            )


def _remedy(attack: str, keyword: str, names: list[str]) -> str:
    field = next((ours for ours, theirs in FIELDS.items() if keyword == ours or keyword in theirs), None)
    if field in names:
        return f"Write {field}=…" + (", the step as a share of eps: alpha / eps." if field == "rel_step" else ".")
    if field is not None:
        return f"{attack} has no such number: leave it out."
    found = next((sentence for sentence, theirs in ELSEWHERE.items() if keyword in theirs), None)
    return found or did_you_mean(keyword, names, f"See help(brinell.attacks.{attack}).")


def refuse_unknown(given: Iterable[str], function: Callable[..., Any]) -> None:
    """Raise an InputError for a keyword that `brinell.evaluate` lacks; its remedy names what to write."""
    names = [name for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    for keyword in given:
        known = next((sentence for sentence, theirs in ARGUMENTS.items() if keyword in theirs), None)
        raise InputError(
            expected="arguments of brinell.evaluate, as help(brinell.evaluate) shows them",
            got=keyword,
            remedy=known or did_you_mean(keyword, names, "See help(brinell.evaluate)."),
        )


def refuse_separate_labels(problem: Any, threat: Any) -> None:
    """Raise an InputError for labels in the place of the threat: `evaluate(net, x, y)`."""
    if all(getattr(given, "shape", ()) for given in (problem, threat)):
        raise InputError(
            expected="inputs and labels as one argument",
            got="two arrays",
            remedy=f"Write a pair: {EVALUATE}.",
        )
