"""Files and services that once hung, crashed or filled the memory, each with what happens now."""

import base64
import csv
import gzip
import io
import json
import os
import pickle
import shutil
import struct
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import brinell
from brinell import L2, InputError, Linf, ModelError, Run
from brinell.cli.main import app
from brinell.data.array_formats import cifar, idx
from brinell.data.image_folders import Images, Preprocessing
from brinell.errors import BrinellError, RunError, ThreatError
from brinell.leaderboard.records import Record, read, read_folder
from brinell.leaderboard.site.columns import series
from brinell.leaderboard.site.entries import collect
from brinell.leaderboard.site.pages import build
from brinell.leaderboard.site.server import server
from brinell.leaderboard.tables import FORMATS
from brinell.models.checkpoint import load_checkpoint
from brinell.models.zoo.card import Keys
from brinell.models.zoo.weights import read as read_weights
from brinell.models.zoo.weights import tensors
from brinell.report.write import text as report_text
from brinell.results import compare
from brinell.results.format.files import read_rows
from brinell.results.format.schema import ROWS
from brinell.results.merge import merge
from brinell.verification.bundle import INDEX, pack, root, unpack
from brinell.verification.consistency import contradictions, same_radius

GOLDEN = Path(__file__).parents[1] / "results" / "golden_run_v1"
HUGE = "1e999999999"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def changed(run: Path, **names: Any) -> Path:
    """The Run with other names in its manifest: eps_text, model, data, plan."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    identity = manifest["identity"]
    for key, value in names.items():
        if key == "eps_text":
            identity["threat"]["eps_text"] = value
        else:
            identity[key]["name"] = value
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


# --- numbers


@pytest.mark.parametrize("text", [HUGE, "1/0", "1e400", "9" * 10**6, f"1/{HUGE}"], ids=lambda t: t[:8])
def test_an_eps_without_end_is_refused(text: str) -> None:
    for threat in (Linf, L2):
        with pytest.raises(ThreatError, match="a number or a fraction"):
            threat(text)
    assert not same_radius(text, 0.1)


def test_an_integer_beyond_floats_is_refused() -> None:
    with pytest.raises(ThreatError, match="a number or a fraction"):
        L2(10**400)


def test_eps_on_the_command_line_is_bounded() -> None:
    result = CliRunner().invoke(app, ["evaluate", "--model", "demo", "--data", "demo", "--eps", HUGE])
    assert isinstance(result.exception, ThreatError)


def test_verify_refuses_an_eps_text_without_end(copied: Path) -> None:
    with pytest.raises(RunError, match="an eps equal to its eps_text"):
        contradictions(Run.open(changed(copied, eps_text=HUGE)))


# --- records


def stored(folder: Path, **fields: Any) -> Path:
    path = Record("toys", "L2", "Mine", eps="1", clean=90.0, autoattack=50.0).write(folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return path


BAD_FIELDS: list[dict[str, Any]] = [
    {"eps": HUGE}, {"eps": "1/0"}, {"eps": "a lot"}, {"eps": "-1"}, {"eps": "9" * 10**6 + "/7"}, {"eps": 3},
    {"venue": "," * 60_000}, {"footnote": "<" * 10**6}, {"footnote": "<a href='" * 10**5}, {"authors": "a," * 10**5},
    {"clean_acc": HUGE}, {"clean_acc": "9" * 10**5}, {"clean_acc": [1]}, {"n": 10**30}, {"id": "a" * 300},
    {"reasons": ["a"] * 10**5}, {"reasons": [["a"]]}, {"interval": [1, 2, 3]}, {"interval": []},
    {"cost": {"forwards": "a"}}, {"cost": []}, {"plan": []}, {"date": 0}, {"link": "x" * 10**5}, {"licence": 3},
    {"certified": 99.0}, {"certified": "a"},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda f: str(f)[:30])
def test_a_record_out_of_range_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    path = stored(tmp_path, **fields)
    with pytest.raises(RunError):
        read(path)
    with pytest.raises(BrinellError):
        build(records=tmp_path, out=tmp_path / "site", with_published=False)


def test_a_record_in_range_is_read(tmp_path: Path) -> None:
    path = stored(tmp_path, venue="," * 1000, footnote="<" * 5000, name="\x1b]0;owned\x07", eps="8 / 255")
    assert (read(path).eps, read(path).title) == ("8 / 255", "\ufffd]0;owned\ufffd")
    assert "\x1b" not in json.dumps(read(path).to_json(), ensure_ascii=False)
    site = build(records=tmp_path, out=tmp_path / "site", with_published=False)
    assert site.records == 1


def test_the_name_of_a_venue_takes_linear_time() -> None:
    for venue in ("," * 10**6, " " * 10**6, ", Mar" * 10**5, "1999" * 10**5):
        assert isinstance(series(Record("d", "t", "m", venue=venue)), str)


def test_a_folder_or_a_pipe_among_records_is_no_crash(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "deep.json").write_text("[" * 10**5)
    with pytest.warns(UserWarning, match="A record is left out"):
        assert len(collect(folder=tmp_path, with_published=False)) == 1
    with pytest.raises(RunError):
        read_folder(tmp_path)


# --- HTTP


class _Service(BaseHTTPRequestHandler):
    """Redirects every request to `target`, or answers with the bytes `answer`; `seen` has the headers that came."""

    target = ""
    answer = b""
    seen: list[dict[str, str]]

    def log_message(self, *args: Any) -> None: ...

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(dict(self.headers))
        self.send_response(302 if self.target else 200)
        if self.target:
            self.send_header("Location", self.target)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    do_GET = do_POST  # noqa: N815


@pytest.fixture
def service() -> Iterator[Any]:
    servers = []

    def start(**attributes: Any) -> tuple[str, list[dict[str, str]]]:
        handler = type("Handler", (_Service,), {"seen": [], **attributes})
        made = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(made)
        return f"127.0.0.1:{made.server_address[1]}/score", handler.seen

    yield start
    for made in servers:
        made.shutdown()
        made.server_close()


def test_a_redirect_never_gets_the_keys(service: Any) -> None:
    thief, stolen = service(answer=b'{"outputs": [[0.0, 1.0]]}')
    url, seen = service(target=f"http://user:word@{thief}?key=secret")
    model = brinell.models.from_http(f"http://{url}", version="1", headers={"Authorization": "Bearer secret"})
    with pytest.raises(ModelError, match=f"redirect to {thief}") as error:
        model.forward(torch.zeros(1, 2))
    assert len(seen) == 1
    assert stolen == []
    assert "secret" not in str(error.value)
    assert "word" not in str(error.value)


def test_keys_in_a_url_are_sent_and_stored_nowhere(service: Any) -> None:
    url, seen = service(answer=b'{"outputs": [[0.0, 1.0]]}')
    model = brinell.models.from_http(f"http://me:s%40cret@{url}?key=hidden", version="1")
    assert model.name == url
    model.forward(torch.zeros(1, 2))
    assert seen[0]["Authorization"] == "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert model.fingerprint == brinell.models.from_http(f"http://{url}?key=hidden", version="1").fingerprint


@pytest.mark.parametrize(
    "answer", [b"[" * 10**5, b'{"outputs": ' + b"[" * 900 + b"]" * 900 + b"}", b"[]", b"3", b"\xff"]
)
def test_an_odd_answer_is_an_error(answer: bytes, service: Any) -> None:
    url, _ = service(answer=answer)
    with pytest.raises(ModelError, match="decode"):
        brinell.models.from_http(f"http://{url}", version="1").forward(torch.zeros(1, 2))


# --- memory


def test_a_checkpoint_of_repeated_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.save({"state_dict": {"w": torch.zeros(1).expand(2**15, 2**16)}}, path)
    assert path.stat().st_size < 2000
    with pytest.raises(ModelError, match="all tensors together takes 8,589,934,592 bytes"):
        read_weights(path, "net")
    torch.save({"w": torch.zeros(3).expand(5, 3)}, path)
    assert read_weights(path, "net")["w"].shape == (5, 3)


def test_a_checkpoint_of_empty_bytes_is_refused(tmp_path: Path) -> None:
    class Bytes:
        def __reduce__(self) -> Any:
            return bytearray, (1 << 33,)

    for legacy in (False, True):
        torch.save({"w": Bytes()}, tmp_path / "net.pt", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(ValueError, match="bytearray"):
            load_checkpoint(tmp_path / "net.pt")


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(10**6)}, tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt") as old, zipfile.ZipFile(tmp_path / "new.pt", "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ModelError, match="compressed"):
        read_weights(tmp_path / "new.pt", "net")


class Once:
    """A key that is hashed by its identity: the hash of nested tuples takes as long as their text."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


def test_names_of_tensors_are_texts() -> None:
    key: Any = ("a",)
    for _ in range(60):
        key = (key, key)  # its text has more characters than there are atoms
    assert tensors({"w": torch.ones(1), Once(key): torch.ones(2), 1: torch.ones(1)}, Keys()).keys() == {"w"}


def rows_of(n: int, text: str = "a") -> pa.Table:
    """Rows that are all alike; texts as a dictionary, so that a long one takes no space."""
    texts = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n), pa.array([text]))

    def column(kind: pa.DataType) -> pa.Array:
        if kind == pa.string():
            return texts
        value = None if pa.types.is_list(kind) else True if kind == pa.bool_() else 0
        return pa.repeat(pa.scalar(value, kind), n)

    return pa.table({field.name: column(field.type) for field in ROWS})


def test_rows_that_repeat_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(rows_of(1_000_000), path, write_page_checksum=True)
    assert path.stat().st_size < 200_000
    with pytest.raises(RunError, match="a table of 1,000,000 rows"):
        read_rows(path)


def test_a_long_text_in_every_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    pq.write_table(rows_of(3_000, "a" * 10**6), path, write_page_checksum=True)
    assert path.stat().st_size < 10**6
    with pytest.raises(RunError, match="a text of 1,000,000 bytes"):
        read_rows(path)
    pq.write_table(rows_of(300_000, "a" * 3_000), path, write_page_checksum=True)
    with pytest.raises(RunError, match="the text of all rows"):
        read_rows(path)


def test_rows_packed_in_another_way_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "zstd.parquet"
    pq.write_table(rows_of(10), path, compression="zstd", write_page_checksum=True)
    with pytest.raises(RunError, match="packed with ZSTD"):
        read_rows(path)


def test_many_costly_shards_are_refused_together(copied: Path) -> None:
    for k in range(4):
        pq.write_table(rows_of(150_000), copied / "rows" / f"9{k}.parquet", write_page_checksum=True)
    with pytest.raises(RunError, match="made to fill the memory"):
        Run.open(copied)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="The bundle is refused"):
        unpack(overlapped(tmp_path), tmp_path / "out")


def overlapped(folder: Path) -> Path:
    """A bundle whose members all have the bytes of its first one."""
    pack(Run.open(GOLDEN), folder / "run.zip")
    data = (folder / "run.zip").read_bytes()
    end = data.rindex(b"PK\x05\x06")
    size, start = struct.unpack("<II", data[end + 12 : end + 20])
    directory = data[start : start + size]
    first = directory.index(b"PK\x01\x02")
    second = directory.index(b"PK\x01\x02", first + 4)
    entry = directory[second : directory.index(b"PK\x01\x02", second + 4)]
    more = directory + entry * 200
    count = 201 + directory.count(b"PK\x01\x02") - 1
    tail = data[end : end + 8] + struct.pack("<HHII", count, count, len(more), start) + b"\0\0"
    (folder / "twice.zip").write_bytes(data[:start] + more + tail)
    return folder / "twice.zip"


@pytest.mark.parametrize("kind", ["encrypted", "deflated", "unknown", "deep", "number", "cut", "folder", "pipe"])
def test_odd_bundles_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    pack(Run.open(GOLDEN), path)
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    data = path.read_bytes()
    if kind in ("encrypted", "unknown"):
        at = data.index(b"PK\x01\x02") + (8 if kind == "encrypted" else 10)
        data = data[:at] + struct.pack("<H", 1 if kind == "encrypted" else 93) + data[at + 2 :]
    elif kind == "cut":
        data = data[: len(data) // 2]
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("deep", "number", "deflated"):
        hostile = {"deep": b"[" * 10**5, "number": b'{"format": 1e999}'}.get(kind, held[INDEX])
        with zipfile.ZipFile(path, "w", 8 if kind == "deflated" else 0) as archive:
            for name, content in {**held, INDEX: hostile}.items():
                archive.writestr(name, content)
    else:
        path.write_bytes(data)
    with pytest.raises(RunError, match="The bundle is refused"):
        unpack(path, tmp_path / "out")


def test_an_idx_file_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write(bytes((0, 0, 8, 1)) + struct.pack(">I", 400 << 20) + bytes(1000))
    with pytest.raises(InputError, match="419,430,400 bytes"):
        idx(tmp_path / "a.gz", 1)


def test_a_pickle_cannot_allocate_or_change_anything(tmp_path: Path) -> None:
    memo = b"\x80\x02" + b"N" + b"r" + struct.pack("<I", 2**31) + b"."
    build_function = b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb."
    for data in (memo, build_function, pickle.dumps([[[]]]), b"\x80\x04\x95" + b"\xff" * 8, b""):
        (tmp_path / "batch").write_bytes(data)
        with pytest.raises(InputError):
            cifar(tmp_path / "batch", b"labels")


def nested(count: int) -> bytes:
    """A pickle of a dict with one key: a tuple of two equal tuples, of two equal tuples, and so on."""
    levels = b"".join(bytes((ord("h"), k, ord("h"), k, 0x86, ord("q"), k + 1)) for k in range(count))
    return b"\x80\x02})q\x00" + levels + b"K\x01s."


def test_a_key_that_takes_forever_to_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(nested(60))
    with pytest.raises(InputError, match="nests tuples"):
        cifar(tmp_path / "batch", b"labels")
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        for name, data in (("data.pkl", nested(60)), ("version", b"3"), ("byteorder", b"little")):
            archive.writestr(f"net/{name}", data)
    with pytest.raises(ModelError, match="nests tuples"):
        read_weights(tmp_path / "net.pt", "net")


def test_a_header_of_many_tensors_is_refused(tmp_path: Path) -> None:
    head = json.dumps({f"{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(60_000)}).encode()
    path = tmp_path / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head)
    with pytest.raises(InputError, match="more than 50,000 arrays"):
        brinell.data.load(path)
    with pytest.raises(ModelError, match="more than 50,000 arrays"):
        read_weights(path, "net")


def test_a_picture_of_any_size_is_refused(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("L", (8000, 8000)).save(tmp_path / "large.png")
    pillow.new("L", (1, 60_000)).save(tmp_path / "thin.png")
    (tmp_path / "script.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    pillow.new("L", (64, 64)).save(tmp_path / "slow.jpg", progressive=True)
    data = (tmp_path / "slow.jpg").read_bytes()
    assert Images([tmp_path / "slow.jpg"], [0], Preprocessing())[0][0].shape == (3, 64, 64)
    (tmp_path / "slow.jpg").write_bytes(data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 300 + data[-2:])
    for name in ("large.png", "thin.png", "script.png", "slow.jpg"):
        with pytest.raises(InputError, match="a readable picture"):
            _ = Images([tmp_path / name], [0], Preprocessing(resize=256))[0]


# --- texts


def test_half_surrogates_and_escapes_do_not_reach_anything(copied: Path, tmp_path: Path) -> None:
    odd = "net\ud800\x1b[31m\x07"
    run = Run.open(changed(copied, model=odd, data=odd, plan=odd))
    assert run.identity.model.name == "net\ufffd\ufffd[31m\ufffd"
    other = Run.open(GOLDEN)
    texts = [
        str(run),
        run.sentence(),
        *(report_text([run, other], kind) for kind in ("md", "json", "csv", "html", "tex")),
    ]
    texts.append(str(compare(run, run)))
    texts.append(report_text([run], "html", classes=[odd] * 4, title=odd))
    merged = merge([changed(copied, model=odd)], tmp_path / "merged")
    texts.append(str(merged))
    for text in texts:
        assert "\x1b" not in text
        text.encode()


def test_messages_are_printable() -> None:
    error = InputError(expected="\x1b[2J", got="\ud800", remedy="\x07")
    assert str(error) == "expected \ufffd[2J, got \ufffd. \ufffd"
    assert len(str(InputError(expected="a", got="x" * 10**6, remedy="b"))) < 4_100


def test_no_formula_in_a_table(copied: Path) -> None:
    run = Run.open(changed(copied, model='=HYPERLINK("http://evil")', data="@SUM(1)", plan="+1+1"))
    for row in csv.reader(io.StringIO(report_text([run], "csv"))):
        assert not any(cell.startswith(("=", "@", "+")) for cell in row)
    record = Record("d", "t", "m", title="=1+1", authors="@a", link="-x", licence="+y", clean=1.0)
    rows = list(csv.reader(io.StringIO(FORMATS["csv"]([record]))))
    assert not any(cell.startswith(("=", "@", "+", "-")) for cell in rows[1])


# --- links


def test_a_site_is_never_written_through_links(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN, tmp_path / "golden")
    site, outside = tmp_path / "site", tmp_path / "outside"
    build([run], out=site, with_published=False)
    shutil.move(site / "runs", outside)
    (site / "runs").symlink_to(outside)
    (outside / "precious.html").write_text("mine")
    listed = json.loads((site / "leaderboard.json").read_text())
    (site / "leaderboard.json").write_text(json.dumps({"files": [*listed["files"], "runs/precious.html"]}))
    before = {file: file.read_bytes() for file in outside.iterdir()}
    with pytest.raises(InputError, match="runs, which is a link"):
        build([run], out=site, with_published=False)
    assert {file: file.read_bytes() for file in outside.iterdir()} == before


def test_a_site_is_never_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("home")
    (site / "inside.html").symlink_to(site / "index.html")
    (site / "leak.html").symlink_to(tmp_path / "secret")
    made = server(site)
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{made.server_address[1]}"
    try:
        for name in ("", "inside.html"):
            with urlopen(f"{url}/{name}") as answer:
                assert answer.read() == b"home"
        with pytest.raises(OSError, match="404"):
            urlopen(f"{url}/leak.html")
    finally:
        made.shutdown()
        made.server_close()


# --- files that are no files


def everything(path: Path) -> None:
    run = Run.open(path)
    run.rows()
    run.adversarials()
    report_text([run], "html")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("name", ["manifest.json", "rows", "adversarials", "analyses/a.json"])
def test_a_run_of_things_that_are_no_files_is_refused(name: str, kind: str, copied: Path) -> None:
    path = copied / name
    path = next(path.iterdir()) if path.is_dir() else path
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(RunError):
        everything(copied)


def test_arrays_of_numpy_are_untouched(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).random((4, 3, 8, 8), np.float32), np.arange(4)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    problem = brinell.data.load(tmp_path / "data.npz")
    assert (problem.x.numpy() == x).all()
    assert problem.y.tolist() == [0, 1, 2, 3]


def test_the_index_of_a_bundle_is_checked_in_linear_time(tmp_path: Path) -> None:
    names = [f"rows/{k}.parquet" for k in range(3000)]
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        files = [{"name": n, "bytes": 0, "sha256": "0"} for n in names]
        whole = dict.fromkeys(names, "0")
        archive.writestr(INDEX, json.dumps({"format": 1, "root": root(whole), "files": files}))
        for name in names:
            archive.writestr(name, b"")
    with pytest.raises(RunError, match="a manifest"):
        unpack(tmp_path / "many.zip", tmp_path / "out")
