# SPDX-License-Identifier: GPL-2.0
"""The host's file system in the guest: virtiofsd, and a relay between virtiofsd and QEMU.

virtiofsd writes the contents of files to the guest's memory directly, without QEMU noticing. An
emulating QEMU would then continue to run code that it had translated from that memory before. So
the relay offers the guest VIRTIO_F_ACCESS_PLATFORM on behalf of virtiofsd. With swiotlb=force on
its command line, the guest then reads files into a bounce buffer and copies from there itself,
which QEMU notices.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

VIRTIOFSD = "/usr/lib/qemu/virtiofsd"
BOUNCE_SLOTS = 4096  # slots of 2 KiB each, in the guest's memory
GUEST_WORDS = f"swiotlb={BOUNCE_SLOTS},force"
DEVICE = "vhost-user-fs-pci,tag=host,queue-size=1024,iommu_platform=on"

HEADER = struct.Struct("=III")  # request, flags, size of the payload
FEATURES = struct.Struct("=Q")
GET_FEATURES = 1
ACCESS_PLATFORM = 1 << 33
MAX_FILES = 8  # file descriptors passed with one message


class Relay(threading.Thread):
    """Relays control messages (vhost-user) between QEMU and virtiofsd, but no file contents."""

    def __init__(self, path: Path, server: Path) -> None:
        super().__init__(daemon=True)
        self.listener = listen(path)
        self.qemu = self.listener
        self.server = socket.socket(socket.AF_UNIX)
        self.server.connect(str(server))
        self.start()

    def run(self) -> None:
        """Relay messages until QEMU or virtiofsd closes its socket."""
        with self.listener, self.server, suppress(OSError):
            self.qemu, _ = self.listener.accept()
            with self.qemu:
                back = threading.Thread(target=self._pass_on, args=(self.server, self.qemu))
                back.start()
                self._pass_on(self.qemu, self.server)
                back.join()

    def close(self) -> None:
        """Shut down all sockets, so that both threads end, and wait for the threads."""
        for end in (self.listener, self.qemu, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        """Relay all messages from one socket to the other, until one of them is closed."""
        with suppress(OSError):
            while message := receive(source):
                text, files = message
                socket.send_fds(target, [offer_more(text)], files)
                for file in files:
                    os.close(file)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def listen(path: Path) -> socket.socket:
    """Return a Unix socket that listens at a path."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def receive(source: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return one message and its file descriptors; None when the peer has closed the socket."""
    header, files, _, _ = socket.recv_fds(source, HEADER.size, MAX_FILES)
    if len(header) < HEADER.size:
        return None
    size = HEADER.unpack(header)[2]
    return header + (source.recv(size, socket.MSG_WAITALL) if size else b""), files


def offer_more(text: bytes) -> bytes:
    """Add VIRTIO_F_ACCESS_PLATFORM to a message with virtiofsd's features.

    Return all other messages unchanged.
    """
    request, _, size = HEADER.unpack_from(text)
    if request != GET_FEATURES or size != FEATURES.size:
        return text
    (features,) = FEATURES.unpack_from(text, HEADER.size)
    return text[: HEADER.size] + FEATURES.pack(features | ACCESS_PLATFORM)
