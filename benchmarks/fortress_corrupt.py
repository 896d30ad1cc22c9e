"""Damage stored Runs at random: every mutation must be noticed or harmless, and no error may be a raw traceback.

`run(count, seed)` makes small Runs, and mutates one file at a time: flipped bits, cuts, zeros, noise, deletions, files
exchanged with those of another Run, with an older copy, or with a folder. A mutation holds if reading the Run ends in a
typed error, or gives the numbers, texts and adversarials of the intact Run. `python benchmarks/fortress_corrupt.py`
prints the table.
"""

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import brinell
from brinell import Linf, Problem, Run
from brinell.errors import BrinellError
from brinell.results.analyses import AnalysisReport, Table, saved
from brinell.results.merge import merge

HARMLESS = (".lock",)


class Outcome(NamedTuple):
    """How many attempts of one kind were made, how many of them held, and what happened in those that did not."""

    kind: str
    tried: int
    held: int
    details: tuple[str, ...] = ()


def flip(data: bytes, random: random.Random) -> bytes:
    """Flip one bit."""
    k = random.randrange(len(data))
    return data[:k] + bytes([data[k] ^ 1 << random.randrange(8)]) + data[k + 1 :]


def flip_end(data: bytes, random: random.Random) -> bytes:
    """Flip one bit in the last fifth, where Parquet keeps the names of its columns."""
    k = len(data) - 1 - random.randrange(max(1, len(data) // 5))
    return data[:k] + bytes([data[k] ^ 1 << random.randrange(8)]) + data[k + 1 :]


def cut(data: bytes, random: random.Random) -> bytes:
    """Cut the end off."""
    return data[: random.randrange(len(data))]


def zeros(data: bytes, random: random.Random) -> bytes:
    """Overwrite a piece with zeros."""
    a = random.randrange(len(data))
    b = min(len(data), a + random.choice((1, 8, 64, 512)))
    return data[:a] + bytes(b - a) + data[b:]


def noise(data: bytes, random: random.Random) -> bytes:
    """Overwrite a piece with random bytes."""
    a = random.randrange(len(data))
    b = min(len(data), a + random.choice((1, 4, 32)))
    return data[:a] + random.randbytes(b - a) + data[b:]


def insert(data: bytes, random: random.Random) -> bytes:
    """Insert a piece of the file a second time."""
    a = random.randrange(len(data))
    b = min(len(data), a + random.choice((1, 16, 256)))
    return data[:b] + data[a:b] + data[b:]


def digit(data: bytes, random: random.Random) -> bytes:
    """Replace one digit or letter by another, which leaves JSON readable."""
    places = [k for k, byte in enumerate(data) if chr(byte).isalnum() and byte < 128]
    if not places:
        return flip(data, random)
    k = random.choice(places)
    return data[:k] + random.choice("0123456789abcdeft").encode() + data[k + 1 :]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "one bit": flip,
    "one bit at the end": flip_end,
    "cut": cut,
    "zeros": zeros,
    "noise": noise,
    "repeated piece": insert,
    "one character": digit,
}
FILES = ("deleted", "exchanged", "older copy", "folder", "swapped in the Run")
KINDS = (*BYTES, *FILES)


class World:
    """Two finished Runs on disjoint samples, each with an analysis, and a folder of older files."""

    def __init__(self, folder: Path) -> None:
        data = brinell.data.load("demo", 60)
        self.runs, self.older = [], folder / "older"
        for name, part in (("a", slice(0, 30)), ("b", slice(30, 60))):
            piece = Problem(data.x[part], data.y[part], data.ids[part], name="demo")
            run = brinell.evaluate("demo", piece, Linf(0.1), "pgd20", out=folder / name, progress=False)
            rows = ((name, p.value) for name, p in run.accuracy_after())
            report = AnalysisReport(
                "accuracy", "Accuracy", str(run.robust_accuracy), (Table("", ("a", "b"), (*rows,)),)
            )
            report.save(run.path)
            self.runs.append(run.path)
        shutil.copytree(self.runs[0], self.older)
        for file in (self.older / "rows").iterdir():
            file.write_bytes((next((self.runs[1] / "rows").iterdir())).read_bytes())


def shown(run: Run) -> dict[str, str]:
    """Return everything that is printed about a Run, and its adversarials; the first line names the folder."""
    analyses = {f"analysis {report.kind}": str(report.to_dict()) for report in saved(run.path)}
    adversarials, summary = run.adversarials(), str(run).split("\n", 1)[-1]
    texts = {"summary": summary, "verdict": str(run.verdict), "checks": str(run.findings)}
    stored = {"rows": str(run.rows().to_pylist()), "x": f"{adversarials.ids.tolist()} {adversarials.x.tobytes()!r}"}
    return {**texts, **stored, **analyses}


def mutate(kind: str, path: Path, run: Path, other: Path, random: random.Random) -> str:
    """Damage one file of a Run; return what was done."""
    name = path.relative_to(run).as_posix()
    if kind in BYTES:
        data = path.read_bytes()
        path.write_bytes(BYTES[kind](data, random) if data else b"\0")
    elif kind == "deleted":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "swapped in the Run":
        same = sorted(f for f in path.parent.iterdir() if f.suffix == path.suffix)
        twin = random.choice(same)
        a, b = path.read_bytes(), twin.read_bytes()
        path.write_bytes(b)
        twin.write_bytes(a)
    else:
        source = other if kind == "exchanged" else other.parent / "older"
        same = sorted(f for f in (source / name).parent.iterdir() if f.suffix == path.suffix)
        if same:
            path.write_bytes(random.choice(same).read_bytes())
    return f"{kind} in {name}"


def read(run: Path, out: Path) -> dict[str, str]:
    """Read a Run in every way that prints numbers; return what is printed."""
    opened = Run.open(run)
    texts = shown(opened)
    opened.shards.check_hashes()
    merge([run], out)
    return texts


def run(count: int = 500, seed: int = 0) -> list[Outcome]:
    """Make `count` mutations, chosen by the seed; return for each kind how many were tried and how many held."""
    chosen = random.Random(seed)
    tried: dict[str, int] = dict.fromkeys(KINDS, 0)
    wrong: dict[str, list[str]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="brinell-corrupt-") as folder:
        world = World(Path(folder))
        intact = {path: read(path, Path(folder) / f"merged-{path.name}") for path in world.runs}
        for k in range(count):
            kind, source = KINDS[k % len(KINDS)], world.runs[chosen.randrange(2)]
            other = world.runs[1 - world.runs.index(source)]
            copy, out = Path(folder) / f"{k}" / source.name, Path(folder) / f"{k}" / "out"
            shutil.copytree(source, copy)
            files = sorted(f for f in copy.rglob("*") if f.is_file() and f.name not in HARMLESS)
            # Every kind of file as often: there are more shards than manifests.
            folders = sorted({f.parent if f.parent != copy else f for f in files})
            place = chosen.choice(folders)
            done = mutate(kind, chosen.choice([f for f in files if place in (f, f.parent)]), copy, other, chosen)
            tried[kind] += 1
            verdict = outcome(copy, out, intact[source])
            if verdict:
                wrong[kind].append(f"seed {seed}, mutation {k}, {done}: {verdict}")
            shutil.rmtree(copy.parent)
    return [Outcome(kind, tried[kind], tried[kind] - len(wrong[kind]), tuple(wrong[kind])) for kind in KINDS]


def outcome(copy: Path, out: Path, intact: Mapping[str, str]) -> str:
    """Return what went wrong after a mutation; "" if it was noticed or is harmless."""
    try:
        texts = read(copy, out)
    except BrinellError as error:
        return "" if error.expected and error.remedy else "an error without a remedy"
    except Exception as error:
        return f"a raw {type(error).__name__}: {error}"
    # An analysis that is gone shows no number: it can be made again.
    differing = [name for name, text in texts.items() if text != intact.get(name)]
    return f"other numbers without a word: {texts[differing[0]][:80]!r}" if differing else ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    outcomes = run(given.count, given.seed)
    print("| damage | tried | held |\n|---|---|---|")
    for kind, tried, held, _ in outcomes:
        print(f"| {kind} | {tried} | {held} |")
    print(f"| all | {sum(o.tried for o in outcomes)} | {sum(o.held for o in outcomes)} |")
    for line in (detail for o in outcomes for detail in o.details):
        print(line)


if __name__ == "__main__":
    main()
