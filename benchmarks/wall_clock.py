"""The wall clock of commands on a GPU, as a user waits for them: fresh processes, default options.

Usage: python benchmarks/wall_clock.py pack --weights W.pt --cifar DIR --flags FLAGS.npy --folder FOLDER
       python benchmarks/wall_clock.py run --folder FOLDER [--only ROW …] [--out DIR] [--limit SECONDS]
       python benchmarks/wall_clock.py table [--out DIR]
       python benchmarks/wall_clock.py tiny [--out DIR]

`pack` makes the folder that `run` reads: weights of the PreAct-ResNet-18, the CIFAR-10 test images (DIR is
cifar-10-batches-py), and the outcomes of the reference for the first 1,000. `run` measures the rows one after another
and appends every result to OUT/wall_clock_gpu.jsonl the moment it is there. A row that is there already, and did not
fail, is left out, so that `run` can be called again after a limit of time. A row that takes longer than --limit is
stopped, and says so. `table` writes OUT/wall_clock_gpu.md: wanted beside measured. `tiny` runs everything with tiny
networks, on any machine, to see that it works.

The ruler is a bare loop of the reference's model calls (3.7 million forward and 1.3 million backward passes on 1,000
images, batches of 500, convolutions in TF32). It runs a fifth of them and is scaled.
"""

import argparse
import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, FILE, FOLDER, TINY = HERE / "results", "wall_clock_gpu", "WALL_CLOCK_FOLDER", "WALL_CLOCK_TINY"
EPS, RULER = "8/255", {"forwards": 3_700_000, "backwards": 1_300_000, "batch": 500, "share": 0.2}
CONVOLUTIONS = "convolutions in tf32"  # as the reference has it: products stay in float32
LARGE = {"resnet50": "ResNet-50", "vit": "ViT-B/16"}


def tiny() -> bool:
    return bool(os.environ.get(TINY))


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


# The models, for --model wall_clock.py:NAME.


def preact18() -> Any:
    """The network of the CIFAR-10 evaluations."""
    from networks import load_preact18

    return small_net() if tiny() else load_preact18(str(Path(os.environ[FOLDER]) / "preact18.pt"))


def small_net() -> Any:
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 10))
    return net.eval().requires_grad_(False)


def resnet50() -> Any:
    from networks import ResNet50

    return born(lambda: ResNet50(10, (1,), 4) if tiny() else ResNet50())


def vit() -> Any:
    from networks import ViT

    return born(lambda: ViT(32, 8, 32, 2, 2, 10) if tiny() else ViT())


def born(make: Callable[[], Any]) -> Any:
    """A network with the same random weights in every process."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval().requires_grad_(False)


# What is timed.


@dataclass(frozen=True)
class Row:
    """One row of the table: what is measured, the reference, what an earlier version took, what is wanted."""

    name: str
    what: str
    reference: str
    before: str
    wanted: str
    measure: Callable[["Bench"], dict[str, Any]]


class Bench:
    """The folder with the data, the folder for what is made on the way, and the limit of a row in seconds."""

    def __init__(self, folder: Path, work: Path, limit: float) -> None:
        self.folder, self.work, self.limit, self.device = folder, work, limit, device()
        self.work.mkdir(parents=True, exist_ok=True)

    def data(self, n: int) -> Path:
        """The first n images as floats: made once, so that no command pays for it."""
        import numpy as np

        file = self.work / f"cifar-{n}.npz"
        if not file.exists():
            with np.load(self.folder / "cifar10-test.npz") as stored:
                x, y = stored["x"][:n], stored["y"][:n]
            np.savez(file, x=x.astype(np.float32) / 255, y=y.astype(np.int64))
        return file

    def child(self, arguments: list[str], home: str = "home") -> dict[str, Any]:
        """Run a command in a fresh process: seconds, exit code and the end of what it printed."""
        paths = [str(HERE.parent / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
        env = {
            **{k: v for k, v in os.environ.items() if k not in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")},
            "PYTHONPATH": os.pathsep.join(p for p in paths if p), "BRINELL_HOME": str(self.work / home),
            FOLDER: str(self.folder), "COLUMNS": "120",
        }  # fmt: skip
        begun = time.perf_counter()
        done = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.work, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        try:
            out, _ = done.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            done.kill()
            out, _ = done.communicate()
            return {"seconds": time.perf_counter() - begun, "stopped": True, "tail": out[-2000:]}
        return {"seconds": time.perf_counter() - begun, "exit": done.returncode, "tail": out[-2000:]}

    def evaluate(self, plan: str, n: int, *options: str, home: str = "home") -> dict[str, Any]:
        """`brinell evaluate` on the first n images of CIFAR-10."""
        return self.command("preact18", self.data(n), EPS, plan, *options, home=home, folder=self.folder)

    def command(
        self, model: str, data: Path, eps: str, plan: str, *options: str, home: str = "home", folder: Path | None = None
    ) -> dict[str, Any]:
        """`brinell evaluate` in a fresh process, and what the Run says about itself."""
        run = self.work / f"run-{time.time_ns()}"
        command = [
            "-m", "brinell", "evaluate", "--model", f"{Path(__file__).resolve()}:{model}", "--data", str(data),
            "--eps", eps, "--plan", plan, "--device", self.device, "--out", str(run), *options,
        ]  # fmt: skip
        result = {"command": " ".join(["brinell", *command[2:]]), **self.child(command, home)}
        if (run / "manifest.json").exists():
            result |= described(run, folder)
        shutil.rmtree(run, ignore_errors=True)
        return result

    def task(self, name: str, *arguments: str, home: str = "home") -> dict[str, Any]:
        """A task of this script in a fresh process, which prints its result as the last line."""
        result = self.child([str(Path(__file__).resolve()), "task", name, *arguments], home)
        with contextlib.suppress(ValueError, IndexError):
            result |= json.loads(result["tail"].strip().splitlines()[-1])
        return result


def described(run: Path, folder: Path | None) -> dict[str, Any]:
    """What a Run says about itself; beside the reference's outcomes, if it has as many samples."""
    import numpy as np

    from brinell.results import Run

    stored = Run.open(run)
    manifest = stored.manifest
    file = None if folder is None else folder / "flags.npy"
    flags = None if file is None or not file.exists() else np.load(file).astype(bool)
    result = {
        "robust": str(stored.robust_accuracy), "precision": stored.identity.precision,
        "execution": manifest["identity"].get("execution", "graph"), "block": manifest["identity"]["block"],
        "other_blocks": manifest["identity"].get("other_blocks"), "run seconds": manifest["wall_seconds"],
        "start-up": manifest.get("startup_seconds"), "forwards": stored.cost.forwards,
        "backwards": stored.cost.backwards, "notes": stored.notes, "finished": stored.finished,
    }  # fmt: skip
    n = stored.robust_accuracy.n
    if flags is not None and n <= len(flags):
        robust = np.zeros(n, dtype=bool)
        robust[stored.survivors()] = True
        result["broken here only"] = np.flatnonzero(flags[:n] & ~robust).tolist()
        result["broken there only"] = np.flatnonzero(~flags[:n] & robust).tolist()
    return result


def sizes() -> tuple[int, int, tuple[int, int]]:
    """Images of the small and of the large evaluation, and of those at 224 × 224."""
    return (8, 16, (4, 8)) if tiny() else (1000, 10_000, (128, 1000))


def cold(b: Bench) -> dict[str, Any]:
    shutil.rmtree(b.work / "cold", ignore_errors=True)
    return b.evaluate("autoattack", sizes()[0], home="cold")


def cached(b: Bench) -> dict[str, Any]:
    """A run that compiles, not timed here but noted, then the command with default options."""
    options = [] if tiny() else ["--precision", "bfloat16", "--execution", "compile"]
    first = b.evaluate("autoattack", sizes()[0], *options)
    return {**b.evaluate("autoattack", sizes()[0]), "compiling first": first}


def large(model: str, k: int) -> Callable[[Bench], dict[str, Any]]:
    """APGD-CE on images of 224 × 224, and a bare loop of the same passes in the same precision."""

    def measure(b: Bench) -> dict[str, Any]:
        n = sizes()[2][k]
        file = b.work / f"{model}-{n}.npz"
        said = file.with_suffix(".json")
        if not said.exists():
            made = b.task("prepare", model, str(n), str(file))
            if "eps" not in made:
                return made
            said.write_text(json.dumps({"eps": made["eps"]}))
        result = b.command(model, file, str(json.loads(said.read_text())["eps"]), "apgd-ce")
        if "forwards" in result:
            passes = str(result["forwards"]), str(result["backwards"]), str(result["precision"])
            result["loop"] = b.task("loop", model, *passes, str(min(n, 128))).get("loop seconds")
            result["wanted seconds"] = None if result["loop"] is None else 1.15 * result["loop"] + 10
        return result

    return measure


ROWS = (
    Row("ruler", "bare loop of the reference's model calls, scaled", "", "", "", lambda b: b.task("ruler")),
    Row("version", "`brinell --version`", "", "5.8 s", "0.5", lambda b: b.child(["-m", "brinell", "--version"])),
    Row("autoattack-cold", "`evaluate --plan autoattack`, 1,000 CIFAR-10, first time", "91 s", "> 260 s", "40", cold),
    Row("autoattack-cached", "the same, kernels cached", "91 s", "> 260 s", "25", cached),
    Row("autoattack-10000", "the same, 10,000 images", "≈ 870 s", "", "145",
        lambda b: b.evaluate("autoattack", sizes()[1])),
    Row("fast", "`evaluate --plan fast`, evidence included", "", "> 120 s", "10",
        lambda b: b.evaluate("fast", sizes()[0])),
    Row("fast-second", 'second `brinell.evaluate(plan="fast", audit=0)` in one process', "", "5.8 s", "1",
        lambda b: b.task("second", str(b.data(sizes()[0])))),
    Row("pgd20", "`evaluate --plan pgd20`", "", "16 s", "8", lambda b: b.evaluate("pgd20", sizes()[0])),
    Row("tf32", "`autoattack` in TF32: differs from the reference in samples", "", "0", "0",
        lambda b: b.evaluate("autoattack", sizes()[0], *([] if tiny() else ["--precision", "tf32"]))),
    Row("bfloat16", "`autoattack` in bfloat16: differs from the reference in samples", "", "0", "1",
        lambda b: b.evaluate("autoattack", sizes()[0], "--precision", "bfloat16")),
    *(
        Row(f"{model}-{(128, 1000)[k]}", f"{LARGE[model]} at 224², APGD-CE, n = {(128, 1000)[k]:,}", "",
            ("61 s" if model == "resnet50" else "> 90 s") if k == 0 else "", "1.15 x loop + 10", large(model, k))
        for model in LARGE
        for k in (0, 1)
    ),
)  # fmt: skip


# Tasks in processes of their own.


def loop(net: Any, x: Any, forwards: int, backwards: int, precision: str) -> float:
    """Seconds of a plain loop: so many forward passes, of which some with a backward pass, in batches of len(x)."""
    import torch

    low = torch.autocast(x.device.type, torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()
    torch.backends.cudnn.allow_tf32 = precision in ("tf32", CONVOLUTIONS)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def both() -> None:
        point = x.detach().requires_grad_(True)
        with low:
            z = net(point)
        torch.autograd.grad(z.float().sum(), point)

    def forward() -> None:
        with torch.no_grad(), low:
            net(x)

    def timed(one: Callable[[], None], calls: int) -> float:
        for _ in range(2):
            one()
        wait(x)
        begun = time.perf_counter()
        for _ in range(calls):
            one()
        wait(x)
        return time.perf_counter() - begun

    return timed(both, -(-backwards // len(x))) + timed(forward, -(-(forwards - backwards) // len(x)))


def wait(x: Any) -> None:
    import torch

    if x.is_cuda:
        torch.cuda.synchronize()


def task_ruler() -> dict[str, Any]:
    import numpy as np
    import torch

    share, batch = (0.00001, 4) if tiny() else (RULER["share"], int(RULER["batch"]))
    with np.load(Path(os.environ[FOLDER]) / "cifar10-test.npz") as stored:
        x = torch.from_numpy(stored["x"][:batch]).float().to(device()) / 255
    made = [round(share * RULER[k]) for k in ("forwards", "backwards")]
    spent = loop(preact18().to(device()), x, made[0], made[1], CONVOLUTIONS)
    return {"loop seconds": spent, "share": share, "scaled seconds": spent / share, "rows": batch}


def task_loop(model: str, forwards: str, backwards: str, precision: str, batch: str) -> dict[str, Any]:
    import torch

    size = 32 if tiny() else 224
    x = torch.rand(int(batch), 3, size, size, generator=torch.Generator().manual_seed(0)).to(device())
    net = globals()[model]().to(device())
    return {"loop seconds": loop(net, x, int(forwards), int(backwards), precision)}


def task_prepare(model: str, n: str, file: str) -> dict[str, Any]:
    """Images at 224 × 224, labelled with what the network says, and a radius at which about half survive."""
    import numpy as np
    import torch

    import brinell

    size, count, there = 32 if tiny() else 224, int(n), device()
    with np.load(Path(os.environ[FOLDER]) / "cifar10-test.npz") as stored:
        x = torch.from_numpy(np.resize(stored["x"], (count, 3, 32, 32))).float() / 255
    x = torch.cat([torch.nn.functional.interpolate(p, size=(size, size), mode="bilinear") for p in x.split(100)])
    net = globals()[model]().to(there)
    with torch.no_grad():
        y = torch.cat([net(p.to(there)).argmax(1).cpu() for p in x.split(50)])
    np.savez(file, x=x.numpy(), y=y.numpy())
    low, high, few = 0.0, 32 / 255, slice(0, min(count, 64))
    for _ in range(7):
        eps = (low + high) / 2
        rows = brinell.attack(net, (x[few], y[few]), brinell.Linf(eps), brinell.attacks.APGD(20))
        survive = 1 - float(np.mean(rows["broken"].to_pylist()))
        low, high = (eps, high) if survive > 0.5 else (low, eps)
    return {"eps": float(f"{high:.3g}"), "survive": survive}


def task_second(file: str) -> dict[str, Any]:
    """The seconds of two evaluations in one process; only the second one counts."""
    import numpy as np
    import torch

    import brinell

    with np.load(file) as stored:
        x, y = torch.from_numpy(stored["x"]), torch.from_numpy(stored["y"])
    net, walls, notes = preact18().to(device()), [], []
    for _ in range(2):
        begun = time.perf_counter()
        run = brinell.evaluate(net, (x, y), brinell.Linf(EPS), plan="fast", audit=0, progress=False)
        walls.append(time.perf_counter() - begun)
        notes.append([run.manifest["startup_seconds"], str(run.robust_accuracy)])
    return {"first": walls[0], "second": walls[1], "start-up and outcome": notes}


TASKS = {"ruler": task_ruler, "loop": task_loop, "prepare": task_prepare, "second": task_second}


# The table.


def results(out: Path) -> dict[str, dict[str, Any]]:
    """The latest result of every row."""
    file = out / f"{FILE}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return {r["row"]: r for r in map(json.loads, lines)}


def value(result: dict[str, Any]) -> tuple[str, float | None]:
    """What stands in the table, and the number that is held against what is wanted."""
    name, seconds = result["row"], result.get("seconds")
    if result.get("stopped"):
        return f"over {seconds:.0f} s, stopped", float("inf")
    if result.get("exit", 0) != 0:
        return f"failed (exit code {result['exit']})", float("inf")
    if name == "fast-second":
        return f"{result['second']:.2f} s (first {result['first']:.1f} s)", result["second"]
    if name == "ruler":
        return f"{result['scaled seconds']:.0f} s", None
    if name in ("tf32", "bfloat16"):
        if "broken here only" not in result:
            return f"{seconds:.1f} s, no outcomes of the reference", None
        differ = len(result["broken here only"]) + len(result["broken there only"])
        return f"{differ} ({result['robust']}, {seconds:.1f} s)", differ
    if name.startswith(("resnet50", "vit")) and result.get("wanted seconds"):
        return f"{seconds:.1f} s, loop {result['loop']:.1f} s", seconds / result["wanted seconds"]
    how = f" ({result['precision']}, {result['execution']}, {result['robust']})" if "robust" in result else ""
    return f"{seconds:.1f} s{how}", seconds


def table(out: Path) -> str:
    found = results(out)
    lines = [
        "# Wall clock on a GPU", "", f"Written by `benchmarks/wall_clock.py`; raw results in `{FILE}.jsonl`.",
        "Fresh processes, default options unless stated.", "",
    ]  # fmt: skip
    machines = sorted({r["machine"] for r in found.values()})
    lines += ["; ".join(machines) + "." if machines else "Nothing has been measured yet.", ""]
    lines += ["| | reference | before | wanted | measured | |", "|---|---:|---:|---:|---:|---|"]
    for row in ROWS:
        if row.name not in found:
            lines.append(f"| {row.what} | {row.reference} | {row.before} | {wanted(row)} | not measured | |")
            continue
        text, number = value(found[row.name])
        limit = 1.0 if row.wanted.startswith("1.15") else float(row.wanted) if row.wanted else None
        verdict = "" if number is None or limit is None else "holds" if number <= limit else "falls short"
        lines.append(f"| {row.what} | {row.reference} | {row.before} | {wanted(row)} | {text} | {verdict} |")
    return "\n".join(lines) + "\n"


def wanted(row: Row) -> str:
    if not row.wanted or row.wanted.startswith("1.15"):
        return row.wanted
    return f"≤ {row.wanted}" + ("" if row.name in ("tf32", "bfloat16") else " s")


# The commands.


def pack(args: argparse.Namespace) -> None:
    import numpy as np

    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    batch = pickle.loads((Path(args.cifar) / "test_batch").read_bytes(), encoding="bytes")
    x = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
    np.savez_compressed(folder / "cifar10-test.npz", x=x, y=np.asarray(batch[b"labels"], np.int64))
    shutil.copyfile(args.weights, folder / "preact18.pt")
    shutil.copyfile(args.flags, folder / "flags.npy")
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir()) / 2**20:.1f} MiB")


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE, check=False
    )
    return f"{name}, torch {torch.__version__}, commit {commit.stdout.strip() or 'unknown'}"


def measured(bench: Bench, out: Path, only: list[str]) -> Iterator[dict[str, Any]]:
    out.mkdir(parents=True, exist_ok=True)
    known, here = results(out), machine()
    for row in ROWS:
        done = row.name in known and not known[row.name].get("exit")
        if done or row.name not in (only or [r.name for r in ROWS]):
            continue
        result = {"row": row.name, "machine": here, "at": time.strftime("%Y-%m-%dT%H:%M:%S"), **row.measure(bench)}
        with (out / f"{FILE}.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
        (out / f"{FILE}.md").write_text(table(out))
        yield result


def run(args: argparse.Namespace) -> None:
    folder = Path(args.folder).resolve()
    missing = [f for f in ("cifar10-test.npz", "preact18.pt") if not (folder / f).exists() and not tiny()]
    if missing:
        sys.exit(f"expected {', '.join(missing)} in {folder}; make the folder with `pack`")
    work = Path(args.work).resolve() if args.work else folder / "work"
    for result in measured(Bench(folder, work, args.limit), Path(args.out).resolve(), args.only):
        print(result["row"], value(result)[0], flush=True)


def run_tiny(args: argparse.Namespace) -> None:
    """Everything with tiny networks on random images."""
    import tempfile

    import numpy as np
    import torch

    os.environ[TINY] = "1"
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        x = draw.integers(0, 256, (16, 3, 32, 32), dtype=np.uint8)
        with torch.no_grad():
            y = small_net()(torch.from_numpy(x).float() / 255).argmax(1).numpy()
        np.savez_compressed(Path(folder) / "cifar10-test.npz", x=x, y=y)
        np.save(Path(folder) / "flags.npy", np.zeros(8, dtype=bool))
        args.folder, args.work = folder, None
        run(args)
    print(table(Path(args.out)))


def main() -> None:
    if sys.argv[1:2] == ["task"]:
        print(json.dumps(TASKS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    names = [row.name for row in ROWS]
    for name, what in (("pack", pack), ("run", run), ("table", None), ("tiny", run_tiny)):
        one = commands.add_parser(name)
        one.set_defaults(what=what)
        one.add_argument("--out", default=str(RESULTS))
        if name in ("pack", "run"):
            one.add_argument("--folder", required=True)
        if name == "pack":
            for option in ("--weights", "--cifar", "--flags"):
                one.add_argument(option, required=True)
        if name in ("run", "tiny"):
            one.add_argument("--only", nargs="+", choices=names, default=[])
            one.add_argument("--limit", type=float, default=540.0)
            one.add_argument("--work", help="where Runs and caches go; default: FOLDER/work")
    args = parser.parse_args()
    if args.what is None:
        (Path(args.out) / f"{FILE}.md").write_text(table(Path(args.out)))
        return
    args.what(args)


if __name__ == "__main__":
    main()
