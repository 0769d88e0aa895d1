# SPDX-License-Identifier: GPL-2.0
"""The output file of a run: complete lines, the last of which says how the run ended."""

from __future__ import annotations

import json
import os
from errno import EEXIST
from pathlib import Path

from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host.disk import KEEP_REMEDIES


def is_empty(path: Path) -> bool:
    """Return whether a run ended before its first sample, so that its file may be replaced."""
    try:
        return [json.loads(line)["kind"] for line in path.open()] == ["header", "end"]
    except (OSError, ValueError, LookupError, TypeError):
        return False


class OutFile:
    """A new output file. If the disk has no room for a line, the file ends with the line before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_empty(path):
            path.unlink()
        remedies = KEEP_REMEDIES | {EEXIST: (Exit.FAILED, "give --out")}
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as err:
            raise explain(err.errno or 0, f"write {path}", remedies, str(path)) from err
        self._starts: list[int] = []  # offsets of all lines in the file

    def write(self, line: str) -> None:
        """Append a line."""
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
        """Append the last line; if the disk has no room, remove earlier lines."""
        while True:
            try:
                self.write(line)
                return
            except Error:
                if len(self._starts) < 2:  # the header is kept
                    raise
                os.ftruncate(self._file, self._starts.pop())

    def close(self) -> None:
        os.close(self._file)
