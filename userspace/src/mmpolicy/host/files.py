# SPDX-License-Identifier: GPL-2.0
"""All file access. Paths are absolute; the root in front of them can be changed."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import (
    EACCES,
    EBUSY,
    EINVAL,
    ENODEV,
    ENOENT,
    EOPNOTSUPP,
    EPERM,
    ERANGE,
    EROFS,
)
from pathlib import Path
from typing import Any

from mmpolicy.errors import Error, Exit, Remedies
from mmpolicy.host.disk import (
    KEEP_REMEDIES,
    explain_file,
    explained,
    holder_of,
    replace_file,
    take_lock,
    write_all,
)

MODULE = "mmpolicy"
CONTROL = f"/sys/kernel/{MODULE}"
MODULE_DIR = f"/sys/module/{MODULE}"
TRACING = f"/sys/kernel/tracing/instances/{MODULE}"  # of our own, while we look
SPLIT = "/sys/kernel/debug/split_huge_pages"  # an action of the kernel, not a knob
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
SPLIT_REMEDIES: Remedies = READ_REMEDIES | {
    EPERM: (Exit.DENIED, "run it as root, on a host without lockdown, not in a container"),
}
LOCK_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.FAILED, "run it where /run is mounted read-write"),
}
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
PRIVATE = 0o600
KNOB = stat.S_IRUSR | stat.S_IWUSR
PATIENCE_S = 10.0  # for another writer


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
        if path == base == SPLIT:
            folder, _, name = path.rpartition("/")
            return folder, [name]
        if path.startswith(f"{base}/") and base != SPLIT:
            return base, parts_of(path.removeprefix(f"{base}/"))
    raise Error(f"{path!r} is no file below {folders[0]}", Exit.USAGE, "nothing was written")


def split_text(pid: int, start: int, end: int) -> str:
    """Return what SPLIT takes: a range of a process, and the order to split to."""
    return f"{pid},{start:#x},{end:#x},0"


class Reader:
    """A file of which many parts are read."""

    def __init__(self, path: str) -> None:
        self._path, self._file = path, -1
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as err:
            raise explain_file(err, "read", Path(path), READ_REMEDIES) from err

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def read(self, size: int, offset: int) -> bytes:
        """Return up to size bytes from an offset; less at the end."""
        try:
            return os.pread(self._file, size, offset)
        except OSError as err:
            raise explain_file(err, "read", Path(self._path), READ_REMEDIES) from err

    def ioctl(self, request: int, argument: bytearray) -> int:
        """Ask the file for something, with an argument that is read and written."""
        try:
            return int(fcntl.ioctl(self._file, request, argument))
        except OSError as err:
            raise explain_file(err, "ask", Path(self._path), READ_REMEDIES) from err


class Tree:
    """The files of a host: /sys, /proc, /boot and /lib/modules below a root."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self._before = root.rstrip("/")  # any path

    def real(self, path: str) -> Path:
        """Return where path is, seen from outside the root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file without the white space around it."""
        return self.read_bytes(path).decode(errors="replace").strip()

    def read_bytes(self, path: str) -> bytes:
        """Return a file as it is."""
        with explained("read", self.real(path), READ_REMEDIES):
            return self.real(path).read_bytes()

    def read_at(self, path: str, size: int, offset: int = 0) -> bytes:
        """Return up to size bytes of a file from an offset; less at its end."""
        return self.reader(path).read(size, offset)

    def reader(self, path: str) -> Reader:
        """Return an open file, closed with its last reference, to read it in many places."""
        return Reader(f"{self._before}{path}")  # without a Path, which costs more than to open

    def follow(self, path: str) -> Generator[str, None, None]:
        """Yield the lines of a file as they come; its end may never come."""
        with explained("read", self.real(path), READ_REMEDIES):
            file = self.real(path).open(errors="replace")
        with file:
            yield from file

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        with explained("list", self.real(path), READ_REMEDIES):
            return sorted(entry.name for entry in self.real(path).iterdir())

    def dirs(self, path: str) -> list[str]:
        """Return the sorted names of the directories in a directory."""
        return sorted(self.inodes(path))

    def inodes(self, path: str) -> dict[str, int]:
        """Return the directories in a directory with their inode numbers; no file is looked at."""
        real = self.real(path)
        with explained("list", real, READ_REMEDIES), os.scandir(real) as found:
            return {
                entry.name: entry.inode() for entry in found if entry.is_dir(follow_symlinks=False)
            }

    def targets(self, path: str) -> dict[str, str]:
        """Return the names in a directory, with the target of each link; empty for other files."""
        real = self.real(path)
        with explained("list", real, READ_REMEDIES), os.scandir(real) as entries:
            return {
                entry.name: os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115
                for entry in entries
            }

    def links(self, path: str) -> set[str]:
        """Return where the links in a directory lead; one that has just gone is left out."""
        real, found = self.real(path), set()
        with explained("list", real, READ_REMEDIES), os.scandir(real) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.add(os.readlink(entry.path))  # noqa: PTH115 (a Path for each costs)
        return found

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
        """Open a path below base name by name, so that no link leads out."""
        file = os.open(self.real(base), os.O_PATH | os.O_DIRECTORY)
        try:
            for number, part in enumerate(parts, start=1):
                step = flags | os.O_NOFOLLOW if number == len(parts) else STEP
                above, file = file, os.open(part, step, dir_fd=file)
                os.close(above)
            yield file
        finally:
            os.close(file)

    def writable(self, path: str) -> bool:
        """Tell if we may write the file."""
        return os.access(self.real(path), os.W_OK)

    def opens(self, path: str) -> bool:
        """Tell if the kernel lets us open a file to write to it, which writes nothing."""
        try:
            os.close(os.open(self.real(path), os.O_WRONLY))
        except OSError:
            return False
        return True

    def is_knob(self, path: str) -> bool:
        """Tell if a file is made to be read and written by root; an action is not read."""
        with explained("look at", self.real(path), READ_REMEDIES):
            mode = self.real(path).lstat().st_mode
        return stat.S_ISREG(mode) and mode & KNOB == KNOB

    def survive(self) -> None:
        """Let the kernel kill others before this process, where memory runs out."""
        with suppress(OSError):
            self.real("/proc/self/oom_score_adj").write_text("-1000")

    def killed_first(self) -> None:
        """Let the kernel kill this process before others, where memory runs out."""
        with suppress(OSError):
            self.real("/proc/self/oom_score_adj").write_text("1000")

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

    def split(self, pid: int, start: int, end: int) -> None:
        """Let the kernel split the large folios of a process between two addresses."""
        self._put(SPLIT, split_text(pid, start, end), (SPLIT,), SPLIT_REMEDIES)

    def _put(self, path: str, value: str, folders: Sequence[str], remedies: Remedies) -> None:
        _below(path, folders)
        with explained(f"write '{value}' to", self.real(path), remedies):
            self.store(path, value)

    def store(self, path: str, value: str) -> None:
        """Do the write itself; tests replace this with a model of the kernel."""
        place = _below(path, (*OURS, *KNOB_FOLDERS, SPLIT))
        with self._opened(*place, os.O_WRONLY | os.O_TRUNC) as file:
            os.write(file, f"{value}\n".encode())

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Make an instance of tracing, which is independent of others.

        An existing one was left by a killed command; the caller has a lock.
        """
        with explained("make", self.real(TRACING), TRACING_REMEDIES):
            if self.is_dir(TRACING):
                self.real(TRACING).rmdir()
            self.real(TRACING).mkdir()
        try:
            yield
        finally:
            self.real(TRACING).rmdir()

    def keep(self, path: str, text: str, mode: int = PRIVATE) -> None:
        """Write an ordinary file so that a crash leaves the old one or the new one.

        The caller has a lock, so that there is no second writer.
        """
        real = self.real(path)
        with explained("write", real, KEEP_REMEDIES):
            new = real.with_name(f"{real.name}.new")
            real.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            replace_file(real, new, text.encode(), mode, (os.geteuid(), os.getegid()))

    def drop(self, path: str) -> None:
        """Remove an ordinary file."""
        with explained("remove", self.real(path), KEEP_REMEDIES):
            self.real(path).unlink()

    def append(self, path: str, line_of: Callable[[str], str]) -> str:
        """Add a line, made of the text so far, to an ordinary file; return all of the text.

        Writers wait for each other, so no line comes between. A line that a crash has cut off
        stays on its own; one for which there is no room is not begun.
        """
        real = self.real(path)
        with explained("write", real, KEEP_REMEDIES):
            real.parent.mkdir(parents=True, exist_ok=True)
            file = self._open_alone(real)
            try:
                size = os.fstat(file).st_size
                text = os.pread(file, size, 0).decode(errors="replace")
                lead = "\n" if text and not text.endswith("\n") else ""
                line = f"{lead}{line_of(text)}\n"
                try:
                    write_all(file, line.encode())
                except OSError:
                    os.ftruncate(file, size)
                    raise
            finally:
                os.close(file)
        return text + line

    def _open_alone(self, real: Path) -> int:
        """Open a file to append, and lock it; another file may replace it before."""
        while True:
            file = os.open(real, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, PRIVATE)
            try:
                take_lock(file, real, PATIENCE_S)
                if os.path.samestat(os.fstat(file), real.stat()):
                    return file
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def record(self, path: str) -> dict[str, Any]:
        """Return the JSON object in a file; empty if it cannot be read, or is none."""
        try:
            found = json.loads(self.read(path))
        except (Error, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def record_of(self, path: str, version: int) -> dict[str, Any]:
        """Return what keep_record() has kept; empty if the file has no record of that version."""
        record = self.record(path)
        return record if record.pop("version", None) == version else {}

    def records(self, folder: str, version: int) -> Iterator[dict[str, Any]]:
        """Yield all records of a version in a directory, in the order of their names."""
        for file in self.names(folder) if self.is_dir(folder) else ():
            if file.endswith(".json") and (record := self.record_of(f"{folder}/{file}", version)):
                yield record

    def keep_record(self, path: str, version: int, record: Mapping[str, Any]) -> None:
        """Write a record that everybody may read."""
        self.keep(path, json.dumps({"version": version, **record}, indent=1), 0o644)

    def holder(self, path: str) -> str:
        """Return the text of the holder of a lock, empty if it is free."""
        try:
            file = os.open(self.real(path), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return ""
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return ""
        except BlockingIOError:
            return holder_of(file)
        finally:
            os.close(file)

    @contextmanager
    def locked(self, path: str, holder: str, wait: float = 0.0) -> Iterator[None]:
        """Hold a lock file, which names its holder; fail if another one holds it for so long.

        The kernel drops the lock when its holder dies, however that happens.
        """
        real = self.real(path)
        with explained("lock", real, LOCK_REMEDIES):
            real.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(real, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            take_lock(file, real, wait)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{holder}\n".encode(), 0)
            try:
                yield
            finally:
                os.ftruncate(file, 0)
        finally:
            os.close(file)
