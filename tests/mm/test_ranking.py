"""Targets ranked where a reference attack ends: against a direct computation, with every pass counted, in any order."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor, nn

import brinell
from brinell import L2, Linf, PlanError, Problem, Run, Stage, Targets, ThreatError
from brinell.attacks import APGD, FAB, FGSM, PGD, Square
from brinell.attacks.catalogue import by_name
from brinell.core.attack import Batch
from brinell.core.ranking import MaltRanking, rank_by_distance
from brinell.core.threat import Threat
from brinell.core.threat import threat as threat_of
from brinell.engine.oracle import Oracle
from brinell.evaluation import run_stage
from brinell.evaluation.plan import adapt, ranked
from brinell.results import Writer

pytestmark = pytest.mark.usefixtures("unchecked")

EPS = 0.03
MM = APGD(8, "minimum-margin")
# Far out, with steps that do not matter: where it ends is where its noise puts it.
NOISE = PGD(1, 0.001)


def gradient(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_(True)
    return torch.autograd.grad(nn.functional.cross_entropy(net(x), y, reduction="sum"), x)[0]


def by_hand(net: nn.Module, x0: Tensor, y: Tensor, steps: int, length: float, radius: float) -> Tensor:
    """The wrong classes at the end of a sign-gradient attack from the clean point, likeliest first."""
    x = x0
    for _ in range(steps):
        x = (x + length * gradient(net, x, y).sign()).clamp(x0 - radius, x0 + radius).clamp(0, 1)
    order = net(x).argsort(1, descending=True)
    return torch.stack([row[row != label] for row, label in zip(order, y, strict=True)])


def attacked(run: Run) -> pa.Table:
    return run.rows().filter(pc.not_equal(run.rows()["attack"], "clean"))


@pytest.mark.parametrize("radius", [None, 0.1, 0.01])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("kind", ["fgsm", "pgd"])
def test_targets_are_the_classes_ranked_at_the_reference_points(
    kind: str, rank: int, radius: float | None, net: nn.Module, images: Any
) -> None:
    """With a single rank the target of a broken sample tells which class was taken; misclassified samples too."""
    x, y = images
    own = EPS if radius is None else radius
    attack, steps, length = (FGSM(), 1, own) if kind == "fgsm" else (PGD(5, 0.25, random_start=False), 5, own / 4)
    wanted = by_hand(net, x, y, steps, length, own)[:, rank - 2]
    part = Targets(MM, ranks=(rank,), ranked_by=attack, radius=radius)
    rows = brinell.attack(net, (x, y), Linf(EPS), part).to_pylist()
    told = {r["sample_id"]: r["target"] for r in rows if r["broken"]}
    assert told == {i: int(wanted[i]) for i in told}
    assert len(told) >= 8
    assert 39 in told, "the misclassified sample"
    if radius == 0.1:
        clean = {
            r["sample_id"]: r["target"]
            for r in brinell.attack(net, (x, y), Linf(EPS), Targets(MM, ranks=(rank,))).to_pylist()
        }
        assert any(told[i] != clean[i] for i in told if clean[i] is not None), "the reference changes no ranking"


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The targets of every stage that runs in the test."""
    seen: list[Tensor] = []

    class Spy(run_stage.Engine):
        def run(self, work: Any) -> Any:
            seen.append(work.targets)
            return super().run(work)

    monkeypatch.setattr(run_stage, "Engine", Spy)
    return seen


def test_a_sample_s_own_class_is_never_a_target(net: nn.Module, images: Any, targets: list[Tensor]) -> None:
    """Nine ranks of ten classes are all the wrong ones, wherever the true class ranks at the reference point."""
    x, y = images
    brinell.attack(net, (x, y), Linf(EPS), Targets(PGD(1, loss="minimum-margin"), ranked_by=PGD(), radius=0.3))
    others = torch.tensor([[j for j in range(10) if j != c] for c in y.tolist()])
    assert torch.equal(targets[0].sort(1).values, others)


@pytest.mark.parametrize(("by", "forwards", "backwards"), [(FGSM(), 2, 1), (PGD(steps=20), 21, 20)])
@pytest.mark.parametrize("early_exit", [True, False])
def test_every_pass_of_the_ranking_is_counted(
    by: Any, forwards: int, backwards: int, early_exit: bool, net: nn.Module, images: Any
) -> None:
    """With a reference in so small a ball that no ranking changes, everything else stays and the cost grows by that."""
    plain, costly = (
        brinell.attack(net, images, Linf(EPS), Targets(MM, 3, **more), early_exit=early_exit)
        for more in ({}, {"ranked_by": by, "radius": 1e-7})
    )
    for column, more in (("forwards", forwards), ("backwards", backwards)):
        assert np.array_equal(np.asarray(plain[column]) + more, np.asarray(costly[column]))
    first = [None if v is None else v + forwards for v in plain["first_broken_at"].to_pylist()]
    assert costly["first_broken_at"].to_pylist() == first
    drop = ["forwards", "backwards", "first_broken_at", "seconds", "attack_hash"]
    assert plain.drop_columns(drop).equals(costly.drop_columns(drop))
    if not early_exit:
        assert set(costly["forwards"].to_pylist()) == {3 * 9 + forwards}
        assert set(costly["backwards"].to_pylist()) == {3 * 9 + backwards}


def test_the_model_is_asked_as_often_as_the_rows_say(net: nn.Module, images: Any) -> None:
    """Counted at the model, with blocks of one row and everything else taken away."""
    calls: list[bool] = []

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(x.requires_grad)
            return net(x)

    clf = brinell.wrap(Counting().eval())
    x, y = images[0][:3], images[1][:3]
    ball = Linf(EPS).ball(torch.arange(3), torch.device("cpu"))
    p = Batch(x, y, torch.arange(3), torch.full((3,), -1))
    stage = Targets(MM, ranked_by=PGD(steps=20))
    run_stage.last_logits(Oracle(clf, 1), stage.ranked_by, p, ball, slots=1)
    assert (len(calls), sum(calls)) == tuple(3 * v for v in stage.ranking_passes)
    calls.clear()
    run_stage.last_logits(Oracle(clf, 1), stage.ranked_by, p, ball, slots=3, draws=2)
    assert (len(calls), sum(calls)) == tuple(3 * v for v in brinell.Eot(stage, 2).ranking_passes)


DUALS = {"Linf": 1.0, "L2": 2.0, "L1": torch.inf}


@pytest.mark.parametrize("norm", DUALS)
def test_malt_is_the_distance_to_each_class_of_a_linear_model(norm: str, targets: list[Tensor]) -> None:
    """w has long and short rows, so that the likeliest class is often not the nearest; a mask hides coordinates."""
    g = torch.Generator().manual_seed(3)
    w = torch.randn(6, 12, generator=g) * torch.tensor([1.0, 0.2, 3.0, 1.0, 0.5, 2.0])[:, None]
    net = nn.Linear(12, 6).eval().requires_grad_(False)
    net.weight.copy_(w)
    x, mask = torch.rand(30, 12, generator=g), torch.arange(12) < 9
    z = net(x)
    y = z.argmax(1)
    duals = ((w[y][:, None] - w[None]) * mask).norm(DUALS[norm], dim=2)
    distance = ((z.gather(1, y[:, None]) - z) / duals).scatter(1, y[:, None], torch.inf)
    part = Targets(PGD(1, loss="minimum-margin"), 5, ranked_by="malt")
    threat = threat_of(norm, 0.05, mask)
    brinell.attack(net, (x, y), threat, part)
    assert torch.equal(targets[0], distance.argsort(1)[:, :5])
    assert not torch.equal(targets[0], z.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)[:, :5])
    brinell.attack(net, (x, y), threat, Targets(PGD(1, loss="minimum-margin"), 5, ranked_by=MaltRanking(2)))
    likeliest = z.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)
    near = distance.gather(1, likeliest[:, :2]).argsort(1)
    assert torch.equal(targets[1], torch.cat([likeliest[:, :2].gather(1, near), likeliest[:, 2:5]], 1))


def test_one_malt_target_breaks_all_that_can_be_broken_in_a_linear_model() -> None:
    g = torch.Generator().manual_seed(11)
    net = nn.Linear(8, 5).eval().requires_grad_(False)
    net.weight.copy_(torch.randn(5, 8, generator=g) * torch.tensor([0.3, 0.1, 3.0, 1.0, 0.3])[:, None])
    x = 0.4 + 0.2 * torch.rand(60, 8, generator=g)
    net.bias.copy_(-(x @ net.weight.T).mean(0))
    z = net(x)
    y = z.argmax(1)
    reach = (net.weight[y][:, None] - net.weight[None]).abs().sum(2)
    distance = ((z.gather(1, y[:, None]) - z) / reach).scatter(1, y[:, None], torch.inf).amin(1)
    eps = float(distance.median())
    by_logit, by_distance = (
        brinell.attack(net, (x, y), Linf(eps), Targets(MM, 1, **more))["broken"].to_numpy()
        for more in ({}, {"ranked_by": "malt"})
    )
    assert np.array_equal(by_distance, (distance < eps).numpy())
    assert by_logit.sum() < by_distance.sum()


def test_zero_gradients_are_out_of_reach() -> None:
    z, candidates = torch.tensor([[2.0, 3.0, 1.0, 0.0]]), torch.tensor([[1, 2, 3]])
    margins, duals = torch.tensor([[-1.0, 1.0, 2.0]]), torch.tensor([[0.0, 0.0, 0.1]])
    assert rank_by_distance(z, candidates, margins, duals).argsort(1, descending=True).tolist() == [[1, 3, 2, 0]]


def test_every_pass_of_malt_is_counted(net: nn.Module, images: Any) -> None:
    """Ten classes have nine candidates, whatever their default number is."""
    rows = brinell.attack(net, images, Linf(EPS), Targets(MM, 3, ranked_by="malt"), early_exit=False)
    assert set(rows["forwards"].to_pylist()) == set(rows["backwards"].to_pylist()) == {3 * 9 + 9}
    calls: list[int] = []

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return net(x)

    oracle, x, y = Oracle(brinell.wrap(Counting().eval()), 1), images[0][:3], images[1][:3]
    p, ball = Batch(x, y, torch.arange(3), torch.full((3,), -1)), Linf(EPS).ball(torch.arange(3), torch.device("cpu"))
    run_stage.malt_scores(oracle, MaltRanking(4), p, ball, net(x), slots=2, draws=2)
    assert len(calls) == sum(calls) == 3 * MaltRanking(4).passes(draws=2)[0]


class Interrupted(Exception):  # noqa: N818
    pass


RANKINGS = [
    pytest.param(Linf(0.018), FGSM(), None, id="fgsm"),
    pytest.param(Linf(0.018), PGD(steps=20), 0.05, id="pgd20 further out"),
    pytest.param(Linf(0.018), NOISE, 0.4, id="noise"),
    pytest.param(L2(0.12), PGD(steps=5), None, id="pgd in L2"),
    pytest.param(L2(0.12), "malt", None, id="malt in L2"),
]


@pytest.mark.parametrize(("threat", "by", "radius"), RANKINGS)
def test_slots_order_parts_and_interruptions_change_nothing(
    threat: Threat, by: Any, radius: Any, net: nn.Module, images: Any, quiet: Any, outcome: Any, tmp_path: Path
) -> None:
    data = Problem(*images)[28:]
    part = Targets(APGD(4, "minimum-margin"), 2, ranked_by=by, radius=radius)
    reference = quiet(net, data, threat, part, slots=64)
    assert 1 < reference.robust_accuracy.k < len(data) - 1
    for slots in (1, 3):
        assert outcome(quiet(net, data, threat, part, slots=slots)).equals(outcome(reference))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    mixed = Problem(data.x[order], data.y[order], data.ids[order])
    parts = [
        quiet(net, mixed[:1], threat, part, out=tmp_path / "a"),
        quiet(net, mixed[1:], threat, part, out=tmp_path / "b"),
    ]
    assert outcome(Run.merge([p.path for p in parts], tmp_path / "merged")).equals(outcome(reference))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_stage, "BATCH", 3)
        append, left = Writer.append, [2]

        def failing(self: Writer, *args: Any) -> None:
            if not left[0]:
                raise Interrupted
            left[0] -= 1
            append(self, *args)

        patch.setattr(Writer, "append", failing)
        with pytest.raises(Interrupted):
            quiet(net, data, threat, part, out=tmp_path / "torn", slots=3)
    assert not Run.open(tmp_path / "torn").finished
    resumed = quiet(net, data, threat, part, out=tmp_path / "torn", slots=5, resume=True)
    assert resumed.finished
    assert outcome(resumed).equals(outcome(reference))


def test_rankings_do_not_depend_on_the_number_of_targets(
    net: nn.Module, images: Any, quiet: Any, targets: list[Tensor]
) -> None:
    """So what three targets break, nine break, although the reference starts at random."""
    runs = [quiet(net, images, Linf(0.02), ranked(by_name(p), NOISE, 0.4)) for p in ("mm3", "mm9")]
    few, many = (set(attacked(r).filter(attacked(r)["broken"])["sample_id"].to_pylist()) for r in runs)
    assert few
    assert few <= many
    assert torch.equal(targets[0], targets[1][:, :3])


def test_the_reference_s_noise_follows_seed_and_id(net: nn.Module, images: Any, targets: list[Tensor]) -> None:
    part = Targets(PGD(1, loss="minimum-margin"), 9, ranked_by=NOISE, radius=0.4)
    same = (images[0][:1].expand(2, 1, 8, 8), images[1][:1].expand(2))
    for data, seed in ((Problem(*same), 0), (Problem(*same, ids=[1, 0]), 0), (Problem(*same), 1)):
        brinell.attack(net, data, Linf(EPS), part, seed=seed)
    first, swapped, other = targets
    assert torch.equal(first, swapped.flip(0))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, other)


def test_one_radius_per_sample(net: nn.Module, images: Any) -> None:
    """Without a radius of its own the reference stays in each sample's ball."""
    x, y = images
    eps = torch.linspace(0.01, 0.06, 40)
    wanted = torch.cat([by_hand(net, x[i : i + 1], y[i : i + 1], 1, float(e), float(e)) for i, e in enumerate(eps)])[
        :, 0
    ]
    rows = brinell.attack(net, (x, y), Linf(eps), Targets(MM, 1, ranked_by=FGSM())).to_pylist()
    told = {r["sample_id"]: r["target"] for r in rows if r["broken"]}
    assert len(told) >= 8
    assert told == {i: int(wanted[i]) for i in told}


class Fails(nn.Module):
    """The network, but without an answer beyond a value no clean image reaches."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).masked_fill((x.flatten(1).amax(1) > 0.9)[:, None], torch.nan)


def test_where_the_model_has_no_answer_the_clean_order_stays(net: nn.Module, images: Any) -> None:
    x, y = images[0] * 0.85, images[1]
    plain, far = (
        brinell.attack(Fails(net).eval(), (x, y), Linf(0.02), Targets(MM, 1, **more))
        for more in ({}, {"ranked_by": FGSM(), "radius": 0.2})
    )
    assert plain["target"].to_pylist() == far["target"].to_pylist()
    assert plain["broken"].to_pylist() == far["broken"].to_pylist()


def test_the_manifest_says_how_targets_were_ranked(net: nn.Module, images: Any, quiet: Any, tmp_path: Path) -> None:
    malt, _ = adapt(ranked(by_name("mm3"), MaltRanking()), Linf(EPS), classes=10)
    assert malt.to_json()["stages"][0]["ranked_by"] == {"method": "malt", "candidates": 9}
    assert malt.name == "mm3, targets ranked by malt"
    plan = ranked(by_name("mm3"), PGD(steps=20), "6/255")
    run = quiet(net, (images[0][:4], images[1][:4]), Linf(EPS), plan, out=tmp_path / "run")
    (told,) = run.manifest["identity"]["plan"]["stages"]
    assert told["ranked_by"]["radius"] == 6 / 255
    assert told["ranked_by"]["attack"] == {**told["ranked_by"]["attack"], "type": "PGD", "steps": 20, "rel_step": 0.25}
    assert "pgd-ce at 6/255" in run.manifest["identity"]["plan"]["name"]
    hashes = {
        s.to_json()["hash"]
        for p in (plan, by_name("mm3"), ranked(by_name("mm3"), PGD(steps=20)), malt)
        for s in p.stages_for(Linf(EPS))
    }
    assert len(hashes) == 4
    with pytest.raises(brinell.RunError):
        quiet(net, (images[0][:4], images[1][:4]), Linf(EPS), "mm3", out=tmp_path / "run", resume=True)


def test_few_classes() -> None:
    """A reference on DLR falls back like any attack."""
    fitted, notes = adapt(brinell.plan([Targets(MM, 2, ranked_by=PGD(loss="dlr"))]), Linf(EPS), classes=3)
    assert fitted.stages[0].ranked_by == PGD(loss="margin")
    assert any("ranking" in note for note in notes)


@pytest.mark.parametrize("norm", ["Linf", "L2", "L1"])
def test_stages_for_certain_norms_are_ranked_too(norm: str) -> None:
    fitted, _ = adapt(ranked(by_name("minimal"), FGSM(), 0.1), threat_of(norm, 0.1), classes=10)
    by = {s.name: s.ranked_by for s in fitted.stages_for(threat_of(norm, 0.1)) if s.ranks}
    assert by == {"fmn-t": FGSM(), "fab-t": FGSM()}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Targets(MM, ranked_by=FAB()),
        lambda: Targets(MM, ranked_by=Square()),
        lambda: Targets(MM, ranked_by=MM),
        lambda: Targets(MM, radius=0.1),
        lambda: Targets(MM, ranked_by=FGSM(), radius=0),
        lambda: Targets(MM, ranked_by=FGSM(), radius=-0.1),
        lambda: Targets(MM, ranked_by=FGSM(), radius=float("nan")),
        lambda: Targets(MM, ranked_by="malt", radius=0.1),
        lambda: Targets(MM, ranked_by="salt"),
        lambda: MaltRanking(0),
        lambda: Stage(PGD(), ranked_by=MaltRanking()),
        lambda: Stage(PGD(), ranked_by=FGSM()),
        lambda: ranked(by_name("pgd20"), FGSM()),
    ],
)
def test_impossible_rankings_are_refused(wrong: Any) -> None:
    with pytest.raises(PlanError):
        wrong()


@pytest.mark.parametrize("radius", ["six", "6/0", 6.0])
def test_impossible_radii_are_refused(radius: Any, net: nn.Module, images: Any, quiet: Any, tmp_path: Path) -> None:
    """6 is meant in 0-255 units; found out before anything is written."""
    with pytest.raises(ThreatError):
        quiet(net, images, Linf(EPS), Targets(MM, ranked_by=FGSM(), radius=radius), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
