"""Tables for papers: every record is in them, and LaTeX, Markdown and BibTeX can be read back."""

import csv
import io
import re
from collections import Counter

import pytest

from brinell.errors import PlanError
from brinell.leaderboard.records import Record, published, ranked
from brinell.leaderboard.tables import as_table, bibtex, citation_key
from brinell.report.text_tables import as_latex_table, latex_text
from brinell.results.analyses import Table

LINF = [r for r in published() if (r.dataset, r.threat) == ("cifar10", "Linf")]


def test_every_format_has_every_record_in_order() -> None:
    names = [r.name for r in ranked(LINF)]
    lines = as_table(LINF, "md").splitlines()
    assert [re.findall(r"`([^`]+)`", line)[0] for line in lines[2:]] == names
    rows = [line for line in as_table(LINF, "tex").splitlines() if line.endswith(r"\\")][1:]
    assert [row.split(" & ")[1].split(r" \citep")[0].replace(r"\_", "_") for row in rows] == names
    table = list(csv.DictReader(io.StringIO(as_table(LINF, "csv"))))
    assert [row["Method"] for row in table] == names
    for row, r in zip(table, ranked(LINF), strict=True):
        assert (float(row["Clean"]), float(row["AutoAttack"]), float(row["Best known"])) == (
            r.clean,
            r.autoattack,
            r.best,
        )
        assert (row["title"], row["authors"], row["licence"]) == (r.title, r.authors, r.licence)


def test_a_row_has_as_many_cells_as_the_heading() -> None:
    for board in ("cifar10/L2", "imagenet/corruptions", "cifar100/corruptions"):
        of_board = [r for r in published() if f"{r.dataset}/{r.threat}" == board]
        tex = [line for line in as_table(of_board, "tex").splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in tex}) == 1 and len(tex) == len(of_board) + 1
        md = as_table(of_board, "md").splitlines()
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in md}) == 1
    assert "Best known" not in as_table([r for r in published() if r.threat == "corruptions"], "md")


def test_one_entry_per_paper_and_all_citations_have_one() -> None:
    keys: dict[str, set[str]] = {}
    for r in published():
        keys.setdefault(citation_key(r), set()).add(r.link)
    assert all(len(links) == 1 for links in keys.values())
    entries = as_table(LINF, "bib")
    found = re.findall(r"^@\w+\{([^,]+),$", entries, re.MULTILINE)
    assert Counter(found) == Counter({citation_key(r) for r in LINF})
    assert set(re.findall(r"\\citep\{([^}]+)\}", as_table(LINF, "tex"))) == set(found)
    assert entries.count("{") == entries.count("}")


def test_entries_are_complete_where_the_facts_are_known() -> None:
    for r in published():
        entry = bibtex(r)
        fields = dict(re.findall(r"^  (\w+) = \{(.*)\},$", entry, re.MULTILINE))
        assert fields["url"] == r.link and fields["title"].strip("{}")
        assert fields.get("author", "").count(" and ") == r.authors.count(",")
        assert fields.get("year") == (None if r.year is None else str(r.year))
    by_name = {r.name: bibtex(r) for r in published()}
    assert (
        by_name["Rony2019Decoupling"].startswith("@inproceedings")
        and "Jérôme Rony and" in by_name["Rony2019Decoupling"]
    )
    assert "journal = {Pattern Recognition}" in by_name["Chen2024Data_WRN_34_10"]
    assert (
        by_name["Engstrom2019Robustness"].startswith("@misc")
        and "howpublished = {GitHub}" in by_name["Engstrom2019Robustness"]
    )
    assert "author" not in by_name["Standard"]


def test_the_licence_that_forbids_commercial_use_is_in_the_tables() -> None:
    for format in ("md", "tex", "csv"):
        text = as_table([r for r in LINF if r.name in ("Ding2020MMA", "Wong2020Fast")], format)
        assert text.count("CC-BY-NC-SA-4.0") == 1


def test_special_characters_are_escaped() -> None:
    assert latex_text(r"a_b & 50 % {x} \y #1 $z ~ ^") == (
        r"a\_b \& 50 \% \{x\} \textbackslash{}y \#1 \$z \textasciitilde{} \textasciicircum{}"
    )
    evil = Record("d", "t", "m", title="A | B_c [x](y) & 5 %", clean=1.0, autoattack=0.5)
    assert r"A \| B\_c \[x\](y) & 5 %" in as_table([evil], "md")
    assert as_latex_table(Table("one\ntwo", ("a",), (("b",),))).splitlines()[0].startswith("% one two.")
    with pytest.raises(PlanError, match="a format"):
        as_table([evil], "docx")
