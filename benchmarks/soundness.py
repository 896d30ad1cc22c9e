"""No sample may be certified and broken: random small networks, attacked and bounded at the same radius.

Usage: python benchmarks/soundness.py [--n 1000] [--start 0]

Every network has random layers, weights, norm and radius, from its seed alone. It is attacked by APGD from four starts
and by random corners of the ball, and bounded by intervals, CROWN, optimised slopes and branch and bound. Every
finished seed is one line of results/soundness.jsonl; a seed that is there is not done again. Writes
results/soundness.md, with `--n 0` nothing else.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from brinell.attacks import APGD
from brinell.certification import Bounds
from brinell.core.threat import Threat, threat
from brinell.ops import rng

RESULTS = Path(__file__).parent / "results"
LINES = RESULTS / "soundness.jsonl"
SAMPLES, CORNERS, SHAPE = 4, 400, (1, 4, 4)
RADII = {"Linf": 0.08, "L2": 0.3, "L1": 0.8}
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ReLU6)


@dataclass(frozen=True)
class Found:
    """What one network showed: certified, broken and both, of its samples, and the smallest excess of a margin."""

    seed: int
    norm: str
    certified: int
    broken: int
    both: int
    below: int


def network(seed: int) -> nn.Module:
    """A random network of one to three hidden layers, with a convolution and pooling or without."""
    torch.manual_seed(seed)
    pick = torch.randint(0, 1000, (12,)).tolist()
    act = [ACTIVATIONS[p % len(ACTIVATIONS)]() for p in pick[:3]]
    layers: list[nn.Module] = [nn.Flatten()]
    width = 16
    if pick[3] % 2:
        pool = (nn.Identity(), nn.AvgPool2d(2), nn.MaxPool2d(2))[pick[4] % 3]
        layers = [nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), act[0], pool, nn.Flatten()]
        width = 48 if pick[4] % 3 == 0 else 12
    for k in range(1 + pick[5] % 2):
        layers += [nn.Linear(width, 10), act[k + 1]]
        width = 10
    net = nn.Sequential(*layers, nn.Linear(width, 3))
    for v in net.parameters():
        v.data.mul_(2.0)
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.uniform_(-0.5, 0.5)
            m.running_var.uniform_(0.3, 2)
    net = net.eval().requires_grad_(False)
    # All classes are about equally likely.
    net[-1].bias -= net(torch.rand(64, *SHAPE)).mean(0)
    return net


def tried(seed: int) -> Found:
    """Attack and bound the samples of one network."""
    net, x = network(seed), rng.uniform(rng.keys(seed, torch.arange(SAMPLES)), SHAPE)
    y, norm = net(x).argmax(1), list(RADII)[seed % len(RADII)]
    share = rng.uniform(rng.keys(seed + 1, torch.arange(SAMPLES)), ())
    within = threat(norm, (RADII[norm] * (0.02 + share)).double())
    certificates = Bounds(net, seconds=0.3).certify(x, y, within)
    points = torch.cat([APGD(steps=20)(net, x, y, within)[:, None], _corners(seed, x, within)], 1)
    logits = net(points.flatten(0, 1)).double()
    label = y.repeat_interleave(points.shape[1])
    others = logits.scatter(1, label[:, None], -torch.inf).amax(1)
    margin = (logits.gather(1, label[:, None])[:, 0] - others).view(SAMPLES, -1).amin(1)
    certified = torch.tensor([c.certified for c in certificates])
    # A counterexample of the bounds is another adversarial example.
    broken = (margin <= 0) | torch.tensor([c.counterexample is not None for c in certificates])
    bound = torch.tensor([c.margin for c in certificates], dtype=torch.float64)
    return Found(
        seed,
        norm,
        int(certified.sum()),
        int(broken.sum()),
        int((certified & broken).sum()),
        int((bound > margin).sum()),
    )


def _corners(seed: int, x: Tensor, within: Threat) -> Tensor:
    """Points of the ball: moves along random signs, many of them on few coordinates only."""
    keys = rng.keys(seed + 2, torch.arange(len(x) * CORNERS))
    signs, drop = rng.signs(keys, SHAPE), rng.uniform(rng.fold(keys, 1), SHAPE)
    moves = (signs * (drop < rng.uniform(rng.fold(keys, 2), ())[:, None, None, None])).view(len(x), CORNERS, *SHAPE)
    ball = within.ball(torch.arange(len(x)).repeat_interleave(CORNERS), x.device)
    start = x.repeat_interleave(CORNERS, 0)
    return ball.project(start, start + 2 * moves.flatten(0, 1)).view(len(x), CORNERS, *SHAPE)


def write(rows: list[dict[str, int]]) -> None:
    """Write the sums of all seeds."""
    sums = [sum(row[k] for row in rows) for k in ("certified", "broken", "both", "below")]
    cells = " | ".join(f"{v:,}" for v in (len(rows), SAMPLES * len(rows), *sums))
    (RESULTS / "soundness.md").write_text(f"""# Certified and broken

{len(rows):,} random small networks, {SAMPLES} samples each, in Linf, L2 and L1 in turn, by `benchmarks/soundness.py`.

| networks | samples | certified | broken | certified and broken | smallest margin found below its bound |
|---|---|---|---|---|---|
| {cells} |
""")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    stored = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    known = {row["seed"] for row in stored}
    for seed in range(given.start, given.start + given.n):
        if seed not in known:
            stored.append(vars(tried(seed)))
            with LINES.open("a") as file:
                file.write(json.dumps(stored[-1]) + "\n")
    write(stored)
