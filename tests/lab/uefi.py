# SPDX-License-Identifier: GPL-2.0
"""UEFI firmware for a guest, to which the owner of the machine has added a key.

Linux believes in the list of shim (MOK) only under Secure Boot, and in that of the firmware (db)
always. Either way a key ends up in its keyring .platform.
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
EMPTY = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")

DATABASE = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
FIRST = 0x64  # where the first variable is: a header of the volume and one of the store go before
START, ADDED = 0x55AA, 0x3F
ATTRIBUTES = 0x27  # kept, seen at boot and at run time, and written by who may
HEADER = struct.Struct("<HBxI8x16x4xII16s")


def signature_list(certificate: bytes) -> bytes:
    """A list of one certificate, which is its own owner's."""
    size = 16 + len(certificate)
    head = X509.bytes_le + struct.pack("<III", 28 + size, 0, size)
    return head + DATABASE.bytes_le + certificate


def variables(certificate: bytes) -> bytes:
    """What the firmware keeps, with the list of keys."""
    name = "db\0".encode("utf-16-le")
    data = signature_list(certificate)
    header = HEADER.pack(START, ADDED, ATTRIBUTES, len(name), len(data), DATABASE.bytes_le)
    variable = header + name + data
    store = bytearray(EMPTY.read_bytes())
    store[FIRST : FIRST + len(variable)] = variable
    return bytes(store)


def drives(kept: Path) -> list[str]:
    """The options that let it boot the kernel."""
    return [
        *("-drive", f"if=pflash,format=raw,readonly=on,file={CODE}"),
        *("-drive", f"if=pflash,format=raw,file={kept}"),
    ]
