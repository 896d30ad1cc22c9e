"""A reduced version of benchmarks/fortress_fuzz.py: hostile files of every format, in this process."""

import importlib.util
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def fuzzer() -> Any:
    spec = importlib.util.spec_from_file_location("fortress_fuzz", ROOT / "benchmarks" / "fortress_fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hostile_files_end_in_a_typed_error_or_a_result() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile, about files with equal names
        outcomes = fuzzer().run(seed=11, count=75, isolated=False)
    assert len(outcomes) >= 23  # pictures and ONNX models need packages that may be missing
    assert [detail for o in outcomes for detail in o.details] == []
    assert sum(o.tried for o in outcomes) == 75
