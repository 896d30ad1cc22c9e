"""Write docs/reproduced.md and docs/reproduced/: the tables and figures of the papers, measured beside published.

The stored results lie in benchmarks/results/papers, one folder for each; `brinell reproduce NAME --out FOLDER` writes
them. Run `python benchmarks/papers.py` afterwards.
"""

from pathlib import Path

from brinell.reproduce import Reproduction, exhibits
from brinell.reproduce.catalogue import PAPERS
from brinell.reproduce.run import RESULT

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "papers", ROOT / "docs" / "reproduced.md"
HEAD = """# The papers' tables and figures

Every table and figure of the five papers has a name. `brinell reproduce` lists them, and `brinell reproduce NAME` runs
one on your models and data and writes it beside the paper's numbers ([cli.md](cli.md#brinell-reproduce)). This page
shows what was run with the networks at hand. They are not the papers' networks, so compare shapes and orders, not
digits, except where the text says that it is the same network. Brackets are 95 % intervals. Every command was run on
two processor cores; models of the form `published.py:NAME` are in `benchmarks/published.py`.
"""


def stored() -> dict[str, list[tuple[Path, Reproduction]]]:
    """The stored results by the name of their table or figure."""
    found: dict[str, list[tuple[Path, Reproduction]]] = {}
    for file in sorted(RESULTS.glob(f"*/*/{RESULT}")):
        result = Reproduction.open(file.parent)
        found.setdefault(result.exhibit.name, []).append((file.parent, result))
    return found


def pages() -> dict[Path, str]:
    """The list of all tables and figures, and one page for each paper."""
    results = stored()
    measured = sum(e.name in results for e in exhibits())
    lines = [HEAD, f"{measured} of {len(exhibits())} tables and figures are measured here.", ""]
    made = {}
    for short, paper in PAPERS.items():
        lines += [f"## {paper}", "", f"[Measured beside published](reproduced/{short}.md)", ""]
        lines += ["| name | what it shows | here |", "|---|---|---|"]
        text = [f"# {paper}: measured beside published", "", "[All papers](../reproduced.md)", ""]
        for e in exhibits(short):
            state = "measured" if e.name in results else f"missing: {e.missing}" if e.missing else "not run here"
            lines.append(f"| `{e.name}` | {e.place}: {e.title} | {state} |")
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
