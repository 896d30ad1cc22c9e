"""What `import brinell` promises: the names, an example for each, and a light import."""

import doctest
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brinell

NAMES = [
    "BrinellError",
    "Curve",
    "Eot",
    "Estimate",
    "Execution",
    "Finding",
    "InputError",
    "L0",
    "L1",
    "L2",
    "Linf",
    "MissingExtra",
    "ModelError",
    "Plan",
    "PlanError",
    "Problem",
    "Restarts",
    "Run",
    "RunError",
    "Stage",
    "StorageError",
    "Targets",
    "Threat",
    "ThreatError",
    "analysis",
    "attack",
    "attacks",
    "benchmark",
    "calibrated",
    "certify",
    "compare",
    "curve",
    "data",
    "defences",
    "distances",
    "distributed",
    "estimate",
    "evaluate",
    "evaluate_seeds",
    "gallery",
    "launch",
    "models",
    "plan",
    "plans",
    "reliability",
    "report",
    "rescalings",
    "review",
    "test_attack",
    "train",
    "verify",
    "wrap",
]
HEAVY = ["matplotlib", "jinja2", "ray", "scipy", "pandas", "torchvision", "jax", "tensorflow", "sklearn", "PIL"]
HEAVY += ["jaxtyping"]
# As slow to import as the rest of torch.
HEAVY += ["torch._dynamo", "torch._inductor"]


def in_new_process(code: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(Path(brinell.__file__).parents[1])}
    env.pop("MKL_CBWR", None)  # set by this process's own import
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def examples(thing: object) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")


def test_the_names_are_these() -> None:
    assert sorted(brinell.__all__) == NAMES


def test_every_name_exists_and_is_sorted_as_the_linter_sorts() -> None:
    assert len(set(brinell.__all__)) == len(brinell.__all__)
    for name in brinell.__all__:
        assert hasattr(brinell, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_explained(name: str) -> None:
    thing = getattr(brinell, name)
    assert (inspect.getdoc(thing) or "").strip(), f"brinell.{name} has no docstring"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example(name: str) -> None:
    """Modules have examples in their members, errors in their base; the doctests run with the tests."""
    thing = getattr(brinell, name)
    if inspect.ismodule(thing):
        assert any(examples(getattr(thing, member)) for member in thing.__all__)
    elif inspect.isclass(thing) and issubclass(thing, brinell.BrinellError):
        assert examples(brinell.BrinellError)
    else:
        assert examples(thing), f"brinell.{name} has no example"


def test_version_is_text() -> None:
    assert isinstance(brinell.__version__, str)


def test_import_is_light() -> None:
    loaded = in_new_process(f"import sys, brinell; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_results_do_without_torch() -> None:
    code = (
        "import sys, types\n"
        "class Ban:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('torch is banned here')\n"
        "sys.meta_path.insert(0, Ban())\n"
        # The package's own __init__ needs torch; results must not.
        "package = types.ModuleType('brinell')\n"
        f"package.__path__ = [{str(Path(brinell.__file__).parent)!r}]\n"
        "sys.modules['brinell'] = package\n"
        "import brinell.results as r\n"
        f"run = r.Run.open({str(Path(__file__).parent / 'results' / 'golden_run_v1')!r})\n"
        "print(run.robust_accuracy.n, 'torch' in sys.modules)"
    )
    assert in_new_process(code).split() == ["6", "False"]


def test_equal_rows_get_equal_answers_wherever_they_stand():
    """Small products, in a process of its own: the library is told before its first one."""
    code = """
import torch, brinell
for k in (5, 30, 36):
    for n in (3, 4, 8, 10):
        w, row = torch.rand(n, k, generator=torch.Generator().manual_seed(k)) - 0.5, torch.rand(1, k)
        z = torch.nn.functional.linear(row.repeat(32, 1), w)
        assert (z == z[0]).all(), (k, n)
print("equal")
"""
    assert in_new_process(code).strip() == "equal"


def test_public_signatures_have_types() -> None:
    """Those of the package, and of its modules for analyses, tests of attacks, training and reports."""
    rooms = [brinell, *(getattr(brinell, name) for name in ("analysis", "reliability", "report", "train"))]
    untyped = {
        f"{room.__name__}.{name}({p.name})"
        for room in rooms
        for name in room.__all__
        if inspect.isfunction(function := getattr(room, name))
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_KEYWORD and p.annotation in (Any, "Any", p.empty)
    }
    # A protocol of its own, a function or a folder, a transform of another library, the network of a training.
    allowed = {"readout", "corrupted", "preprocessing", "model"}
    assert {call for call in untyped if call.partition("(")[2].rstrip(")") not in allowed} == set()
