"""Weights from where they are published into the cache: whole and checked, or not at all."""

import hashlib
import os
import zipfile
from http.client import HTTPException
from importlib.resources import files as resources
from pathlib import Path

from brinell.errors import ModelError
from brinell.home import home
from brinell.models.zoo.card import Card, File
from brinell.models.zoo.download import BLOCK, Progress, claimed, discard, part_of, transfer
from brinell.models.zoo.weights import read, refuse_page

__all__ = ["Progress", "address", "fetch", "home", "place", "sha256"]

DRIVE = "https://drive.usercontent.google.com/download?id={}&export=download&confirm=t"
HUB = "https://huggingface.co/{}/{}/resolve/main/{}"
PACKAGED = "package:"


def place(card: Card, i: int) -> Path:
    """Where the cache holds file number i of a model.

    The names are those of RobustBench's own folder, so that a copy of it, or a link to it, serves as the cache.
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
    return [_file(card, i, progress) for i in range(len(card.files))]


def _file(card: Card, i: int, progress: Progress | None) -> Path:
    path, file = place(card, i), card.files[i]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(card, path, file, progress)
    elif _pinned(path, file) is None:
        # Put there by hand: trusted from now on, if it can be read.
        read(path, card.name)
        _pin(path)
    else:
        _compare(path, path, file, card)
    return path


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _pinned(path: Path, file: File) -> str | None:
    """The hash this file must have: the card's, else that of the first time, else unknown."""
    if file.sha256 is not None or not _lock(path).exists():
        return file.sha256
    return _lock(path).read_text().strip()


def _pin(path: Path) -> None:
    part = path.with_name(f".{path.name}.sha256.{os.getpid()}")
    part.write_text(sha256(path) + "\n")
    part.replace(_lock(path))


def _compare(got: Path, path: Path, file: File, card: Card) -> None:
    wanted, digest = _pinned(path, file), sha256(got)
    if wanted is not None and digest != wanted:
        raise ModelError(
            expected=f"weights of {card.name} with sha256 {wanted[:16]}…",
            got=f"a file with {digest[:16]}…",
            remedy=f"It changed or is damaged. If you trust the new one, delete {path} and {_lock(path).name}.",
        )


def _sources(path: Path, file: File) -> list[str]:
    mirror = os.environ.get("BRINELL_MIRROR", "").rstrip("/")
    own = [f"{mirror}/{path.relative_to(home() / 'models').as_posix()}"] if mirror else []
    return [] if os.environ.get("BRINELL_OFFLINE") else own + [address(s) for s in file.sources]


def _download(card: Card, path: Path, file: File, progress: Progress | None) -> None:
    """Tries every source; the first that delivers a file worth keeping ends the search."""
    troubles = []
    for url in _sources(path, file):
        with claimed(part_of(path, url)) as part:
            try:
                transfer(url, part, progress)
                _keep(part, path, file, card)
                return
            except ModelError as error:
                # Refused: nothing of it may be left behind.
                discard(part)
                troubles.append(f"{error.got} instead of {error.expected}")
            except (OSError, HTTPException, ValueError) as error:
                troubles.append(f"{url.partition('?')[0]}: {error or type(error).__name__}")
    raise ModelError(
        expected=f"the weights of {card.name} from one of its sources",
        got="; ".join(troubles) or "none asked, since BRINELL_OFFLINE is set",
        remedy=f"Try again later (a download that was cut goes on where it was), or fetch "
        f"{' or '.join(map(address, file.sources))} by hand and put it at {path}.",
    )


def _keep(part: Path, path: Path, file: File, card: Card) -> None:
    """Checks what arrived, then gives it its name in one step."""
    refuse_page(part, card.name)
    _compare(part, path, file, card)
    _refuse_damage(part, card)
    # Read once before it is trusted: a file that would run code never gets the name under which it is loaded.
    read(part, card.name)
    part.replace(path)
    discard(part)
    _pin(path)


def _refuse_damage(part: Path, card: Card) -> None:
    """A ModelError if a check sum inside the file is wrong; torch does not look at them."""
    try:
        bad = None
        if zipfile.is_zipfile(part):
            with zipfile.ZipFile(part) as archive:
                bad = archive.testzip()
    except (zipfile.BadZipFile, OSError) as error:
        bad = str(error)
    if bad is not None:
        raise ModelError(expected=f"whole weights of {card.name}", got=f"a damaged file ({bad})", remedy="Try again.")
