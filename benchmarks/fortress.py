"""Kill, corrupt, forge and fuzz with a seed, and print for each kind how many attempts were made and how many held.

Run: python benchmarks/fortress.py [--seed 0] [--scale 1.0] [--only corrupt] (or `make fortress`). With the full number
of attempts it writes benchmarks/results/fortress.json and fortress.md, and the summary into docs/security.md; `--only`
replaces the results of one part. The exit code is 1 if an attempt did not hold. Each module `fortress_PART.py` has a
function `run(seed, count)` that returns a list of (kind, tried, held), and optionally details of what did not hold.
"""

import argparse
import importlib
import json
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import brinell

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "security.md"
STORED = RESULTS / "fortress.json"
# The summary stands between these lines of the page.
BEGIN, END = "<!-- fortress -->", "<!-- /fortress -->"


class Part(NamedTuple):
    """One module of attempts: its name, its title, how many attempts the whole command makes, and when one holds."""

    name: str
    title: str
    count: int
    holds: str


PARTS = (
    Part(
        "kill", "Kills, full disks, lost folders", 430, "the same call, repeated, gives the files of an undisturbed one"
    ),
    Part("corrupt", "Corruptions", 500, "reading ends in a typed error, or gives the numbers of the intact Run"),
    Part(
        "forge",
        "Forgeries",
        212,
        "`verify` with the model notices it, or it hides fewer samples than are stated to be found",
    ),
    Part("fuzz", "Hostile files", 2211, "a typed error or the right result, within 10 s and 1 GiB"),
)


class Line(NamedTuple):
    """A line of a table: the attempts of one kind."""

    kind: str
    tried: int
    held: int
    details: tuple[str, ...] = ()


class Result(NamedTuple):
    """The attempts of one part, and where they were made; `note` says which lines were made elsewhere."""

    seed: int
    seconds: float
    brinell: str
    torch: str
    python: str
    lines: tuple[Line, ...]
    note: str = ""

    def total(self, field: str) -> int:
        """Return the sum of a column, "tried" or "held"."""
        return sum(getattr(line, field) for line in self.lines)


def run_part(part: Part, seed: int, scale: float = 1.0) -> Result:
    """Make the attempts of one module."""
    begun, module = time.perf_counter(), importlib.import_module(f"fortress_{part.name}")
    lines = tuple(_line(*line) for line in module.run(seed=seed, count=max(1, round(part.count * scale))))
    seconds, versions = round(time.perf_counter() - begun, 1), (brinell.__version__, torch.__version__)
    return Result(seed, seconds, *versions, platform.python_version(), lines)


def _line(kind: Any, tried: int, held: int, details: Sequence[Any] = ()) -> Line:
    return Line(str(kind), int(tried), int(held), tuple(map(str, details)))


def read() -> dict[str, Result]:
    """Return the stored results by part; {} before the first run."""
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    return {name: Result(**{**r, "lines": tuple(_line(**line) for line in r["lines"])}) for name, r in stored.items()}


def write(results: Mapping[str, Result]) -> None:
    """Write the results, their tables, and the summary of the page."""
    plain = {name: {**r._asdict(), "lines": [line._asdict() for line in r.lines]} for name, r in results.items()}
    STORED.write_text(json.dumps(plain, indent=1) + "\n")
    (RESULTS / "fortress.md").write_text(markdown(results))
    PAGE.write_text(on_page(PAGE.read_text(), summary(results)))


def _chosen(results: Mapping[str, Result]) -> list[tuple[Part, Result]]:
    return [(part, results[part.name]) for part in PARTS if part.name in results]


def summary(results: Mapping[str, Result]) -> str:
    """Return the table with one line per part."""
    text = ["| what | tried | held | an attempt holds if |", "|---|---|---|---|"]
    for part, r in _chosen(results):
        text.append(f"| {part.title} | {r.total('tried'):,} | {r.total('held'):,} | {part.holds} |")
    return "\n".join(text)


def markdown(results: Mapping[str, Result]) -> str:
    """Return all tables as Markdown."""
    text = ["# Attacked on purpose", "", "Made by `python benchmarks/fortress.py`, or `make fortress`."]
    text += ["[Security](../../docs/security.md) says what is promised.", "", summary(results)]
    for part, r in _chosen(results):
        place = f"Seed {r.seed}, {r.seconds:,.0f} s, Brinell {r.brinell}, torch {r.torch}, Python {r.python}. {r.note}"
        text += ["", f"## {part.title}", "", place.rstrip(), "", "| kind | tried | held |", "|---|---|---|"]
        text += [f"| {line.kind} | {line.tried:,} | {line.held:,} |" for line in r.lines]
        failed = list(_failed(r.lines))
        text += ["", "What did not hold:", "", *failed] if failed else []
    return "\n".join([*text, ""])


def _failed(lines: Iterable[Line]) -> Iterable[str]:
    return (f"- {line.kind}: {detail}" for line in lines for detail in line.details)


def on_page(page: str, table: str) -> str:
    """Return the text of the page with this summary."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    """Run the parts, print the tables, and store them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="make this share of the attempts")
    parser.add_argument("--only", choices=[part.name for part in PARTS], action="append")
    given = parser.parse_args()
    sys.path.insert(0, str(HERE))
    results = {}
    for part in PARTS:
        if not given.only or part.name in given.only:
            print(f"{part.title} …", file=sys.stderr, flush=True)
            results[part.name] = run_part(part, given.seed, given.scale)
            if given.scale >= 1:
                write({**read(), part.name: results[part.name]})
    print(markdown(results))
    sys.exit(any(r.total("held") < r.total("tried") for r in results.values()))


if __name__ == "__main__":
    main()
