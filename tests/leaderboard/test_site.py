"""A leaderboard shows every published number as it was published, says where others come from, and runs nothing of
what strangers wrote."""

import csv
import html
import json
import os
import re
import shutil
import threading
import urllib.request
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brinell.errors import InputError, RunError
from brinell.leaderboard.records import RECORD, Record, of_run, published
from brinell.leaderboard.site import build
from brinell.leaderboard.site.boards import Board, boards
from brinell.leaderboard.site.columns import BoardRow, columns
from brinell.leaderboard.site.entries import BoardEntry, collect, entry_of_run
from brinell.leaderboard.site.pages import INDEX, rows
from brinell.leaderboard.site.sanitise import footnote, plain, safe_link
from brinell.leaderboard.site.server import server
from brinell.results import Run

pytestmark = pytest.mark.usefixtures("few")

GOLDEN = Path(__file__).parents[1] / "results" / "golden_run_v1"
COUNTS = {
    "cifar10-Linf": 99,
    "cifar10-L2": 21,
    "cifar10-corruptions": 23,
    "cifar100-Linf": 38,
    "cifar100-corruptions": 13,
    "imagenet-Linf": 30,
    "imagenet-corruptions": 12,
    "imagenet-corruptions_3d": 12,
}
# Markup, markup that becomes markup when read once, and quotes.
HOSTILE = (
    "</td></table><script>alert('x')</script><img src=x onerror=alert(1)>&lt;script&gt;x()&lt;/script&gt;&quot;\"'"
)
VOID = {"meta", "link", "input", "br", "wbr", "img", "hr"}


class Reader(HTMLParser):
    """Every element with its attributes, the cells of the board's rows, and whether elements close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[dict[str, dict[str, Any]]] = []
        self.row_attributes: list[dict[str, str | None]] = []
        self.heads: dict[str, str] = {}
        self._open: list[str] = []
        self._cell: dict[str, Any] | None = None
        self._body = False
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.elements.append((tag, told))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._body = "board" in (told.get("class") or "")
        if self._body and tag == "tr" and "id" in told:
            self.rows.append({})
            self.row_attributes.append(told)
        if self._body and tag in ("td", "th"):
            key = re.findall(r"\bk-(\w+)", told.get("class") or "")[0]
            self._cell = {"text": "", "v": told.get("data-v"), "links": []}
            if self.rows:
                self.rows[-1][key] = self._cell
        if self._cell is not None and tag == "a":
            self._cell["links"].append(told["href"])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self._cell = None
        if tag == "table":
            self._body = False

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell["text"] += data


def read(path: Path) -> Reader:
    return Reader(path.read_text(encoding="utf-8"))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published records and one Run."""
    folder = tmp_path_factory.mktemp("board") / "site"
    built = build([GOLDEN], out=folder)
    assert {k: v for k, v in built.boards.items() if k in COUNTS} == COUNTS
    # Twelve records are on two boards, that of common and that of 3D corruptions.
    assert built.runs == 1 and built.records == 237 and sum(built.boards.values()) == 237 + 12
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Reader]:
    return {slug: read(site / f"{slug}.html") for slug in COUNTS}


def test_every_board_has_its_records(pages: dict[str, Reader]) -> None:
    assert {slug: len(page.rows) for slug, page in pages.items()} == COUNTS


def test_numbers_are_those_of_the_published_table(pages: dict[str, Reader]) -> None:
    table = Path(os.environ.get("BRINELL_SHARED", "shared")) / "spec" / "robustbench_models.csv"
    if not table.exists():
        pytest.skip("needs the table of the leaderboard (set BRINELL_SHARED)")
    with open(table, newline="", encoding="utf-8") as file:
        wanted = list(csv.DictReader(file))
    assert len(wanted) == 236
    columns = {
        "clean": "clean_acc",
        "autoattack": "autoattack_acc",
        "reported": "reported_acc",
        "corruptions": "corruptions_acc",
        "corruptions_mce": "corruptions_mce",
        "corruptions_3d": "corruptions_acc_3d",
        "corruptions_mce_3d": "corruptions_mce_3d",
    }
    for row in wanted:
        page = pages[f"{row['dataset']}-{row['threat_model']}"]
        (shown,) = (r for r, told in zip(page.rows, page.row_attributes, strict=True) if told["id"] == row["model_id"])
        assert row["model_id"] in shown["method"]["text"]
        for ours, theirs in columns.items():
            text = row[theirs]
            if text in ("", "null"):
                assert ours not in shown or shown[ours]["text"] == "–", (row["model_id"], ours)
            else:
                assert shown[ours]["text"] == f"{float(text):.2f}", (row["model_id"], ours)
        best = next(row[c] for c in ("best_known_external", "autoattack_acc", "corruptions_acc") if row[c])
        if row["threat_model"] != "corruptions":
            external = "external" if row["best_known_external"] else ""
            assert shown["best"]["text"] == f"{float(best):.2f}{external}"
        if row["reported_acc"] in ("", "null"):
            assert shown["over"]["text"] == "–"
        else:
            assert float(shown["over"]["text"].replace("−", "-")) == pytest.approx(
                float(row["reported_acc"]) - float(best), abs=1e-6
            )
        flag = {"true": "yes", "false": "no", "": "unknown"}
        assert shown["extra"]["text"] == flag[row["extra_data"]]
        assert "unreliable" not in shown or shown["unreliable"]["text"] == flag[row["unreliable_flag"]]
        assert shown["architecture"]["text"] == row["architecture"]
        assert shown["venue"]["text"] == ("–" if row["venue"] == "N/A" else row["venue"].replace("<br>", " "))
        assert shown["method"]["links"][0] == row["link"]
        assert shown["status"]["text"] == "published"


def test_boards_are_sorted_by_the_best_known_number(pages: dict[str, Reader]) -> None:
    for slug, page in pages.items():
        key = slug.partition("-")[2] if "corruptions" in slug else "best"
        values = [float(r[key]["v"]) for r in page.rows]
        assert values == sorted(values, reverse=True)
        for row, value in zip(page.rows, values, strict=True):
            assert int(row["rank"]["text"]) == 1 + sum(v > value for v in values)
            assert row["rank"]["text"] == row["rank"]["v"]
    top = pages["cifar10-Linf"].rows[1]
    assert (top["autoattack"]["text"], top["best"]["v"]) == ("75.28", "73.1")
    assert pages["cifar10-Linf"].row_attributes[1]["id"] == "Amini2024MeanSparse_S-WRN-94-16"


def test_a_row_shows_title_authors_note_and_licence(pages: dict[str, Reader]) -> None:
    """The published table has them (Croce et al. 2021, figure 1); the id is the name in the zoo."""
    for slug, page in pages.items():
        board = next(b for b in boards(collect()) if b.slug == slug)
        for entry, shown in zip(board.entries, page.rows, strict=True):
            r = entry.record
            assert shown["method"]["v"] == r.title
            for text in (r.title, r.authors, r.name, plain(r.footnote)):
                assert text in shown["method"]["text"], (r.key, text)
            assert "licence" not in shown or shown["licence"]["text"] == (r.licence or "–")
            assert ("non-commercial" in shown["method"]["text"]) == (r.name == "Ding2020MMA")


def test_the_board_of_3d_corruptions_has_only_their_numbers(pages: dict[str, Reader]) -> None:
    for row, told in zip(
        pages["imagenet-corruptions_3d"].rows, pages["imagenet-corruptions_3d"].row_attributes, strict=True
    ):
        (r,) = (r for r in published() if r.key == f"imagenet/corruptions/{told['id']}")
        assert row["corruptions_3d"]["text"] == f"{r.corruptions_3d:.2f}"
        assert row["corruptions_mce_3d"]["text"] == f"{r.corruptions_mce_3d:.2f}"
        assert not {"corruptions", "corruptions_mce", "autoattack", "best"} & set(row)


def test_robustness_by_venue(site: Path) -> None:
    """Figure 2 left: median, lowest and highest of the models of every venue, computed here from the table."""
    page = read(site / "cifar10-Linf.html")
    linf = [r for r in published() if (r.dataset, r.threat) == ("cifar10", "Linf")]
    icml = sorted(r.best or 0.0 for r in linf if r.venue.startswith("ICML "))
    (bar,) = (e for _, e in page.elements if e.get("data-name") == f"ICML ({len(icml)})")
    shown = [float(bar[key] or "nan") for key in ("data-value", "data-low", "data-high")]
    assert shown == pytest.approx([median(icml), icml[0], icml[-1]], abs=0.01)


def test_columns_without_values_are_left_out(pages: dict[str, Reader]) -> None:
    linf, corrupted, imagenet = (
        set(pages[s].rows[0]) for s in ("cifar10-Linf", "cifar10-corruptions", "imagenet-corruptions")
    )
    assert {"autoattack", "best", "unreliable"} <= linf and not {"n", "interval", "cost", "run", "corruptions"} & linf
    assert "corruptions" in corrupted and not {"autoattack", "best", "corruptions_mce"} & corrupted
    assert {"corruptions_mce", "corruptions_3d", "corruptions_mce_3d"} <= imagenet
    assert "licence" in linf


def test_rows_can_be_filtered_by_what_they_show(pages: dict[str, Reader]) -> None:
    for page in pages.values():
        for row, told in zip(page.rows, page.row_attributes, strict=True):
            assert told["data-architecture"] == row["architecture"]["text"]
            assert told["data-extra"] == row["extra"]["text"]
            external = "best" in row and row["best"]["text"].endswith("external")
            assert told["data-status"] == ("published external" if external else "published")
    venues = {told["data-venue"] for told in pages["cifar10-Linf"].row_attributes}
    assert {"arXiv", "NeurIPS", "GitHub", "unknown"} <= venues and not any(re.search(r"\d", v or "") for v in venues)


def test_charts_have_a_named_point_for_every_record(site: Path, pages: dict[str, Reader]) -> None:
    for slug, page in pages.items():
        board = next(b for b in boards(collect()) if b.slug == slug)
        points = {(e.get("data-label"), e.get("data-x"), e.get("data-y")) for _, e in page.elements if "data-cx" in e}
        for entry in board.entries:
            r = entry.record
            assert (r.name, f"{r.clean:.2f}".rstrip("0").rstrip("."), f"{r.best:.2f}".rstrip("0").rstrip(".")) in points
    text = (site / "cifar10-Linf.html").read_text()
    over = [r.overestimation for r in published() if (r.dataset, r.threat) == ("cifar10", "Linf")]
    assert f"{sum(o is not None and o > 0 for o in over)} of 99 models were reported more robust" in text
    assert "last four-digit number of the venue" in text


@pytest.mark.parametrize(("own", "last"), [(1, ["interval", "n"]), (3, ["venue", "status"])])
def test_what_few_records_have_comes_last(own: int, last: list[str]) -> None:
    """Interval and n stand beside the accuracy, unless most records are copied from papers and have none."""
    papers = [Record("cifar10", "L2", f"p{i}", venue="A 2020", clean=95.0, autoattack=40.0) for i in range(2)]
    runs = [replace(papers[0], name=f"r{i}", n=100, interval=(30.0, 50.0)) for i in range(own)]
    board = Board("cifar10", "L2", "0.5", tuple(BoardEntry(record) for record in (*papers, *runs)))
    shown = [c.key for c in columns([BoardRow(board, e, None, e.record.name) for e in board.entries])]
    assert [key for key in shown if key in ("interval", "n", "venue", "status")][-2:] == last


def test_what_is_not_believed_makes_no_progress(tmp_path: Path) -> None:
    for name, venue, best, verdict in (("Old", "A 2020", 40.0, None), ("New", "B 2021", 45.0, "reliable"),
                                       ("Weak", "C 2021", 90.0, "suspicious")):  # fmt: skip
        record = Record("cifar10", "L2", name, venue=venue, eps="0.5", clean=95.0, autoattack=best, verdict=verdict)
        record.write(tmp_path / "records")
    build(records=tmp_path / "records", out=tmp_path / "site", with_published=False)
    page = read(tmp_path / "site" / "cifar10-L2.html")
    points = [(e["data-series"], e["data-label"], e["data-x"], e["data-y"]) for _, e in page.elements if "data-cx" in e]
    assert [p[1:] for p in points if p[0] == "best so far"] == [("Old", "2020", "40"), ("New", "2021", "45")]
    assert ("not published", "Weak", "95", "90") in points  # it is shown where it belongs
    home = read(tmp_path / "site" / "index.html")
    assert {e["data-label"] for _, e in home.elements if "data-cx" in e} == {"Old", "New"}
    assert [r["rank"]["text"] for r in page.rows] == ["–", "1", "2"]


def test_links_lead_somewhere_and_ids_are_unique(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = read(path)
        ids = [told["id"] for _, told in page.elements if "id" in told]
        assert len(ids) == len(set(ids)), path.name
        for tag, told in page.elements:
            href = told.get("href") or ""
            if tag != "a" or "://" in href:
                continue
            file, _, place = href.partition("#")
            target = (path.parent / file) if file else path
            assert target.exists(), (path.name, href)
            if place:
                assert place in [t.get("id") for _, t in read(target).elements], (path.name, href)


def test_nothing_is_fetched(site: Path) -> None:
    fetched = {"src", "srcset", "poster", "data", "action", "background"}
    for path in site.rglob("*.html"):
        elements = read(path).elements
        assert not [(t, a) for t, a in elements if fetched & set(a) or t in ("iframe", "object", "embed", "base")]
        assert [a["href"] for t, a in elements if t == "link"] == ["data:,"]
        assert "default-src 'none'" in path.read_text()
    for script in ("fetch(", "XMLHttpRequest", "innerHTML", "eval("):
        own = (Path(__file__).parents[2] / "src/brinell/leaderboard/site/files/leaderboard.js").read_text()
        assert script not in own


def test_a_run_is_a_record_with_a_page(site: Path) -> None:
    run = Run.open(GOLDEN)
    (row,) = read(site / "toys-Linf-eps-0.0313725.html").rows
    assert row["method"]["v"] == "toy-net" and row["status"]["text"] == "unverified" and row["n"]["text"] == "6"
    assert row["clean"]["text"] == f"{100 * run.clean_accuracy.value:.2f}"
    assert row["autoattack"]["text"] == "33.33plan golden" and row["best"]["text"] == "33.33"
    p = run.robust_accuracy
    assert row["interval"]["text"] == f"[{100 * p.low:.2f}, {100 * p.high:.2f}]"
    # What it knows comes first, what nobody stated is no column.
    shown = [key for key in row if key in ("best", "interval", "n", "unreliable", "cost", "status", "run")]
    assert shown == ["best", "interval", "n", "unreliable", "cost", "status", "run"]
    assert not {"reported", "over", "extra", "architecture", "venue", "year"} & set(row)
    assert int(row["cost"]["v"]) == run.cost.forwards + run.cost.backwards
    # The verdict does not believe so small a Run: it has a place, and no rank.
    assert run.verdict.level != "reliable" and row["rank"]["text"] == "–" and row["unreliable"]["text"] == "yes"
    (link,) = row["run"]["links"]
    text = (site / link).read_text()
    assert run.verdict.level in text
    for stage, (name, after) in zip(run.stages(), run.accuracy_after(), strict=True):
        assert f'<th scope="row">{name}</th><td class="n">{100 * after.value:.1f} %' in text
        assert f'<td class="n">{stage.attacked}</td><td class="n">{stage.broken}</td>' in text


def test_no_page_tells_where_things_were(site: Path) -> None:
    for name, data in everything_in(site).items():
        assert str(GOLDEN).encode() not in data, name
        assert str(site).encode() not in data, name


def test_the_data_are_there_to_take(site: Path) -> None:
    stored = json.loads((site / "cifar100-Linf.json").read_text())
    assert len(stored) == 38 and stored[0]["rank"] == 1
    found = [Record.from_json(r) for r in stored]
    assert sorted(found, key=lambda r: r.key) == sorted(
        (r for r in published() if (r.dataset, r.threat) == ("cifar100", "Linf")), key=lambda r: r.key
    )
    (ours,) = json.loads((site / "toys-Linf-eps-0.0313725.json").read_text())
    assert ours["run"].startswith("runs/") and (site / ours["run"]).exists()


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A site of one record in which everything a stranger can write is hostile, and of a Run with such a record."""
    own = dict.fromkeys(("title", "authors", "venue", "architecture", "footnote"), HOSTILE)
    run = copy_of_run(tmp_path / "run", plan__name=HOSTILE)
    record = replace(
        of_run(Run.open(run), "cifar10", "Linf", "Evil"),
        **own, link="javascript:alert(1)", eps="8/255", reasons=(HOSTILE,), restrictions=(HOSTILE,),
        status="unverified", reported=99.0,
    )  # fmt: skip
    record.write(run / RECORD)
    replace(record, name="Evil2", run_hash=None, n=None).write(tmp_path / "records")
    build([run], records=tmp_path / "records", out=tmp_path / "site", with_published=False)
    return tmp_path / "site"


def test_hostile_strings_stay_text(hostile: Path) -> None:
    for path in hostile.rglob("*.html"):
        page = read(path)
        assert sum(tag == "script" for tag, _ in page.elements) == 1  # ours
        assert not any(tag == "img" for tag, _ in page.elements)
        for _, told in page.elements:
            assert not [name for name in told if name.startswith("on")]
            assert not re.match(r"\s*(javascript|data|vbscript):", told.get("href") or "x") or told["href"] == "data:,"
    shown = read(hostile / "cifar10-Linf.html").rows
    assert {r["method"]["v"] for r in shown} == {HOSTILE}
    for row in shown:
        assert row["method"]["text"].startswith(HOSTILE)  # the title is text, and so are all its signs
        assert row["method"]["links"] == []
        assert HOSTILE in row["autoattack"]["text"]


def test_hostile_notes_lose_their_markup() -> None:
    text = footnote(
        '<a href="https://a.b/?x=1&y=2" onclick="x()">good</a> <a href=" java\nscript:x()">bad</a><svg><a>q'
    )
    assert text == '<a href="https://a.b/?x=1&amp;y=2" rel="noopener noreferrer">good</a> bad'


@given(st.text(st.sampled_from("<>ab/\"'=&;!- \nscriptylehref:"), max_size=60))
@example("<a href=https://x.y/>&lt;script&gt;<b>")
@example("<!--<script>-->x<![CDATA[<b>]]><?php <i>?>")
def test_of_a_note_only_links_are_left(text: str) -> None:
    seen = Reader(footnote(text)).elements
    assert all(tag == "a" and set(told) == {"href", "rel"} and safe_link(told["href"] or "") for tag, told in seen)
    assert "<" not in plain(text) or "<" in html.unescape(text)


@pytest.mark.parametrize("link", ["javascript:x", "JaVaScRiPt:x", "\x01javascript:x", "data:text/html,x", "file:///etc",
                                  "//a.b", "a.html", "", "http://", "https:a", "http://[x"])  # fmt: skip
def test_only_addresses_of_the_web_are_linked(link: str) -> None:
    assert safe_link(link) is None


def test_another_radius_is_another_board() -> None:
    radii = {"a": "8/255", "b": "0.031", "c": "4/255", "d": "0.0313725", "e": None}
    made = [
        BoardEntry(Record("cifar10", "Linf", name, eps=eps, clean=90.0, autoattack=50.0)) for name, eps in radii.items()
    ]
    assert [(b.slug, [e.record.name for e in b.entries]) for b in boards(made)] == [
        ("cifar10-Linf", ["a", "b", "d"]),
        ("cifar10-Linf-eps-4-255", ["c"]),
        ("cifar10-Linf-eps-unknown", ["e"]),
    ]


def test_ranks_are_shared_and_only_for_what_is_believed() -> None:
    def entry(best: float | None, verdict: str | None = None) -> BoardEntry:
        return BoardEntry(Record("d", "t", "m", autoattack=best, verdict=verdict))

    made = (entry(60.0, "suspicious"), entry(50.0), entry(50.0, "reliable"), entry(40.0), entry(None))
    assert Board("d", "t", "1", made).ranks() == [None, 1, 1, 3, None]


def test_rows_have_ids_of_their_own() -> None:
    names = ("Mine", "charts", "Mine", "my net")
    made = tuple(BoardEntry(Record("d", "t", name, autoattack=1.0)) for name in names)
    assert [r.id for r in rows(Board("d", "t", "1", made))] == ["Mine", "charts.2", "Mine.2", "my-net"]


def test_two_boards_cannot_share_a_page(tmp_path: Path) -> None:
    Record("a-b", "c", "m", eps="1", clean=1.0).write(tmp_path / "records")
    Record("a", "b-c", "m", eps="1", clean=1.0).write(tmp_path / "records")
    with pytest.warns(UserWarning, match=r"The board of a-b/c/m is left out: its page a-b-c-eps-1.html belongs to"):
        site = build(records=tmp_path / "records", out=tmp_path / "site", with_published=False)
    assert site.boards == {"a-b-c-eps-1": 1}
    assert json.loads((tmp_path / "site" / "a-b-c-eps-1.json").read_text())[0]["dataset"] == "a"


def copy_of_run(folder: Path, **identity: Any) -> Path:
    shutil.copytree(GOLDEN, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for path, value in identity.items():
        group, _, name = path.partition("__")
        manifest["identity"][group][name] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_model_of_the_zoo_stands_on_the_board_of_its_data(tmp_path: Path) -> None:
    run = copy_of_run(
        tmp_path / "run", model__name="cifar10/Linf/Carmon2019Unlabeled", threat__eps_text="8/255", data__name="x/y.npz"
    )
    record = entry_of_run(run).record
    assert (record.key, record.eps) == ("cifar10/Linf/Carmon2019Unlabeled", "8/255")
    found = next(b for b in boards(collect([run])) if b.slug == "cifar10-Linf")
    same = [e.record.status for e in found.entries if e.record.name == "Carmon2019Unlabeled"]
    assert len(found.entries) == 100 and sorted(same) == ["published", "unverified"]


def test_odd_names_become_parts_of_file_names(tmp_path: Path) -> None:
    run = copy_of_run(
        tmp_path / "run", model__name="<b>my/net</b>/", data__name="../my data.npz", threat__eps_text="0.1"
    )
    assert re.fullmatch(r"my data\.npz/Linf/\w[\w.+ -]*", entry_of_run(run).record.key)


def test_a_run_without_a_radius_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a Run with a radius"):
        entry_of_run(copy_of_run(tmp_path / "run", threat__eps=None))


def test_the_record_beside_a_run_counts_and_must_fit(tmp_path: Path) -> None:
    run = copy_of_run(tmp_path / "runs" / "mine")
    record = replace(
        of_run(Run.open(run), "cifar10", "Linf", "Mine", {"reported": 50.0}), eps="8/255", status="verified"
    )
    record.write(run / RECORD)
    record = replace(record, run="mine")  # where it lay is not told
    assert entry_of_run(run).record == record
    # A folder of records in which Runs lie gives the Runs, once.
    (entry,) = collect(folder=tmp_path / "runs", with_published=False)
    assert entry.record == record and entry.run is not None
    assert len(collect([run], tmp_path / "runs", with_published=False)) == 1
    replace(record, autoattack=99.0).write(run / RECORD)
    with pytest.raises(RunError, match=r"autoattack 99\.0 instead of 33\.33"):
        entry_of_run(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [("verdict", "reliable"), ("unreliable", False), ("plan", "autoattack"), ("eps", "4/255"), ("seed", 99),
     ("fingerprint", "00"), ("clean_interval", (0.0, 100.0))],
)  # fmt: skip
def test_a_record_beside_a_run_cannot_say_better_of_it(tmp_path: Path, field: str, value: object) -> None:
    """A verdict that is told to be reliable would give the Run a rank."""
    run = copy_of_run(tmp_path / "run")
    record = replace(of_run(Run.open(run), "cifar10", "Linf", "Mine"), eps="8/255")
    record.write(run / RECORD)
    assert not entry_of_run(run).ranked
    replace(record, **{field: value}).write(run / RECORD)  # type: ignore[arg-type]
    with pytest.raises(RunError, match=f"{field} .* instead of"):
        entry_of_run(run)


def test_what_a_record_leaves_out_the_run_beside_it_says(tmp_path: Path) -> None:
    run = copy_of_run(tmp_path / "run")
    told = of_run(Run.open(run), "cifar10", "Linf", "Mine")
    replace(told, verdict=None, unreliable=None, plan=None, n=None, interval=None, autoattack=None).write(run / RECORD)
    found = entry_of_run(run)
    assert not found.ranked and (found.record.plan, found.record.n) == (told.plan, told.n)
    assert (found.record.autoattack, found.record.interval) == (told.autoattack, told.interval)


def test_a_mask_of_ones_own_has_no_place(tmp_path: Path) -> None:
    mask = {"shape": [1, 2, 2], "bits": "gA=="}
    with pytest.raises(RunError, match="which has a mask"):
        entry_of_run(copy_of_run(tmp_path / "run", threat__mask=mask))


def test_records_replace_published_ones_of_their_name(tmp_path: Path) -> None:
    old = next(r for r in published() if r.name == "Carmon2019Unlabeled" and r.threat == "Linf")
    replace(old, footnote="Told later.").write(tmp_path)
    found = collect(folder=tmp_path)
    assert len(found) == 236
    assert [e.record.footnote for e in found if e.record.key == old.key] == ["Told later."]
    with pytest.raises(InputError, match="folder of records"):
        collect(folder=tmp_path / "absent")


@pytest.mark.parametrize(
    ("field", "value"),
    [("clean_acc", "nan"), ("autoattack_acc", "inf"), ("autoattack_acc", "101"), ("reported", "-1"), ("name", 3),
     ("venue", None), ("footnote", ["x"]), ("eps", 8),
     ("additional_data", "no"), ("n", "many"), ("interval", [1, 2, 3]), ("interval", ["a", "b"]), ("reasons", [1]),
     ("cost", {"forwards": "x", "backwards": 0, "seconds": 0}), ("number_forward_passes", "two")],
)  # fmt: skip
def test_nonsense_in_records_is_refused(tmp_path: Path, field: str, value: object) -> None:
    place = Record("d", "Linf", "m", eps="0.1", clean=1.0, autoattack=1.0, n=5).write(tmp_path / "records")
    place.write_text(json.dumps({**json.loads(place.read_text()), field: value}))
    with pytest.raises(RunError, match=r"record"):
        build(records=tmp_path / "records", out=tmp_path / "site", with_published=False)
    assert not (tmp_path / "site").exists()


def test_a_whole_report_lies_beside_the_page_of_a_run(tmp_path: Path) -> None:
    build([GOLDEN], out=tmp_path, with_published=False, report=lambda run: f"<p>{run.robust_accuracy.n}</p>")
    short, whole = sorted((tmp_path / "runs").iterdir(), key=lambda p: p.name.endswith("-report.html"))
    assert whole.read_text() == "<p>6</p>" and f'href="{whole.name}"' in short.read_text()


def test_built_twice_it_is_the_same_and_left_overs_go(tmp_path: Path) -> None:
    out = tmp_path / "site"
    build([GOLDEN], out=out, with_published=False)
    (out / "mine.txt").write_text("not of the site")
    first = everything_in(out)
    build([GOLDEN], out=out, with_published=False)
    assert everything_in(out) == first
    Record("d", "Linf", "m", eps="0.1", clean=1.0, autoattack=1.0).write(tmp_path / "records")
    build(records=tmp_path / "records", out=out, with_published=False)
    assert set(everything_in(out)) == {"index.html", "d-Linf-eps-0.1.html", "d-Linf-eps-0.1.json", INDEX, "mine.txt"}


def test_an_index_cannot_make_it_delete_other_files(tmp_path: Path) -> None:
    out, kept = tmp_path / "site", tmp_path / "kept.txt"
    out.mkdir()
    kept.write_text("mine")
    (out / INDEX).write_text(json.dumps({"files": ["../kept.txt", str(kept), 3, "absent.html"]}))
    build([GOLDEN], out=out, with_published=False)
    assert kept.read_text() == "mine"


def test_folders_of_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("somebody's page")
    with pytest.raises(InputError, match="other files"):
        build(out=tmp_path)
    with pytest.raises(InputError, match="the file"):
        build(out=tmp_path / "index.html")
    assert (tmp_path / "index.html").read_text() == "somebody's page"
    with pytest.raises(InputError, match="at least one Run or record"):
        build(out=tmp_path / "new", with_published=False)
    assert not (tmp_path / "new").exists()


def test_it_is_served_to_this_machine(site: Path) -> None:
    with server(site) as made:
        assert made.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{made.server_address[1]}/"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert answer.read() == (site / "index.html").read_bytes()
            with pytest.raises(InputError, match="free port"):
                server(site, made.server_address[1])
        finally:
            made.shutdown()
            thread.join()


def test_only_a_site_is_served(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no index\.html"):
        server(tmp_path)
