"""AutoAttack and its attacks with the call signatures of the originals, computed by Brinell.

The modules `autoattack`, `autopgd_base`, `fab_pt`, `square` and `utils_tf` are those of the original. `settings` holds
the numbers of the ensemble's attacks, `single_attacks` the attacks alone, and `transcript` the output.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brinell.attacks import APGD, FAB, Square
from brinell.compat.autoattack.settings import Settings
from brinell.compat.autoattack.single_attacks import APGDAttack, APGDAttack_targeted, FABAttack_PT, SquareAttack
from brinell.compat.autoattack.transcript import Log, Transcript
from brinell.compat.functions import as_classifier, predictions
from brinell.compat.missing import refuse_name
from brinell.core.attack import AnyAttack
from brinell.core.plan import Eot, Plan, Restarts, Stage, Targets, stage
from brinell.core.threat import norm_name, threat
from brinell.errors import InputError, did_you_mean, one_of
from brinell.evaluation.evaluate import evaluate
from brinell.ops.norms import SIZES
from brinell.results import Run
from brinell.results.format.manifest import MANIFEST

__all__ = ["APGDAttack", "APGDAttack_targeted", "AutoAttack", "FABAttack_PT", "SquareAttack"]

VERSIONS = {
    "standard": ["apgd-ce", "apgd-t", "fab-t", "square"],
    "plus": ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"],
    "rand": ["apgd-ce", "apgd-dlr"],
    "custom": [],
}
NAMES = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
# Fresh passes that decide in the version "rand". The original uses one, which chance can decide.
RAND_DRAWS = 5


def _settings(version: str, norm: str) -> dict[str, Settings]:
    """Return, by attack, the settings of this version under the attribute names of the original's attack objects."""
    large = norm == "L1" and version == "standard"
    many, draws = 5 if version in ("plus", "custom") else 1, 20 if version == "rand" else 1
    return {
        "apgd": Settings(
            "apgd", n_iter=100, n_restarts=5 if large else many, eot_iter=draws, rho=0.75, use_largereps=large
        ),
        "apgd_targeted": Settings(
            "apgd_targeted",
            n_iter=100,
            n_restarts=1,
            n_target_classes=5 if large else 9,
            eot_iter=draws,
            rho=0.75,
            use_largereps=large,
        ),
        "fab": Settings("fab", n_iter=100, n_restarts=many, n_target_classes=9, alpha_max=0.1, eta=1.05, beta=0.9),
        "square": Settings("square", n_queries=5000, n_restarts=1, p_init=0.8),
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

    @property
    def epsilon(self) -> float:
        """The radius, under the attribute's name in the original."""
        return self.eps

    @epsilon.setter
    def epsilon(self, eps: float) -> None:
        self.eps = eps

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse attributes that would be ignored."""
        names = [*type(self).__dataclass_fields__, "epsilon", "apgd", "apgd_targeted", "fab", "square"]
        if name not in names:
            raise InputError(
                expected=f"attributes of AutoAttack: {', '.join(names)}", got=name, remedy=did_you_mean(name, names)
            )
        super().__setattr__(name, value)

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
        log = Log(self.verbose, self.log_path)
        log(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        self.run = self._evaluate(self.attacks_to_run, x_orig, y_orig, bs, state_path, log)
        x_adv = self._images(self.run, x_orig)
        log(_summary(self.run, self.norm, x_orig, x_adv))
        return self._with_labels(x_adv, return_labels)

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Run each attack alone on all samples; return, by attack, what `run_standard_evaluation` would return."""
        log, found = Log(self.verbose, self.log_path), {}
        log(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        for name in self.attacks_to_run:
            begun = time.perf_counter()
            self.run = self._evaluate([name], x_orig, y_orig, bs, None, Log(False, None))
            seconds, robust = time.perf_counter() - begun, self.run.robust_accuracy
            log(f"robust accuracy by {name.upper()}\t {robust.value:.2%}\t (time attack: {seconds:.1f} s)")
            found[name] = self._with_labels(self._images(self.run, x_orig), return_labels)
        return found

    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """Return the share of samples that are classified correctly without an attack."""
        return float((self._labels(x_orig) == y_orig.to("cpu")).float().mean())

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
            once = Settings("fab", n_restarts=1, n_target_classes=f.n_target_classes)
            return _configured(FAB(f.n_iter, True, f.alpha_max, f.eta, f.beta), name, once)
        return _configured(Square(q.n_queries, q.p_init), name, q)

    def _evaluate(self, names: list[str], x: Tensor, y: Tensor, bs: int, state: Any, log: Log) -> Run:
        resume = state is not None and (Path(state) / MANIFEST).exists()
        correct = int((self._labels(x) == y.to("cpu")).sum()) if log.verbose or log.path else 0
        log(f"initial accuracy: {correct / max(len(y), 1):.2%}")
        transcript = Transcript(log, len(y), correct, bs)
        run = evaluate(
            as_classifier(self.model, self.device), (x, y), threat(self.norm, self.eps), self.plan(names), out=state,
            resume=resume, seed=self.get_seed(), slots=bs, progress=transcript,
        )  # fmt: skip
        for name, p in run.accuracy_after():
            transcript.after(name, p.value)
        return run

    def _images(self, run: Run, x: Tensor) -> Tensor:
        adversarials = run.adversarials()
        x_adv = x.detach().clone()
        if len(adversarials.ids):
            index = torch.tensor(adversarials.ids, device=x_adv.device, dtype=torch.long)
            x_adv[index] = torch.from_numpy(adversarials.x).to(x_adv)
        return x_adv

    def _with_labels(self, x_adv: Tensor, return_labels: bool) -> Any:
        return (x_adv, self._labels(x_adv)) if return_labels else x_adv

    def _labels(self, x: Tensor) -> Tensor:
        return predictions(as_classifier(self.model, self.device), x)


def _summary(run: Run, norm: str, x: Tensor, x_adv: Tensor) -> str:
    """Return the last lines of AutoAttack's output: largest perturbation, range of values, robust accuracy."""
    largest = float(SIZES[norm_name(norm)].size(x_adv.detach().double() - x.detach().double()).max())
    return (
        f"max {norm} perturbation: {largest:.5f}, nan in tensor: {int(x_adv.isnan().sum())}, "
        f"max: {float(x_adv.max()):.5f}, min: {float(x_adv.min()):.5f}\n"
        f"robust accuracy: {run.robust_accuracy.value:.2%}\ninterval: {run.robust_accuracy}\nverdict: {run.verdict}"
    )


def _configured(attack: AnyAttack, name: str, settings: Settings) -> Stage:
    built = stage(attack, name)
    if built.ranks:
        built = Targets(built, settings.n_target_classes)
    return Eot(Restarts(built, settings.n_restarts), getattr(settings, "eot_iter", 1))


def __getattr__(name: str) -> Any:
    """Raise that AutoAttack's name is missing here; the remedy names what to use."""
    refuse_name(__name__, name, __all__, {"utils_tf": "brinell.models.from_tensorflow(model)"})
