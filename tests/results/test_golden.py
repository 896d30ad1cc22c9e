"""The stored Run of schema version 1, against numbers worked out by hand."""

import numpy as np
import pytest

from brinell.results import ROWS, Proportion, Run
from brinell.results.evidence import in_short
from brinell.results.format.schema import SOMETIMES


def test_the_rows(golden: Run) -> None:
    rows = golden.rows()
    assert rows.schema == ROWS
    assert rows["sample_id"].to_pylist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert rows["attack"].to_pylist()[:6] == ["clean", "clean", "apgd-ce", "clean", "apgd-ce", "apgd-t"]
    second = rows.to_pylist()[2]
    assert second.pop("adv_shard").startswith("00000002-")
    assert [second.pop(name) for group in SOMETIMES for name in group] == [None] * 6
    assert second == {
        "sample_id": 1,
        "x_sha256": "c69d251b485ff055e18266a6309e6ee152946fdd6be78a78cf244259db12d26b",
        "label": 1,
        "clean_pred": 1,
        "clean_margin": -1.5,
        "attack": "apgd-ce",
        "attack_hash": "hash-apgd-ce",
        "restart": 0,
        "target": 2,
        "seed": 7,
        "broken": True,
        "adv_pred": 2,
        "adv_margin": 0.25,
        "best_loss": 2.0,
        "distance": 0.03,
        "first_broken_at": 3,
        "forwards": 10,
        "backwards": 9,
        "seconds": 0.25,
        "precision": "float32",
        "device": "cpu",
        "verified": True,
        "verified_8bit": None,
        "judged": None,
        "chosen": None,
        "flags": [],
        "adv_row": 0,
    }


def test_the_accuracies(golden: Run) -> None:
    assert golden.clean_accuracy == Proportion(5, 6)
    assert golden.robust_accuracy == Proportion(2, 6)
    assert golden.accuracy_after() == [("apgd-ce", Proportion(3, 6)), ("apgd-t", Proportion(2, 6))]
    assert golden.survivors().tolist() == [3, 4]
    assert golden.attacks == ["apgd-ce", "apgd-t"]


def test_the_adversarials(golden: Run) -> None:
    found = golden.adversarials()
    assert found.ids.tolist() == [1, 2, 5]
    assert found.x.dtype == np.float32 and found.x.shape == (3, 1, 2, 2)
    assert found.x[:, 0, 0, 0].tolist() == [4 / 32 + 1 / 64, 8 / 32 + 1 / 128, 20 / 32 + 1 / 128]


def test_the_cost_and_the_verdict(golden: Run) -> None:
    assert (golden.cost.forwards, golden.cost.backwards, golden.cost.samples) == (96, 81, 6)
    assert golden.cost.seconds == pytest.approx(2.25)
    assert golden.unverified["sample_id"].to_pylist() == [2, 4]
    assert str(golden.verdict).startswith("suspicious: 2 adversarials did not pass verification and are not counted.")
    assert golden.verdict.findings[-1].anchor == "verdict.md#too-few-samples"


def test_the_sentence(golden: Run) -> None:
    assert golden.sentence() == (
        "Under Linf perturbations of size eps = 8/255, toy-net has a robust accuracy of 33.3 % (95 % Wilson interval "
        "[9.7, 70.0], n = 6 samples of toys) against the plan golden [Croce & Hein 2020] (seed 7, Brinell 0.1.0)."
    )


def test_the_summary(golden: Run) -> None:
    assert str(golden).split("\n", 1)[1] == (
        "model     toy-net, 4 classes\n"
        "data      toys, 6 samples\n"
        "threat    Linf perturbations of size eps = 8/255\n"
        "plan      golden, seed 7\n"
        "\n"
        "clean accuracy    83.3 % [43.6, 97.0], n = 6\n"
        "robust accuracy   33.3 % [9.7, 70.0], n = 6\n"
        "\n"
        "attack    attacked   broken   accuracy after\n"
        "apgd-ce          5        2   50.0 % [18.8, 81.2], n = 6\n"
        "apgd-t           4        2   33.3 % [9.7, 70.0], n = 6\n"
        "\n"
        "cost      96 forwards, 81 backwards, 2.2 s of compute, 1.5 s on the clock\n"
        "          per sample 16.0 forwards, 13.5 backwards, 0.375 s\n"
        "\n"
        f"verdict   {golden.verdict}\n"
        "\n"
        f"evidence  {f'{chr(10)}          '.join(in_short(golden))}\n"
        "\n"
        f"untested  {' '.join(golden.verdict.untested)}\n"
        "\n"
        "notes\n"
        "  - 9 targets reduced to 3: 4 classes.\n"
        "\n" + golden.sentence()
    )
