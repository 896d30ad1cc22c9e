"""How help is grouped: commands by purpose, and the options of long commands, so that the usual ones come first."""

import copy
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

START = "Start here"
MEASURE = "Measure a model"
READ = "Read, compare and share results"
TRUST = "Find out whether an attack can be trusted"
SUPPLY = "Models and data"

# Commands with fewer options show them all in one panel.
MANY = 12
# Options that are not named here are the usual ones; they stay in the first panel.
PANELS: dict[str, tuple[str, ...]] = {
    "Attack": (
        "attacks", "individual", "queries", "rank_by", "rank_eps", "audit", "escalate", "known", "steps", "rel_step",
        "beta",
    ),
    "Trust": ("expected_clean_accuracy", "test", "probe"),
    "Record": ("name", "about", "anyway"),
    "Difficulty of the test": (
        "kind", "inner", "boundary", "surface", "gap", "kappa", "curve", "readout", "layer", "reference",
        "random_queries",
    ),
    "Training": (
        "batch", "optimiser", "lr", "momentum", "nesterov", "weight_decay", "schedule", "anneal", "label_smoothing",
        "clip", "ramp", "average",
    ),
    "Network and images": ("crop", "flip", "mean", "std", "classes"),
    "Validation": ("validation", "validation_data", "patience"),
    "Where and how fast": (
        "slots", "precision", "execution", "device", "workers", "ray", "part", "compile", "checkpoint_every",
    ),
    "Output": ("no_images", "plot", "json", "quiet"),
}  # fmt: skip
PANEL_OF = {option: panel for panel, named in PANELS.items() for option in named}

Command = Callable[..., None]


def grouped(command: Command) -> Command:
    """The command with its options in panels, where it has many; options that commands share are not changed."""
    hints = get_type_hints(command, include_extras=True)
    if len(hints) - ("return" in hints) < MANY:
        return command
    # Signatures are read from the function inside, where something is wrapped around it.
    inspect.unwrap(command).__annotations__ = {name: _placed(name, hint) for name, hint in hints.items()}
    return command


def _placed(name: str, hint: Any) -> Any:
    if name not in PANEL_OF or get_origin(hint) is not Annotated:
        return hint
    kind, option = get_args(hint)
    option = copy.copy(option)
    option.rich_help_panel = PANEL_OF[name]
    return Annotated[kind, option]
