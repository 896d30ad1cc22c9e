"""A dossier as its readers see it: complete, honest about gaps, safe, and the same every time."""

import base64
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.browser import PROGRAM, Browser
from tests.report.conftest import make_images, make_run
from typer.testing import CliRunner

from brinell.cli.main import program
from brinell.dossier import make_payload, template, write_dossier
from brinell.dossier.check_dossier import canonical, check, numbers
from brinell.dossier.clauses import CLAUSES
from brinell.dossier.page import SECTIONS
from brinell.dossier.page import page as page_of
from brinell.dossier.system import declared
from brinell.errors import InputError, MissingExtra, RunError
from brinell.results import ROWS, Run, Writer

SOURCES = ("2024/1689", "24029-1", "24029-2", "AI 100-2", "AI RMF", "ATLAS", "AISVS")


def test_the_same_runs_and_key_give_the_same_file(
    page: Path, data: Path, write: Callable[..., Path], tmp_path: Path
) -> None:
    assert write(tmp_path / "again.html").read_bytes() == page.read_bytes()
    assert write(tmp_path / "again.json").read_bytes() == data.read_bytes()
    assert write(tmp_path / "later.json", date="2026-03-02").read_bytes() != data.read_bytes()


def test_every_section_and_clause_is_there(page: Path) -> None:
    text = page.read_text()
    assert text.count("<section id=") == len(SECTIONS) - 1  # no annex: no grouping is long
    assert all(source in text for source in SOURCES)
    assert "no legal advice" in text
    for number in (
        "Art. 15(1)",
        "Art. 15(2)",
        "Art. 15(3)",
        "Art. 15(4)",
        "Art. 15(5)",
        "Annex IV, 2(g)",
        "MEASURE 2.7",
    ):
        assert any(clause.number == number for clause in CLAUSES)
    for number in ("AML.T0015", "AML.T0043"):
        assert number in text


def test_gaps_are_stated(page: Path, write: Callable[..., Path], tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.html", system=None, groups=None).read_text()
    assert "No subgroups were given" in bare and "No level is declared" in bare
    assert "does not state how the samples were drawn" in bare
    assert "does not state how the samples were drawn" not in page.read_text()
    assert bare.count("not stated</i>") > page.read_text().count("not stated</i>") > 5
    assert "1 samples belong to no group" in page.read_text()
    assert "small, n &lt; 50" in page.read_text()


def test_names_cannot_write_markup(page: Path) -> None:
    text = page.read_text()
    assert "<script>alert" not in text and "night <b>" not in text
    assert "Sorter &lt;script&gt;alert(1)" in text and "b &lt;script&gt;alert(2)" in text
    assert re.findall(r"<script\b[^>]*>", text) == [
        '<script type="application/json" id="payload">', '<script type="text/plain" id="signature">',
    ]  # fmt: skip
    assert re.search(r"(?:src|href)=\"(?!#)", text) is None


def test_no_file_imports_torch() -> None:
    code = "import sys, brinell.dossier; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_template_is_an_empty_description(tmp_path: Path) -> None:
    (tmp_path / "system.toml").write_text(template())
    assert declared(tmp_path / "system.toml")._replace(file=False) == declared()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("system = 3", r"Write \[system\]"), ("[sistem]", "Did you mean 'system'"), ("[system]\nnam = ''", "'name'"),
        ("[system]\nname = ['a']", "Write a text"), ("[units]\nper_unit = -1", "positive"), ("[", "Correct the file"),
        ("levels = 3", r"\[\[levels\]\]"), ("[[levels]]\nat_least = 0.4", "40 for 40 %"),
        ("[[levels]]\nat_least = 40\neps = 'x'", "eps"), ("[[levels]]\nat_least = 40\nmeasure = 'rob'", "robust"),
        ("[[levels]]\nat_least = 40\nnrom = 'L2'", "'norm'"),
    ],
)  # fmt: skip
def test_descriptions_that_are_wrong_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "system.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        declared(tmp_path / "system.toml")


def test_wrong_arguments_are_refused(folder: Path, tmp_path: Path) -> None:
    run, out = folder / "a", tmp_path / "d.html"
    for arguments, message in (
        (([run], tmp_path / "d.txt"), "ends in"), (([run], out), "--unsigned"), (([], out), "Run"),
        (([run], tmp_path / "missing" / "d.html"), "existing folder"), (([run], out), "neither"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            write_dossier(*arguments, unsigned=message not in ("--unsigned", "neither"))  # type: ignore[arg-type]
    (tmp_path / "groups.csv").write_text("id,light\n900,day")
    with pytest.raises(InputError, match=r"other ids.*\[0, 1, 2\]"):
        write_dossier([run], out, unsigned=True, groups=tmp_path / "groups.csv")
    with pytest.raises(InputError, match="a day such as"):
        write_dossier([run], out, unsigned=True, date="yesterday")
    with pytest.raises(RunError):
        write_dossier([tmp_path / "a.parquet", folder / "a"], out, unsigned=True)
    assert not out.exists()


def test_a_damaged_run_makes_no_dossier(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_images(10))
    file = next((run.path / "adversarials").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(RunError, match="as it was written"):
        make_payload([run])


def add(run: Run, *changes: dict[str, Any]) -> Run:
    """Add rows of certificates to a Run; each is the clean row of its sample, changed."""
    clean = {row["sample_id"]: row for row in run.rows().to_pylist() if row["attack"] == "clean"}
    rows = [
        {
            **clean[c["sample_id"]],
            "broken": False,
            "verified": None,
            "certified": False,
            "radius": 0.0,
            "passes": 1,
            **c,
        }
        for c in changes
    ]
    with Writer.resume(run.path, run.manifest) as writer:
        writer.update(certifiers=[{"hash": "h", "methods": ["crown"], "seconds": 1.0}])
        writer.append(pa.Table.from_pylist(rows, schema=ROWS))
    return Run.open(run.path)


def test_certificates_give_the_lower_end_and_counterexamples_the_upper(folder: Path, tmp_path: Path) -> None:
    proofs = [
        {"sample_id": i, "attack": "certificate:crown", "certified": True, "radius": 0.1}
        for i in range(50)
        if i % 10 > 6
    ]
    found = {"sample_id": 4, "attack": "certificate:exact", "broken": True, "verified": True, "distance": 0.05}
    run = add(make_run(tmp_path / "run", make_images(50)), *proofs, found)
    payload = make_payload([run], system=None)
    shares = payload["numbers"]["shares"]
    assert shares["0/certified"][:2] == [15, 50] == [run.certified_accuracy.k, run.certified_accuracy.n]
    assert shares["0/robust"][:2] == [29, 50] == [run.robust_accuracy.k, run.robust_accuracy.n]
    assert shares["0/broken/3"][:2] == [1, 1]
    text = page_of(payload)
    assert "no certificates" not in text and "15 are certified" in text and "crown: 15 certified" in text
    write_dossier([run], tmp_path / "page.html", key=folder / "key.pem")
    assert check(tmp_path / "page.html")[-1].startswith("OK")  # with the certified share of every class
    payload["runs"][0]["samples"]["certified"] = base64.b64encode(bytes(50 * [1])).decode()
    with pytest.raises(Exception, match="both certified and broken"):
        numbers(payload)


def test_samples_keep_their_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_images(20))
    rows = [{**row, "sample_name": f"img-{row['sample_id']}.png"} for row in run.rows().to_pylist()]
    with Writer.create(tmp_path / "named", run.manifest) as writer:
        writer.append(pa.Table.from_pylist([{**r, "adv_shard": None, "adv_row": None} for r in rows], schema=ROWS))
        writer.update(finished=True)
    (tmp_path / "groups.csv").write_text("id,light\nimg-3.png,day\nimg-4.png,night\n")
    payload = make_payload([tmp_path / "named"], groups=tmp_path / "groups.csv")
    assert payload["runs"][0]["samples"]["ids"][3] == "img-3.png"
    assert payload["numbers"]["shares"]["0/by/1/0/clean"][:2] == [1, 1]
    assert "img-0.png" in page_of(payload)


def test_long_groupings_go_into_an_annex(tmp_path: Path) -> None:
    text = page_of(make_payload([make_run(tmp_path / "run", make_images(80), classes=40)]))
    assert "the 10 lowest of 40" in text and 'id="annex"' in text
    assert text.count('value="0/by/0/39/robust"') >= 1
    assert canonical({"a": "</script>"}) == '{"a":"\\u003c/script\\u003e"}'


def test_the_command(folder: Path, brinell_cli: Any, tmp_path: Path) -> None:
    out, key = tmp_path / "d.html", tmp_path / "key.pem"
    assert "fingerprint: " in brinell_cli("dossier", "--new-key", key)
    assert "[system]" in brinell_cli("dossier", "--template")
    shown = brinell_cli("dossier", folder / "a", "--key", key, "--out", out, "--checker")
    assert "check_dossier.py" in shown and "fingerprint: " in shown
    assert f'check: python check_dossier.py {out} --key "' in shown
    assert "empty fields of the system" in shown and "system.name" in shown
    assert check(out)[-1].startswith("OK")
    assert "BEGIN PUBLIC KEY" in brinell_cli("dossier", "--public-key", "--key", key)
    assert brinell_cli("dossier", "--out", out, "--checker").strip().endswith("check_dossier.py")


@pytest.fixture
def brinell_cli() -> Callable[..., str]:
    def call(*arguments: Any) -> str:
        found = CliRunner().invoke(program("dossier"), [str(a) for a in arguments])
        assert found.exit_code == 0, found.output
        return found.output

    return call


def test_pdf_needs_a_browser(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match="Chromium"):
        write(tmp_path / "d.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_quiet_and_alone_in_a_browser(browser: Browser, page: Path, width: int, dark: bool) -> None:
    shown = browser.page(width, dark=dark)
    shown.open(page.as_uri())
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert shown.problems == []
    assert shown.requests == [page.as_uri()]


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
def test_a_pdf_is_the_same_every_time(write: Callable[..., Path], tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, "a") for name in ("one.pdf", "two.pdf"))
    assert first.read_bytes() == second.read_bytes()
    assert check(first)[-1].startswith("OK")
