"""How many lanes: chosen from what is measured, remembered per model and device."""

import json

import pytest
import torch

from brinell.engine.cuda.autotune import Measured, choose, micro_batches_for, remembered
from brinell.engine.oracle import Oracle
from brinell.models.wrap import wrap
from brinell.paths import home


@pytest.mark.parametrize(
    ("rates", "expected"), [([1, 1, 1], 4), ([1, 0.9, 0.95], 4), ([1, 1.9, 1.95], 4), ([1, 2, 4, 8, 16], 8)]
)
def test_lanes_double_while_that_pays(rates, expected):
    asked = []

    def measure(lanes):
        asked.append(lanes)
        return Measured(float(rates[len(asked) - 1]), 1, 100)

    assert choose(measure) == expected
    assert asked == [2 ** (k + 1) for k in range(len(asked))]


def test_lanes_leave_memory():
    # Three of ten parts each: after two lanes four parts are left, and two more would need six.
    assert choose(lambda n: Measured(float(n), 3 * n, 10 - 3 * n)) == 2


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_running_out_of_memory_is_an_answer(limit):
    def measure(lanes):
        if lanes > limit:
            raise torch.OutOfMemoryError
        return Measured(float(lanes), 0, 1)

    assert choose(measure) == limit


def test_what_was_measured_is_remembered(tmp_path):
    file, calls = tmp_path / "a" / "lanes.json", []
    for _ in range(2):
        assert remembered(file, "one", lambda: calls.append(1) or 4) == 4
    assert remembered(file, "two", lambda: 2) == 2
    assert len(calls) == 1
    assert json.loads(file.read_text()) == {"one": 4, "two": 2}
    assert [f.name for f in file.parent.iterdir()] == ["lanes.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"one": "many"}', '{"one": 0}'])
def test_a_damaged_memory_is_none(tmp_path, text):
    file = tmp_path / "lanes.json"
    file.write_text(text)
    assert remembered(file, "one", lambda: 4) == 4
    assert json.loads(file.read_text())["one"] == 4


def test_a_place_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert remembered(tmp_path / "file" / "lanes.json", "one", lambda: 4) == 4


def test_nothing_is_measured_on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path))
    assert home() == tmp_path
    assert micro_batches_for(Oracle(wrap(torch.nn.Linear(4, 2).eval()), 8), (4,), "") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.slow
def test_lanes_on_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("BRINELL_HOME", str(tmp_path))
    oracle = Oracle(wrap(torch.nn.Linear(4, 2).eval()).to(torch.device("cuda")), 8)
    assert 1 <= micro_batches_for(oracle, (4,), oracle.classifier.fingerprint) <= 8
    assert len(json.loads((tmp_path / "lanes.json").read_text())) == 1
