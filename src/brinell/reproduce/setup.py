"""The setup of an exhibit, given by the user: models, data and a threat, loaded when they are needed."""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brinell.analysis.across_models import distinct, named
from brinell.core.dataset import Problem
from brinell.core.execution import Execution
from brinell.core.model import Classifier
from brinell.core.threat import Threat, threat
from brinell.errors import InputError
from brinell.evaluation import coerce
from brinell.models import zoo

DEMO, DEMO_EPS = "demo", "0.1"


@dataclass(frozen=True)
class Setup:
    """The models, the data and the threat of an exhibit; by default the demo model and its images.

    `models` and `data` are names as in `brinell.evaluate`. `n` takes the first n samples. `other` are further data
    sets, as DATA or NAME=DATA, for exhibits that compare data sets. `steps` is the largest number of attack steps
    in exhibits over iterations. `out` is the folder for Runs and pictures.

    >>> setup = Setup(n=8)
    >>> str(setup.threat), len(setup.problem)
    ('Linf(eps=0.1)', 8)
    """

    models: tuple[str, ...] = (DEMO,)
    data: str = DEMO
    norm: str = "Linf"
    eps: str = DEMO_EPS
    n: int | None = None
    other: tuple[str, ...] = ()
    seed: int = 0
    device: str | None = None
    steps: int | None = None
    out: Path = field(default_factory=lambda: Path("reproduced"))
    progress: bool | None = None

    @property
    def classifier(self) -> Classifier:
        """The first model."""
        return coerce.as_classifier(self.models[0], self.device)

    @property
    def classifiers(self) -> dict[str, Classifier]:
        """All models by name; a name that occurs twice gets a number."""
        found: dict[str, Classifier] = {}
        for label, spec in named(self.models):
            model = coerce.as_classifier(spec, self.device)
            found[distinct(label or model.name or Path(str(spec)).stem, found)] = model
        return found

    @property
    def problem(self) -> Problem:
        """The first n samples of the data."""
        return coerce.as_problem(self.data, self.n)

    @property
    def others(self) -> dict[str, Problem]:
        """The first n samples of the data sets in `other`, by the given name or by the name of the data."""
        found: dict[str, Problem] = {}
        for text in self.other:
            label, spec = split_name(text)
            found[distinct(label or Path(without_folders(spec)).stem, found)] = coerce.as_problem(spec, self.n)
        return found

    @property
    def threat(self) -> Threat:
        """The threat with the given norm and radius."""
        return threat(self.norm, self.eps)

    @property
    def execution(self) -> Execution:
        """The seed and the device, as an option of `brinell.evaluate`."""
        return Execution(seed=self.seed, device=self.device)

    def folder(self, name: str) -> Path:
        """Return the folder for one Run of the exhibit; a Run that is already there is continued."""
        return self.out / "runs" / name

    def to_json(self) -> dict[str, Any]:
        """Return the given values as plain data, without the folders of this machine."""
        given = asdict(self)
        del given["out"], given["progress"]
        models, other = ([without_folders(spec) for spec in specs] for specs in (self.models, self.other))
        return {**given, "models": models, "data": without_folders(self.data), "other": other}

    def check(self, name: str, uses: Sequence[str]) -> None:
        """Raise an InputError if an option has been changed that the exhibit `name` does not use."""
        default, used = Setup(), ["models" if option == "model" else option for option in uses]
        ignored = [o for o in OPTIONS if o not in used and getattr(self, o) != getattr(default, o)]
        if ignored:
            raise InputError(
                expected=f"only options that {name} uses: {_flags(used) or 'none'}",
                got=_flags(ignored),
                remedy=f"Omit {_flags(ignored)}, which would not change the result.",
            )
        if "model" in uses and len(self.models) > 1:
            raise InputError(
                expected=f"one --model, because {name} shows one model",
                got=f"{len(self.models)} models",
                remedy="Run it once for each model, with its own --out.",
            )


OPTIONS = ("models", "data", "norm", "eps", "n", "other", "seed", "device", "steps")


def _flags(options: Sequence[str]) -> str:
    return ", ".join("--model" if option == "models" else f"--{option}" for option in options)


def split_name(spec: str) -> tuple[str, str]:
    """Return the name and the source of NAME=SOURCE; the name is empty if none is given.

    >>> split_name("b=cifar10,split=train"), split_name("cifar10,split=train")
    (('b', 'cifar10,split=train'), ('', 'cifar10,split=train'))
    """
    label, equals, source = spec.partition("=")
    return (label, source) if equals and not re.search(r"[/\\:,]", label) else ("", spec)


def without_folders(spec: str) -> str:
    """Return a model or data set without the folders of its paths; names of the zoo, names and options stay.

    >>> without_folders("a=/home/me/nets.py:make"), without_folders("/data/x.npz,labels=/data/y.npy")
    ('a=nets.py:make', 'x.npz,labels=y.npy')
    >>> without_folders("cifar10/Linf/Engstrom2019Robustness"), without_folders("zoo:cifar10/Linf/*")
    ('cifar10/Linf/Engstrom2019Robustness', 'zoo:cifar10/Linf/*')
    """
    label, source = split_name(spec)
    short = source if fnmatch.filter(zoo.cards(), source.removeprefix("zoo:")) else re.sub(r"[^=,]*[/\\]", "", source)
    return f"{label}={short}" if label else short
