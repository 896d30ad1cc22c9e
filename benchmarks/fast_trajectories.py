"""Trajectories behind the `fast` plan: every leg of every sample, whole, on the networks its rule was fixed on.

Usage: python benchmarks/fast_trajectories.py --cifar W.pt --cifar-data X.npz --fashion FOLDER --out FOLDER

For each network a file NAME.npz with, for every correctly classified sample and every leg, the leg's own margin and the
untargeted margin after each answer, and eps times the dual norm of its gradient. Networks other than the
CIFAR-10 one are trained here, quickly, and used for nothing else.
"""

import argparse
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from networks import load_preact18
from torch import Tensor, nn

from brinell import L1, L2, Linf
from brinell.attacks import APGD
from brinell.core.attack import Batch, Requires
from brinell.core.ranking import rank_targets
from brinell.core.threat import Ball, Threat
from brinell.engine.oracle import Oracle
from brinell.models import wrap
from brinell.ops import rng
from brinell.ops.losses import margin

TARGETS = 9


@dataclass
class World:
    """A network, its samples and a threat."""

    name: str
    net: nn.Module
    x: Tensor
    y: Tensor
    threat: Threat


def idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(tuple(int(n) for n in shape))


def fashion(folder: Path, part: str, device: str) -> tuple[Tensor, Tensor]:
    x, y = idx(folder / f"{part}-images-idx3-ubyte.gz"), idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return torch.from_numpy(x.copy())[:, None].to(device).float() / 255, torch.from_numpy(y.astype(np.int64)).to(device)


def prototypes(classes: int, n: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Images of a class: its own smooth pattern, shifted and noisy. Neighbouring classes share half of the pattern."""
    g = torch.Generator().manual_seed(seed)
    base = F.interpolate(torch.rand(classes + 1, 1, 6, 6, generator=g), 20, mode="bicubic", align_corners=False)
    base = (base[1:] + base[:-1]) / 2
    g = torch.Generator().manual_seed(seed + 1000 + n)
    y = torch.randint(classes, (n,), generator=g)
    x = base[y] + 0.12 * torch.randn(n, 1, 20, 20, generator=g)
    shift = torch.randint(-2, 3, (n, 2), generator=g).tolist()
    x = torch.stack([torch.roll(a, tuple(s), (1, 2)) for a, s in zip(x, shift, strict=True)])
    return x.clamp(0, 1).to(device), y.to(device)


def cnn(classes: int, size: int, width: int, norm: bool = True) -> nn.Module:
    def bn(c: int) -> nn.Module:
        return nn.BatchNorm2d(c) if norm else nn.Identity()

    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1), bn(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), bn(2 * width),
        nn.ReLU(), nn.Conv2d(2 * width, 2 * width, 4, 2, 1), bn(2 * width), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * width * (size // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip


def mlp(classes: int, size: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, classes),
    )  # fmt: skip


def train(net: nn.Module, x: Tensor, y: Tensor, threat: Threat | None, epochs: int, seed: int) -> nn.Module:
    """Plain or PGD-7 adversarial training, one cycle."""
    g = torch.Generator(device="cpu").manual_seed(seed)
    for name, p in net.named_parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=g) * (2 / p[0].numel()) ** 0.5
        elif name.endswith("bias"):
            p.data.zero_()
    net.to(x.device)
    batch, rate = 256, 2e-3
    steps = epochs * (len(x) // batch)
    opt = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=1e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, rate, total_steps=steps, pct_start=0.3)
    for k in range(steps):
        rows = torch.randint(len(x), (batch,), generator=g).to(x.device)
        a, b = x[rows], y[rows]
        if threat is not None:
            ball = threat.ball(torch.arange(batch), x.device)
            ball = Ball(ball.norm, ball.eps * min(1.0, 4 * k / steps) + 1e-6, ball.mask)
            net.eval()
            adv = ball.inside(a, rng.keys(k, torch.arange(batch, device=x.device)))
            for _ in range(7):
                adv.requires_grad_(True)
                grad = torch.autograd.grad(F.cross_entropy(net(adv), b, reduction="sum"), adv)[0]
                step = 0.3 * ball.eps.view(-1, 1, 1, 1) * ball.steepest(grad, 0.02)
                adv = ball.project(a, adv.detach() + step)
            a = adv.detach()
        net.train()
        opt.zero_grad()
        F.cross_entropy(net(a), b).backward()
        opt.step()
        cycle.step()
    return net.eval().requires_grad_(False)


def leg(
    w: World, oracle: Oracle, attack: APGD, x: Tensor, y: Tensor, target: Tensor, key: Tensor, start: Tensor | None
):
    """One run on every sample to its end: own margin and untargeted margin after each answer, and the best point."""
    ball = w.threat.ball(torch.arange(len(x)), x.device)
    p = Batch(x, y, key, target, start)
    s = attack.init(p, ball)
    own, free, duals, best, at = [], [], [], torch.full_like(ball.eps, -torch.inf), x
    logits_at = None
    for _ in range(attack.queries):
        a = oracle.query(s.x, y, target, attack.loss, Requires.GRAD)
        duals.append(ball.reach(a.gradient))
        logits_at = a.logits if logits_at is None else logits_at
        m = margin(a.logits, y)
        own.append(a.loss)
        free.append(m)
        better = m > best
        best = torch.where(better, m, best)
        at = torch.where(better.view(-1, *[1] * (x.ndim - 1)), s.x, at)
        logits_at = torch.where(better[:, None], a.logits, logits_at)
        s = attack.step(s, a, p, ball)
    out = {"own": torch.stack(own, 1), "free": torch.stack(free, 1), "dual": torch.stack(duals, 1)}
    return {k: v.float().cpu().numpy() for k, v in out.items()}, at, logits_at


def broken(w: World, oracle: Oracle, attack: APGD, x: Tensor, y: Tensor, t: Tensor, key: Tensor) -> np.ndarray:
    """Whether one run finds an adversarial inside the ball."""
    ball = w.threat.ball(torch.arange(len(x)), x.device)
    p = Batch(x, y, key, t)
    s, fell = attack.init(p, ball), torch.zeros_like(y, dtype=torch.bool)
    for _ in range(attack.queries):
        a = oracle.query(s.x, y, t, attack.loss, Requires.GRAD)
        fell |= (a.logits.argmax(1) != y) & (ball.norm.size(s.x - x) <= ball.eps * (1 + 1e-6))
        s = attack.step(s, a, p, ball)
    return fell.cpu().numpy()


def collect(w: World, folder: Path) -> None:
    oracle = Oracle(wrap(w.net), 512)
    logits = oracle.output(w.x).logits
    keep = logits.argmax(1) == w.y
    x, y, z = w.x[keep], w.y[keep], logits[keep]
    k = min(TARGETS, logits.shape[1] - 1)
    none = torch.full_like(y, -1)
    key = rng.keys(0, keep.nonzero()[:, 0])
    data: dict[str, np.ndarray] = {"n": np.asarray(len(w.x)), "correct": keep.cpu().numpy(), "logits": z.cpu().numpy()}

    def save(name: str, got: dict[str, np.ndarray]) -> None:
        data.update({f"{name}_{part}": v for part, v in got.items()})

    def target(rank: int, by: Tensor) -> Tensor:
        return rank_targets(by, y, (rank,))[:, 0]

    got, at, by = leg(w, oracle, APGD(10, "margin"), x, y, none, key, None)
    save("u10", got)
    data["u10_logits"] = by.cpu().numpy()
    save("u10c", leg(w, oracle, APGD(10, "margin"), x, y, none, key, x)[0])
    save("u20", leg(w, oracle, APGD(20, "margin"), x, y, none, key, None)[0])
    save("u50", leg(w, oracle, APGD(50, "margin"), x, y, none, key, None)[0])
    for j in range(k):  # towards the classes as the clean input ranks them, and as the best point so far does
        save(f"t{j}", leg(w, oracle, APGD(50, "minimum-margin"), x, y, target(j + 2, z), rng.fold(key, j), None)[0])
    for j in range(min(k, 5)):
        save(f"b{j}", leg(w, oracle, APGD(50, "minimum-margin"), x, y, target(j + 2, by), rng.fold(key, j), None)[0])
    for j in range(min(k, 3)):
        save(f"s{j}", leg(w, oracle, APGD(50, "minimum-margin"), x, y, target(j + 2, by), rng.fold(key, j), at)[0])
    sure = np.zeros(len(x), bool)
    for name, v in data.items():
        if name.endswith("_free"):
            sure |= (v > 0).any(1)
    data["by_legs"] = sure.copy()
    more = [APGD(100, "minimum-margin")]
    if w.threat.norm.sparse:
        more.append(APGD(100, "minimum-margin", larger_eps=True))
    for i, attack in enumerate(more):  # the truth as far as it is known: a hundred steps more towards every target
        left = torch.from_numpy(~sure).to(x.device)
        if not bool(left.any()):
            break
        xs, ys = x[left], y[left]
        for j in range(k):
            t = rank_targets(z[left], ys, (j + 2,))[:, 0]
            sure[left.cpu().numpy()] |= broken(w, oracle, attack, xs, ys, t, rng.fold(key[left], 50 + j + 10 * i))
        ce = APGD(100, "ce", larger_eps=attack.larger_eps)
        sure[left.cpu().numpy()] |= broken(w, oracle, ce, xs, ys, none[left], rng.fold(key[left], 99 + i))
    data["broken"] = sure
    np.savez_compressed(
        folder / f"{w.name}.npz",
        **{
            k: v.astype(np.float16) if v.ndim == 2 and v.dtype == np.float32 and "own" in k else v
            for k, v in data.items()
        },
    )
    print(
        f"{w.name}: {len(w.x)} samples, clean {keep.float().mean():.3f}, robust {(~sure).sum() / len(w.x):.3f}",
        flush=True,
    )


def worlds(args: argparse.Namespace) -> list[Callable[[], World]]:
    d = args.device
    folder = Path(args.fashion)
    xt, yt = fashion(folder, "train", d)
    xs, ys = fashion(folder, "t10k", d)
    xs, ys = xs[1000:3000], ys[1000:3000]  # the first thousand are the demonstration's

    def cifar(name: str, threat: Threat, n: int) -> World:
        with np.load(args.cifar_data) as stored:
            x, y = torch.from_numpy(stored["x"][:n]).to(d).float() / 255, torch.from_numpy(stored["y"][:n]).to(d)
        return World(name, load_preact18(args.cifar).to(d), x, y, threat)

    def many(classes: int, threat: Threat | None, at: Threat, name: str, seed: int) -> World:
        x, y = prototypes(classes, 30000, seed, d)
        net = train(cnn(classes, 20, 16), x, y, threat, 6, seed)
        x, y = prototypes(classes, 2000, seed, d)
        return World(name, net, x, y, at)

    return [
        lambda: World("fashion_cnn_linf", train(cnn(10, 28, 16), xt, yt, Linf(0.1), 6, 1), xs, ys, Linf(0.1)),
        lambda: World("fashion_mlp_l2", train(mlp(10, 28, 300), xt, yt, L2(1.0), 6, 2), xs, ys, L2(1.0)),
        lambda: World("fashion_plain_linf", train(cnn(10, 28, 16), xt, yt, None, 4, 3), xs, ys, Linf(0.01)),
        lambda: World("fashion_cnn_l1", train(cnn(10, 28, 16, False), xt, yt, L1(8), 6, 4), xs, ys, L1(8)),
        lambda: World("fashion_cnn_l2", train(cnn(10, 28, 8, False), xt, yt, L2(1.5), 6, 5), xs, ys, L2(1.5)),
        lambda: many(30, Linf(0.06), Linf(0.06), "many30_linf", 6),
        lambda: cifar("cifar_linf", Linf("8/255"), 3000),
        lambda: cifar("cifar_l2", L2(0.5), 1500),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("cifar", "cifar-data", "fashion", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = True
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for make in worlds(args):
        collect(make(), out)


if __name__ == "__main__":
    main()
