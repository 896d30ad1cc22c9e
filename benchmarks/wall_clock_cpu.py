"""What commands take on a CPU: wall clock and processor time of fresh processes, beside AutoAttack of torchattacks.

Run: python benchmarks/wall_clock_cpu.py [--torchattacks PYTHON] [--parts PART …] [--repeat 1]. PYTHON is the
interpreter of another environment that has torch and torchattacks. Every measurement is appended to
benchmarks/results/wall_clock_cpu.jsonl as it ends; wall_clock_cpu.md is written from that file, with the latest
measurements of every part. The two sides of a ratio run in turns.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
RAW, TABLE = HERE / "results" / "wall_clock_cpu.jsonl", HERE / "results" / "wall_clock_cpu.md"
EPS = 0.1
BLOCK_WIDTH = 4
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# The model file that both sides load. Nothing of Brinell is in it.
MODEL = """
from pathlib import Path

import numpy as np
import torch
from torch import nn


def _net(width, hidden, file):
    net = nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(98 * width, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )
    with np.load(Path(__file__).parent / file) as weights:
        net.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
    return net.eval().requires_grad_(False)


def small():
    return _net(16, 100, "small.npz")


def tiny():
    return _net(4, 48, "tiny.npz")
"""

# AutoAttack of torchattacks as its page shows it; `steps` sets the published budget instead of its default.
REFERENCE = """
import json
import sys

import numpy as np
import torch
import torchattacks

sys.path.insert(0, sys.argv[1])
import model

data, steps, out = np.load(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
net, x, y = model.small(), torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
attack = torchattacks.AutoAttack(net, norm="Linf", eps={eps}, version="standard", n_classes=10, seed=0)
for part in attack._autoattack.attacks:
    if steps and hasattr(part, "steps"):
        part.steps = steps
right = net(x).argmax(1) == y
robust = right.clone()
robust[right] = net(attack(x[right], y[right])).argmax(1) == y[right]
with open(out, "w") as file:
    json.dump(robust.tolist(), file)
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of a command and of its children: on the clock, and of the processor."""

    wall: float
    processor: float


def timed(command: list[str], log: Path, threads: int, folder: Path = HERE.parent) -> Cost:
    """Run a command in a fresh process; an exit code that is not 0 is an error that shows its output."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(threads))} if threads else dict(os.environ)
    with log.open("w") as file:
        begun = time.perf_counter()
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment, cwd=folder)
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command)}: exit code {child.returncode}\n{log.read_text()[-3000:]}")
    return Cost(wall, used.ru_utime + used.ru_stime)


def write_models(folder: Path) -> None:
    """Write model.py, its two sets of weights and the data to the folder."""
    import torch

    from brinell.models.demo import demo_net

    (folder / "model.py").write_text(MODEL)
    (folder / "reference.py").write_text(REFERENCE.format(eps=EPS))
    weights = demo_net().state_dict()
    np.savez(folder / "small.npz", **{name.removeprefix("layers."): v.numpy() for name, v in weights.items()})
    torch.manual_seed(0)
    np.savez(folder / "tiny.npz", **{name: v.numpy() for name, v in trained_tiny().state_dict().items()})


def trained_tiny() -> Any:
    """Return a network with 20 thousand weights, trained for a few seconds on noisy images of the demonstration."""
    import torch
    from torch import nn

    import brinell

    w = BLOCK_WIDTH
    net = nn.Sequential(
        nn.Conv2d(1, w, 4, 2, 1), nn.ReLU(), nn.Conv2d(w, 2 * w, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(98 * w, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    data, optimizer = brinell.data.load("demo"), torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(40):
        for index in torch.randperm(len(data.x)).split(50):
            x = data.x[index]
            x = (x + 0.1 * torch.randn_like(x)).clamp(0, 1)
            loss = nn.functional.cross_entropy(net(x), data.y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def write_data(folder: Path, n: int) -> Path:
    """Write the first n samples of the demonstration data; return the file."""
    import brinell

    file, data = folder / f"data-{n}.npz", brinell.data.load("demo", n)
    np.savez(file, x=data.x.numpy(), y=data.y.numpy())
    return file


@dataclass(frozen=True)
class Machine:
    """What the measurements share: a work folder, the interpreter with torchattacks, the number of threads."""

    folder: Path
    reference: str | None
    threads: int

    def brinell(self, *arguments: str) -> Cost:
        """Run the command line of Brinell."""
        return timed([sys.executable, "-m", "brinell", *arguments], self.folder / "log.txt", self.threads)

    def evaluate(self, plan: str, n: int, model: str = "small") -> tuple[Cost, dict[str, Any]]:
        """Run `brinell evaluate` with default options; return its cost, and robust samples and verdict."""
        import brinell

        data, out = write_data(self.folder, n), self.folder / f"run-{plan}-{n}"
        shutil.rmtree(out, ignore_errors=True)
        options = ["--model", f"{self.folder / 'model.py'}:{model}", "--data", str(data), "--eps", str(EPS)]
        cost = self.brinell("evaluate", *options, "--plan", plan, "--out", str(out))
        run = brinell.Run.open(out)
        return cost, {"robust": sorted(map(int, run.survivors())), "verdict": run.verdict.level}

    def torchattacks(self, n: int, steps: int) -> tuple[Cost, dict[str, Any]]:
        """Run AutoAttack of torchattacks, all samples in one batch; `steps` 0 keeps its default of 10."""
        data, out = write_data(self.folder, n), self.folder / "robust.json"
        script = [str(self.reference), str(self.folder / "reference.py"), str(self.folder), str(data), str(steps)]
        cost = timed([*script, str(out)], self.folder / "log.txt", self.threads)
        return cost, {"robust": [i for i, robust in enumerate(json.loads(out.read_text())) if robust]}

    def curve(self, n: int) -> tuple[Cost, dict[str, Any]]:
        """Run `brinell curve` with default options on the network with 20 thousand weights."""
        data, out = write_data(self.folder, n), self.folder / "curve"
        shutil.rmtree(out, ignore_errors=True)
        options = ["--model", f"{self.folder / 'model.py'}:tiny", "--data", str(data), "--out", str(out)]
        return self.brinell("curve", *options), {}

    def demo(self) -> tuple[Cost, dict[str, Any]]:
        """Run `make demo` in a copy of the tree."""
        tree = self.folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{HERE.parent}", str(tree)], check=True)
        log = self.folder / "log.txt"
        return timed(["make", "demo", f"PYTHON={sys.executable}"], log, self.threads, tree), {}


Side = Callable[[Machine], tuple[Cost, dict[str, Any]]]
PUBLISHED, SHIPPED = "torchattacks, 100 steps", "torchattacks, its 10 steps"


@dataclass(frozen=True)
class Bound:
    """The most that a command of ours may take.

    `ratio` bounds its time by that of AutoAttack with its published 100 steps; `seconds` bounds its processor time, or
    with `clock` its wall clock.
    """

    ratio: float | None = None
    seconds: float | None = None
    clock: bool = False


@dataclass(frozen=True)
class Part:
    """Commands that are measured side by side: `ours`, each with its bound, and `others`."""

    name: str
    text: str
    ours: dict[str, tuple[Side, Bound]]
    others: dict[str, Side] = field(default_factory=dict)

    @property
    def sides(self) -> dict[str, Side]:
        """All commands, ours first."""
        return {**{name: side for name, (side, _) in self.ours.items()}, **self.others}


def beside_autoattack(n: int) -> Part:
    ours: dict[str, tuple[Side, Bound]] = {
        "evaluate --plan autoattack": (lambda m: m.evaluate("autoattack", n), Bound(ratio=0.8)),
        "evaluate --plan fast": (lambda m: m.evaluate("fast", n), Bound(ratio=0.1)),
    }
    others: dict[str, Side] = {
        PUBLISHED: lambda m: m.torchattacks(n, 100),
        SHIPPED: lambda m: m.torchattacks(n, 0),
    }
    return Part(f"autoattack-{n}", f"{n} samples, small CNN", ours, others)


PARTS = [
    beside_autoattack(60),
    beside_autoattack(500),
    Part("curve-40", "40 samples, CNN of 20 k weights", {"curve": (lambda m: m.curve(40), Bound(seconds=15))}),
    Part("demo", "with the install", {"make demo": (lambda m: m.demo(), Bound(seconds=45, clock=True))}),
]


def measure(part: Part, machine: Machine, repeat: int) -> Iterator[dict[str, Any]]:
    """Yield one measurement after another: the sides in turns, `repeat` times."""
    for _ in range(repeat):
        for name, side in part.sides.items():
            if name in part.others and machine.reference is None:
                continue
            begun = os.getloadavg()[0]
            cost, results = side(machine)
            yield {
                "part": part.name, "side": name, "wall": round(cost.wall, 2), "processor": round(cost.processor, 2),
                "load": round(begun, 1), "threads": machine.threads, "commit": commit(), **results,
            }  # fmt: skip


def commit() -> str:
    shown = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE)
    return shown.stdout.strip()


def stored() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.exists() else []


def latest(part: Part, rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the measurements of a part by side: those of the commit that was measured last."""
    of_part = [row for row in rows if row["part"] == part.name]
    newest = [row for row in of_part if row["commit"] == of_part[-1]["commit"]]
    return {side: found for side in part.sides if (found := [r for r in newest if r["side"] == side])}


def lines(part: Part, rows: list[dict[str, Any]]) -> Iterator[str]:
    by_side = latest(part, rows)
    walls, seconds = (
        {side: statistics.median(r[kind] for r in found) for side, found in by_side.items()}
        for kind in ("wall", "processor")
    )
    for name, (_, bound) in part.ours.items():
        if name not in by_side:
            continue
        mine = by_side[name]
        cells = [f"`{name}`, {part.text}", _span(mine, "wall"), _span(mine, "processor")]
        for side in (PUBLISHED, SHIPPED):
            there = by_side.get(side, [])
            cells.append(f"{_span(there, 'wall')} ({_span(there, 'processor')})" if there else "–")
        if bound.ratio is not None:
            shares = [
                f"{walls[name] / walls[s]:.2f} ({seconds[name] / seconds[s]:.2f})" if s in seconds else "–"
                for s in (PUBLISHED, SHIPPED)
            ]
            cells += [f"≤ {bound.ratio}", " / ".join(shares)]
        else:
            taken = statistics.median(r["wall" if bound.clock else "processor"] for r in mine)
            cells += [f"≤ {bound.seconds:.0f} s {'on the clock' if bound.clock else 'of processor'}", f"{taken:.1f} s"]
        yield "| " + " | ".join([*cells, outcomes(name, by_side)]) + " |"


def _span(rows: list[dict[str, Any]], key: str) -> str:
    values = sorted(row[key] for row in rows)
    if not values:
        return "–"
    return f"{values[0]:.1f} s" if len(values) == 1 else f"{values[0]:.1f} to {values[-1]:.1f} s"


def outcomes(name: str, by_side: dict[str, list[dict[str, Any]]]) -> str:
    """Return how many samples are robust on each side, and which of ours differ from the published budget."""
    robust = {side: set(found[-1]["robust"]) for side, found in by_side.items() if "robust" in found[-1]}
    if name not in robust:
        return ""
    counts = " / ".join(str(len(robust[side])) for side in (name, PUBLISHED, SHIPPED) if side in robust)
    text = f"{counts} robust, {by_side[name][-1]['verdict']}"
    if PUBLISHED not in robust:
        return text
    more, fewer = robust[PUBLISHED] - robust[name], robust[name] - robust[PUBLISHED]
    return f"{text}; broken here only: {len(more)}, there only: {len(fewer)}"


TEXT = """# Wall clock and processor time on a CPU

Written by `benchmarks/wall_clock_cpu.py` from `wall_clock_cpu.jsonl`. Python {python}, torch {torch}, {machine},
{threads}. Every figure is a fresh process, with imports, checks, verification and the stored Run. Default options.
Load averages when a command began: {low} to {high} on {cores} cores; the sides were measured in turns. Ratios are of
the wall clock and, in brackets, of processor time (user and system, of the process and its children). The small CNN is
the demonstration model (Linf, eps 0.1).

AutoAttack of torchattacks 3.5.1 attacks all samples in one batch. It takes 10 steps of APGD and FAB where the published
AutoAttack takes 100, so both are measured: with `steps = 100`, and as it is.{remarks}

| | wall clock | processor | torchattacks, 100 steps | torchattacks, 10 steps | wanted | measured | outcomes |
|---|---:|---:|---:|---:|---:|---:|---|
{lines}
"""


def remarks(rows: list[dict[str, Any]]) -> str:
    """Say which parts were not measured, and which were measured with an earlier version than the last part."""
    names = {row["part"] for row in rows}
    missing = [part.name for part in PARTS if part.name not in names]
    measured = {name: [row["commit"] for row in rows if row["part"] == name][-1] for name in names}
    older = [part.name for part in PARTS if measured.get(part.name, rows[-1]["commit"]) != rows[-1]["commit"]]
    text = f" Not measured yet: {', '.join(missing)}." if missing else ""
    return text + (f" Measured with an earlier version only: {', '.join(older)}." if older else "")


def report() -> str:
    import torch

    rows = stored()
    names = {row["part"] for row in rows}
    used = [row for part in PARTS if part.name in names for found in latest(part, rows).values() for row in found]
    loads, threads = [row["load"] for row in used], {row["threads"] for row in used}
    return TEXT.format(
        python=platform.python_version(), torch=torch.__version__, machine=platform.machine(), cores=os.cpu_count(),
        threads=", ".join("default threads" if not t else f"{t} thread{'s' * (t > 1)}" for t in sorted(threads)),
        low=min(loads), high=max(loads), remarks=remarks(rows),
        lines="\n".join(text for part in PARTS if part.name in names for text in lines(part, rows)),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchattacks", metavar="PYTHON", help="the interpreter of an environment with torchattacks")
    parser.add_argument("--parts", nargs="*", choices=[p.name for p in PARTS], default=[p.name for p in PARTS])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; 0: as many as it chooses")
    parser.add_argument("--out", type=Path, help="a folder for a trial: nothing else is written")
    args = parser.parse_args()
    raw = RAW if args.out is None else args.out / RAW.name
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), args.torchattacks, args.threads)
        write_models(machine.folder)
        for part in PARTS:
            for row in measure(part, machine, args.repeat) if part.name in args.parts else ():
                print({k: v for k, v in row.items() if k != "robust"}, flush=True)
                with raw.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    if args.out is None:
        TABLE.write_text(report())


if __name__ == "__main__":
    main()
