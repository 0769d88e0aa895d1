# SPDX-License-Identifier: GPL-2.0
"""End the server of a Unix socket by SIGTERM, and wake it by a connection.

Without the connection, memcached would sleep for up to a second before it ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
import time

UCRED = struct.Struct("3i")  # pid, uid, gid: see unix(7)


def connected() -> socket.socket:
    """Return a connection to the socket that the first argument names."""
    found = socket.socket(socket.AF_UNIX)
    found.connect(sys.argv[1])
    return found


with connected() as wire:
    raw = wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size)
os.kill(UCRED.unpack(raw)[0], signal.SIGTERM)
time.sleep(0.01)  # time for the server to receive the signal
with contextlib.suppress(OSError):  # fails if the server has ended already
    connected().close()
