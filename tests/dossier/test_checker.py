"""The stand-alone checker: its size and imports, what it accepts, and a hundred mutated dossiers that it refuses."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from brinell.dossier import PrivateKey, check_again, write_checker
from brinell.dossier.check_dossier import Refused, canonical, check, signed_message
from brinell.dossier.page import BEFORE, UNSIGNED

SOURCE = files("brinell.dossier") / "check_dossier.py"
LONGEST = 250
RNG = np.random.default_rng(11)
OTHER = PrivateKey(bytes(range(32)))
Mutant = tuple[str, str, bytes]  # name, ending of the file, content


def test_short_and_without_other_packages() -> None:
    text = SOURCE.read_text()
    assert len(text.splitlines()) <= LONGEST
    tree = list(ast.walk(ast.parse(text)))
    named = [name.name for node in tree if isinstance(node, ast.Import) for name in node.names]
    named += [node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module]
    imported = {name.partition(".")[0] for name in named}
    assert imported - sys.stdlib_module_names == {"numpy"}


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    call = [sys.executable, "-I", "check_dossier.py", *arguments]
    found = subprocess.run(call, cwd=folder, capture_output=True, text=True)
    return found.returncode, found.stdout + found.stderr


def test_as_a_program(folder: Path, page: Path, data: Path, key: PrivateKey) -> None:
    write_checker(folder)
    code, text = run(folder, page.name, "--key", key.fingerprint, "--run", "a", "--run", "b")
    assert code == 0 and text.endswith("OK\n") and key.fingerprint in text
    assert "the files of 2 of 2 Runs" in text
    (folder / "public.pem").write_text(key.public_pem)
    assert run(folder, data.name, "--key", "public.pem")[0] == 0
    code, text = run(folder, page.name, "--key", *key.fingerprint.split(), "--run", "a")  # pasted without quotes
    assert code == 0 and "the expected key" in text
    code, text = run(folder, page.name, "--key", "key.pem")
    assert code == 2 and "key.pem is a private key" in text
    code, text = run(folder, page.name, "--key", OTHER.fingerprint)
    assert code == 1 and "REFUSED" in text and "another key" in text
    code, text = run(folder, "missing.html")
    assert code == 2 and "no such file or folder: missing.html" in text
    assert run(folder)[0] == 2


def test_a_run_that_changed_is_refused(folder: Path, page: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "a", tmp_path / "a")
    check(page, folders=[tmp_path / "a"])
    file = next((tmp_path / "a" / "rows").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(Exception, match="one of its files has changed"):
        check(page, folders=[tmp_path / "a"])
    with pytest.raises(Exception, match="No such file"):
        check(page, folders=[tmp_path])


def test_a_draft_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("draft.html", "draft.json"):
        path = write(tmp_path / name, key=None, unsigned=True)
        with pytest.raises(Exception, match="is a draft"):
            check(path)
    assert "draft, not signed" in (tmp_path / "draft.html").read_text()


def flipped(content: bytes) -> bytes:
    at = int(RNG.integers(len(content)))
    return content[:at] + bytes([content[at] ^ int(RNG.integers(1, 256))]) + content[at + 1 :]


def signed_page(text: str, key: PrivateKey) -> bytes:
    """A page as a dishonest signer makes it: changed, and signed again."""
    text = re.sub(f"{BEFORE}[0-9a-f]{{128}}", BEFORE + UNSIGNED, text)
    return text.replace(BEFORE + UNSIGNED, BEFORE + key.sign(signed_message("html", text.encode())).hex()).encode()


def signed_data(payload: object, key: PrivateKey) -> bytes:
    signature = key.sign(signed_message("json", canonical(payload).encode())).hex()
    return (canonical({"payload": payload, "signature": signature}) + "\n").encode()


def edited_numbers(text: str) -> Iterator[str]:
    """Pages on which one digit of a visible number differs."""
    shown = list(re.finditer(r'<data value="[^"]*">([^<]*\d[^<]*)</data>', text))
    for m in RNG.choice(np.array(shown, dtype=object), 12, replace=False):
        at = m.start(1) + next(i for i, c in enumerate(m[1]) if c.isdigit())
        yield f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"


def mutants(page: Path, data: Path, key: PrivateKey, another: Path) -> Iterator[Mutant]:
    content, text, plain = page.read_bytes(), page.read_text(), data.read_bytes()
    for i in range(40):
        yield f"byte {i} of the page", ".html", flipped(content)
    for i in range(16):
        yield f"byte {i} of the data", ".json", flipped(plain)
    for i, changed in enumerate(edited_numbers(text)):
        yield f"number {i}", ".html", changed.encode()
        if i < 6:
            yield f"number {i}, signed again", ".html", signed_page(changed, key)
    rows = [m for m in re.finditer(r"<tr>.*?</tr>\n", text, re.DOTALL) if 'value="0/by/0/' in m[0] or "0/after" in m[0]]
    for i, m in enumerate(rows[:5]):
        yield f"dropped row {i}", ".html", (text[: m.start()] + text[m.end() :]).encode()
        yield f"dropped row {i}, signed again", ".html", signed_page(text[: m.start()] + text[m.end() :], key)
    own = re.search(f"{BEFORE}([0-9a-f]{{128}})", text)
    foreign = re.search(f"{BEFORE}([0-9a-f]{{128}})", another.read_text())
    assert own is not None and foreign is not None
    yield "exchanged signature", ".html", text.replace(own[1], foreign[1]).encode()
    yield "signature of the data", ".html", text.replace(own[1], json.loads(plain)["signature"]).encode()
    yield "no signature", ".html", text.replace(own[1], "0" * 128).encode()
    yield "second signature", ".html", text.replace("</body>", f"{BEFORE}{foreign[1]}</script></body>").encode()
    yield "signed with another key", ".html", signed_page(text, OTHER)
    payload = json.loads(plain)["payload"]
    mine = {**payload, "public_key": OTHER.public.hex()}
    yield "another key in the data", ".json", signed_data(mine, OTHER)
    samples = payload["runs"][0]["samples"]
    changes: dict[str, object] = {
        "clean": samples["clean"].replace("AA", "AQ", 1), "outcomes": samples["outcomes"].replace("Ag", "AQ", 1),
        "ids": [samples["ids"][1], *samples["ids"][1:]], "groupings": samples["groupings"][:1],
    }  # fmt: skip
    for name, value in changes.items():
        runs = [{**payload["runs"][0], "samples": {**samples, name: value}}, payload["runs"][1]]
        old = {"payload": {**payload, "runs": runs}, "signature": json.loads(plain)["signature"]}
        yield f"{name}, without a new signature", ".json", f"{canonical(old)}\n".encode()
        yield f"{name}, signed again", ".json", signed_data({**payload, "runs": runs}, key)
    better = {**payload["numbers"], "levels": [["met", "because"], *payload["numbers"]["levels"][1:]]}
    yield "a decision, signed again", ".json", signed_data({**payload, "numbers": better}, key)
    yield "another format, signed again", ".json", signed_data({**payload, "format": "brinell-dossier-9"}, key)
    yield "spaces", ".json", json.dumps(json.loads(plain)).encode()
    yield "an empty file", ".html", b""
    yield "half a file", ".html", content[: len(content) // 2]


def test_a_hundred_mutated_dossiers_are_refused(
    page: Path, data: Path, key: PrivateKey, write: Callable[..., Path], tmp_path: Path
) -> None:
    check(page, key.fingerprint)
    check(data, key.fingerprint)
    another = write(tmp_path / "another.html", "a")
    accepted, count = [], 0
    for name, ending, content in mutants(page, data, key, another):
        path = tmp_path / f"mutant{ending}"
        path.write_bytes(content)
        assert content not in (page.read_bytes(), data.read_bytes()), name
        count += 1
        try:
            check(path, key.fingerprint)
        except Exception:
            continue
        accepted.append(name)
    assert accepted == []
    assert count >= 100


def test_brinell_makes_page_and_runs_again(folder: Path, page: Path, key: PrivateKey, tmp_path: Path) -> None:
    assert check_again(page, [folder / "a", folder / "b"])[-2:] == [
        "brinell    the page is made again from the data; 2 Runs read again",
        "OK as far as checked: see signer and runs",
    ]  # fmt: skip
    # What the stand-alone checker cannot see: a text that the signer changed on the page, or in the data.
    path = tmp_path / "edited.html"
    path.write_bytes(signed_page(page.read_text().replace("It is not a certificate", "It is a certificate"), key))
    assert check(path)[-1].startswith("OK")
    with pytest.raises(Refused, match="not the one that Brinell"):
        check_again(path)
    payload = json.loads(next(iter(re.findall(r'id="payload">([^<]*)<', page.read_text()))))
    payload["runs"][0]["untested"] = []
    (tmp_path / "edited.json").write_bytes(signed_data(payload, key))
    with pytest.raises(Refused, match="something else about untested"):
        check_again(tmp_path / "edited.json", [folder / "a"])
    # A field that is left out, and files that are not named.
    for name, match in (("untested", "something else about untested"), ("adversarials", "something else about files")):
        payload = json.loads(next(iter(re.findall(r'id="payload">([^<]*)<', page.read_text()))))
        run = payload["runs"][0]
        run.pop(name, None)
        run["files"] = {file: hash for file, hash in run["files"].items() if not file.startswith(name)}
        (tmp_path / "less.json").write_bytes(signed_data(payload, key))
        with pytest.raises(Refused, match=match):
            check_again(tmp_path / "less.json", [folder / "a"])
    (tmp_path / "none.json").write_text("{}\n")
    with pytest.raises(Refused, match="no dossier"):
        check_again(tmp_path / "none.json")


def test_what_a_stranger_signs_ends_in_a_refusal(data: Path, key: PrivateKey, tmp_path: Path) -> None:
    payload, path = json.loads(data.read_text())["payload"], tmp_path / "hostile.json"
    samples = payload["runs"][0]["samples"]
    many = [{**samples["groupings"][0], "values": [str(i) for i in range(30_000)]}]
    deep = "[" * 9_000 + "]" * 9_000
    changes: tuple[dict[str, object], ...] = (
        {"levels": [{**payload["levels"][0], "at_least": 10**400}]}, {"levels": 3}, {"runs": None}, {"runs": [{}]},
        {"runs": [{**payload["runs"][0], "samples": {**samples, "groupings": many}}]}, {"public_key": "00" * 32},
    )  # fmt: skip
    for change in changes:
        path.write_bytes(signed_data({**payload, **change}, key))
        with pytest.raises(Refused):
            check_again(path)
    path.write_text(f'{{"payload":{deep},"signature":"00"}}\n')
    with pytest.raises(Refused, match="no dossier"):
        check_again(path)


def test_a_mutated_pdf_is_refused(write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brinell.dossier.write.printed", lambda page, date: f"%PDF-1.4 {page}".encode())
    path = write(tmp_path / "d.pdf", "a")
    check(path)
    content = path.read_bytes()
    for _ in range(5):
        path.write_bytes(flipped(content))
        with pytest.raises(Exception, match="signature does not fit"):
            check(path)
    path.write_bytes(content)
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError):
        check(path)
