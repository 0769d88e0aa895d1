# SPDX-License-Identifier: GPL-2.0
"""All file access. Paths are absolute; the root in front of them can be changed."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EBUSY, EINVAL, ENODEV, ENOENT, EPERM, ERANGE, EROFS
from pathlib import Path

from mmpolicy.errors import Error, Exit, Remedies, explain

READ_REMEDIES: Remedies = {
    EACCES: (Exit.DENIED, "run it as root"),
    EPERM: (Exit.DENIED, "run it as root"),
    ENOENT: (Exit.LACKING, "mmpolicy doctor"),
    ENODEV: (Exit.LACKING, "mmpolicy doctor"),
}
WRITE_REMEDIES: Remedies = READ_REMEDIES | {
    EROFS: (Exit.DENIED, "run it where /sys is mounted read-write, not in a container"),
    EINVAL: (Exit.REFUSED, "mmpolicy show lists policies, knobs and values"),
    ERANGE: (Exit.REFUSED, "docs/sysfs-abi.txt gives the range of every knob"),
    EBUSY: (Exit.REFUSED, "something else holds this setting: mmpolicy show, then try again"),
}


@contextmanager
def _explained(action: str, remedies: Remedies) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise explain(err.errno or 0, action, remedies) from err


def _lock(file: int, path: Path) -> None:
    """Lock an open file and empty it, else tell what its holder has written there."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 1000).decode(errors="replace").strip()
        raise Error(f"{path} is held by {holder}", Exit.FAILED, "wait for its end") from None
    os.ftruncate(file, 0)


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
        with _explained(f"read {self.real(path)}", READ_REMEDIES):
            return self.real(path).read_bytes()

    def read_at(self, path: str, size: int, offset: int) -> bytes:
        """Return up to size bytes of a file from an offset; less at its end."""
        with _explained(f"read {self.real(path)}", READ_REMEDIES):
            file = os.open(self.real(path), os.O_RDONLY)
            try:
                return os.pread(file, size, offset)
            finally:
                os.close(file)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        with _explained(f"list {self.real(path)}", READ_REMEDIES):
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

    def inode(self, path: str) -> int:
        """Return the inode number of a directory, 0 without such a directory."""
        try:
            return self.real(path).stat().st_ino if self.is_dir(path) else 0
        except FileNotFoundError:
            return 0

    def writable(self, path: str) -> bool:
        """Tell if we may write the file."""
        return os.access(self.real(path), os.W_OK)

    def is_root(self) -> bool:
        """Tell if we run as root."""
        return os.geteuid() == 0

    def write(self, path: str, value: str) -> None:
        """Write a value in one go; the kernel decides if it is a good one."""
        with _explained(f"write '{value}' to {self.real(path)}", WRITE_REMEDIES):
            self.store(path, value)

    def keep(self, path: str, text: str) -> None:
        """Write an ordinary file so that a crash leaves the old one or the new one."""
        new = self.real(f"{path}.new")
        with _explained(f"write {self.real(path)}", WRITE_REMEDIES):
            new.parent.mkdir(parents=True, exist_ok=True)
            with new.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.real(path))

    @contextmanager
    def locked(self, path: str, holder: str) -> Iterator[None]:
        """Hold a lock file, which says who holds it; fail if somebody else does.

        The kernel drops the lock when its holder dies, however that happens.
        """
        real = self.real(path)
        with _explained(f"lock {real}", WRITE_REMEDIES):
            real.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(real, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(file, real)
            os.write(file, f"{holder}\n".encode())
            try:
                yield
            finally:
                os.ftruncate(file, 0)
        finally:
            os.close(file)

    def store(self, path: str, value: str) -> None:
        """Do the write itself; tests replace this with a model of the kernel."""
        file = os.open(self.real(path), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(file, f"{value}\n".encode())
        finally:
            os.close(file)
