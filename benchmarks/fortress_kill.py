"""Kill every command that writes at its file operations, and call it again: the result must be the same.

`run(seed, count)` forks a process for each attempt, which has the packages loaded. Kinds of faults: the process dies
at the n-th operation that changes files (a write is torn in the middle), it is killed with SIGKILL at a random moment,
the disk is full from the n-th operation on, the file system is read-only from then on, or the output folder vanishes.
An attempt holds if the first call ends with the fault (a typed error and exit code 2, never a traceback), the same call
afterwards ends with exit code 0, and the files are those of an undisturbed call, without temporary files.
`python benchmarks/fortress_kill.py` prints the table and writes it to benchmarks/results/.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fortress_faults import KILLED, Fault, install
from safetensors.numpy import save_file

import brinell
from brinell import Linf, Problem, Run, storage
from brinell.fetch import Wanted, obtain, unpack
from brinell.leaderboard.records import Record
from brinell.results.format.manifest import MANIFEST

program: Any = import_module("brinell.cli.main")  # the package has a function of the same name
RESULTS = Path(__file__).parent / "results"
OUT = "out"  # every command writes below this folder
ANALYZED = f"{OUT}/analyzed"  # a Run that is there before the command
FAULTS = ("kill", "full disk", "read-only", "vanished")
MOMENTS = "kill at a random moment"
KINDS = (*FAULTS, MOMENTS)
SHARES = {"kill": 0.5, "full disk": 0.15, "read-only": 0.1, "vanished": 0.1, MOMENTS: 0.15}
# What differs between two undisturbed calls: times, and the random start of a Run's list of checksums.
INCIDENTAL = {
    "created", "date", "seconds", "wall_seconds", "startup_seconds", "run_seconds", "checksums", "seal", "run_hash",
    "resumed", "run", "at", "sha256", "environment",
}  # fmt: skip
COLUMNS = ["seconds", "adv_shard", "adv_row"]
DEADLINE = 300.0
# Commands that take longer are disturbed less often by this factor.
SLOWER = 3


class Outcome(NamedTuple):
    """How many attempts of one kind were made, how many of them held, and what happened in those that did not."""

    kind: str
    tried: int
    held: int
    details: tuple[str, ...] = ()


class Command(NamedTuple):
    """A command that writes: its arguments, or a function to call.

    It is called in the folder `inside` of the world. What vanishes is the folder `gone`, by default the output folder.
    """

    name: str
    call: tuple[str, ...] | Callable[[], None]
    slow: bool = False
    inside: str = "."
    gone: str = OUT


def fetch() -> None:
    """Fetch a file and an archive into the cache, as data sets and models of the zoo do."""
    digest = f"sha256:{Path('mirror/digest').read_text()}"
    for name, sum_ in (("weights.bin", digest), ("first.bin", None)):
        url = Path("mirror/weights.bin").resolve().as_uri()
        obtain(Wanted(name, Path(OUT, "cache", name), (url,), name, sum_), lambda path: None)
    unpack(Path("mirror/data.zip"), Path(OUT, "cache", "data"), "data", brinell.InputError, lambda path: None)


TARGET, AGAIN = ("-m", "demo", "-d", "demo", "--n", "4", "--eps", "0.1"), ("--resume", "--quiet")
COMMANDS = (
    Command("evaluate", ("evaluate", *TARGET, "--plan", "pgd20", "--out", f"{OUT}/run", *AGAIN)),
    Command(
        "evaluate --seeds",
        ("evaluate", *TARGET, "--plan", "fgsm", "--seeds", "2", "--out", f"{OUT}/runs", *AGAIN),
    ),
    Command(
        "curve",
        ("curve", "-m", "demo", "-d", "demo", "--n", "4", "--norm", "Linf", "--plan", "minimal-quick",
         "--out", f"{OUT}/curve", "--plot", f"{OUT}/curve.svg", "--resume"),
        slow=True,
    ),
    Command(
        "evaluate in runs/",
        ("evaluate", *TARGET, "--plan", "fgsm", "--test", *AGAIN),
        slow=True,
        inside=OUT,
        gone=f"{OUT}/runs",
    ),
    Command(
        "evaluate --certify",
        ("evaluate", *TARGET, "--plan", "fgsm", "--certify", "--out", f"{OUT}/run", *AGAIN),
        slow=True,
    ),
    Command(
        "certify", ("certify", ANALYZED, "-m", "demo", "-d", "demo", "--n", "12", "--method", "crown", "--quiet"),
        gone=ANALYZED,
    ),
    Command(
        "curve --certify",
        ("curve", "-m", "demo", "-d", "demo", "--n", "4", "--norm", "Linf", "--plan", "minimal-quick", "--certify",
         "--out", f"{OUT}/curve", "--resume"),
        slow=True,
    ),
    Command(
        "dossier",
        ("dossier", "a", "b", "--key", "key.pem", "--date", "2026-01-01", "--checker", "--out", f"{OUT}/dossier.html"),
    ),
    Command("merge", ("merge", "a", "b", "--out", f"{OUT}/merged")),
    Command("submit", ("submit", "a", "--out", f"{OUT}/a.zip")),
    Command("report", ("report", "a", "b", "-o", f"{OUT}/report.html")),
    Command("report --format", ("report", "a", "-o", f"{OUT}/report.json")),
    Command(
        "leaderboard build",
        ("leaderboard", "build", "a", "--records", "records", "--no-published", "--out", f"{OUT}/site"),
    ),
    Command(
        "leaderboard table",
        ("leaderboard", "table", "--records", "records", "--no-published", "--dataset", "toys", "--threat", "L2",
         "-o", f"{OUT}/table.md"),
    ),
    Command("corruptions", ("corruptions", *TARGET[:-2], "--only", "brightness", "--csv", f"{OUT}/table.csv")),
    Command(
        "analyze",
        ("analyze", "fairness", "--run", ANALYZED, "--save", "--json", f"{OUT}/f.json",
         "--plot", f"{OUT}/f.svg"),
        slow=True,
        gone=ANALYZED,
    ),
    Command(
        "benchmark",
        ("benchmark", "-m", "demo", "--data", "demo", "--threat", "Linf", "--eps", "0.5", "--n", "4",
         "--out", f"{OUT}/bench", "--resume"),
        slow=True,
    ),
    Command(
        "train",
        ("train", "-m", "demo", "-d", "train.npz", "--eps", "0.1", "--epochs", "2", "--method", "standard",
         "--validation", "8", "--batch", "16", "--plan", "fgsm", "--out", f"{OUT}/trained", *AGAIN),
        slow=True,
    ),
    Command("distances", ("distances", "-d", "demo", "--n", "16", "--norm", "L2", "--csv", f"{OUT}/d.csv")),
    Command(
        "reproduce",
        ("reproduce", "robustbench/figure-6", "-m", "demo", "--data", "demo", "--n", "4", "--eps", "0.1",
         "--out", f"{OUT}/reproduced"),
        slow=True,
    ),
    Command("data fetch", fetch),
)  # fmt: skip


def make_world(folder: Path) -> None:
    """Write what the commands read: two Runs on parts of the data, records, training samples and a mirror."""
    data = brinell.data.load("demo", 24)
    for name, part in (("a", slice(0, 12)), ("b", slice(12, 24))):
        piece = Problem(data.x[part], data.y[part], data.ids[part], name="demo")
        brinell.evaluate("demo", piece, Linf(0.1), "pgd20", out=folder / name, progress=False)
    (folder / OUT).mkdir()
    shutil.copytree(folder / "a", folder / ANALYZED)
    brinell.dossier.new_key(folder / "key.pem")
    Record("toys", "L2", "Mine", eps="1", clean=90.0, autoattack=50.0).write(folder / "records")
    Record("toys", "L2", "Yours", eps="1", clean=91.0, autoattack=40.0).write(folder / "records")
    np.savez(folder / "train.npz", x=np.asarray(data.x), y=np.asarray(data.y))
    mirror = folder / "mirror"
    mirror.mkdir()
    save_file({"w": np.arange(1000.0)}, mirror / "weights.bin")
    from zipfile import ZipFile

    from brinell.fetch import sha256

    (mirror / "digest").write_text(sha256(mirror / "weights.bin"))
    with ZipFile(mirror / "data.zip", "w") as archive:
        for k in range(3):
            archive.writestr(f"d/{k}.txt", f"{k}" * 100)


def scrubbed(value: Any) -> Any:
    """Return JSON data without what differs between two undisturbed calls."""
    if isinstance(value, dict):
        return {key: scrubbed(v) for key, v in value.items() if key not in INCIDENTAL}
    return [scrubbed(v) for v in value] if isinstance(value, list) else value


def of_run(path: Path) -> Any:
    """Return the manifest, the rows and the adversarials of a Run, without what differs between undisturbed calls."""
    run = Run.open(path)
    run.shards.check_hashes()
    x, tables = run.adversarials(), [run.rows(), run.certificates()]
    rows = [table.drop_columns(COLUMNS).to_pylist() for table in tables]
    return scrubbed(run.manifest), rows, x.ids.tolist(), x.x.tobytes()


def result(folder: Path) -> dict[str, Any]:
    """Return what a command left below the output folder, by path."""
    found: dict[str, Any] = {}
    for path in sorted((folder / OUT).rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or path.name == ".lock":
            continue
        if path.name == MANIFEST:
            found[name] = repr(of_run(path.parent))
        elif path.parent.name in ("rows", "adversarials") and (path.parent.parent / MANIFEST).exists():
            if storage.is_temporary(path):
                found[name] = "a temporary file"
        elif path.name == "checksums.jsonl" or path.name == "checkpoint.pt":
            continue
        elif path.suffix == ".json":
            found[name] = repr(scrubbed(json.loads(path.read_bytes())))
        elif path.name == "curve.csv" and (path.parent / "config.json").exists():
            found[name] = [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]
        elif path.name == "result.md":
            found[name] = [line for line in path.read_text().splitlines() if " s" not in line]
        else:
            found[name] = path.read_bytes()
    return found


def child(command: Command, folder: Path, fault: Fault | None, log: Path | None = None) -> int:
    """Start a command in a forked process; return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        os.chdir(folder / command.inside)
        os.environ["BRINELL_HOME"] = str(folder / OUT / "home")
        for fd, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
            setattr(sys, name, os.fdopen(fd, "w"))
        sys.argv = ["brinell", *(command.call if isinstance(command.call, tuple) else ())]
        storage.ABANDONED_SECONDS = 0.0
        code = 1
        if fault is not None:
            install(fault)
        try:
            if callable(command.call):
                _as_command(command.call)
            else:
                program.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        if log is not None and fault is not None:
            fault.at = 0
            Path(log).write_text(json.dumps(fault.log))
    finally:
        os._exit(code)


def _as_command(call: Callable[[], None]) -> None:
    """Call a function and report errors as the command line does."""
    program.program = lambda *_: lambda **_: call()
    program.main()


def wait(pid: int, seconds: float = DEADLINE) -> int:
    """Return the exit code of a process, and kill it if it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Reference(NamedTuple):
    """An undisturbed call of a command: its file operations, its result and its seconds."""

    operations: list[str]
    result: dict[str, Any]
    seconds: float


@contextmanager
def copy_of(world: Path) -> Iterator[Path]:
    """Yield a fresh copy of the world."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(os.path.realpath(place)) / "world"
        shutil.copytree(world, folder)
        yield folder


def reference(command: Command, world: Path) -> Reference:
    """Call a command without a fault."""
    with copy_of(world) as folder:
        log, start = folder / "log.json", time.monotonic()
        code = wait(child(command, folder, Fault(folder / OUT), log))
        if code != 0:
            raise RuntimeError(f"{command.name} ends with {code}: {(folder / 'stderr').read_text()[-2000:]}")
        return Reference(json.loads(log.read_text()), result(folder), time.monotonic() - start)


def attempt(command: Command, world: Path, known: Reference, kind: str, at: int | float) -> str | None:
    """Disturb a command once and call it again; return None if it held, else what went wrong."""
    with copy_of(world) as folder:
        out = folder / OUT
        if kind == MOMENTS:
            pid = child(command, folder, None)
            time.sleep(at * known.seconds)
            os.kill(pid, signal.SIGKILL)
            code = wait(pid)
            expected = (-signal.SIGKILL, 0)
        else:
            code = wait(child(command, folder, Fault(out, kind, int(at), folder / command.gone)))
            expected = (KILLED,) if kind == "kill" else (0, 2)
        text = (folder / "stderr").read_text()
        if code not in expected or "Traceback" in text or (code == 2 and "error: expected" not in text):
            return f"first call: exit code {code}: {text.strip()[-300:]}"
        if kind == "vanished":
            shutil.copytree(world / OUT, out, dirs_exist_ok=True)
        elif code == 0 and (wrong := difference(known.result, result(folder))):
            return f"first call ends with exit code 0, but {wrong}"
        code = wait(child(command, folder, None))
        if code != 0:
            return f"second call: exit code {code}: {(folder / 'stderr').read_text().strip()[-300:]}"
        return difference(known.result, result(folder))


def difference(expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    """Return how two results differ, None if they do not."""
    if missing := sorted(set(expected) - set(got)):
        return f"{missing[0]} is missing"
    if extra := sorted(set(got) - set(expected)):
        return f"{extra[0]} is left over"
    changed = [name for name in expected if expected[name] != got[name]]
    return f"{changed[0]} differs" if changed else None


def points(kind: str, count: int, known: Reference, chosen: random.Random) -> list[int | float]:
    """Return where to disturb: all operations if there are no more than `count`, else a random choice of them."""
    if kind == MOMENTS:
        return [chosen.uniform(0.02, 1.0) for _ in range(count)]
    every = range(1, len(known.operations) + 1)
    return sorted(every if len(every) <= count else chosen.sample(every, count))


def run(seed: int, count: int, commands: tuple[str, ...] | None = None) -> list[Outcome]:
    """Disturb the commands, all or those named, about `count` times; return one line per command and kind of fault."""
    torch.set_num_threads(1)
    chosen, found = random.Random(seed), []
    listed = [c for c in COMMANDS if commands is None or c.name in commands]
    with tempfile.TemporaryDirectory() as place:
        world = Path(place) / "world"
        world.mkdir()
        make_world(world)
        for command in listed:
            known = reference(command, world)
            for kind in KINDS:
                wanted = max(1, round(SHARES[kind] * count / len(listed) / (SLOWER if command.slow else 1)))
                where = points(kind, wanted, known, chosen)
                troubles = []
                for at in where:
                    trouble = attempt(command, world, known, kind, at)
                    if trouble is not None:
                        place_ = known.operations[int(at) - 1] if kind != MOMENTS else f"{at:.2f}"
                        troubles.append(f"at {at} ({place_}): {trouble}")
                found.append(
                    Outcome(f"{command.name}: {kind}", len(where), len(where) - len(troubles), tuple(troubles))
                )
                print(*found[-1][:3], *troubles[:2], sep="  ", flush=True)
    return found


def page(found: list[Outcome], seed: int) -> str:
    """Return the table as Markdown: one line per command, one column per kind of fault."""
    cells: dict[str, dict[str, str]] = {}
    total: Counter[str] = Counter()
    for kind, tried, held, _ in found:
        name, _, fault = kind.partition(": ")
        cells.setdefault(name, {})[fault] = f"{held} / {tried}"
        total["tried"], total["held"] = total["tried"] + tried, total["held"] + held
        total["kills"] += tried * fault.startswith("kill")
    lines = [
        "# Interrupted commands",
        "",
        f"`python benchmarks/fortress_kill.py --seed {seed}`: held / tried, {total['held']} of {total['tried']} in "
        f"all, {total['kills']} of them kills. Each attempt disturbs one call of a command, calls it again with the "
        "same arguments, and compares the files with those of an undisturbed call.",
        "",
        f"| command | {' | '.join(KINDS)} |",
        f"|---|{'---|' * len(KINDS)}",
        *(f"| {name} | {' | '.join(row.get(k, '') for k in KINDS)} |" for name, row in cells.items()),
        "",
    ]
    details = [f"- {o.kind}: {d}" for o in found for d in o.details]
    return "\n".join([*lines, *(["Not held:", "", *details, ""] if details else [])])


def main() -> None:
    """Disturb all commands, print the table and write it to benchmarks/results/."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=450)
    parser.add_argument("--only", action="append")
    args = parser.parse_args()
    found = run(args.seed, args.count, args.only and tuple(args.only))
    text = page(found, args.seed)
    print(text)
    if args.only is None:
        (RESULTS / "fortress_kill.md").write_text(text)
        rows = [o._asdict() for o in found]
        (RESULTS / "fortress_kill.json").write_text(json.dumps({"seed": args.seed, "outcomes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
