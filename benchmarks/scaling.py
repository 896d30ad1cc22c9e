"""What more workers bring: two on this machine, measured, and up to 1,024 with the real scheduler, simulated.

Run: python benchmarks/scaling.py [--quick]. Writes benchmarks/results/scaling.md and .json, and .svg where matplotlib
is installed. With your own numbers:
python benchmarks/scaling.py estimate --samples 50000 --passes 4800 --rate 89000 --price 4 --gpus 1,8,64
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import brinell
from brinell.attacks.catalogue import by_name
from brinell.core.dataset import Chunk
from brinell.distributed import ClusterEstimate, Ray, World, estimate
from brinell.engine.oracle import Oracle, default_block
from brinell.evaluation.backend import WorkUnit, run_unit
from brinell.evaluation.context import StageContext
from brinell.models.demo import demo_net

RESULTS = Path(__file__).parent / "results"
THREAT, PLAN = brinell.Linf(0.1), "apgd-ce"
COUNTS = [8, 16, 32, 64, 128, 256, 512, 1024]
BLOCK = 256


def block_times(repeats: int) -> list[float]:
    """Seconds that blocks of demonstration samples take, one after another, relative to their mean."""
    clf, plan = brinell.wrap(demo_net()), by_name(PLAN)
    block = default_block(clf.device)
    context, data = StageContext(Oracle(clf, block), THREAT, 0, block), brinell.data.load("demo")
    times = []
    for i in range(repeats):
        part = data[i * block % (len(data) - block) :][:block]
        begun = time.process_time()
        list(run_unit(context, plan, WorkUnit(Chunk(part.ids, part.x, part.y), THREAT)))
        times.append(time.process_time() - begun)
    return [t / statistics.mean(times) for t in times]


def throughput(workers: int, n: int, folder: str) -> float:
    """Samples per second between the first and the last stored row: starting the workers is left out."""
    out = Path(folder) / f"{workers}-{time.time()}"
    run = brinell.evaluate(
        "demo", brinell.data.load("demo", n), THREAT, PLAN, out=out, progress=False, launch=Ray(workers)
    )
    stamps = sorted(p.stat().st_mtime for p in (out / "rows").glob("*.parquet"))
    assert run.robust_accuracy.n == n
    return n / (stamps[-1] - stamps[0])


def measured(n: int, repeats: int) -> dict[str, Any]:
    """One and two workers in turns."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    load = os.getloadavg()[0]  # of others, before this begins
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for workers in rates:
                rates[workers].append(throughput(workers, n, folder))
    ratios = [b / a for a, b in zip(rates[1], rates[2], strict=True)]
    return {"n": n, "one": rates[1], "two": rates[2], "ratios": ratios, "load": load}


def simulated(blocks: list[float]) -> list[dict[str, Any]]:
    worlds = {
        "calm": World(blocks=blocks),
        "5 % of the workers 3 times slower": World(blocks=blocks, slow=0.05),
        "slow ones, and each worker dies once in 50 hours": World(
            blocks=blocks, slow=0.05, deaths=0.02, start=60, latency=0.5
        ),
    }
    lines = []
    for name, world in worlds.items():
        for samples in (50_000, 1_000_000):
            for workers in COUNTS:
                e = estimate(samples, workers, passes_per_sample=4800, passes_per_second=12_200, world=world)
                lines.append({"world": name, "samples": samples, **asdict(e)})
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    rows = [f"| workers | {' | '.join(map(str, COUNTS))} |", f"|---|{'---:|' * len(COUNTS)}"]
    for world in dict.fromkeys(line["world"] for line in lines):
        for samples in (50_000, 1_000_000):
            mine = [line for line in lines if line["world"] == world and line["samples"] == samples]
            cells = " | ".join(f"{100 * line['efficiency']:.0f} %" for line in mine)
            rows.append(f"| {samples:,} samples, {world} | {cells} |")
    return "\n".join(rows)


def plot(lines: list[dict[str, Any]]) -> bool:
    try:
        from matplotlib import pyplot as plt
    except ImportError:
        return False
    figure, axes = plt.subplots(figsize=(6, 4))
    for world in dict.fromkeys(line["world"] for line in lines):
        mine = [line for line in lines if line["world"] == world and line["samples"] == 1_000_000]
        axes.plot(COUNTS, [100 * line["efficiency"] for line in mine], marker="o", label=world)
    axes.set(xscale="log", xlabel="workers", ylabel="efficiency, %", ylim=(0, 105), title="1,000,000 samples")
    axes.legend()
    figure.savefig(RESULTS / "scaling.svg")
    return True


TEXT = """# Scaling

Written by `benchmarks/scaling.py`.{quick} Python {python}, torch {torch}, ray {ray}, {machine}, {cores} cores.

## Measured: one and two workers

The demonstration model, `{plan}`, {n} samples, one thread per worker; samples per second between the first and the last
stored row, in turns, so that both see the same machine. The second worker joins some seconds after the first,
which is included. Load of the machine before the measurement: {load:.1f}; where others use it too, the ratio is not
that of two free cores.

| repetition | 1 worker | 2 workers | ratio |
|---|---:|---:|---:|
{measured}

Median ratio {ratio:.2f}. The driver, which reads, sends and writes, shares the two cores with both workers.

## Simulated: 8 to 1,024 workers

A discrete-event simulation with the scheduler that real evaluations use. The times of blocks are drawn from
{blocks} measured ones (relative standard deviation {spread:.2f}), scaled to blocks of {block} samples at 4,800 passes
per sample and 12,200 passes per second. Efficiency is the time of the work itself on equal workers without any
waiting over the simulated time; slow workers and deaths therefore lower it even where nobody waits.

{table}

50,000 samples are 196 blocks of {block}: beyond some 100 workers there is nothing to hand out, and a GPU with less
than a block is no faster. What that means in hours and money is in [docs/scaling.md](../../docs/scaling.md).
"""


def report(quick: bool) -> None:
    torch.set_num_threads(1)
    import ray

    blocks = block_times(4 if quick else 12)
    two = measured(64 if quick else 1000, 1 if quick else 3)
    lines = simulated(blocks)
    text = TEXT.format(
        quick=" Quick run." if quick else "",
        python=platform.python_version(),
        torch=torch.__version__,
        ray=ray.__version__,
        machine=platform.machine(),
        cores=os.cpu_count(),
        plan=PLAN,
        n=two["n"],
        load=two["load"],
        measured="\n".join(
            f"| {i + 1} | {a:.2f} | {b:.2f} | {b / a:.2f} |"
            for i, (a, b) in enumerate(zip(two["one"], two["two"], strict=True))
        ),
        ratio=statistics.median(two["ratios"]),
        blocks=len(blocks),
        spread=statistics.stdev(blocks),
        block=BLOCK,
        table=table(lines),
    )
    print(text)
    if not quick:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "scaling.md").write_text(text)
        (RESULTS / "scaling.json").write_text(
            json.dumps({"blocks": blocks, "measured": two, "simulated": lines}) + "\n"
        )
        plot(lines)


def own_numbers(arguments: argparse.Namespace) -> list[ClusterEstimate]:
    return [
        estimate(
            arguments.samples,
            int(gpus),
            passes_per_sample=arguments.passes,
            passes_per_second=arguments.rate,
            price_per_hour=arguments.price,
            world=World(start=60, latency=0.5),
        )
        for gpus in arguments.gpus.split(",")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["report", "estimate"], default="report")
    parser.add_argument("--quick", action="store_true", help="a smoke test: writes nothing")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--passes", type=float, default=4800.0, help="per sample: run.cost.forwards_per_sample")
    parser.add_argument("--rate", type=float, default=12200.0, help="passes per second of one GPU, measured")
    parser.add_argument("--price", type=float, default=4.0, help="of one GPU for an hour")
    parser.add_argument("--gpus", default="1,8,64,256,1000")
    arguments = parser.parse_args()
    if arguments.what == "report":
        report(arguments.quick)
        return
    for line in own_numbers(arguments):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
