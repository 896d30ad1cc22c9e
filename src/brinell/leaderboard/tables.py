"""Records as tables for papers: Markdown, LaTeX, CSV, and BibTeX entries of their papers."""

import csv
import io
import re
from collections.abc import Callable, Sequence

from brinell.leaderboard.records import Record, ranked
from brinell.report.text_tables import as_latex_table, as_markdown_table, known_format, latex_text, markdown_text
from brinell.results.analyses import Table
from brinell.untrusted import csv_cells

# Field and heading; a column is left out if no record has a value.
NUMBERS = {
    "clean": "Clean", "autoattack": "AutoAttack", "best": "Best known", "certified": "Certified",
    "corruptions": "Corruptions", "corruptions_mce": "mCE", "corruptions_3d": "3D corruptions",
    "corruptions_mce_3d": "3D mCE", "reported": "Reported",
}  # fmt: skip
# Venues that publish articles instead of proceedings.
JOURNALS = ("Pattern Recognition", "SIMODS", "TMLR")
ELSEWHERE = ("arXiv", "GitHub", "OpenReview")


def as_table(records: Sequence[Record], format: str = "md") -> str:
    """Return the records as a table ("md", "tex", "csv"), the most robust first, or their papers as BibTeX ("bib").

    >>> from brinell.leaderboard.records import published
    >>> l2 = [r for r in published() if (r.dataset, r.threat) == ("cifar10", "L2")]
    >>> print(as_table(l2[:1], "bib"), end="")
    @inproceedings{Wang2023Better,
      title = {{Better Diffusion Models Further Improve Adversarial Training}},
      author = {Zekai Wang and Tianyu Pang and Chao Du and Min Lin and Weiwei Liu and Shuicheng Yan},
      booktitle = {ICML},
      year = {2023},
      url = {https://arxiv.org/abs/2302.04638},
      eprint = {2302.04638},
      archivePrefix = {arXiv},
    }
    """
    return FORMATS[known_format(format, FORMATS)](ranked(records))


def citation_key(record: Record) -> str:
    """Return the BibTeX key of the record's paper; all models of one paper have the same key.

    >>> citation_key(Record("cifar10", "L2", "Wang2023Better_WRN-70-16"))
    'Wang2023Better'
    """
    known = re.match(r"[A-Za-z-]+\d{4}[A-Za-z]*", record.name)
    return known[0] if known else re.sub(r"\W", "", record.name)


def bibtex(record: Record) -> str:
    """Return the BibTeX entry of a record's paper, with all known facts."""
    venue = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", record.venue))
    place = without_date(venue)
    arxiv = re.search(r"arxiv\.org/(?:abs|pdf)/(\d{4}\.\d{4,5})", record.link)
    kind, where = "inproceedings", "booktitle"
    if place in JOURNALS:
        kind, where = "article", "journal"
    elif place in (*ELSEWHERE, "", "N/A"):
        kind, where = "misc", "howpublished"
    authors = " and ".join(name.strip() for name in record.authors.split(",") if name.strip())
    fields = {
        "title": f"{{{latex_text(record.title or record.name)}}}",
        "author": latex_text(authors),
        where: "" if place == "N/A" else latex_text(place),
        "year": str(record.year or ""),
        "url": record.link,
        "eprint": arxiv[1] if arxiv else "",
        "archivePrefix": "arXiv" if arxiv else "",
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{citation_key(record)},", *lines, "}"]) + "\n"


def _bib(records: Sequence[Record]) -> str:
    papers = {citation_key(r): r for r in reversed(records) if r.link or r.title}
    return "\n".join(bibtex(papers[key]) for key in sorted(papers))


def _markdown(records: Sequence[Record]) -> str:
    def method(r: Record) -> str:
        name = markdown_text(r.title or r.name)
        text = f"[{name}]({r.link})" if r.link.startswith(("http://", "https://")) else name
        extra = " ".join(part for part in (f"`{r.name}`" if r.title else "", _notice(r)) if part)
        return f"{text} {extra}".strip()

    return as_markdown_table(_table(records, method), escaped=(1,))


def _latex(records: Sequence[Record]) -> str:
    def method(r: Record) -> str:
        cite = f" \\citep{{{citation_key(r)}}}" if r.link or r.title else ""
        return f"{latex_text(r.name)}{cite}{latex_text(' ' + _notice(r)).rstrip()}"

    return as_latex_table(_table(records, method), escaped=(1,))


def without_date(venue: str) -> str:
    """Return a venue without its date.

    >>> [without_date(v) for v in ("arXiv, Mar 2021", "ICLR 2020", "TMLR, Aug 2024", "NeurIPS")]
    ['arXiv', 'ICLR', 'TMLR', 'NeurIPS']
    """
    year = re.search(r"\b(?:19|20)\d\d\b", venue)
    if year is None:
        return venue
    before = venue[: year.start()].rstrip(", ")
    return re.sub(r"(?:^|[, ])[A-Z][a-z]{2}\.?$", "", before).rstrip(", ")


def _csv(records: Sequence[Record]) -> str:
    out = io.StringIO()
    table, facts = _table(records, lambda r: r.name), ("title", "authors", "link", "licence")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(csv_cells((*table.columns, *facts)))
    for row, r in zip(table.rows, records, strict=True):
        writer.writerow(csv_cells((*row, *(getattr(r, f) for f in facts))))
    return out.getvalue()


def _notice(record: Record) -> str:
    return f"(non-commercial: {record.licence})" if record.non_commercial else ""


def _table(records: Sequence[Record], method: Callable[[Record], str]) -> Table:
    """Return the records as a table with the columns of the leaderboard that have values."""
    boards = list(dict.fromkeys(f"{r.dataset}/{r.threat}" for r in records))
    shown = {field: head for field, head in NUMBERS.items() if any(getattr(r, field) is not None for r in records)}
    if all(r.best == r.autoattack for r in records) or not any(r.autoattack is not None for r in records):
        shown.pop("best", None)
    many = ("Board",) if len(boards) > 1 else ()
    columns = ("#", "Method", *many, *shown.values(), "Extra data", "Architecture", "Venue")
    rows = tuple(
        (
            i, method(r), *((f"{r.dataset}/{r.threat}",) if many else ()), *(getattr(r, f) for f in shown),
            {True: "yes", False: "no", None: "unknown"}[r.extra_data], r.architecture or None,
            " ".join(re.sub(r"<[^>]*>", " ", r.venue).split()) or None,
        )
        for i, r in enumerate(records, 1)
    )  # fmt: skip
    return Table(f"Robustness in per cent, {', '.join(boards)}", columns, rows)


FORMATS: dict[str, Callable[[Sequence[Record]], str]] = {"md": _markdown, "tex": _latex, "bib": _bib, "csv": _csv}
