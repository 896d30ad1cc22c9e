"""The page of a Run: its numbers are the Run's, its words stay words, and it is one small file."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.conftest import Images, make_images
from tests.report.test_page import FETCHED

import brinell.report
from brinell.errors import InputError, MissingExtra, StorageError
from brinell.report.advice import ADVICE
from brinell.report.figures import (
    breaks,
    class_names,
    classes,
    confusion,
    costs,
    curve,
    distances,
    largest_margins,
    margins,
    overlap,
    stages,
)
from brinell.report.outcomes import sample_outcomes
from brinell.report.paper_text import bibtex, labels, paragraph
from brinell.results import Proportion, Run
from brinell.results.analyses import AnalysisReport, Figure, Series, Table
from brinell.results.format.manifest import Manifest
from brinell.results.verdict import RULES

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Tags that stay open, ids, scripts, handlers and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            self.targets += [value or ""] if name == "href" else []
            self.handlers += [name] if name.startswith("on") else []
        if tag not in ("meta", "link", "img", "br", "hr", "input", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_small(run: Run, images: Images, tmp_path: Path) -> None:
    path = run.report(tmp_path / "report.html", problem=images)
    text = path.read_text()
    page = read(text)
    assert path.stat().st_size < 3_000_000
    assert FETCHED.findall(text) == []
    assert len(set(page.ids)) == len(page.ids)
    inner = [t[1:] for t in page.targets if t.startswith("#")]
    assert set(inner) <= set(page.ids)
    assert [t for t in page.targets if not t.startswith(("#", "data:"))] == []


def test_the_numbers_are_those_of_the_run(run: Run, tmp_path: Path) -> None:
    text = read(run.report(tmp_path / "report.html").read_text()).text
    p = run.robust_accuracy
    assert (p.k, p.n) == (30, 50)
    for wanted in (
        "60.0%",
        f"[{100 * p.low:.1f}, {100 * p.high:.1f}]",
        "30 of 50 samples were not broken",
        run.sentence(),
        "2,350 forward and 2,070 backward passes",
        run.verdict.level,
        *(f"{100 * q.value:.1f} %" for _, q in run.accuracy_after()),
    ):
        assert wanted in text


def test_large_images_and_long_manifests_stay_small(make: Callable[..., Run], tmp_path: Path) -> None:
    images = make_images(40, (3, 224, 224))
    run = make(tmp_path / "run", images, threat__eps=[0.1] * 200_000)
    path = run.report(tmp_path / "report.html", problem=images)
    assert path.stat().st_size < 3_000_000
    page = read(path.read_text())
    assert page.tags.count("img") == 3 * 12
    assert "one value per sample" in page.text
    assert "more characters in manifest.json" in page.text


def test_a_report_made_twice_is_the_same_file(run: Run, images: Images, tmp_path: Path) -> None:
    first, second = (run.report(tmp_path / f"{i}.html", problem=images).read_bytes() for i in range(2))
    assert first == second


def test_hostile_strings_stay_text(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    places = ("model__name", "data__name", "plan__name", "plan__citation", "plan__description", "precision")
    run = make(tmp_path / "run", images, **dict.fromkeys(places, HOSTILE))
    fields: dict[str, Any] = {"notes": [HOSTILE], "environment": {HOSTILE: HOSTILE}}
    fields["checks"] = [{"name": HOSTILE, "level": "warn", "message": HOSTILE}]
    run = Run(run.path, Manifest.read({**run.manifest, **fields}))
    series = Series(HOSTILE, (HOSTILE,), (1.0,))
    figure, table = Figure(HOSTILE, "bars", HOSTILE, HOSTILE, (series,)), Table(HOSTILE, (HOSTILE,), ((HOSTILE,),))
    AnalysisReport("hostile", HOSTILE, HOSTILE, (table,), (figure,)).save(run.path)
    other = make(tmp_path / "other", images, model__name=HOSTILE)
    for many in ([run], [run, other]):
        text = brinell.report.text(many, problem=images, classes=[HOSTILE] * 5, title=HOSTILE)
        page = read(text)
        assert page.tags.count("script") == 1
        assert page.handlers == []
        assert page.text.count(HOSTILE) > 10
        assert len(set(page.ids)) == len(page.ids)


def test_golden_run_has_a_report(tmp_path: Path) -> None:
    run = Run.open(Path(__file__).parents[1] / "results" / "golden_run_v1")
    assert "33.3%" in read(run.report(tmp_path / "report.html").read_text()).text


def test_an_empty_and_an_unfinished_run_have_reports(make: Callable[..., Run], tmp_path: Path) -> None:
    nothing = make(tmp_path / "empty", Images(np.zeros((0, 1, 4, 4), np.float32)), finished=False)
    assert "unfinished" in read(nothing.report(tmp_path / "report.html").read_text()).text


def test_several_runs_stand_side_by_side(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", images), make(tmp_path / "b", images, model__name="other")
    path = brinell.report.write([a, b], tmp_path / "both.html")
    page = read(path.read_text())
    assert "+0.0 points" in page.text
    assert {"r1-top", "r2-top", "r1-accuracy", "r2-cost"} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)


def test_runs_without_common_samples_say_so(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    other = Images(images.x[::-1].copy())
    runs = [make(tmp_path / "a", images), make(tmp_path / "b", other)]
    assert "the same input for the same sample id in both Runs" in read(brinell.report.text(runs)).text


def test_analyses_are_shown(run: Run) -> None:
    figure = Figure("Drift", "line", "step", "value", (Series("net", (0.0, 1.0), (2.0, 3.0)),))
    AnalysisReport("drift", "A drift", "It drifts by 1.", (Table("Steps", ("step",), ((17,),)),), (figure,)).save(
        run.path
    )
    page = read(brinell.report.text([run]))
    assert "It drifts by 1." in page.text
    assert "Steps" in page.text
    assert "analyses" in page.ids


def test_samples_are_counted_as_the_run_counts(run: Run) -> None:
    s = sample_outcomes(run)
    assert int(s.robust.sum()) == run.robust_accuracy.k
    assert int(s.correct.sum()) == run.clean_accuracy.k
    assert int(s.broken.sum()) == 15
    assert [int((s.stage == i).sum()) for i in range(3)] == [stage.broken for stage in run.stages()]
    assert int(s.forwards.sum()) == run.cost.forwards
    found = run.adversarials()
    assert found.ids.tolist() == s.ids[s.row >= 0].tolist()


def test_margins_seen_outside_the_threat_do_not_count(run: Run) -> None:
    table = run.rows()
    attack, margin = table["attack"].to_pylist(), table["adv_margin"].to_pylist()
    outside = [5.0 if a == "third" and m is not None and m < 0 else m for a, m in zip(attack, margin, strict=True)]
    place = table.column_names.index("adv_margin")
    run.__dict__["_table"] = table.set_column(place, "adv_margin", [np.array(outside, np.float32)])
    s = sample_outcomes(run)
    assert s.largest_margin[s.robust].max() == -0.5


def test_figures_add_up(run: Run) -> None:
    s = sample_outcomes(run)
    assert stages(run).levels[-1].value == 100 * run.robust_accuracy.value
    assert sum(stages(run).drops) == pytest.approx(30)
    assert sum(map(sum, margins(s).counts)) == 50  # type: ignore[union-attr]
    assert [sum(c) for c in largest_margins(s).counts] == [30, 15]  # type: ignore[union-attr]
    by_class = classes(s)
    assert by_class is not None
    _, robust = by_class.series
    assert sum(robust.y) / 5 == pytest.approx(60)  # classes of ten each
    share = Proportion(int((s.robust & (s.label == 0)).sum()), 10)
    assert (robust.low[0], robust.high[0]) == (100 * share.low, 100 * share.high)
    matrix = confusion(run, s)
    assert matrix is not None and sum(sum(row.y) for row in matrix.series) == 15
    assert [row[2] for row in breaks(run, s).rows] == [5, 5, 5]
    assert costs(run)[1].rows[-1][2:4] == (run.cost.forwards, run.cost.backwards)
    assert distances(s) is None  # all on the surface


def test_attacks_that_break_the_same(make: Callable[..., Run], run: Run, images: Images, tmp_path: Path) -> None:
    assert overlap(run) is None
    every = make(tmp_path / "every", images, individual=True)
    figure = overlap(every)
    assert figure is not None
    # Each attack breaks what those before it broke, and five samples more.
    assert [s.y for s in figure.series] == [(5, 5, 5), (5, 10, 10), (5, 10, 15)]
    assert [row[2:5] for row in breaks(every, sample_outcomes(every)).rows] == [(5, 5, 0), (10, 5, 0), (15, 5, 5)]
    assert every.robust_accuracy == run.robust_accuracy
    assert "both attacks broke" in read(brinell.report.text([every])).text


def test_many_classes_are_cut_to_the_least_robust(make: Callable[..., Run], tmp_path: Path) -> None:
    run = make(tmp_path / "run", Images(np.zeros((300, 1, 4, 4), np.float32)), classes=100)
    figure = classes(sample_outcomes(run))
    assert figure is not None and "24 least robust of 100" in figure.title
    kept = set(figure.series[1].y)
    assert max(kept) <= min(np.setdiff1d([100 * v for v in _by_class(run)], list(kept)), default=100)


def _by_class(run: Run) -> list[float]:
    s = sample_outcomes(run)
    return [float(s.robust[s.label == c].mean()) for c in np.unique(s.label)]


def test_the_curve_is_the_robust_accuracy_by_radius(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    run = make(tmp_path / "run", images, eps=None)
    s = sample_outcomes(run)
    (series,) = curve([("net", s)], "Linf").series
    for x, y in zip(series.x, series.y, strict=True):
        broken = ~s.correct | (s.broken & (s.distance <= float(x)))
        assert y == pytest.approx(100 - 100 * broken.mean())
    assert series.y[0] == pytest.approx(90)
    assert "Median distance" in read(brinell.report.text([run])).text


def test_advice_for_every_rule_and_no_other() -> None:
    assert set(ADVICE) == {anchor for _, anchor, _ in RULES}


def test_words_for_a_paper(run: Run) -> None:
    text = paragraph(run)
    assert run.sentence() in text
    assert "first, second, third" in text
    entries = bibtex([run])
    assert entries.count("@") == 2
    assert "Hardness \\& steel" in entries
    assert entries.count("{") == entries.count("}")


def test_works_are_cited_one_by_one(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    text = (
        "Tramèr et al. 2020, On it; L1: Croce & Hein 2021, Mind: the box; Mine, after Gao et al. 2022, Fast 50 %; Lone"
    )
    entries = bibtex([make(tmp_path / "run", images, plan__citation=text)]).split("\n\n")[1:]
    keys = [e.partition(",")[0].removeprefix("@misc{") for e in entries]
    assert keys == ["tramer2020on", "croce2021mind", "gao2022fast", "lone"]
    assert "author = {Croce and Hein}" in entries[1] and "title = {{Mind: the box}}" in entries[1]
    assert "author = {Gao and others}" in entries[2] and "50 \\%" in entries[2]


def test_runs_are_told_apart(make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", images), make(tmp_path / "b", images)
    assert labels([a, b]) == ["net (a)", "net (b)"]
    assert labels([a, make(tmp_path / "c", images, plan__name="four")]) == ["net, three", "net, four"]
    assert len(set(labels([a, a]))) == 2


@pytest.mark.parametrize("name", ["accuracy", "classes", "margins", "cost"])
def test_pictures_for_notebooks(run: Run, name: str) -> None:
    plt = _matplotlib()
    axes = getattr(run, f"plot_{name}")()
    assert axes.get_title(loc="left")
    assert len(axes.patches) > 3
    if name == "accuracy":
        assert axes.patches[1].get_width() == pytest.approx(100 * run.robust_accuracy.value)
    plt.close("all")


def test_a_picture_of_distances(make: Callable[..., Run], run: Run, images: Images, tmp_path: Path) -> None:
    plt = _matplotlib()
    with pytest.raises(InputError, match="no such samples in"):
        run.plot_distances()
    axes = make(tmp_path / "minimal", images, eps=None).plot_distances()
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(60)
    plt.close("all")


def _matplotlib() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def test_pictures_without_matplotlib_tell_the_remedy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r"brinell\[report\]"):
        run.plot_accuracy()


def test_a_card_for_notebooks(run: Run, make: Callable[..., Run], images: Images, tmp_path: Path) -> None:
    text = run._repr_html_()
    assert "60.0 %" in read(text).text
    hostile = make(tmp_path / "hostile", images, model__name=HOSTILE, plan__name=HOSTILE)
    assert set(read(hostile._repr_html_()).tags) <= {
        "div",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
    }


def test_classes_have_the_names_that_the_data_give_them(run: Run) -> None:
    names = ("ant", "bee", "cat", "dog", "emu")
    assert class_names(run, (), names) == names and class_names(run, list("abcde"), names) == tuple("abcde")
    assert class_names(run, (), names[:3]) == ()  # of another number of classes than the model has


def test_wrong_requests_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ending"):
        run.report(tmp_path / "report.doc")
    with pytest.raises(StorageError, match="folder"):
        run.report(tmp_path / "nowhere" / "report.html")
    with pytest.raises(InputError, match="5 class names"):
        run.report(tmp_path / "report.html", classes=["a"])
    with pytest.raises(InputError, match="at least one Run"):
        brinell.report.text([])
    with pytest.raises(Exception, match="a format among"):
        brinell.report.text([run], "pdf")


def test_every_id_of_the_contents_exists(run: Run) -> None:
    text = brinell.report.text([run])
    wanted = re.findall(r'<li><a href="#([\w-]+)">', text)
    assert len(wanted) == 10
    assert set(wanted) <= set(read(text).ids)
