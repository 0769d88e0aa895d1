# SPDX-License-Identifier: GPL-2.0
"""snapshots.py SOCKET CGROUP WRITES: in a guest, write to redis at random while it saves snapshots.

Prints one JSON object: CPU microseconds of the whole cgroup, its anonymous memory in kB before the
first snapshot and at its peak, and the number of snapshots.
"""

from __future__ import annotations

import json
import random
import socket
import sys
from pathlib import Path

KEYS = 100_000
SIZE = 200
BATCH = 100
# redis takes a snapshot after this many writes; it lasts about a second in the guest
SAVE_EVERY = 50_000


def of_cgroup(cgroup: str, file: str, key: str) -> int:
    """Return the number after a key in a file of a cgroup."""
    lines = Path(cgroup, file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key} "))


class Server:
    """A connection to redis."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")

    def ask(self, commands: list[list[bytes]]) -> list[bytes]:
        """Send commands to redis; return the first line of its answer to each."""
        text = b"".join(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
            for words in commands
        )
        self.socket.sendall(text)
        return [self.lines.readline() for _ in commands]

    def write(self, keys: list[int], round_: int) -> None:
        """Overwrite these keys with new values, which contain the number of the round."""
        value = (b"%d" % round_ * SIZE)[:SIZE]
        for answer in self.ask([[b"SET", b"key:%d" % key, value] for key in keys]):
            if answer != b"+OK\r\n":
                sys.exit(f"redis said {answer!r}")


def main(path: str, cgroup: str, writes: int) -> None:
    """Fill redis with keys; then overwrite keys, take snapshots and measure, and print
    the result.
    """
    server = Server(path)
    for first in range(0, KEYS, BATCH):
        server.write(list(range(first, first + BATCH)), 1)
    chosen = random.Random(1)
    before = of_cgroup(cgroup, "cpu.stat", "usage_usec")
    filled = of_cgroup(cgroup, "memory.stat", "anon")
    most = saved = 0
    for number in range(writes // BATCH):
        if number * BATCH % SAVE_EVERY == 0:
            saved += server.ask([[b"BGSAVE"]])[0].startswith(b"+")
        server.write([chosen.randrange(KEYS) for _ in range(BATCH)], number)
        most = max(most, of_cgroup(cgroup, "memory.stat", "anon"))
    took = of_cgroup(cgroup, "cpu.stat", "usage_usec") - before
    print(
        json.dumps({"usec": took, "kb": most // 1024, "filled_kb": filled // 1024, "saved": saved})
    )


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
