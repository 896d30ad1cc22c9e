"""The class AutoAttack with the call signatures of the original, computed by Brinell."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from brinell.attacks import APGD, FAB, Square
from brinell.core.attack import AnyAttack
from brinell.core.plan import Eot, Plan, Restarts, Stage, Targets, stage
from brinell.core.threat import threat
from brinell.engine.oracle import Oracle, default_block
from brinell.engine.precision import exact
from brinell.errors import InputError, one_of
from brinell.evaluation.evaluate import evaluate
from brinell.models.wrap import wrap
from brinell.results import Run
from brinell.results.format.manifest import MANIFEST

VERSIONS = {
    "standard": ["apgd-ce", "apgd-t", "fab-t", "square"],
    "plus": ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"],
    "rand": ["apgd-ce", "apgd-dlr"],
    "custom": [],
}
NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
# Fresh passes that decide in the version "rand". The original uses one, which chance can decide.
RAND_DRAWS = 5


class Function(nn.Module):
    """A module that applies a function from images to logits."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _settings(version: str, norm: str) -> dict[str, SimpleNamespace]:
    """Return, by attack, the settings of this version under the attribute names of the original's attack objects."""
    large = norm == "L1" and version == "standard"
    many, draws = 5 if version in ("plus", "custom") else 1, 20 if version == "rand" else 1
    return {
        "apgd": SimpleNamespace(
            n_iter=100, n_restarts=5 if large else many, eot_iter=draws, rho=0.75, use_largereps=large
        ),
        "apgd_targeted": SimpleNamespace(
            n_iter=100, n_restarts=1, n_target_classes=5 if large else 9, eot_iter=draws, rho=0.75, use_largereps=large
        ),
        "fab": SimpleNamespace(n_iter=100, n_restarts=many, n_target_classes=9, alpha_max=0.1, eta=1.05, beta=0.9),
        "square": SimpleNamespace(n_queries=5000, n_restarts=1, p_init=0.8),
    }


@dataclass
class AutoAttack:
    """AutoAttack with the constructor, methods and attributes of the original, computed by Brinell.

    Differences: every adversarial is verified on the model. The result depends neither on `bs` (the number of
    slots) nor on earlier calls. `seed=None` means seed 0; the original takes the clock. Models with few classes work.
    `run` is the Run of the last evaluation.

    >>> import brinell
    >>> x, y = brinell.data.load("demo")[:8].x, brinell.data.load("demo")[:8].y
    >>> from brinell.models.demo import demo_net
    >>> adversary = AutoAttack(demo_net(), eps=0.1, version="custom", attacks_to_run=["apgd-ce"], verbose=False)
    >>> adversary.apgd.n_iter = 5
    >>> adversary.run_standard_evaluation(x, y, bs=8).shape
    torch.Size([8, 1, 28, 28])
    """

    model: Any
    norm: str = "Linf"
    eps: float = 0.3
    seed: int | None = None
    verbose: bool = True
    attacks_to_run: list[str] = field(default_factory=list)
    version: str = "standard"
    is_tf_model: bool = False
    device: str | torch.device | None = None
    log_path: str | None = None
    run: Run | None = None

    def __post_init__(self) -> None:
        one_of("a version", self.version, VERSIONS)
        if self.is_tf_model:
            raise InputError(expected="a torch model", got="is_tf_model=True", remedy="Pass a torch module.")
        if self.attacks_to_run and self.version != "custom":
            raise InputError(
                expected="version='custom' together with attacks_to_run",
                got=f"version={self.version!r}",
                remedy="Write version='custom', or leave attacks_to_run out.",
            )
        self.attacks_to_run = list(self.attacks_to_run) or list(VERSIONS[self.version])
        settings = _settings(self.version, self.norm)
        self.apgd, self.apgd_targeted = settings["apgd"], settings["apgd_targeted"]
        self.fab, self.square = settings["fab"], settings["square"]

    def get_seed(self) -> int:
        """Return the seed, 0 if `seed` is None."""
        return 0 if self.seed is None else self.seed

    def set_version(self, version: str = "standard") -> None:
        """Replace the attacks and their settings by those of another version of AutoAttack."""
        self.version, self.attacks_to_run = version, list(VERSIONS[one_of("a version", version, VERSIONS)])
        for name, value in _settings(version, self.norm).items():
            setattr(self, name, value)

    def run_standard_evaluation(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False, state_path: Any = None
    ) -> Any:
        """Return one image per sample: its adversarial, or the clean image; with `return_labels` also predictions.

        `state_path` is the folder of the Run: an interrupted evaluation resumes from there.
        """
        self.run = self._evaluate(self.attacks_to_run, x_orig, y_orig, bs, state_path)
        return self._images(self.run, x_orig, bs, return_labels)

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Run each attack alone on all samples; return, by attack, what `run_standard_evaluation` would return."""
        runs = {name: self._evaluate([name], x_orig, y_orig, bs, None) for name in self.attacks_to_run}
        return {name: self._images(run, x_orig, bs, return_labels) for name, run in runs.items()}

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the share of samples that are classified correctly without an attack."""
        return float((self._labels(x_orig, bs) == y_orig.to("cpu")).float().mean())

    def plan(self, names: list[str]) -> Plan:
        """Return the plan that runs these attacks one after another, with the current settings."""
        stages = tuple(self._stage(one_of("an attack", n, NAMES)) for n in names)
        unchanged = all(getattr(self, k) == v for k, v in _settings(self.version, self.norm).items())
        standard = self.version in ("standard", "plus") and names == VERSIONS[self.version] and unchanged
        return Plan(
            f"autoattack-{self.version}-compat",
            stages,
            "AutoAttack through its own interface",
            strength="standard" if standard else "weak",
            draws=RAND_DRAWS if self.version == "rand" else 1,
        )

    def _stage(self, name: str) -> Stage:
        a, t, f, q = self.apgd, self.apgd_targeted, self.fab, self.square
        if name in ("apgd-ce", "apgd-dlr"):
            large = a.use_largereps and self.norm == "L1"
            return _configured(APGD(a.n_iter, name.removeprefix("apgd-"), a.rho, larger_eps=large), name, a)
        if name == "apgd-t":
            large = t.use_largereps and self.norm == "L1"
            return _configured(APGD(t.n_iter, "dlr-targeted", t.rho, larger_eps=large), name, t)
        if name == "fab":
            return _configured(FAB(f.n_iter, False, f.alpha_max, f.eta, f.beta), name, f)
        if name == "fab-t":
            # The original runs targeted FAB once per target.
            once = SimpleNamespace(n_restarts=1, n_target_classes=f.n_target_classes)
            return _configured(FAB(f.n_iter, True, f.alpha_max, f.eta, f.beta), name, once)
        return _configured(Square(q.n_queries, q.p_init), name, q)

    def _classifier(self) -> Any:
        model = self.model if isinstance(self.model, nn.Module) else Function(self.model).eval()
        classifier = wrap(model)
        return classifier if self.device is None else classifier.to(torch.device(self.device))

    def _evaluate(self, names: list[str], x: Tensor, y: Tensor, bs: int, state: Any) -> Run:
        resume = state is not None and (Path(state) / MANIFEST).exists()
        run = evaluate(
            self._classifier(), (x, y), threat(self.norm, self.eps), self.plan(names), out=state, resume=resume,
            seed=self.get_seed(), slots=bs, progress=False,
        )  # fmt: skip
        self._log(run)
        return run

    def _log(self, run: Run) -> None:
        lines = [f"initial accuracy: {100 * run.clean_accuracy.value:.2f}%"]
        lines += [f"robust accuracy after {name.upper()}: {100 * p.value:.2f}%" for name, p in run.accuracy_after()]
        lines += [f"robust accuracy: {run.robust_accuracy}", f"verdict: {run.verdict}"]
        if self.verbose:
            console = Console(highlight=False, soft_wrap=True)
            for line in lines:
                console.print(line, markup=False)
        if self.log_path is not None:
            with Path(self.log_path).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)

    def _images(self, run: Run, x: Tensor, bs: int, return_labels: bool) -> Any:
        adversarials = run.adversarials()
        x_adv = x.detach().clone()
        if len(adversarials.ids):
            index = torch.tensor(adversarials.ids, device=x_adv.device, dtype=torch.long)
            x_adv[index] = torch.from_numpy(adversarials.x).to(x_adv)
        return (x_adv, self._labels(x_adv, bs)) if return_labels else x_adv

    def _labels(self, x: Tensor, bs: int) -> Tensor:
        classifier = self._classifier()
        # Blocks as in the evaluation: points on the decision boundary keep their class.
        oracle = Oracle(classifier, default_block(classifier.device))
        with exact(classifier.device):
            labels = [oracle.output(batch.to(classifier.device)).logits.argmax(1) for batch in x.split(bs)]
        return torch.cat(labels).to("cpu")


def _configured(attack: AnyAttack, name: str, settings: SimpleNamespace) -> Stage:
    built = stage(attack, name)
    if built.ranks:
        built = Targets(built, settings.n_target_classes)
    return Eot(Restarts(built, settings.n_restarts), getattr(settings, "eot_iter", 1))
