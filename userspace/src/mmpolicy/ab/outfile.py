# SPDX-License-Identifier: GPL-2.0
"""The file that a run writes: whole lines, of which the last one says how it ended."""

from __future__ import annotations

import json
import os
from errno import EEXIST
from pathlib import Path

from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host.disk import KEEP_REMEDIES


def is_empty(path: Path) -> bool:
    """Tell if a run has ended before its first sample, so that there is nothing to lose."""
    try:
        return [json.loads(line)["kind"] for line in path.open()] == ["header", "end"]
    except (OSError, ValueError, LookupError, TypeError):
        return False


class OutFile:
    """A new file; a line for which the disk has no room is not begun."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_empty(path):
            path.unlink()
        remedies = KEEP_REMEDIES | {EEXIST: (Exit.FAILED, "give --out")}
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as err:
            raise explain(err.errno or 0, f"write {path}", remedies, str(path)) from err
        self._starts: list[int] = []  # of lines

    def write(self, line: str) -> None:
        """Add a line."""
        start = os.lseek(self._file, 0, os.SEEK_END)
        data = line.encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as err:
            os.ftruncate(self._file, start)
            raise explain(err.errno or 0, f"write {self.path}", KEEP_REMEDIES) from err
        self._starts.append(start)

    def write_last(self, line: str) -> None:
        """Add the last line, for which others give way where there is no room."""
        while True:
            try:
                self.write(line)
                return
            except Error:
                if len(self._starts) < 2:  # the header stays
                    raise
                os.ftruncate(self._file, self._starts.pop())

    def close(self) -> None:
        """Close it."""
        os.close(self._file)
