# SPDX-License-Identifier: GPL-2.0
"""Fill a memcached server with values of many sizes."""

from __future__ import annotations

import socket
import sys

server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
for number in range(int(sys.argv[2])):
    size = number % 400
    server.sendall(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (number, size, b"x" * size))
server.sendall(b"get key0\r\n")
if not server.recv(100).startswith(b"VALUE"):
    sys.exit("nothing was stored")
