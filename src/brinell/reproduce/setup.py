"""The setup of an exhibit, given by the user: models, data and a threat, loaded when they are needed."""

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brinell.analysis.across_models import distinct, named
from brinell.core.dataset import Problem
from brinell.core.execution import Execution
from brinell.core.model import Classifier
from brinell.core.threat import Threat, threat
from brinell.evaluation import coerce

DEMO, DEMO_EPS = "demo", "0.1"


@dataclass(frozen=True)
class Setup:
    """The models, the data and the threat of an exhibit; by default the demo model and its images.

    `models` and `data` are names as in `brinell.evaluate`. `n` takes the first n samples. `other` are further data
    sets, as NAME=DATA, for exhibits that compare data sets. `steps` is the largest number of attack steps in exhibits
    over iterations. `out` is the folder for Runs and pictures.

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
        """Return the given values as plain data; of `models` and `data` only the last part of the path."""
        given = asdict(self)
        del given["out"], given["progress"]
        return {**given, "models": [os.path.basename(m) for m in self.models], "data": os.path.basename(self.data)}
