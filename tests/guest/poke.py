# SPDX-License-Identifier: GPL-2.0
"""poke.py UID: in a guest, write texts to files and report the results.

Standard input is a JSON list of [path, text, times]; the text is repeated that often in one write.
Standard output is a JSON list of [name of errno or "", value before, value after]; a value is null
if the file cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from pathlib import Path


def value(path: str) -> str | None:
    """Return the content of a file; None if it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8").strip()
    return None


def poke(path: str, text: str, times: int) -> list[str | None]:
    """Make one write to a file; return the name of its error ("" if it succeeded), and the values
    of the file before and after it.
    """
    before, error = value(path), ""
    try:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, text.encode() * times)
        finally:
            os.close(fd)
    except OSError as caught:
        error = errno.errorcode[caught.errno or 0]
    return [error, before, value(path)]


if __name__ == "__main__":
    os.setuid(int(sys.argv[1]))
    json.dump([poke(*task) for task in json.load(sys.stdin)], sys.stdout)
