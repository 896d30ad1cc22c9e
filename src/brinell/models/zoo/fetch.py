"""Download weights into the cache and verify them. A file in the cache is always complete and verified."""

import zipfile
import zlib
from importlib.resources import files as resources
from pathlib import Path

from brinell.errors import ModelError
from brinell.fetch import Progress, Wanted, obtain
from brinell.models.zoo.card import Card
from brinell.models.zoo.weights import read
from brinell.paths import home
from brinell.untrusted import open_zip

DRIVE = "https://drive.usercontent.google.com/download?id={}&export=download&confirm=t"
HUB = "https://huggingface.co/{}/{}/resolve/main/{}"
PACKAGED = "package:"


def place(card: Card, i: int) -> Path:
    """Return the path in the cache of the file `card.files[i]`.

    The cache has the file names of RobustBench's folder, so a copy of this folder or a link to it can be the cache.
    """
    file = card.files[i]
    if file.sources[0].startswith(PACKAGED):
        return Path(str(resources("brinell.models") / "files" / file.sources[0].removeprefix(PACKAGED)))
    path = home() / "models" / (f"{card.name}.pt" if len(card.files) == 1 else f"{card.name}.pt_m{i}.pt")
    others = (path.with_name(path.name.removesuffix(".pt") + end) for end in (".safetensors", ".mat"))
    return next((other for other in others if other.exists()), path)


def address(source: str) -> str:
    """Return the URL of a source: "gdrive:ID", "hf:OWNER/NAME/FILE", or a URL.

    >>> address("hf:someone/robust/net.safetensors")
    'https://huggingface.co/someone/robust/resolve/main/net.safetensors'
    """
    kind, _, rest = source.partition(":")
    if kind == "gdrive":
        return DRIVE.format(rest)
    return HUB.format(*rest.split("/", 2)) if kind == "hf" else source


def fetch(card: Card, progress: Progress | None = None) -> list[Path]:
    """Return the paths of a model's weight files in the cache; download missing files and verify all of them.

    Sources are tried in order, a mirror (variable BRINELL_MIRROR) first. With BRINELL_OFFLINE nothing is downloaded.
    """
    if not card.files:
        raise ModelError(
            expected=f"a source for the weights of {card.name}",
            got="no source in its card",
            remedy="Load the weights with the code of the publication and call brinell.wrap(net).",
        )

    def inspect(path: Path) -> None:
        _check_archive(path, card)
        # Read the file once: a file that would run code never gets its final name.
        read(path, card.name)

    return [obtain(_wanted(card, i), inspect, progress) for i in range(len(card.files))]


def _wanted(card: Card, i: int) -> Wanted:
    path, file = place(card, i), card.files[i]
    packaged = file.sources[0].startswith(PACKAGED)
    return Wanted(
        what=f"weights of {card.name}",
        path=path,
        urls=tuple(address(s) for s in file.sources),
        mirrored=path.name if packaged else path.relative_to(home() / "models").as_posix(),
        digest=None if file.sha256 is None else f"sha256:{file.sha256}",
        error=ModelError,
        packaged=packaged,
    )


def _check_archive(part: Path, card: Card) -> None:
    """Raise a ModelError if a checksum inside the file is wrong; torch does not verify these checksums."""
    try:
        bad = None
        if zipfile.is_zipfile(part):
            with open_zip(part) as archive:
                bad = archive.testzip()
    except (ValueError, OSError, zlib.error) as error:
        bad = str(error)
    if bad is not None:
        raise ModelError(
            expected=f"intact weights of {card.name}",
            got=f"a damaged file ({bad})",
            remedy=f"Delete {part.name} if you copied it into the cache, and load the model again.",
        )
