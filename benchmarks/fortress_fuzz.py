"""Read thousands of hostile files: every one must end in a typed error or a result, within 10 s and 1 GiB.

`run(seed, count)` makes a valid file of every format that Brinell reads from others, mutates it (flipped bits, cuts,
insertions, repeated and zeroed pieces, splices with other files, hostile tokens and numbers, and changes of JSON and
zip files that keep their structure), and gives it to the real reader. Readers run in a child process, which is watched
for time and memory and replaced when it dies. `python benchmarks/fortress_fuzz.py` prints the table *tried / held*.
"""

import argparse
import gzip
import hashlib
import io
import json
import multiprocessing
import pickle
import random
import resource
import shutil
import struct
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save

from brinell.analysis.corruptions.baselines import Baseline
from brinell.core.threat import Linf
from brinell.data.array_formats import cifar, idx, images
from brinell.data.image_folders import Images, Preprocessing
from brinell.data.local_files import read_file
from brinell.data.matlab import read_mat
from brinell.dossier.check_dossier import PAYLOAD, SLOT, Refused, canonical, numbers, read, signed_message
from brinell.dossier.groups import read_groups
from brinell.dossier.keys import PrivateKey, new_key, read_key
from brinell.dossier.page import BEFORE, UNSIGNED, page
from brinell.dossier.system import declared, template
from brinell.dossier.write import DEFECTS, check_again, write_dossier
from brinell.errors import BrinellError, InputError, MissingExtra, printable
from brinell.fetch import unpack as unpack_archive
from brinell.leaderboard.records import Record, read_folder
from brinell.leaderboard.site.pages import build
from brinell.models.adapters.http import HttpBridge, Service, decode_json, encode_json
from brinell.models.networks import Network
from brinell.models.zoo.card import Keys
from brinell.models.zoo.weights import read as read_weights
from brinell.models.zoo.weights import tensors
from brinell.report.write import text as report_text
from brinell.results import Run, compare
from brinell.results.analyses import AnalysisReport, Figure, Series, Table
from brinell.results.format.manifest import SEAL, seal
from brinell.results.merge import merge
from brinell.train.folder import load as load_training
from brinell.verification.bundle import INDEX, opened, pack, root
from brinell.verification.consistency import contradictions
from brinell.verification.submission import _read_adversarials

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "results" / "golden_run_v1"
SECONDS, BYTES = 10.0, 1 << 30
# The child may allocate this much more than the rule allows before the system stops it.
SAFETY = 6 << 30
PATIENCE = 60.0


class Outcome(NamedTuple):
    """How many files of one kind were tried, how many of them held, and what happened with those that did not."""

    kind: str
    tried: int
    held: int
    details: tuple[str, ...] = ()


# --- mutations of bytes

TOKENS = (
    b"1e999999999", b"1/0", b"NaN", b"-Infinity", b"null", b"[" * 2000, b'{"a":' * 500, b"\\ud800", b"\x1b[2J", b"=1+1",
    b"../../../etc/passwd", b"/dev/zero", b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x80\x00\x00\x00",
    b"PK\x05\x06",
    b"PK\x01\x02", b"PAR1", b"\x89PNG", b"9" * 5000, b"-1", b"18446744073709551616", b"<" * 3000, b"," * 3000,
    b"\x93NUMPY",
    b"cos\nsystem\n", b"c__builtin__\neval\n", b"r\xff\xff\xff\x0f", b"\x0f\x00\x00\x00", b"True", b'""', b"{}", b"[]",
)  # fmt: skip
EXTREMES = (
    0,
    1,
    2,
    127,
    128,
    255,
    2**15,
    2**16 - 1,
    2**28,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63,
    2**64 - 1,
)


def piece(data: bytes, r: random.Random) -> tuple[int, int]:
    """Return the ends of a random piece of the data."""
    a = r.randrange(len(data) + 1)
    return a, min(len(data), a + r.choice((1, 2, 4, 8, 16, 64, 512, 4096)))


def flip(data: bytes, r: random.Random) -> bytes:
    """Flip one to eight bits, often near the ends, where headers are."""
    out = bytearray(data or b"\0")
    for _ in range(r.choice((1, 1, 2, 8))):
        near = min(len(out), 200)
        k = r.choice((r.randrange(len(out)), r.randrange(near), len(out) - 1 - r.randrange(near)))
        out[k] ^= 1 << r.randrange(8)
    return bytes(out)


def cut(data: bytes, r: random.Random) -> bytes:
    """Cut the end off."""
    return data[: r.randrange(len(data) + 1)]


def drop(data: bytes, r: random.Random) -> bytes:
    """Leave a piece out."""
    a, b = piece(data, r)
    return data[:a] + data[b:]


def insert(data: bytes, r: random.Random) -> bytes:
    """Insert random bytes."""
    a, b = piece(data, r)
    return data[:a] + r.randbytes(b - a or 1) + data[a:]


def repeat(data: bytes, r: random.Random) -> bytes:
    """Repeat a piece, once or many times."""
    a, b = piece(data, r)
    return data[:b] + data[a:b] * r.choice((1, 2, 100)) + data[b:]


def zero(data: bytes, r: random.Random) -> bytes:
    """Overwrite a piece with zeros."""
    a, b = piece(data, r)
    return data[:a] + bytes(b - a) + data[b:]


def token(data: bytes, r: random.Random) -> bytes:
    """Insert or overwrite with a hostile token."""
    a, _ = piece(data, r)
    t = r.choice(TOKENS)
    return data[:a] + t + data[a + r.choice((0, len(t))) :]


def number(data: bytes, r: random.Random) -> bytes:
    """Overwrite two, four or eight bytes with an extreme integer."""
    size, order = r.choice((2, 4, 4, 8)), r.choice(("little", "big"))
    near = min(len(data), 300)
    a = r.choice((r.randrange(len(data) + 1), r.randrange(near + 1), len(data) - r.randrange(near + 1)))
    return data[:a] + (r.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, order) + data[a + size :]


MUTATIONS = (flip, cut, drop, insert, repeat, zero, token, number)


# --- mutations of JSON

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**64, 10**300, -(10**30), 1e308, "", "a" * 10**5, "1e999999999", "1/0", "\ud800",
    "\x1b[31m",
    "=cmd()", [], {}, [[]], [None], {"a": {}}, "../../x", "<script>x</script>", "<" * 10**5, "," * 60_000, [1] * 10**4,
    "\u202e", 0.1, "inf", "nan", "8/255", "clean", "audited", ["a"] * 50, {"": None}, "\x00", 1.5,
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in JSON data."""
    yield path
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*path, key))


def mutate_json(data: Any, r: random.Random) -> Any:
    """Return JSON data with one to three values replaced, removed, nested deeply or renamed."""
    data = json.loads(json.dumps(data))
    for _ in range(r.choice((1, 1, 2, 3))):
        path = r.choice([p for p in places(data) if p] or [()])
        if not path:
            return deepcopy(r.choice(HOSTILE))
        above = data
        for key in path[:-1]:
            above = above[key]
        action = r.choice(("replace", "replace", "replace", "remove", "deep", "rename"))
        if action == "replace":
            above[path[-1]] = deepcopy(r.choice(HOSTILE))
        elif action == "remove":
            del above[path[-1]]
        elif action == "deep":
            value: Any = above[path[-1]]
            for _ in range(r.choice((30, 45, 300))):
                value = [value]
            above[path[-1]] = value
        elif isinstance(above, dict):
            above[str(r.choice(TOKENS))] = above.pop(path[-1])
    return data


def json_bytes(data: Any) -> bytes:
    """Return the data as JSON, also with values that JSON does not have."""
    return json.dumps(data).encode()


# --- the formats


class Kind(NamedTuple):
    """A format: a valid file or folder, the reader, and a mutation that keeps the structure, if there is one."""

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    structured: Callable[[Path, random.Random], None] | None = None
    # The file of a folder to mutate.
    part: str = "."


def show(run: Run) -> str:
    """Return everything that is printed about a Run; read its rows, adversarials and analyses."""
    run.rows(), run.adversarials()
    texts = [str(run), run.sentence(), str(compare(run, run))]
    texts += [report_text([run], kind) for kind in ("md", "csv", "json", "html")]
    texts += map(str, contradictions(run))
    return "\n".join(texts)


def read_run(path: Path) -> object:
    """Open, print, and merge a Run."""
    text = show(Run.open(path))
    merge([path], path.parent / "merged")
    return text


def read_bundle(path: Path) -> object:
    """Unpack a bundle and print its Run."""
    with opened(path) as run:
        return show(run)


def golden(folder: Path) -> Path:
    """Copy the golden Run, which has no checksums, so that changes reach the readers; add an analysis."""
    run = Path(shutil.copytree(GOLDEN, folder / "run"))
    tables = (Table("t", ("a", "b"), (("x", 1.5), ("y", None))),)
    figures = (Figure("f", "line", "x", "y", (Series("s", (1.0, 2.0), (3.0, 4.0), (2.0, 3.0), (4.0, 5.0)),)),)
    AnalysisReport("kind", "Title", "Summary.", tables, figures).save(run)
    return run


def sealed_json(path: Path, r: random.Random) -> None:
    """Mutate a JSON file by its structure, and make its checksum fit again."""
    data = mutate_json(json.loads(path.read_bytes()), r)
    with suppress(TypeError, ValueError):
        data = seal(data) if isinstance(data, dict) and SEAL in data else data
    path.write_bytes(json_bytes(data))


def bundle(folder: Path) -> Path:
    """Pack the golden Run."""
    pack(Run.open(GOLDEN), folder / "run.zip")
    return folder / "run.zip"


def other_bundle(path: Path, r: random.Random) -> None:
    """Change a member as a forger would, with an index that fits; or the entry of a member."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    name = r.choice(sorted(held))
    if (name == "manifest.json" and r.random() < 0.7) or name == INDEX:
        held[name] = json_bytes(mutate_json(json.loads(held[name]), r))
    else:
        held[name] = r.choice(MUTATIONS)(held[name], r)
    if name != INDEX:
        files = [
            {"name": n, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for n, data in held.items()
            if n != INDEX
        ]
        whole = {str(f["name"]): str(f["sha256"]) for f in files}
        held[INDEX] = json_bytes({"format": 1, "root": root(whole), "files": files})
    with zipfile.ZipFile(path, "w") as archive:
        for n, data in held.items():
            archive.writestr(n, data)
    if r.random() < 0.3:
        other_entry(path, r)


def other_entry(path: Path, r: random.Random) -> None:
    """Set a field in the directory of a zip file to an extreme number: method, flags, sizes, place or name."""
    data = bytearray(path.read_bytes())
    starts = [k for k in range(len(data) - 46) if data[k : k + 4] in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")]
    if starts:
        at, size = (
            r.choice(starts) + r.choice((6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 30, 38, 42, 46)),
            r.choice((2, 4)),
        )
        data[at : at + size] = (r.choice(EXTREMES) % (1 << 8 * size)).to_bytes(size, "little")
    path.write_bytes(data)


def repacked(path: Path, r: random.Random) -> None:
    """Change the members of a zip file: content, method, names, order and number; sometimes an entry too."""
    with zipfile.ZipFile(path) as archive:
        held = [(name, archive.read(name)) for name in archive.namelist()]
    k = r.randrange(len(held))
    name, content = held[k]
    action = r.choice(("content", "content", "double", "name", "large", "many", "entry"))
    if action == "content":
        held[k] = name, r.choice(MUTATIONS)(content, r)
    elif action == "double":
        held.append((name, content))
    elif action == "name":
        held[k] = r.choice(("../x", "/x", "a" * 300, "x\x00y", "\ud7ff", "x.npy/")), content
    elif action == "large":
        held[k] = name, content + bytes(64 << 20)
    elif action == "many":
        held += [(f"{i}.npy", content[:100]) for i in range(300)]
    method = r.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(path, "w", method) as archive:
        for n, data in held:
            with suppress(ValueError):
                archive.writestr(n, data)
    if action == "entry":
        other_entry(path, r)


def npz(folder: Path) -> Path:
    """Save arrays as the user of a data set or of a submission would."""
    generator = np.random.default_rng(0)
    x = generator.random((6, 1, 4, 4), dtype=np.float32)
    np.savez_compressed(folder / "a.npz", x=x, y=np.arange(6), ids=np.arange(6))
    return folder / "a.npz"


def safetensors(folder: Path) -> Path:
    """Save the same arrays as safetensors."""
    x = np.random.default_rng(0).random((6, 1, 4, 4), dtype=np.float32)
    (folder / "a.safetensors").write_bytes(save({"x": x, "y": np.arange(6), "ids": np.arange(6)}))
    return folder / "a.safetensors"


def other_header(path: Path, r: random.Random) -> None:
    """Mutate the JSON header of a safetensors file, with a length that fits."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    head = json_bytes(mutate_json(json.loads(data[8 : 8 + size]), r))
    path.write_bytes(struct.pack("<Q", len(head)) + head + data[8 + size :])


def npy(folder: Path) -> Path:
    """Save byte images as the files of CIFAR-10-C."""
    np.save(folder / "a.npy", np.arange(2 * 32 * 32 * 3, dtype=np.uint64).astype(np.uint8).reshape(2, 32, 32, 3))
    return folder / "a.npy"


def matlab(folder: Path) -> Path:
    """Write a MATLAB file with a plain and a compressed array."""
    import zlib

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<2I", kind, len(content)) + content + bytes(-len(content) % 8)

    def matrix(name: bytes, values: np.ndarray) -> bytes:
        shape = np.array(values.shape, "<u4").tobytes()
        inner = element(6, struct.pack("<2I", 9, 0)) + element(5, shape) + element(1, name)
        return element(14, inner + element(2, values.tobytes()))

    x, y = matrix(b"X", np.arange(60, dtype=np.uint8).reshape(3, 4, 5)), matrix(b"y", np.ones((5, 1), np.uint8))
    packed = zlib.compress(x)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    (folder / "a.mat").write_bytes(head + struct.pack("<2I", 15, len(packed)) + packed + y)
    return folder / "a.mat"


def idx_file(folder: Path) -> Path:
    """Write an idx file of four images."""
    (folder / "a-idx3-ubyte").write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", 4, 28, 28) + bytes(4 * 784))
    return folder / "a-idx3-ubyte"


def idx_gz(folder: Path) -> Path:
    """Write the same file, compressed."""
    (folder / "a.gz").write_bytes(gzip.compress(idx_file(folder).read_bytes(), mtime=0))
    return folder / "a.gz"


def cifar_batch(folder: Path) -> Path:
    """Write a batch of CIFAR-10 as it is published."""
    stored = {b"data": np.zeros((5, 3072), np.uint8), b"labels": [1, 2, 3, 4, 5], b"filenames": [b"a", b"b"]}
    (folder / "batch").write_bytes(pickle.dumps(stored, protocol=2))
    return folder / "batch"


def record(folder: Path) -> Path:
    """Write a leaderboard record."""
    full = Record(
        "toys", "L2", "Mine", title="A title", link="https://example.org", authors="A, B", venue="ICML, Jul 2026",
        eps="1/2",
        clean=90.0, autoattack=50.0, reported=60.0, footnote='A <a href="https://example.org">note</a>.', n=100,
        interval=(40.0, 60.0), reasons=("one",), seed=0, architecture="Net", extra_data=True, licence="MIT",
    )  # fmt: skip
    full.write(folder / "records")
    return folder / "records"


def read_records(path: Path) -> object:
    """Read the records and build a site from them."""
    return read_folder(path), build(records=path, out=path.parent / "site", with_published=False)


def checkpoint(folder: Path, legacy: bool = False) -> Path:
    """Save a network's tensors with torch."""
    state = {"state_dict": {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)}, "epoch": 3}
    torch.save(state, folder / "net.pt", _use_new_zipfile_serialization=not legacy)
    return folder / "net.pt"


def read_checkpoint(path: Path) -> object:
    """Read the tensors of a checkpoint, and copy them as the zoo does."""
    found = tensors(read_weights(path, "a network"), Keys())
    return {name: tensor.clone() for name, tensor in found.items()}


def other_checkpoint(path: Path, r: random.Random) -> None:
    """Change numbers in the pickle of a checkpoint: sizes, strides, offsets, lengths of storages."""
    with zipfile.ZipFile(path) as archive:
        held = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in held:
            if name.endswith("data.pkl"):
                for _ in range(r.choice((1, 2, 4))):
                    spots = [k for k in range(len(data) - 1) if data[k : k + 1] == b"K"]
                    k = r.choice(spots)
                    value = r.choice(EXTREMES) % 2**31
                    data = data[:k] + b"J" + struct.pack("<i", value) + data[k + 2 :]
            archive.writestr(name, data)


def picture(folder: Path) -> Path:
    """Save a small picture as PNG."""
    from PIL import Image

    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint16).astype(np.uint8).reshape(16, 16, 3)).save(folder / "a.png")
    return folder / "a.png"


def photograph(folder: Path) -> Path:
    """Save a small picture as JPEG."""
    from PIL import Image

    Image.fromarray(np.arange(16 * 16 * 3, dtype=np.uint16).astype(np.uint8).reshape(16, 16, 3)).save(folder / "a.jpg")
    return folder / "a.jpg"


def tar(folder: Path) -> Path:
    """Pack a few files as tar.gz."""
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name in ("set/a", "set/b"):
            info = tarfile.TarInfo(name)
            info.size = 2000
            archive.addfile(info, io.BytesIO(bytes(2000)))
    return folder / "a.tar.gz"


def other_tar(path: Path, r: random.Random) -> None:
    """Mutate the tar file below its compression."""
    data = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(r.choice(MUTATIONS)(data, r), mtime=0))


def plain_zip(folder: Path) -> Path:
    """Pack a few files as zip."""
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("set/a", "set/b"):
            archive.writestr(name, bytes(2000))
    return folder / "a.zip"


def read_archive(path: Path) -> object:
    """Unpack an archive into a folder."""
    return unpack_archive(path, path.parent / "out", "a set", InputError, lambda folder: None)


def answer(folder: Path) -> Path:
    """Write the answer of a scoring service."""
    (folder / "answer.json").write_text('{"outputs": [[0.25, 0.75], [1.5, -2e3]]}')
    return folder / "answer.json"


def read_answer(path: Path) -> object:
    """Give the bytes to the adapter as the response of a service."""
    service = Service("http://localhost/score", {}, 1.0, 0, 0.0, None)
    service.post = lambda body: path.read_bytes()  # type: ignore[method-assign]
    bridge = HttpBridge(service, encode_json, decode_json, 8, "logits", None, "mark")
    return bridge.logits(torch.eye(2))


def table(folder: Path) -> Path:
    """Write a table of corruption errors."""
    (folder / "a.csv").write_text("corruption,fog,fog\nseverity,1,2\nnet,0.5,0.25\n")
    return folder / "a.csv"


def number_text(folder: Path) -> Path:
    """Write a radius."""
    (folder / "eps.txt").write_text("8/255")
    return folder / "eps.txt"


def system(folder: Path) -> Path:
    """Write the description of a system for a dossier."""
    level = '[[levels]]\nmeasure = "robust"\nnorm = "Linf"\neps = "8/255"\nat_least = 40\n'
    (folder / "system.toml").write_text(template() + level)
    return folder / "system.toml"


def groups(folder: Path) -> Path:
    """Write subgroups of samples for a dossier."""
    (folder / "groups.csv").write_text("id,age,sex\n0,young,f\n1,old,m\n2,old,\n")
    return folder / "groups.csv"


def private_key(folder: Path) -> Path:
    """Write a private key for dossiers."""
    new_key(folder / "key.pem")
    return folder / "key.pem"


def training(folder: Path) -> Path:
    """Write the folder of a training: what it trained, and the weights."""
    network = Network("demo", channels=1)
    config = {"brinell_training": 1, "identity": {"model": {"network": network.to_json(), "mean": None, "std": None}}}
    (folder / "config.json").write_text(json.dumps(config))
    state = {name: value.numpy() for name, value in network.build().state_dict().items()}
    (folder / "model.safetensors").write_bytes(save(state))
    return folder


# Whoever makes a dossier can sign any content: the key is known here.
KNOWN = PrivateKey(bytes(32))


def dossier(folder: Path, name: str = "dossier.json") -> Path:
    """Write a signed dossier about the golden Run."""
    key, made = folder / "key.pem", folder / name
    new_key(key)
    write_dossier([GOLDEN], made, key=key, date="2026-01-01")
    key.unlink()
    return made


def page_of_dossier(folder: Path) -> Path:
    """Write a signed dossier as a page."""
    return dossier(folder, "dossier.html")


def other_dossier(path: Path, r: random.Random) -> None:
    """Mutate the content of a dossier, count again and draw the page again where that is possible, and sign it."""
    payload, _, _ = read(path)
    payload = mutate_json(payload, r)
    if isinstance(payload, dict):
        payload["public_key"] = KNOWN.public.hex()
        with suppress(Refused, *DEFECTS):
            payload["numbers"] = json.loads(canonical(numbers(payload)))
    text = json_bytes(payload).decode("latin-1")
    with suppress(*DEFECTS):
        text = canonical(payload)

    def signature(kind: str, content: str) -> str:
        return KNOWN.sign(signed_message(kind, content.encode())).hex()

    if path.suffix == ".json":
        path.write_text(f'{{"payload":{text},"signature":"{signature("json", text)}"}}\n')
        return
    made = SLOT.sub(f"{BEFORE}{UNSIGNED}</script>".encode(), path.read_bytes()).decode()
    made = PAYLOAD.sub(lambda _: f'<script type="application/json" id="payload">{text}</script>', made)
    with suppress(*DEFECTS):
        made = page(payload)
    made = made.encode(errors="replace").decode()
    path.write_text(made.replace(BEFORE + UNSIGNED, BEFORE + signature("html", made)))


def read_dossier(path: Path) -> object:
    """Check a dossier; that it is refused is a right result."""
    with suppress(Refused):
        return check_again(path, [GOLDEN])
    return None


def onnx_model(folder: Path) -> Path:
    """Write an ONNX model: one matrix product."""
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, k]) for n, k in (("x", 4), ("y", 3))]
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "a.onnx").write_bytes(model.SerializeToString())
    return folder / "a.onnx"


def read_onnx(path: Path) -> object:
    """Load an ONNX model and ask it once."""
    from brinell.models import from_onnx

    return from_onnx(path).forward(torch.zeros(2, 4))


def picture_of(path: Path) -> object:
    """Decode a picture and resize it."""
    return Images([path], [0], Preprocessing(resize=32, crop=32))[0]


KINDS = (
    Kind("Run: manifest", golden, read_run, sealed_json, "manifest.json"),
    Kind("Run: rows (Parquet)", golden, read_run, None, "rows"),
    Kind("Run: adversarials (safetensors)", golden, read_run, other_header, "adversarials"),
    Kind("Run: analysis", golden, read_run, sealed_json, "analyses"),
    Kind("bundle", bundle, read_bundle, other_bundle),
    Kind("submitted .npz", npz, _read_adversarials, repacked),
    Kind("submitted .safetensors", safetensors, _read_adversarials, other_header),
    Kind("data .npz", npz, read_file, repacked),
    Kind("data .safetensors", safetensors, read_file, other_header),
    Kind("data .npy", npy, images),
    Kind("MATLAB", matlab, lambda path: read_mat(path, "X", "y")),
    Kind("idx", idx_file, lambda path: idx(path, 3)),
    Kind("idx, compressed", idx_gz, lambda path: idx(path, 3)),
    Kind("CIFAR pickle", cifar_batch, lambda path: cifar(path, b"labels")),
    Kind("leaderboard record", record, read_records, sealed_json, "toys/L2"),
    Kind("checkpoint", checkpoint, read_checkpoint, other_checkpoint),
    Kind("checkpoint, old format", lambda folder: checkpoint(folder, True), read_checkpoint),
    Kind("weights .safetensors", safetensors, read_checkpoint, other_header),
    Kind("picture, PNG", picture, picture_of),
    Kind("picture, JPEG", photograph, picture_of),
    Kind("archive .tar.gz", tar, read_archive, other_tar),
    Kind("archive .zip", plain_zip, read_archive, repacked),
    Kind("answer of a service", answer, read_answer, sealed_json),
    Kind("table of corruptions", table, lambda path: Baseline.named(path)),
    Kind("eps", number_text, lambda path: Linf(path.read_bytes().decode("latin-1"))),
    Kind("system of a dossier (TOML)", system, declared),
    Kind("subgroups of a dossier (CSV)", groups, lambda path: read_groups(path, range(3))),
    Kind("key of a dossier", private_key, read_key),
    Kind("folder of a training", training, load_training, sealed_json, "config.json"),
    Kind("weights of a training", training, load_training, other_header, "model.safetensors"),
    Kind("dossier (JSON)", dossier, read_dossier, other_dossier),
    Kind("dossier (HTML)", page_of_dossier, read_dossier, other_dossier),
    Kind("ONNX", onnx_model, read_onnx),
)


def target(kind: Kind, place: Path) -> Path:
    """Return the file to mutate: the file itself, or the first file below a part of the folder."""
    place = place / kind.part
    return sorted(f for f in place.rglob("*") if f.is_file())[0] if place.is_dir() else place


def hostile(kind: Kind, folder: Path, r: random.Random, others: list[bytes]) -> Path:
    """Make a valid file in the folder and mutate it; return the path for the reader."""
    place = kind.make(folder)
    file = target(kind, place)
    if kind.structured is not None and r.random() < 0.5:
        kind.structured(file, r)
    elif others and r.random() < 0.1:
        other = r.choice(others)
        a, b = piece(other, r)
        data = file.read_bytes()
        k = r.randrange(len(data) + 1)
        file.write_bytes(r.choice((data[:k] + other[k:], data[:k] + other[a:b] + data[k:])))
    else:
        data = file.read_bytes()
        for _ in range(r.choice((1, 1, 1, 2, 4))):
            data = r.choice(MUTATIONS)(data, r)
        file.write_bytes(data)
    return place


# --- the guard


def peak() -> int:
    """Return the largest resident memory since `forget`, in bytes."""
    with suppress(OSError), open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forget() -> int:
    """Start a new measurement of the peak, where the system can; return the memory now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def attempt(kind: Kind, path: Path) -> str:
    """Give a file to its reader; return what is wrong with what happened, "" if nothing is."""
    before, start = forget(), time.process_time()
    problem = ""
    try:
        result = kind.read(path)
        if isinstance(result, str):
            result.encode()
            problem = "" if printable(result) == result else "a text that is unsafe to print"
    except BrinellError as error:
        problem = "" if error.expected and error.got and error.remedy else "an error without a remedy"
        problem = problem or ("" if len(str(error)) < 5_000 else f"a message of {len(str(error)):,} characters")
    except Exception as error:
        problem = f"a raw {type(error).__name__}: {str(error)[:200]}"
    seconds, taken = time.process_time() - start, peak() - before
    if seconds > SECONDS:
        problem = f"{seconds:.1f} s"
    return f"{taken >> 20:,} MiB" if taken > BYTES else problem


def child(pipe: Connection) -> None:
    """Read the files that arrive, by the name of their kind and their path, and answer."""
    kinds = {kind.name: kind for kind in KINDS}
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + SAFETY, taken + SAFETY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        name, path = pipe.recv()
        pipe.send(attempt(kinds[name], path))


class Guard:
    """A child process that reads files; it is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self.process: Any = None

    def __call__(self, kind: Kind, path: Path) -> str:
        if self.process is None:
            context = multiprocessing.get_context("fork")
            self.pipe, end = context.Pipe()
            self.process = context.Process(target=child, args=(end,), daemon=True)
            self.process.start()
            end.close()
        try:
            self.pipe.send((kind.name, path))
            if self.pipe.poll(PATIENCE):
                return str(self.pipe.recv())
            problem = f"no end after {PATIENCE:.0f} s"
        except (EOFError, OSError):
            problem = "a crash of the process"
        self.close()
        return problem

    def close(self) -> None:
        """End the child."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


@contextmanager
def guard(isolated: bool) -> Iterator[Callable[[Kind, Path], str]]:
    """Yield a function that gives a file to its reader, in a child process or here."""
    if not isolated:
        yield attempt
        return
    made = Guard()
    try:
        yield made
    finally:
        made.close()


def available() -> list[Kind]:
    """Return the kinds whose valid file can be made and read here; others need packages that are not installed."""
    kinds = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                kind.read(kind.make(Path(folder)))
            except (ImportError, MissingExtra):
                continue
            kinds.append(kind)
    return kinds


def run(seed: int = 0, count: int = 2_211, isolated: bool = True, keep: Path | None = None) -> list[Outcome]:
    """Try `count` hostile files of all kinds in turn; return for each kind how many were tried and how many held.

    Without `isolated` the readers run in this process. Files that did not hold are copied to the folder `keep`.
    """
    chosen = random.Random(seed)
    kinds = available()
    tried = dict.fromkeys((kind.name for kind in kinds), 0)
    wrong: dict[str, list[str]] = {kind.name: [] for kind in kinds}
    others: list[bytes] = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            others.append(target(kind, kind.make(Path(folder))).read_bytes())
    with guard(isolated) as check:
        for k in range(count):
            kind = kinds[k % len(kinds)]
            with tempfile.TemporaryDirectory(prefix="brinell-fuzz-") as folder:
                path = hostile(kind, Path(folder), chosen, others)
                if keep is not None:
                    shutil.copytree(folder, keep / "now", dirs_exist_ok=True)
                problem = check(kind, path)
                tried[kind.name] += 1
                if problem:
                    wrong[kind.name].append(f"seed {seed}, file {k}, {kind.name}: {problem}")
                    if keep is not None:
                        shutil.copytree(keep / "now", keep / f"{seed}-{k}", dirs_exist_ok=True)
                if keep is not None:
                    shutil.rmtree(keep / "now")
    return [Outcome(name, n, n - len(wrong[name]), tuple(wrong[name])) for name, n in tried.items()]


def main() -> None:
    """Print the table, and write it to benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2_211)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="Copy files that did not hold to this folder.")
    parser.add_argument("--out", type=Path, default=None, help="Write the table as OUT.md and OUT.json.")
    given = parser.parse_args()
    outcomes = run(given.seed, given.count, keep=given.keep)
    lines = ["| format | tried | held |", "|---|---:|---:|"]
    lines += [f"| {kind} | {tried:,} | {held:,} |" for kind, tried, held, _ in outcomes]
    lines.append(f"| all | {sum(o.tried for o in outcomes):,} | {sum(o.held for o in outcomes):,} |")
    text = "\n".join(lines)
    print(text)
    print("\n".join(detail for o in outcomes for detail in o.details))
    if given.out is not None:
        head = f"# Hostile files\n\n`python benchmarks/fortress_fuzz.py --seed {given.seed} --count {given.count}`: "
        head += "a file holds if its reader ends in a typed error or a result, within 10 s and 1 GiB.\n\n"
        given.out.with_suffix(".md").write_text(f"{head}{text}\n")
        data = {"seed": given.seed, "count": given.count, "outcomes": [o._asdict() for o in outcomes]}
        given.out.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
