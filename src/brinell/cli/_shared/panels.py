"""Help panels: commands grouped by purpose, and options of long commands with the usual options first."""

import copy
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from brinell.cli._shared.options import expanded

# Commands with fewer options show all of them in one panel.
MANY = 12
# Options not named here are the usual ones and stay in the first panel.
PANELS: dict[str, tuple[str, ...]] = {
    "Attack": (
        "attacks", "individual", "queries", "targets", "rank_by", "rank_eps", "audit", "escalate", "adaptive",
        "steps", "rel_step", "beta",
    ),
    "Reliability": ("expected_clean_accuracy", "test", "probe", "certify"),
    "Record": ("name", "about", "anyway"),
    "Difficulty of the test": (
        "kind", "inner", "boundary", "surface", "gap", "kappa", "curve", "sweep", "values", "readout", "layer",
        "reference", "random_queries",
    ),
    "Training": (
        "batch", "optimiser", "lr", "momentum", "nesterov", "weight_decay", "schedule", "anneal", "label_smoothing",
        "clip", "ramp", "average",
    ),
    "Network and images": ("crop", "flip", "mean", "std", "classes"),
    "Validation": ("validation", "validation_data", "patience"),
    "Execution": (
        "slots", "precision", "execution", "device", "workers", "ray", "part", "compile", "checkpoint_every",
    ),
    "Output": ("no_images", "plot", "json", "quiet"),
}  # fmt: skip
PANEL_OF = {option: panel for panel, named in PANELS.items() for option in named}

Command = Callable[..., None]


def grouped(command: Command) -> Command:
    """Return the command with its option groups expanded; a long list of options is divided into help panels."""
    call = expanded(command)
    signature = inspect.signature(call)
    if len(signature.parameters) >= MANY:
        placed = [p.replace(annotation=_placed(p.name, p.annotation)) for p in signature.parameters.values()]
        call.__signature__ = signature.replace(parameters=placed)  # type: ignore[attr-defined]
    return call


def _placed(name: str, hint: Any) -> Any:
    if name not in PANEL_OF or get_origin(hint) is not Annotated:
        return hint
    kind, option = get_args(hint)
    option = copy.copy(option)  # other commands share it
    option.rich_help_panel = PANEL_OF[name]
    return Annotated[kind, option]
