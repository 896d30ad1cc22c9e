"""brinell probe."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("unchecked")
SHORT = ("--plan", "pgd20", "--n", 6, "--neighbours", 4, "--queries", 20, "--quiet")


def test_a_sound_attack_is_fine(brinell):
    done = brinell("probe", "--model", "demo", "--data", "demo", "--eps", "0.1", *SHORT, "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["level"] == "ok" and len(found["items"]) == 10
    assert found["curve"][-1][1] == 0 and found["cost"]["forwards"] > 0


def test_a_failing_one_ends_with_code_1_and_advice(brinell, here):
    (here / "dead.py").write_text(
        "import torch\nfrom brinell.models.demo import demo_net\n"
        "def make():\n    return torch.nn.Sequential(Round(), demo_net()).eval()\n"
        "class Round(torch.nn.Module):\n    def forward(self, x):\n        return (x * 255).round() / 255\n"
    )
    done = brinell("probe", "--model", "dead.py:make", "--data", "demo", "--eps", "0.1", *SHORT)
    assert done.code == 1 and "unavailable gradients" in done.out and "bpda" in done.out.replace("\n", "")
    assert "robust accuracy by radius" in done.out
