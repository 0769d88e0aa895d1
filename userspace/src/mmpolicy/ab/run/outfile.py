# SPDX-License-Identifier: GPL-2.0
"""The output file of a run: complete lines of JSON; the last line says how the run ended."""

from __future__ import annotations

import json
import os
from errno import EEXIST
from pathlib import Path

from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host.disk import KEEP_REMEDIES


def is_empty(path: Path) -> bool:
    """Return whether a samples file has no sample because its run failed early. Such a file may be
    replaced by that of a new run.
    """
    try:
        return [json.loads(line)["kind"] for line in path.open()] == ["header", "end"]
    except (OSError, ValueError, LookupError, TypeError):
        return False


class OutFile:
    """A new samples file of a run. It never ends in the middle of a line: if the disk is full, the
    beginning of the line is removed again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if is_empty(path):
            path.unlink()
        remedies = KEEP_REMEDIES | {EEXIST: (Exit.FAILED, "give --out")}
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as err:
            raise explain(err.errno or 0, f"write {path}", remedies, str(path)) from err
        self._starts: list[int] = []  # offset of each line in the file, in bytes

    def write(self, line: str) -> None:
        """Append a line. If the disk has no room for all of it, remove what was written of it, and
        raise an error.
        """
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
        """Append the last line; if the disk is full, remove earlier lines to make room."""
        while True:
            try:
                self.write(line)
                return
            except Error:
                if len(self._starts) < 2:  # only the header is left, which must stay
                    raise
                os.ftruncate(self._file, self._starts.pop())

    def close(self) -> None:
        os.close(self._file)
