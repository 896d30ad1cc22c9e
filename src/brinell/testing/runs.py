"""Change a stored Run by hand, for tests of what notices the change."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]
from safetensors.numpy import load

from brinell.results.format import files
from brinell.results.format.checksums import LIST, Listed, ShardList, append_line
from brinell.results.format.manifest import CHECKSUMS, MANIFEST, SEAL, encode, seal
from brinell.storage import write_atomic


def reseal(run: str | os.PathLike[str], *, checksums: bool = True) -> None:
    """Make the checksums of a Run anew from its files, as a forger would; `checksums=False` removes them.

    Checksums show damage. They prove nothing about who made the files: anyone can make them anew.
    """
    path = Path(run)
    manifest = json.loads((path / MANIFEST).read_bytes())
    body = {key: value for key, value in manifest.items() if key not in (CHECKSUMS, SEAL)}
    (path / LIST).unlink(missing_ok=True)
    if checksums:
        listed = ShardList(start=manifest.get(CHECKSUMS, {}).get("start", "0" * 64))
        for name in files.shards(path):
            rows, images = files.rows_file(path, name), files.adversarials_file(path, name)
            sums = files.file_sum(images, _count(images)) if images.exists() else None
            append_line(path, listed, name, Listed(files.file_sum(rows, _count(rows)), sums))
        body = seal({**body, CHECKSUMS: listed.stored})
    write_atomic(path / MANIFEST, encode(body))


def _count(path: Path) -> int:
    """Return the number of rows or adversarials in a file; 0 if it cannot be read."""
    try:
        if path.suffix == files.ROWS_END:
            return int(pq.read_metadata(path).num_rows)
        return len(load(path.read_bytes())["ids"])
    except files.DAMAGE:
        return 0
