# SPDX-License-Identifier: GPL-2.0
"""Read, lock and write regular files, and replace them atomically."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EISDIR, ELOOP, ENOENT, ENOSPC, EPERM, EROFS
from functools import cache
from math import inf
from pathlib import Path

from mmpolicy.errors import AS_ROOT, OUTSIDE, Error, Exit, Remedies, explain

KEEP_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, AS_ROOT),
    EPERM: (Exit.DENIED, AS_ROOT),
    EROFS: (Exit.FAILED, "run the command where the file system is mounted read-write"),
    ENOSPC: (Exit.FAILED, "free space on the disk; the former file is unchanged"),
    EDQUOT: (Exit.FAILED, "free space within the disk quota; the former file is unchanged"),
    ENOENT: (Exit.FAILED, "create the directory of the file, or give another name"),
    ELOOP: (
        Exit.FAILED,
        (
            "the path is a symbolic link, which is not followed: remove the link, or give "
            "another name"
        ),
    ),
}
GIVEN_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run the command as root, or make the file readable"),
    EISDIR: (Exit.FAILED, "give the path of a file, not of a directory"),
    ENOENT: (Exit.FAILED, "give the path of a file that exists"),
}
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
LOOK_AGAIN = 0.02  # seconds between two attempts to get a lock
PRESENT, FRAME = 1 << 63, (1 << 55) - 1  # bits of an entry of /proc/PID/pagemap


@contextmanager
def explained(action: str, path: Path, remedies: Remedies) -> Iterator[None]:
    """Turn an OSError raised in this block into an Error with the file and the next step."""
    try:
        yield
    except OSError as err:
        raise explain_file(err, action, path, remedies) from err


def is_confined() -> bool:
    """Return whether this process is root of a container or user namespace only, which the kernel
    shows by hiding the frame numbers of the process's own pages.
    """
    return not os.geteuid() and _hides_frames()


@cache
def _hides_frames() -> bool:
    address = id(os)  # lies in a page that is present, as id() of CPython is an address
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
            file.seek(address // os.sysconf("SC_PAGE_SIZE") * 8)
            entry = int.from_bytes(file.read(8), "little")
    except OSError:
        return False
    return bool(entry & PRESENT) and not entry & FRAME


def explain_file(err: OSError, action: str, path: Path, remedies: Remedies) -> Error:
    """Return the error for a file on which an action has failed, with the next step."""
    found = explain(err.errno or 0, f"{action} {path}", remedies, str(path))
    if found.exit_code == Exit.DENIED and is_confined():
        found.next_step = OUTSIDE
    elif path.is_relative_to("/proc") and found.exit_code == Exit.DENIED and not os.geteuid():
        found.next_step = (
            "root has no access to this process here: run the command outside the "
            "container, or look for a missing capability or an LSM"
        )
    return found


def take_lock(file: int, path: Path, wait: float) -> None:
    """Lock an open file; if another process holds the lock for more than `wait` seconds, raise an
    error that names the process.
    """
    end = time.monotonic() + wait
    if wait == inf:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(LOOK_AGAIN)
                continue
            text = f"{path} is locked by {holder_of(file)}"
            raise Error(text, Exit.FAILED, "wait until that process ends") from None


def holder_of(file: int) -> str:
    """Return the text that a lock's holder has written into the lock file."""
    return os.pread(file, 1000, 0).decode(errors="replace").strip() or "another process"


def write_all(file: int, data: bytes) -> None:
    """Write all bytes, even if a call writes only some of them, and flush them to disk."""
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)


def replace_file(path: Path, new: Path, data: bytes, mode: int, owner: tuple[int, int]) -> None:
    """Replace a file by writing a temporary one and renaming it.

    After a crash, or with a full disk, there is either the complete old file or the complete new
    one.
    """
    file = os.open(new, NEW, mode)
    try:
        try:
            if owner != (os.geteuid(), os.getegid()):
                os.fchown(file, *owner)
                os.fchmod(file, mode)
            write_all(file, data)
        finally:
            os.close(file)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_given_bytes(name: str) -> bytes:
    """Return the bytes of a file that the user names; - is standard input."""
    with explained("read", Path(name), GIVEN_REMEDIES):
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def read_given(name: str) -> str:
    """Return the text of a file that the user names; - is standard input."""
    try:
        return read_given_bytes(name).decode()
    except UnicodeDecodeError as err:
        raise Error(f"{name}: {err}", Exit.FAILED, "save the file as UTF-8") from err


@contextmanager
def in_memory(data: bytes) -> Iterator[int]:
    """Open a file in memory; it has no name, so no other process can change it."""
    file = os.memfd_create("data")
    try:
        write_all(file, data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def files_of(name: str) -> list[str]:
    """Return the named file, or the sorted *.toml files of a named directory."""
    return [str(path) for path in sorted(Path(name).glob("*.toml"))] if is_folder(name) else [name]


def is_there(name: str) -> bool:
    """Return whether a file that an operator names exists."""
    return name == "-" or Path(name).exists()


def is_folder(name: str) -> bool:
    """Return whether a name given by the user is that of a directory."""
    return Path(name).is_dir()


def check_savable(path: Path) -> None:
    """Raise an error early if save_as() would not be able to write the file."""
    with explained("write", path, KEEP_REMEDIES):
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            if path.is_symlink():
                raise OSError(ELOOP, os.strerror(ELOOP))
            if not os.access(path, os.W_OK):
                raise OSError(EACCES, os.strerror(EACCES))
            return
        new = _beside(path)
        os.close(os.open(new, NEW, 0o600))
        new.unlink()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


def save_as(path: Path, data: bytes) -> None:
    """Write a file that the user names, without following a symbolic link.

    An existing file keeps its mode and owner. A pipe or another special file is written to
    directly.
    """
    with explained("write", path, KEEP_REMEDIES):
        old = path.lstat() if os.path.lexists(path) else None
        if old and not stat.S_ISREG(old.st_mode):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW), "wb") as stream:
                stream.write(data)
            return
        os.umask(umask := os.umask(0))
        mode = stat.S_IMODE(old.st_mode) if old else 0o666 & ~umask
        owner = (old.st_uid, old.st_gid) if old else (os.geteuid(), os.getegid())
        replace_file(path, _beside(path), data, mode, owner)
