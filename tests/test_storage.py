"""Files are complete or absent, and what the disk does wrong is said in one sentence."""

import errno
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from brinell import storage
from brinell.errors import BrinellError, InputError, StorageError
from brinell.storage import atomic_path, output_path, storage_error, write_atomic, write_output, writing


def fails(code: int) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.ENOENT, errno.EIO])
def test_a_disk_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    place = tmp_path / "a.txt"
    place.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails(code))
        with pytest.raises(StorageError, match=os.strerror(code)) as caught:
            write_output(place, "new")
    assert place.read_text() == "old" and [f.name for f in tmp_path.iterdir()] == ["a.txt"]
    assert str(place) in caught.value.expected and caught.value.remedy
    assert isinstance(caught.value, OSError) and isinstance(caught.value, BrinellError)
    write_output(place, "new")
    assert place.read_text() == "new"


def test_errors_of_brinell_pass(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one"), writing(tmp_path):
        raise InputError(expected="one", got="two", remedy="Count.")
    unnamed = storage_error(OSError("something"))
    assert "files" in str(unnamed) and "something" in str(unnamed)
    named = storage_error(OSError(errno.EACCES, "Permission denied", b"/a/b"))
    assert "/a/b" in named.expected and "writable" in named.remedy


def test_an_interrupted_block_writes_nothing(tmp_path: Path) -> None:
    place = atomic_path(tmp_path / "a")
    place.__enter__().write_text("half")
    assert place.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert list(tmp_path.iterdir()) == []


def test_links_are_followed_and_modes_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_output(link, "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_pipes_and_devices_are_written_as_they_are(tmp_path: Path) -> None:
    write_output(Path(os.devnull), "text")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "through")
    reader.join(10)
    assert read == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_folders_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Pass the path of a file"):
        write_output(tmp_path, "text")


def test_files_of_killed_writers_are_removed_and_those_of_living_writers_kept(tmp_path: Path) -> None:
    place = tmp_path / "a.txt"
    killed, other = tmp_path / ".a.txt.0.tmp", tmp_path / ".b.txt.0.tmp"
    with output_path(place) as living:
        for file in (killed, other, living):
            file.write_text("half")
            old = time.time() - 2 * storage.ABANDONED_SECONDS
            os.utime(file, (old, old))
        write_output(place, "second")
        assert living.exists() and other.exists() and not killed.exists()
    assert place.read_text() == "half"  # the first writer ends last
    young = tmp_path / ".a.txt.1.tmp"
    young.write_text("half")
    write_output(place, "third")
    assert young.exists()


def test_an_atomic_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b))[1])
    write_atomic(tmp_path / "a", b"data")
    assert order == ["fsync", "replace", "fsync"]
