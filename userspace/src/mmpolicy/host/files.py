# SPDX-License-Identifier: GPL-2.0
"""All file access. Paths are absolute; the root in front of them can be changed."""

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import (
    EACCES,
    EBUSY,
    EINVAL,
    EISDIR,
    ELOOP,
    ENODEV,
    ENOENT,
    EOPNOTSUPP,
    EPERM,
    ERANGE,
    EROFS,
)
from pathlib import Path

from mmpolicy.errors import Error, Exit, Remedies, explain

MODULE = "mmpolicy"
CONTROL = f"/sys/kernel/{MODULE}"
MODULE_DIR = f"/sys/module/{MODULE}"
TRACING = f"/sys/kernel/tracing/instances/{MODULE}"  # of our own, while we look
OURS = (CONTROL, TRACING)
KNOB_FOLDERS = ("/sys/kernel/mm/transparent_hugepage", "/proc/sys/vm")  # of the kernel itself
TRACING_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run it as root"),
    EPERM: (Exit.DENIED, "run it as root"),
    ENOENT: (Exit.LACKING, "mount -t tracefs none /sys/kernel/tracing"),
}

READ_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run it as root"),
    EPERM: (Exit.DENIED, "run it as root"),
    ENOENT: (Exit.LACKING, "mmpolicy doctor"),
    ENODEV: (Exit.LACKING, "mmpolicy doctor"),
}
WRITE_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.DENIED, "run it where /sys is mounted read-write, not in a container"),
    EINVAL: (Exit.REFUSED, "mmpolicy show lists policies, knobs and values"),
    EOPNOTSUPP: (Exit.LACKING, "mmpolicy list says what this kernel lacks"),
    ERANGE: (Exit.REFUSED, "docs/sysfs-abi.txt gives the range of every knob"),
    EBUSY: (Exit.REFUSED, "something else holds this setting: mmpolicy show, then try again"),
}
KNOB_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.DENIED, "run it where /sys and /proc/sys are mounted read-write"),
    EINVAL: (Exit.REFUSED, "Documentation/admin-guide of the kernel says what it takes"),
    ERANGE: (Exit.REFUSED, "Documentation/admin-guide of the kernel says what it takes"),
}
KEEP_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run it as root"),
    EPERM: (Exit.DENIED, "run it as root"),
    EROFS: (Exit.FAILED, "run it where the file system is mounted read-write"),
    ENOENT: (Exit.FAILED, "make its directory, or give another name"),
    ELOOP: (Exit.FAILED, "a link is not followed: remove it, or give another name"),
}
GIVEN_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run it as root, or make the file readable"),
    EISDIR: (Exit.FAILED, "give a file, not a directory"),
    ENOENT: (Exit.FAILED, "give the path of a file that there is"),
}
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
STEP = os.O_PATH | os.O_DIRECTORY | NO_LINK
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
PRIVATE = 0o600
KNOB = stat.S_IFREG | stat.S_IRUSR | stat.S_IWUSR
LOOK_AGAIN = 0.02  # seconds


@contextmanager
def _explained(action: str, path: Path, remedies: Remedies) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise explain(err.errno or 0, f"{action} {path}", remedies, str(path)) from err


def _lock(file: int, path: Path, wait: float) -> None:
    """Lock an open file and empty it, else tell what its holder has written there."""
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(LOOK_AGAIN)
                continue
            holder = os.pread(file, 1000, 0).decode(errors="replace").strip()
            raise Error(f"{path} is held by {holder}", Exit.FAILED, "wait for its end") from None
    os.ftruncate(file, 0)


def parts_of(path: str) -> list[str]:
    """Return the names that a path is made of; raises an error if one could lead elsewhere."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        hint = "give a path without '..'"
        raise Error(f"{path!r} may lead elsewhere", Exit.USAGE, hint)
    return parts


def _below(path: str, folders: Sequence[str]) -> tuple[str, list[str]]:
    """Return which of the folders a file is in, and the names that lead there from it.

    Refuse any other file.
    """
    for base in folders:
        if path.startswith(f"{base}/"):
            return base, parts_of(path.removeprefix(f"{base}/"))
    raise Error(f"{path!r} is no file below {folders[0]}", Exit.USAGE, "nothing was written")


def read_given(name: str) -> str:
    """Return the text of a file that an operator has named; - is standard input."""
    with _explained("read", Path(name), GIVEN_REMEDIES):
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as err:
        raise Error(f"{name}: {err}", Exit.FAILED, "save it as UTF-8") from err


def read_manifests(name: str) -> list[tuple[str, str]]:
    """Return name and text of a file that an operator has named, or of each *.toml in a folder."""
    if not Path(name).is_dir():
        return [("standard input" if name == "-" else name, read_given(name))]
    return [(str(path), read_given(str(path))) for path in sorted(Path(name).glob("*.toml"))]


def save_as(path: Path, data: bytes) -> None:
    """Write a file that an operator has named; a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK
    with _explained("write", path, KEEP_REMEDIES):
        file = os.open(path, flags, 0o666)
        with os.fdopen(file, "wb") as stream:
            stream.write(data)


class Tree:
    """The files of a host: /sys, /proc, /boot and /lib/modules below a root."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)

    def real(self, path: str) -> Path:
        """Return where path is, seen from outside the root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file without the white space around it."""
        return self.read_bytes(path).decode(errors="replace").strip()

    def read_bytes(self, path: str) -> bytes:
        """Return a file as it is."""
        with _explained("read", self.real(path), READ_REMEDIES):
            return self.real(path).read_bytes()

    def read_at(self, path: str, size: int, offset: int) -> bytes:
        """Return up to size bytes of a file from an offset; less at its end."""
        with _explained("read", self.real(path), READ_REMEDIES):
            file = os.open(self.real(path), os.O_RDONLY)
            try:
                return os.pread(file, size, offset)
            finally:
                os.close(file)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        with _explained("list", self.real(path), READ_REMEDIES):
            return sorted(entry.name for entry in self.real(path).iterdir())

    def dirs(self, path: str) -> list[str]:
        """Return the sorted names of the directories in a directory."""
        return [name for name in self.names(path) if self.is_dir(f"{path}/{name}")]

    def exists(self, path: str) -> bool:
        """Tell if there is such a file or directory that we may see."""
        return os.path.exists(self.real(path))  # noqa: PTH110 (pathlib raises EACCES)

    def is_dir(self, path: str) -> bool:
        """Tell if path is a directory that we may see."""
        return os.path.isdir(self.real(path))  # noqa: PTH112 (pathlib raises EACCES)

    def inode(self, base: str, path: str = "") -> int:
        """Return the inode number of a directory at base or below it, 0 without such a one.

        No link and no `..` leads out of base.
        """
        try:
            parts = parts_of(path) if path else []
            with self._opened(base, parts, STEP) as file:
                return os.fstat(file).st_ino
        except (OSError, Error):
            return 0

    @contextmanager
    def _opened(self, base: str, parts: Sequence[str], flags: int) -> Iterator[int]:
        """Open what is below base name by name, so that no link leads out of it."""
        file = os.open(self.real(base), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for number, part in enumerate(parts, start=1):
                step = flags | NO_LINK if number == len(parts) else STEP
                above, file = file, os.open(part, step, dir_fd=file)
                os.close(above)
            yield file
        finally:
            os.close(file)

    def writable(self, path: str) -> bool:
        """Tell if we may write the file."""
        return os.access(self.real(path), os.W_OK)

    def is_knob(self, path: str) -> bool:
        """Tell if a file is made to be read and written by root; an action is not read."""
        with _explained("look at", self.real(path), READ_REMEDIES):
            return self.real(path).lstat().st_mode & KNOB == KNOB

    def survive(self) -> None:
        """Let the kernel kill others before this process, where memory runs out."""
        with suppress(OSError):
            self.real("/proc/self/oom_score_adj").write_text("-1000")

    def is_root(self) -> bool:
        """Tell if we run as root."""
        return os.geteuid() == 0

    def write(self, path: str, value: str) -> None:
        """Write a value in one go to a file of the control tree, or of our tracing; to no other.

        The kernel decides if it is a good one.
        """
        self._put(path, value, OURS, WRITE_REMEDIES)

    def tune(self, path: str, value: str) -> None:
        """Write a value in one go to a knob that the kernel has by itself; to no other file."""
        self._put(path, value, KNOB_FOLDERS, KNOB_REMEDIES)

    def _put(self, path: str, value: str, folders: Sequence[str], remedies: Remedies) -> None:
        _below(path, folders)
        with _explained(f"write '{value}' to", self.real(path), remedies):
            self.store(path, value)

    def store(self, path: str, value: str) -> None:
        """Do the write itself; tests replace this with a model of the kernel."""
        place = _below(path, (*OURS, *KNOB_FOLDERS))
        with self._opened(*place, os.O_WRONLY | os.O_TRUNC) as file:
            os.write(file, f"{value}\n".encode())

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Have an instance of tracing, which sees nothing of others, nor they of it.

        One that is there was left by somebody who was killed; the caller has a lock.
        """
        with _explained("make", self.real(TRACING), TRACING_REMEDIES):
            if self.is_dir(TRACING):
                self.real(TRACING).rmdir()
            self.real(TRACING).mkdir()
        try:
            yield
        finally:
            self.real(TRACING).rmdir()

    def keep(self, path: str, text: str, mode: int = PRIVATE) -> None:
        """Write an ordinary file so that a crash leaves the old one or the new one."""
        new = self.real(f"{path}.new")
        with _explained("write", self.real(path), KEEP_REMEDIES):
            new.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            with os.fdopen(os.open(new, NEW, mode), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.real(path))

    def drop(self, path: str) -> None:
        """Remove an ordinary file."""
        with _explained("remove", self.real(path), KEEP_REMEDIES):
            self.real(path).unlink()

    def append(self, path: str, line: str) -> None:
        """Add a line to an ordinary file; one that a crash has cut off stays on its own."""
        real = self.real(path)
        with _explained("write", real, KEEP_REMEDIES):
            real.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(real, os.O_RDWR | os.O_APPEND | os.O_CREAT | NO_LINK, PRIVATE)
            with os.fdopen(file, "ab", buffering=0) as stream:
                size = os.fstat(file).st_size
                lead = "\n" if size and os.pread(file, 1, size - 1) != b"\n" else ""
                stream.write(f"{lead}{line}\n".encode())
                os.fsync(file)

    @contextmanager
    def locked(self, path: str, holder: str, wait: float = 0.0) -> Iterator[None]:
        """Hold a lock file, which says who holds it; fail if somebody else does for so long.

        The kernel drops the lock when its holder dies, however that happens.
        """
        real = self.real(path)
        with _explained("lock", real, WRITE_REMEDIES):
            real.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(real, os.O_RDWR | os.O_CREAT | NO_LINK, 0o644)
        try:
            _lock(file, real, wait)
            os.pwrite(file, f"{holder}\n".encode(), 0)
            try:
                yield
            finally:
                os.ftruncate(file, 0)
        finally:
            os.close(file)
