"""The keyword arguments of the public functions as one object."""

import pytest

import brinell
from brinell.core.execution import ComputeOptions, Execution
from brinell.errors import InputError


def test_unknown_names_are_refused_with_a_similar_one() -> None:
    with pytest.raises(InputError, match="Did you mean 'slots'"):
        Execution.from_options({"slotz": 3})
    with pytest.raises(InputError, match="got precision"):
        Execution.from_options({"precision": "tf32"}, ComputeOptions)
    with pytest.raises(InputError, match="options among seed, slots, device"):
        brinell.attack("demo", brinell.data.load("demo", 2), brinell.Linf(0.1), brinell.attacks.FGSM(), sead=1)  # type: ignore[call-arg]


def test_an_execution_stands_for_all_options() -> None:
    whole = Execution(seed=3, slots=8)
    assert Execution.from_options({"execution": whole, "seed": 0, "slots": None}) is whole
    with pytest.raises(InputError, match="both"):
        Execution.from_options({"execution": whole, "seed": 1})
