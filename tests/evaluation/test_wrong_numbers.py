"""Ways in which a robustness number could be wrong without anybody noticing."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import brinell
from brinell import Linf, attacks, evaluate, plan
from brinell.models.demo import demo_net


class Editing(nn.Module):
    """Writes into the tensor it is given."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(0.5).add_(0.25)
        return self.net(x)


class Plain(Editing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x * 0.5 + 0.25)


def rows(run: brinell.Run):
    return run.rows().drop_columns(["seconds", "adv_shard", "adv_row"])


@pytest.mark.parametrize("attack", [attacks.PGD(steps=4), attacks.Square(steps=40)])
def test_a_model_that_edits_its_input_changes_nothing(attack):
    data = brinell.data.load("demo", 32)
    before = data.x.clone()
    edited, plain = (
        evaluate(kind(demo_net()).eval(), data, Linf(0.1), plan([attack]), progress=False) for kind in (Editing, Plain)
    )
    assert torch.equal(data.x, before)
    assert rows(edited).equals(rows(plain))


class Clipped(nn.Module):
    """A ReLU before the output: below a mean of 0.45 all logits are zero and argmax says class 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = x.mean(1)
        return torch.relu(torch.stack([-m - 1, m - 0.45, -m - 1, -m - 1], 1))


def test_tied_logits_are_judged_by_the_models_decision():
    x, y = torch.full((8, 6), 0.5), torch.ones(8, dtype=torch.long)
    run = evaluate(Clipped().eval(), (x, y), Linf(0.1), plan([attacks.APGD(steps=20)]), progress=False)
    assert run.clean_accuracy.value == 1 and run.robust_accuracy.value == 0
    with torch.no_grad():
        assert (Clipped()(torch.from_numpy(run.adversarials().x)).argmax(1) != 1).all()


class Nan(nn.Module):
    """Gives NaN where the decision is close."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = x.mean(1)
        z = torch.stack([0.5 - m, m - 0.5, -m - 2, -m - 3], 1)
        return z.masked_fill((m - 0.5).abs()[:, None] < 0.06, torch.nan)


def test_numbers_that_are_not_finite_are_never_called_reliable():
    x, y = torch.full((6, 5), 0.6), torch.ones(6, dtype=torch.long)
    strong = plan([attacks.APGD(steps=20)], strength="standard")
    run = evaluate(Nan().eval(), (x, y), Linf(0.05), strong, progress=False)
    assert run.robust_accuracy.value == 1
    assert run.verdict.level != "reliable" and "NaN" in str(run.verdict)


def test_verify_notices_other_labels():
    data = brinell.data.load("demo", 40)
    run = evaluate("demo", data, Linf(0.1), "pgd20", progress=False)
    assert brinell.verify(run, "demo", data).ok
    wrong = brinell.verify(run, "demo", (data.x, (data.y + 1) % 10))
    assert not wrong.ok and "label" in str(wrong)


def test_the_black_box_rule_counts_only_what_gradients_missed():
    both = plan([attacks.APGD(steps=20), attacks.Square(steps=60)])
    run = evaluate("demo", brinell.data.load("demo", 64), Linf(0.15), both, individual=True, progress=False)
    alone = {s.attack: s.broken for s in run.stages()}
    assert alone["square"] > 2, "the test tests nothing"
    assert "black-box" not in str(run.verdict).replace("includes a black-box", "")


class Augmented(Dataset):
    """Another image at every reading."""

    def __init__(self) -> None:
        self.data, self.reads = brinell.data.load("demo", 8), 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int):
        self.reads += 1
        return (self.data.x[i] * (1 - 0.001 * self.reads)).clamp(0, 1), self.data.y[i]


def test_data_that_change_from_reading_to_reading_are_refused():
    with pytest.raises(brinell.InputError, match="second time"):
        evaluate("demo", brinell.Problem(Augmented()), Linf(0.1), "fgsm", progress=False)


class Lottery(nn.Module):
    """Right seven times in ten, whatever the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong = (torch.rand(len(x)) < 0.3).float()
        bend = 1e-3 * x.flatten(1).mean(1)
        return torch.stack([1 - 2 * wrong + bend, 0 * wrong, wrong - 3, wrong - 4], 1)


def test_lucky_draws_do_not_pile_up():
    three = [brinell.Eot(attacks.APGD(steps=3), 3), brinell.Eot(attacks.APGD(steps=3, loss="dlr"), 3)]
    protocol = brinell.Plan("rand", tuple(three), draws=5)
    n = 300
    x, y = torch.full((n, 4), 0.5), torch.zeros(n, dtype=torch.long)
    torch.manual_seed(0)
    run = evaluate(Lottery().eval(), (x, y), Linf(1e-4), protocol, progress=False)
    # Chosen on some passes and judged on others, single passes are right almost seven times in ten, however many
    # attacks ran: fewer by 0.05, because of what a majority of the judging passes broke by chance.
    assert abs(run.repeats.robust.mean - 0.65) < 0.05
    # Of a majority of five and another majority of five, chance gives 0.163² for each attack.
    fell = run.clean_accuracy.k - run.robust_accuracy.k
    assert fell <= 3 * 2 * 0.163**2 * n + 5


def test_names_do_not_make_evaluations_different(tmp_path):
    data = brinell.data.load("demo", 8)
    evaluate("demo", data, Linf(0.1), "fgsm", out=tmp_path / "a", progress=False)
    again = evaluate("demo", data, Linf("1/10"), "fgsm", out=tmp_path / "a", resume=True, progress=False)
    assert again.finished and np.isclose(again.manifest["identity"]["threat"]["eps"], 0.1)


def test_a_random_model_is_never_called_reliable():
    data = brinell.data.load("demo", 60)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    generator = torch.Generator().manual_seed(0)
    for p in net.parameters():
        nn.init.normal_(p, std=0.1, generator=generator)
    strong = plan([attacks.FGSM()], strength="standard")
    run = evaluate(net.eval(), data, Linf("1/255"), strong, progress=False)
    assert run.clean_accuracy.value < 0.25
    assert "verdict.md#guessing" in [finding.anchor for finding in run.verdict.findings]
    assert run.verdict.level == "suspicious"
    good = evaluate("demo", data, Linf("1/255"), strong, progress=False)
    assert "verdict.md#guessing" not in [finding.anchor for finding in good.verdict.findings]
