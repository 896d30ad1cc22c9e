"""The shards of a Run: which belong to it, and their rows and adversarials, checked against the Run's list."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from brinell.errors import RunError, error_text
from brinell.results.format import files
from brinell.results.format.checksums import FileSum, Listed, ShardList, changed, read_list
from brinell.results.format.manifest import Manifest, decode
from brinell.results.format.read_parquet import refuse_many_rows
from brinell.results.format.schema import ROWS, conform
from brinell.untrusted import read_plain

NO_CHECKSUMS = "The Run has no checksums, because an earlier version of Brinell wrote it: damage can stay unnoticed."


@dataclass(frozen=True)
class Shards:
    """The shards of the Run in the folder `run`; `listed` has their checksums, None for a Run that has no list.

    `names` are all shards, in order. At most one of them is not listed: the shard that a killed or living writer wrote
    last. It counts, and the next writer lists it.
    """

    run: Path
    names: tuple[str, ...]
    listed: ShardList | None

    @classmethod
    def open(cls, run: Path, manifest: Manifest | None = None) -> "Shards":
        """Return the shards of a Run; raise a RunError if a listed file is missing or has another size.

        >>> Shards.open(Path("tests/results/golden_run_v1")).listed is None  # an old Run
        True
        """
        manifest = decode(run) if manifest is None else manifest
        names = files.shards(run)  # before the list: a living writer lists its shards after it wrote them
        if manifest.checksums is None:
            unlisted = cls(run, tuple(names), None)
            unlisted._check_costs()
            return unlisted
        listed = read_list(run, manifest.checksums, manifest.finished)
        extra = [name for name in names if name not in listed.entries]
        unexpected = len(extra) > (not manifest.finished)
        if unexpected or any(name < known for name in extra for known in listed.entries):
            raise RunError(
                expected=f"no shards in {run} that its list of checksums does not name",
                got=f"{len(extra)} other shards, such as {files.rows_file(run, extra[-1]).name}",
                remedy="Remove files that do not belong to the Run, or restore the list from a copy.",
            )
        found = cls(run, tuple(sorted([*listed.entries, *extra])), listed)
        found._check_sizes()
        found._check_costs()
        return found

    @property
    def unlisted(self) -> list[str]:
        """The shards that the list of the Run does not name."""
        return [] if self.listed is None else [name for name in self.names if name not in self.listed.entries]

    def sums(self, name: str) -> Listed | None:
        """Return what is listed about a shard, None if nothing is."""
        return None if self.listed is None else self.listed.entries.get(name)

    def rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one shard, with all columns or only `columns`."""
        sums = self.sums(name)
        path = files.rows_file(self.run, name)
        return files.read_rows(path, columns) if sums is None else files.read_rows(path, columns, sums.rows)

    def all_rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of all shards, with all columns or only `columns`."""
        return pa.concat_tables([conform(ROWS.empty_table(), columns), *(self.rows(n, columns) for n in self.names)])

    def span(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest sample id in a shard; (0, -1) if it has no rows."""
        sums = self.sums(name)
        return files.span(files.rows_file(self.run, name), sums and sums.rows)

    def adversarials(self, name: str) -> files.Adversarials:
        """Return the adversarials of one shard."""
        path, sums = files.adversarials_file(self.run, name), self.sums(name)
        unknown = self.listed is not None and name not in self.names
        if unknown or (sums is not None and sums.adversarials is None):
            raise changed(path, "no adversarials", "rows that refer to adversarials")
        return files.read_adversarials(path, sums and sums.adversarials)

    def with_adversarials(self) -> list[str]:
        """Return the names of the shards that have adversarials."""
        if self.listed is None:
            return files.shards(self.run, files.ADVERSARIALS_FOLDER)
        entries = self.listed.entries
        stored = [name for name in self.unlisted if files.adversarials_file(self.run, name).exists()]
        return sorted([*(name for name, sums in entries.items() if sums.adversarials is not None), *stored])

    def check_hashes(self) -> None:
        """Raise a RunError if a file of a listed shard is not as it was written; a Run without a list passes."""
        for path, listed in self._listed_files():
            try:
                listed.refuse_other(path, read_plain(path))
            except (OSError, ValueError) as error:
                raise changed(path, f"{listed.size:,} bytes", error_text(error)) from error

    def count(self) -> int:
        """Return the number of rows of all shards, as the list or the footers of the files say."""
        return sum(sums.entries for sums in map(self._row_sum, self.names))

    def _row_sum(self, name: str) -> FileSum:
        sums = self.sums(name)
        return files.footer_sum(files.rows_file(self.run, name)) if sums is None else sums.rows

    def _check_costs(self) -> None:
        """Raise a RunError if the rows would take much more memory than the files take on the disk."""
        sums = [self._row_sum(name) for name in self.names]
        try:
            refuse_many_rows(sum(s.entries for s in sums), sum(s.size for s in sums))
        except ValueError as error:
            raise RunError(
                expected=f"a Run of reasonable size in {self.run}",
                got=str(error),
                remedy="Do not use this Run if it comes from somebody else: its files are made to fill the memory.",
            ) from error

    def _check_sizes(self) -> None:
        for path, listed in self._listed_files():
            try:
                size = path.stat().st_size
            except OSError:
                raise changed(path, f"{listed.size:,} bytes", "no such file") from None
            if size != listed.size:
                raise changed(path, f"{listed.size:,} bytes", f"{size:,} bytes")

    def _listed_files(self) -> Iterator[tuple[Path, FileSum]]:
        for name, sums in self.listed.entries.items() if self.listed is not None else ():
            yield files.rows_file(self.run, name), sums.rows
            if sums.adversarials is not None:
                yield files.adversarials_file(self.run, name), sums.adversarials
