"""RobustBench's functions: their signatures, and what is different on purpose."""

import inspect
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import InputError, Linf, ModelError, Problem
from brinell.compat import benchmark, load_model, robustbench
from brinell.compat.robustbench import eval as evaluation
from brinell.compat.robustbench import utils
from brinell.evaluation import evaluate as evaluating
from brinell.leaderboard import benchmark as measuring
from brinell.leaderboard import definitions, records
from brinell.leaderboard.definitions import Leaderboard
from brinell.models.demo import demo_net
from brinell.models.zoo import build
from brinell.results import Run

N = 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Boards with a plan for tests, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    names = ("demo", "cifar10", "imagenet")
    quick = [Leaderboard(d, "Linf", Linf("0.1"), 1000, "fgsm") for d in names]
    monkeypatch.setattr(
        definitions, "LEADERBOARDS", (*quick, Leaderboard("cifar10", "corruptions", None, 1000, "corruptions"))
    )


class Threats(Enum):
    Linf = "Linf"


def cifar(folder: Path) -> Problem:
    """A tiny folder as torchvision leaves it; its images are those of the demonstration, in three colours."""
    import pickle

    problem = brinell.data.load("demo", 20)
    x = nn.functional.interpolate(problem.x, size=32).expand(-1, 3, -1, -1)
    stored = {b"data": (255 * x).round().byte().flatten(1).numpy(), b"labels": problem.y.tolist()}
    (folder / "cifar-10-batches-py").mkdir(parents=True)
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(stored, protocol=2))
    return Problem((255 * x).round() / 255, problem.y)


class Colour(nn.Module):
    """The demonstration model for coloured images of 32 by 32."""

    def __init__(self) -> None:
        super().__init__()
        self.net = demo_net()

    def forward(self, x: Tensor) -> Any:
        return self.net(nn.functional.interpolate(x.mean(1, keepdim=True), size=28))


def test_signatures_are_the_originals() -> None:
    assert list(inspect.signature(benchmark).parameters) == [
        *("model", "n_examples", "dataset", "threat_model", "to_disk", "model_name", "data_dir"),
        *("corruptions_data_dir", "device", "batch_size", "eps", "log_path", "preprocessing", "aa_state_path"),
    ]
    defaults = {k: p.default for k, p in inspect.signature(benchmark).parameters.items()}
    assert (defaults["n_examples"], defaults["batch_size"], defaults["data_dir"]) == (10_000, 32, "./data")
    names = ["model_name", "model_dir", "dataset", "threat_model", "custom_checkpoint", "norm"]
    assert list(inspect.signature(load_model).parameters) == names


def test_accuracies_are_those_of_an_evaluation() -> None:
    run = brinell.evaluate("demo", brinell.data.load("demo", N), Linf("0.1"), "fgsm", progress=False)
    clean, robust = benchmark(demo_net(), n_examples=N, dataset="demo", threat_model=Threats.Linf)
    assert (clean, robust) == (run.clean_accuracy.value, run.robust_accuracy.value)
    assert isinstance(clean, float) and 0 < robust < clean
    # The clock decides nothing, nor does the batch size; another radius does.
    assert benchmark(demo_net(), N, "demo", batch_size=5, device="cpu") == (clean, robust)
    assert benchmark(demo_net(), N, "demo", eps=0.5)[1] < robust
    assert benchmark(demo_net().forward, N, "demo") == (clean, robust)


def test_a_record_on_disk_and_a_log() -> None:
    clean, robust = benchmark(
        demo_net(), N, "demo", to_disk=True, model_name="Mine2026", log_path="log.txt", aa_state_path="state"
    )
    record = records.read("model_info/demo/Linf/Mine2026.json")
    assert (record.clean, record.autoattack) == (round(100 * clean, 2), round(100 * robust, 2))
    assert record.run == "state" and Run.open("state").finished
    assert f"robust accuracy {100 * robust:.2f}%, n = {N}" in Path("log.txt").read_text()
    with pytest.raises(InputError, match="model_name"):
        benchmark(demo_net(), N, "demo", to_disk=True)


def test_the_run_in_the_state_path_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = benchmark(demo_net(), N, "demo", aa_state_path="state")
    monkeypatch.setattr(evaluating, "_attack_remaining", lambda *given: None)
    assert benchmark(demo_net(), N, "demo", aa_state_path="state") == first


def test_train_mode_is_told_of_and_measured() -> None:
    net = nn.Sequential(nn.Dropout(0.0), demo_net())
    with pytest.warns(UserWarning, match="train mode"):
        benchmark(net.train(), 4, "demo", aa_state_path="state")
    assert Run.open("state").verdict.level == "invalid"


def test_probabilities_are_measured() -> None:
    clean, robust = benchmark(nn.Sequential(demo_net(), nn.Softmax(1)).eval(), 4, "demo")
    assert 0 <= robust <= clean <= 1


@pytest.mark.parametrize("arguments", [{"model": [demo_net()]}, {"device": ["cpu", "cpu"]}])
def test_lists_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="one model on one device"):
        benchmark(**{"model": demo_net(), "dataset": "demo", "n_examples": 4, **arguments})


def test_data_in_the_folder_of_torchvision() -> None:
    problem = cifar(Path("data"))
    run = brinell.evaluate(Colour().eval(), problem[:8], Linf("0.1"), "fgsm", progress=False)
    assert benchmark(Colour().eval(), 8) == (run.clean_accuracy.value, run.robust_accuracy.value)


def test_other_data_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def load(name: str, n: int, **more: Any) -> Problem:
        asked.append({"name": name, "n": n, **more})
        return brinell.data.load("demo", n)

    monkeypatch.setattr(evaluation, "load", load)
    monkeypatch.setattr(evaluation.boards, "_require_listed", lambda board, problem: None)
    Path("images").mkdir()
    benchmark(demo_net(), 4, "imagenet", data_dir="images", preprocessing="Res224")
    benchmark(demo_net(), 4, "imagenet", data_dir="nowhere", model_name="Wong2020Fast")
    assert asked == [
        {"name": "imagenet", "n": 4, "root": Path("images"), "preprocessing": "Res224", "paths": "robustbench"},
        {"name": "imagenet", "n": 4, "preprocessing": "Crop288", "paths": "robustbench"},
    ]


def test_corruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = cifar(Path("data"))

    def load(name: str, n: int, *, corruption: str, severity: int, root: str) -> Problem:
        assert (name, root) == ("cifar10-c", "corrupted")
        dark = 0.5 if corruption == "fog" and severity == 5 else 1.0
        return Problem(dark * problem.x, problem.y)[:n]

    monkeypatch.setattr(measuring, "load", load)
    clean, robust = benchmark(Colour().eval(), 8, threat_model="corruptions", corruptions_data_dir="corrupted")
    with torch.no_grad():
        right = [
            float((Colour().eval()(s * problem.x[:8]).argmax(1) == problem.y[:8]).float().mean()) for s in (1, 0.5)
        ]
    assert clean == right[0]
    assert robust == round((74 * right[0] + right[1]) / 75, 4)


def test_load_model_reads_a_folder_of_the_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINELL_OFFLINE", "1")
    monkeypatch.setenv("BRINELL_HOME", "cache")
    net = build("cifar10/Linf/Wong2020Fast").eval()
    place = Path("models/cifar10/Linf/Wong2020Fast.pt")
    place.parent.mkdir(parents=True)
    torch.save({f"module.{k}": v for k, v in net.state_dict().items()}, place)
    loaded = load_model("Wong2020Fast")
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not loaded.training
    assert np.array_equal(loaded(x).detach(), net(x).detach())
    with pytest.raises(ModelError, match="BRINELL_OFFLINE"):
        load_model("Wong2020Fast", model_dir="elsewhere")
    # The fifth argument of the original: a file with other weights for the same network.
    torch.save({"state_dict": {k: 0.5 * v for k, v in net.state_dict().items()}}, "mine.pt")
    own = load_model("Wong2020Fast", "elsewhere", "cifar10", "Linf", "mine.pt")
    first = next(iter(net.state_dict().values()))
    assert torch.equal(next(iter(own.state_dict().values())), 0.5 * first)
    with pytest.raises(ModelError, match=r"none\.pt"):
        load_model("Wong2020Fast", custom_checkpoint="none.pt")


def test_load_model_by_norm_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="threat_model"), pytest.raises(ModelError, match="fashion-mnist/Linf"):
        load_model("Demo", dataset="fashion-mnist", norm="L2")
    with pytest.warns(DeprecationWarning, match="threat_model"):
        assert load_model("Demo", dataset="fashion-mnist", threat_model="L2", norm="Linf") is not None


def test_normalisation_around_a_network_is_part_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = brinell.wrap(demo_net(), mean=0.2, std=0.5)
    monkeypatch.setattr(utils.zoo, "load", lambda name, folder, checkpoint: classifier)
    x = brinell.data.load("demo", 4).x
    loaded = load_model("Any")
    assert torch.equal(loaded(x), demo_net()((x - 0.2) / 0.5))
    assert not loaded.training and len(list(loaded.parameters())) == len(list(demo_net().parameters()))


@pytest.mark.parametrize(
    ("name", "use"), [("get_leaderboard_latex", "leaderboard table"), ("list_available_models", "zoo list")]
)
def test_what_is_missing_says_what_to_use(name: str, use: str) -> None:
    for module in (robustbench, utils):
        with pytest.raises(AttributeError, match=use):
            getattr(module, name)
    with pytest.raises(ImportError, match="leaderboard table"):
        from brinell.compat.robustbench.utils import get_leaderboard_latex  # noqa: F401
