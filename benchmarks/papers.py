"""Write docs/reproduced.md and docs/reproduced/: the tables and figures of the papers, ours beside the paper's.

The stored results lie in benchmarks/results/papers, one folder for each; `brinell reproduce NAME --out FOLDER` writes
them. Run `python benchmarks/papers.py` afterwards.
"""

from collections import Counter
from collections.abc import Container
from pathlib import Path

from brinell.reproduce import Exhibit, Reproduction, exhibits
from brinell.reproduce.catalogue import PAPERS
from brinell.reproduce.exhibit import CALCULATED, MEASURED, RECORDS
from brinell.reproduce.run import RESULT

KINDS = (MEASURED, RECORDS, CALCULATED)
ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "papers", ROOT / "docs" / "reproduced.md"
HEAD = """# The papers' tables and figures

Every table and figure of the five papers has a name. `brinell reproduce` lists them, and `brinell reproduce NAME` runs
one on your models and data and writes it beside the paper's numbers ([cli.md](cli.md#brinell-reproduce)). This page
shows what was run with the networks at hand. They are not the papers' networks, so compare shapes and orders, not
digits. MMR-UNIV on CIFAR-10 ([curves/table-1](reproduced/curves.md)) is the paper's own network. Brackets are 95 %
intervals; p-values of rank correlations are exact (all orders of the models). Every command was run on two
processor cores, and the seconds beside it are its cost; "from stored Runs" means that the command continued Runs of an
earlier one. Models of the form `published.py:NAME` are in `benchmarks/published.py`.
"""


def stored() -> dict[str, list[tuple[Path, Reproduction]]]:
    """The stored results by the name of their table or figure."""
    found: dict[str, list[tuple[Path, Reproduction]]] = {}
    for file in sorted(RESULTS.glob(f"*/*/{RESULT}")):
        result = Reproduction.open(file.parent)
        found.setdefault(result.exhibit.name, []).append((file.parent, result))
    return found


def state(e: Exhibit, results: Container[str]) -> str:
    """Where our numbers of a table or figure come from, or why there are none."""
    if e.name in results:
        return e.origin
    return f"missing: {e.missing}" if e.missing else f"not run here; needs {e.needs}"


def counts(results: Container[str]) -> str:
    """How many tables and figures have which source."""
    shown = Counter(e.source if e.source in KINDS else "" for e in exhibits() if e.name in results)
    return (
        f"Of {len(exhibits())} tables and figures, {shown[MEASURED]} are measured here. {shown['']} more show the run "
        f"of another one in another form, {shown[RECORDS]} are copied from stored records, and {shown[CALCULATED]} is "
        f"calculated from closed forms; {len(exhibits()) - shown.total()} are not run."
    )


def pages() -> dict[Path, str]:
    """The list of all tables and figures, and one page for each paper."""
    results = stored()
    lines = [HEAD, counts(results), ""]
    made = {}
    for short, paper in PAPERS.items():
        lines += [f"## {paper}", "", f"[Ours beside the paper's](reproduced/{short}.md)", ""]
        lines += ["| name | what it shows | here |", "|---|---|---|"]
        text = [f"# {paper}: ours beside the paper's", "", "[All papers](../reproduced.md)", ""]
        for e in exhibits(short):
            lines.append(f"| `{e.name}` | {e.place}: {e.title} | {state(e, results)} |")
            for folder, result in results.get(e.name, []):
                text.append(result.to_markdown(f"../../{folder.relative_to(ROOT).as_posix()}/"))
        lines.append("")
        made[PAGE.with_suffix("") / f"{short}.md"] = "\n".join(text).replace("\n### ", "\n## ").rstrip() + "\n"
    made[PAGE] = "\n".join(lines).rstrip() + "\n"
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
