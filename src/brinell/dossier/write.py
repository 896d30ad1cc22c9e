"""Write a dossier: sign its content and store it as HTML, JSON or PDF."""

import os
from collections.abc import Sequence
from datetime import date as Date
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from brinell.dossier.check_dossier import Refused, canonical, check, read, signed_message
from brinell.dossier.keys import PrivateKey, read_key
from brinell.dossier.page import BEFORE, UNSIGNED, page
from brinell.dossier.payload import differences_to, make_payload
from brinell.dossier.pdf import printed
from brinell.errors import InputError, check_output_paths, error_text, printable
from brinell.finding import n_samples
from brinell.report.page import own_version
from brinell.results import Run, open_runs
from brinell.storage import output_path
from brinell.untrusted import read_plain

FORMATS = (".html", ".json", ".pdf")
CHECKER = "check_dossier.py"
LARGEST = 1 << 28
# What a file of somebody else can raise: whoever signs it can sign any content.
DEFECTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError)
NO_KEY = (
    "Pass key= (--key KEY.pem). Make a key once: brinell dossier --new-key KEY.pem. For a draft without a signature, "
    "pass unsigned=True (--unsigned)."
)


def write_dossier(
    runs: Sequence[Run | str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    unsigned: bool = False,
    system: str | os.PathLike[str] | None = None,
    groups: str | os.PathLike[str] | None = None,
    date: Date | str | None = None,
    title: str = "",
    checker: bool = False,
) -> list[Path]:
    """Write a dossier about Runs to a .html, .json or .pdf file, and return the paths of the files written.

    `key` is the file with the private key that signs; `unsigned` makes a draft instead. `system` is a TOML file that
    describes the system, `groups` a CSV file with the subgroups of the samples. `date` is the day of issue (default:
    today, UTC): with the same date, the same Runs and key give the same file. `checker` also writes `check_dossier.py`.
    A .pdf file gets the .json file beside it, which holds its content and signature.
    """
    path, title = Path(out), printable(title)
    if path.suffix not in FORMATS:
        remedy = "Name the file dossier.html, dossier.json or dossier.pdf."
        raise InputError(expected=f"a file that ends in {', '.join(FORMATS)}", got=path.name, remedy=remedy)
    if (key is None) != unsigned:
        got = "neither" if key is None else "both"
        raise InputError(expected="a key, or a draft without a signature", got=got, remedy=NO_KEY)
    check_output_paths(path)
    private = None if key is None else read_key(Path(key))
    payload = make_payload(
        runs, system=_path(system), groups=_path(groups), date=date, title=title,
        public_key=None if private is None else private.public,
    )  # fmt: skip
    written = _contents(path, payload, private)
    for place, content in written:
        _write(place, content)
    return [place for place, _ in written] + ([write_checker(path.parent)] if checker else [])


def write_checker(folder: Path) -> Path:
    """Copy the stand-alone checker into a folder and return its path."""
    with as_file(files("brinell.dossier") / CHECKER) as source:
        _write(folder / CHECKER, source.read_bytes())
    return folder / CHECKER


def _write(path: Path, content: bytes) -> None:
    with output_path(path) as place:
        place.write_bytes(content)


def check_again(path: str | os.PathLike[str], runs: Sequence[Run | str | os.PathLike[str]] = ()) -> list[str]:
    """Check a dossier with Brinell, and return a line for everything that was checked; raise Refused if it fails.

    Beside what the stand-alone checker does, the page of a .html file is made again from its data and must be the
    same, and what the dossier says about each of `runs` is read again from the Run. Use the version of Brinell that
    made the dossier.
    """
    place = Path(path)
    opened = [run for given in runs for run in open_runs(given) or [Run.open(given)]]
    try:
        read_plain(place, LARGEST)  # refuses pipes, devices and files that are too large
        lines = check(place, None, [run.path for run in opened])
        _check_page_and_runs(place, opened)
    except DEFECTS as error:
        raise Refused(f"it is no dossier ({error_text(error)})") from error
    made = "the page is made again from the data; " if place.suffix == ".html" else ""
    return [*lines[:-1], f"brinell    {made}{n_samples(len(opened), kind='Run')} read again", lines[-1]]


def _check_page_and_runs(path: Path, runs: Sequence[Run]) -> None:
    payload, signed, _ = read(path)
    if path.suffix == ".html" and page(payload).encode() != signed[0][1]:
        raise Refused(f"the page is not the one that Brinell {own_version()} makes of its data")
    for run in runs:
        differing = differences_to(run, payload)
        if differing:
            raise Refused(f"{run.path} says something else about {', '.join(differing)}")


def _contents(path: Path, payload: dict[str, Any], key: PrivateKey | None) -> list[tuple[Path, bytes]]:
    if path.suffix == ".json":
        return [(path, _json(payload, key))]
    text = page(payload)
    if path.suffix == ".pdf":
        pdf = printed(text, payload["date"])
        # The .json file comes last: with it, the .pdf file is complete.
        return [(path, pdf), (path.with_suffix(".json"), _json(payload, key, pdf=_signature(key, "pdf", pdf)))]
    before, after = text.rsplit(BEFORE + UNSIGNED, 1)
    return [(path, f"{before}{BEFORE}{_signature(key, 'html', text.encode())}{after}".encode())]


def _json(payload: dict[str, Any], key: PrivateKey | None, **more: str) -> bytes:
    signature = _signature(key, "json", canonical(payload).encode())
    return (canonical({"payload": payload, "signature": signature, **more}) + "\n").encode()


def _signature(key: PrivateKey | None, kind: str, content: bytes) -> str:
    return UNSIGNED if key is None else key.sign(signed_message(kind, content)).hex()


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)
