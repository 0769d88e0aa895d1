# SPDX-License-Identifier: GPL-2.0
"""All file access of this package. Paths are absolute; tests may put them below another root."""

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

from mmpolicy.errors import AS_ROOT, OUTSIDE, Error, Exit, Remedies
from mmpolicy.host.disk import (
    KEEP_REMEDIES,
    explain_file,
    explained,
    holder_of,
    is_confined,
    replace_file,
    take_lock,
    write_all,
)

MODULE = "mmpolicy"
CONTROL = f"/sys/kernel/{MODULE}"
MODULE_DIR = f"/sys/module/{MODULE}"
# tracing instance of this command, which exists only while it records
TRACING = f"/sys/kernel/tracing/instances/{MODULE}"
# a write to this file makes the kernel split folios, so there is no value to restore as for a knob
SPLIT = "/sys/kernel/debug/split_huge_pages"
OURS = (CONTROL, TRACING)
# directories of the kernel's own knobs
KNOB_FOLDERS = ("/sys/kernel/mm/transparent_hugepage", "/proc/sys/vm")
TRACING_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, AS_ROOT),
    EPERM: (Exit.DENIED, AS_ROOT),
    ENOENT: (Exit.LACKING, "mount -t tracefs none /sys/kernel/tracing"),
}

READ_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, AS_ROOT),
    EPERM: (Exit.DENIED, AS_ROOT),
    ENOENT: (Exit.LACKING, "mmpolicy doctor"),
    ENODEV: (Exit.LACKING, "mmpolicy doctor"),
}
WRITE_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.DENIED, "run the command where /sys is mounted read-write, not in a container"),
    EINVAL: (Exit.REFUSED, "mmpolicy show lists policies, knobs and values"),
    EOPNOTSUPP: (Exit.LACKING, "mmpolicy list says which points this kernel cannot have, and why"),
    ERANGE: (Exit.REFUSED, "docs/sysfs-abi.txt gives the range of every knob"),
    EBUSY: (
        Exit.REFUSED,
        "this setting is in use: mmpolicy show says by what; then give the command again",
    ),
}
VALUES_OF_KNOB = (
    Exit.REFUSED,
    "Documentation/admin-guide of the kernel lists the values of this file",
)
KNOB_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.DENIED, "run the command where /sys and /proc/sys are mounted read-write"),
    EINVAL: VALUES_OF_KNOB,
    ERANGE: VALUES_OF_KNOB,
}
SPLIT_REMEDIES: Remedies = READ_REMEDIES | {
    EPERM: (Exit.DENIED, "run the command as root, on a host without lockdown, not in a container"),
}
LOCK_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.FAILED, "run the command where /run is mounted read-write"),
}
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
PRIVATE = 0o600
KNOB = stat.S_IRUSR | stat.S_IWUSR
PATIENCE_S = 10.0  # seconds to wait until another process has appended its line to the same file


def parts_of(path: str) -> list[str]:
    """Return the components of a path; raise an error if one is empty, `.` or `..`."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        hint = "give a path without '..'"
        raise Error(f"{path!r} may point outside its directory", Exit.USAGE, hint)
    return parts


def _below(path: str, folders: Sequence[str]) -> tuple[str, list[str]]:
    """Return that one of `folders` that contains a file, and the components of the file's path
    below it.

    Raise an error if no folder contains the file.
    """
    for base in folders:
        if path == base == SPLIT:
            folder, _, name = path.rpartition("/")
            return folder, [name]
        if path.startswith(f"{base}/") and base != SPLIT:
            return base, parts_of(path.removeprefix(f"{base}/"))
    raise Error(f"{path!r} is not a file below {folders[0]}", Exit.USAGE, "give a path below it")


def split_text(pid: int, start: int, end: int) -> str:
    """Return the text to write to split_huge_pages: process, address range, and order 0."""
    return f"{pid},{start:#x},{end:#x},0"


class Reader:
    """A file opened for reading at many offsets."""

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
        """Return up to `size` bytes from an offset; fewer at the end of the file."""
        try:
            return os.pread(self._file, size, offset)
        except OSError as err:
            raise explain_file(err, "read", Path(self._path), READ_REMEDIES) from err

    def ioctl(self, request: int, argument: bytearray) -> int:
        """Make an ioctl call on the file; the kernel may change the argument."""
        try:
            return int(fcntl.ioctl(self._file, request, argument))
        except OSError as err:
            raise explain_file(err, "ask", Path(self._path), READ_REMEDIES) from err


class Tree:
    """The files of a host, such as in /sys and /proc, below a root directory."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self._before = root.rstrip("/")  # to be put before a path that begins with a slash

    def real(self, path: str) -> Path:
        """Return a path with the root directory in front of it."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return the text of a file without surrounding white space."""
        return self.read_bytes(path).decode(errors="replace").strip()

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file as bytes."""
        with explained("read", self.real(path), READ_REMEDIES):
            return self.real(path).read_bytes()

    def read_at(self, path: str, size: int, offset: int = 0) -> bytes:
        """Return up to `size` bytes of a file from an offset; fewer at the end of the file."""
        return self.reader(path).read(size, offset)

    def reader(self, path: str) -> Reader:
        """Open a file for reading at many offsets; it is closed with the last reference."""
        # joining strings is cheaper than making a Path, which takes longer than open()
        return Reader(f"{self._before}{path}")

    def follow(self, path: str) -> Generator[str, None, None]:
        """Yield lines of a file as they are written; this may never end."""
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
        """Return the subdirectories with their inode numbers, without a stat() of each file."""
        real = self.real(path)
        with explained("list", real, READ_REMEDIES), os.scandir(real) as found:
            return {
                entry.name: entry.inode() for entry in found if entry.is_dir(follow_symlinks=False)
            }

    def targets(self, path: str) -> dict[str, str]:
        """Return the names in a directory with the target of each symbolic link, or "" for other
        files.
        """
        real = self.real(path)
        with explained("list", real, READ_REMEDIES), os.scandir(real) as entries:
            return {
                entry.name: os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115
                for entry in entries
            }

    def links(self, path: str) -> set[str]:
        """Return the targets of all links in a directory; skip links that disappear meanwhile."""
        real, found = self.real(path), set()
        with explained("list", real, READ_REMEDIES), os.scandir(real) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found.add(os.readlink(entry.path))  # noqa: PTH115 (a Path for each costs)
        return found

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists and is visible to this user."""
        return os.path.exists(self.real(path))  # noqa: PTH110 (pathlib raises EACCES)

    def is_dir(self, path: str) -> bool:
        """Return whether the path is a directory that is visible to this user."""
        return os.path.isdir(self.real(path))  # noqa: PTH112 (pathlib raises EACCES)

    def inode(self, base: str, path: str = "") -> int:
        """Return the inode number of a directory at `base` or below; 0 if it does not exist.

        No symbolic link and no `..` can lead out of `base`.
        """
        try:
            parts = parts_of(path) if path else []
            with self._opened(base, parts, STEP) as file:
                return os.fstat(file).st_ino
        except (OSError, Error):
            return 0

    @contextmanager
    def _opened(self, base: str, parts: Sequence[str], flags: int) -> Iterator[int]:
        """Open a path component by component, so that no symbolic link can lead out of `base`."""
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
        """Return whether this user may write the file."""
        return os.access(self.real(path), os.W_OK)

    def opens(self, path: str) -> bool:
        """Return whether the kernel permits to open a file for writing; nothing is written."""
        try:
            os.close(os.open(self.real(path), os.O_WRONLY))
        except OSError:
            return False
        return True

    def is_knob(self, path: str) -> bool:
        """Return whether root can read and write a file; files that trigger an action are
        write-only.
        """
        with explained("look at", self.real(path), READ_REMEDIES):
            mode = self.real(path).lstat().st_mode
        return stat.S_ISREG(mode) and mode & KNOB == KNOB

    def survive(self) -> None:
        """Make the out-of-memory killer choose this process last."""
        with suppress(OSError):
            self.real("/proc/self/oom_score_adj").write_text("-1000")

    def killed_first(self) -> None:
        """Make the out-of-memory killer choose this process first."""
        with suppress(OSError):
            self.real("/proc/self/oom_score_adj").write_text("1000")

    def is_root(self) -> bool:
        """Return whether this process runs as root."""
        return os.geteuid() == 0

    def is_confined(self) -> bool:
        """Return whether this process is root of a container or user namespace only."""
        return is_confined()

    def who_may(self) -> str:
        """Return as whom, or where, a command has to be run that this user may not run here."""
        return OUTSIDE if self.is_confined() else AS_ROOT

    def write(self, path: str, value: str) -> None:
        """Write a value in one call to a file of the module or of this command's tracing instance.

        Refuse any other file. The kernel checks the value.
        """
        self._put(path, value, OURS, WRITE_REMEDIES)

    def tune(self, path: str, value: str) -> None:
        """Write a value in one call to one of the kernel's own knobs; refuse any other file."""
        self._put(path, value, KNOB_FOLDERS, KNOB_REMEDIES)

    def split(self, pid: int, start: int, end: int) -> None:
        """Ask the kernel to split the large folios of a process between two addresses."""
        self._put(SPLIT, split_text(pid, start, end), (SPLIT,), SPLIT_REMEDIES)

    def _put(self, path: str, value: str, folders: Sequence[str], remedies: Remedies) -> None:
        _below(path, folders)
        with explained(f"write '{value}' to", self.real(path), remedies):
            self.store(path, value)

    def store(self, path: str, value: str) -> None:
        """Write a value to a file; tests replace this method by a model of the kernel."""
        place = _below(path, (*OURS, *KNOB_FOLDERS, SPLIT))
        with self._opened(*place, os.O_WRONLY | os.O_TRUNC) as file:
            os.write(file, f"{value}\n".encode())

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Create a tracing instance for the time of a `with` block; it does not affect other users
        of tracing.

        The caller holds a lock, so an instance that exists already was left by a killed command,
        and is removed first.
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
        """Replace a regular file, so that a crash leaves either the old or the new content.

        The caller holds a lock, so there is only one writer.
        """
        real = self.real(path)
        with explained("write", real, KEEP_REMEDIES):
            new = real.with_name(f"{real.name}.new")
            real.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
            replace_file(real, new, text.encode(), mode, (os.geteuid(), os.getegid()))

    def drop(self, path: str) -> None:
        """Remove a regular file."""
        with explained("remove", self.real(path), KEEP_REMEDIES):
            self.real(path).unlink()

    def append(self, path: str, line_of: Callable[[str], str]) -> str:
        """Append a line to a file; return the whole text. line_of() gets the present text, and
        returns the line.

        Writers lock the file, so lines do not mix. If a crash has cut the last line short, a
        newline is added first. If the disk has no room for the whole line, nothing is written.
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
        """Open and lock a file for appending; try again if the file was replaced meanwhile."""
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
        """Return the JSON object in a file; {} if the file cannot be read or has none."""
        try:
            found = json.loads(self.read(path))
        except (Error, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def record_of(self, path: str, version: int) -> dict[str, Any]:
        """Return the record that keep_record() has written; {} if it has another version."""
        record = self.record(path)
        return record if record.pop("version", None) == version else {}

    def records(self, folder: str, version: int) -> Iterator[dict[str, Any]]:
        """Yield all records of a version in a directory, sorted by file name."""
        for file in self.names(folder) if self.is_dir(folder) else ():
            if file.endswith(".json") and (record := self.record_of(f"{folder}/{file}", version)):
                yield record

    def keep_record(self, path: str, version: int, record: Mapping[str, Any]) -> None:
        """Write a record, readable for every user, as JSON."""
        self.keep(path, json.dumps({"version": version, **record}, indent=1), 0o644)

    def holder(self, path: str) -> str:
        """Return the text that the holder of a lock file has written; "" if the lock is free."""
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
        """Hold a lock file for the time of a `with` block; raise an error if it is not free within
        `wait` seconds.

        The file contains the name of the holder. The kernel releases the lock if the holder dies.
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
