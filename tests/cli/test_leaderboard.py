"""The leaderboard on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parents[1] / "results" / "golden_run_v1"


def test_build(brinell: Any, tmp_path: Path) -> None:
    out = tmp_path / "site"
    code, text, _ = brinell("leaderboard", "build", str(GOLDEN), "--out", str(out), width=400)
    assert code == 0 and "237 records on 9 boards, 1 with a Run" in text and (out / "index.html").exists()
    code, text, _ = brinell("leaderboard", "build", str(GOLDEN), "-o", str(out), "--no-published", "--json")
    assert code == 0 and json.loads(text) == {"path": str(out), "boards": {"toys-Linf-eps-0.0313725": 1}, "runs": 1}
    assert not (out / "cifar10-Linf.html").exists()


def test_build_tells_what_is_wrong(brinell: Any, tmp_path: Path) -> None:
    code, _, error = brinell("leaderboard", "build", str(tmp_path / "none"), "--out", str(tmp_path / "site"))
    assert code == 2 and "manifest" in error
    code, _, error = brinell("leaderboard", "build", "--records", str(tmp_path / "none"), "--out", str(tmp_path / "s"))
    assert code == 2 and "a folder of records" in error


def test_serve(brinell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from http.server import ThreadingHTTPServer

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", interrupted)
    (tmp_path / "index.html").write_text("a site")
    code, text, _ = brinell("leaderboard", "serve", str(tmp_path))
    assert code == 0 and text.startswith("http://127.0.0.1:") and opened == [text.split()[0]]
    assert brinell("leaderboard", "serve", str(tmp_path), "--no-open", "--port", "0")[0] == 0 and len(opened) == 1
    code, _, error = brinell("leaderboard", "serve", str(tmp_path / "none"))
    assert code == 2 and "Build the site with" in error


def test_tables_for_papers(brinell: Any, tmp_path: Path) -> None:
    code, out, _ = brinell("leaderboard", "table", "--threat", "L2", "--top", "3", width=400)
    assert code == 0 and len(out.splitlines()) == 5
    path = tmp_path / "papers.bib"
    code, _, _ = brinell("leaderboard", "table", "--out", str(path), width=400)
    assert code == 0 and "@inproceedings{Carmon2019Unlabeled," in path.read_text()
    code, _, err = brinell("leaderboard", "table", "--dataset", "svhn", width=400)
    assert code == 2 and "svhn/Linf" in err
