"""Weights from where they are published into the cache: whole, checked, or not at all."""

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from importlib.resources import files as resources
from pathlib import Path

from brinell.errors import ModelError
from brinell.models.zoo.card import Card, File
from brinell.models.zoo.weights import read, refuse_page

__all__ = ["Progress", "address", "fetch", "home", "place", "sha256"]

Progress = Callable[[int, int | None], None]

DRIVE = "https://drive.usercontent.google.com/download?id={}&export=download&confirm=t"
HUB = "https://huggingface.co/{}/{}/resolve/main/{}"
PACKAGED = "package:"
BLOCK, TRIES, PATIENCE = 1 << 20, 3, 30.0
# What a server says when nothing is left to send.
SATISFIED = 416


def home() -> Path:
    """The folder of Brinell's caches: the variable BRINELL_HOME, or ~/.cache/brinell."""
    return Path(os.environ.get("BRINELL_HOME") or Path.home() / ".cache" / "brinell")


def place(card: Card, i: int) -> Path:
    """Where the cache holds file number i of a model.

    The names are those of RobustBench's own folder, so that a copy of or a link to it serves as the cache.
    """
    file = card.files[i]
    if file.sources[0].startswith(PACKAGED):
        return Path(str(resources("brinell.models") / "files" / file.sources[0].removeprefix(PACKAGED)))
    path = home() / "models" / (f"{card.name}.pt" if len(card.files) == 1 else f"{card.name}.pt_m{i}.pt")
    safe = path.with_name(path.name.removesuffix(".pt") + ".safetensors")
    return safe if safe.exists() else path


def address(source: str) -> str:
    """The URL of a source: "gdrive:ID", "hf:OWNER/NAME/FILE", or a URL already.

    >>> address("hf:someone/robust/net.safetensors")
    'https://huggingface.co/someone/robust/resolve/main/net.safetensors'
    """
    kind, _, rest = source.partition(":")
    if kind == "gdrive":
        return DRIVE.format(rest)
    return HUB.format(*rest.split("/", 2)) if kind == "hf" else source


def sha256(path: Path) -> str:
    """The hash of a file."""
    h = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(BLOCK):
            h.update(block)
    return h.hexdigest()


def fetch(card: Card, progress: Progress | None = None) -> list[Path]:
    """The files of a model, in the cache; what is not there yet is fetched, everything is checked.

    Several sources are tried in turn, a mirror named by BRINELL_MIRROR first; with BRINELL_OFFLINE none.
    """
    if not card.files:
        raise ModelError(
            expected=f"a source for the weights of {card.name}",
            got="none in its card",
            remedy="Load them with the code of its publication.",
        )
    return [_file(card, i, file, progress) for i, file in enumerate(card.files)]


def _file(card: Card, i: int, file: File, progress: Progress | None) -> Path:
    path = place(card, i)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(card, path, file, progress)
    elif _pinned(path, file) is None:
        read(path, card.name)
        _pin(path, sha256(path))
    else:
        _compare(path, path, file, card)
    return path


# ------------------------------------------------------------------------------------------------ hashes


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _pinned(path: Path, file: File) -> str | None:
    """The hash this file must have: the card's, else that of the first time, else unknown."""
    if file.sha256 is not None or not _lock(path).exists():
        return file.sha256
    return _lock(path).read_text().strip()


def _pin(path: Path, digest: str) -> None:
    part = _lock(path).with_name(f"{_lock(path).name}.{os.getpid()}.part")
    part.write_text(digest + "\n")
    part.replace(_lock(path))


def _compare(got: Path, path: Path, file: File, card: Card) -> None:
    wanted, digest = _pinned(path, file), sha256(got)
    if wanted is not None and digest != wanted:
        raise ModelError(
            expected=f"weights of {card.name} with sha256 {wanted[:16]}…",
            got=f"{digest[:16]}…",
            remedy=f"The file changed or is damaged. If you trust the new one, delete {path} and {_lock(path).name}.",
        )


# --------------------------------------------------------------------------------------------- downloads


def _sources(card: Card, path: Path, file: File) -> list[str]:
    mirror = os.environ.get("BRINELL_MIRROR", "").rstrip("/")
    own = [f"{mirror}/{path.relative_to(home() / 'models').as_posix()}"] if mirror else []
    return [] if os.environ.get("BRINELL_OFFLINE") else own + [address(s) for s in file.sources]


def _download(card: Card, path: Path, file: File, progress: Progress | None) -> None:
    """Tries every source; the first that delivers a file worth keeping ends the search."""
    troubles, last = [], None
    for url in _sources(card, path, file):
        part = path.with_name(f".{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:12]}.part")
        try:
            _transfer(url, part, progress)
            _keep(part, path, file, card)
            return
        except ModelError as error:
            # Refused: nothing of it may be left behind.
            part.unlink(missing_ok=True)
            troubles.append(error.got)
            last = error
        except (OSError, HTTPException) as error:
            troubles.append(
                f"{url.partition('?')[0]}: {getattr(error, 'reason', None) or error or type(error).__name__}"
            )
    if last is not None:
        raise last
    raise ModelError(
        expected=f"the weights of {card.name} from one of its sources",
        got="; ".join(troubles) or "no source asked (BRINELL_OFFLINE is set)",
        remedy=f"Try again (what arrived is kept), or download {' or '.join(file.sources)} and put it at {path}.",
    )


def _keep(part: Path, path: Path, file: File, card: Card) -> None:
    """Checks what arrived, then gives it its name in one step."""
    refuse_page(part, card.name)
    _compare(part, path, file, card)
    # Read once before it is trusted: a file that would run code never gets the name under which it is loaded.
    read(part, card.name)
    digest = sha256(part)
    part.replace(path)
    _pin(path, digest)


def _transfer(url: str, part: Path, progress: Progress | None) -> None:
    """Fetches until all has arrived; a cut connection is taken up again where it broke, a few times."""
    for attempt in range(TRIES):
        try:
            if _stream(url, part, progress):
                return
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException):
            if attempt == TRIES - 1:
                raise
    raise ConnectionError("the connection was cut again and again")


def _stream(url: str, part: Path, progress: Progress | None) -> bool:
    """One connection; whether all has arrived."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(
        url, headers={"User-Agent": "brinell", **({"Range": f"bytes={have}-"} if have else {})}
    )
    try:
        answer = urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != SATISFIED or not have:
            raise
        # Either complete or of another file: only the check of the whole can tell, and a new attempt starts anew.
        error.close()
        return True
    with answer:
        goes_on = answer.status == 206
        length = answer.headers.get("Content-Length")
        start = have if goes_on else 0
        total = None if length is None else start + int(length)
        done = start
        with part.open("ab" if goes_on else "wb") as f:
            while block := answer.read(BLOCK):
                f.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    return total is None or done >= total
