# SPDX-License-Identifier: GPL-2.0
"""UEFI firmware under Secure Boot for a guest, with a key added by the owner of the machine.

The firmware boots programs that are signed by a key in the list db. It holds the owner's key, and
Debian's key, which signs Debian's kernel. Linux puts the keys of db and those of shim's list (MOK)
into its keyring .platform.
"""

from __future__ import annotations

import re
import struct
import subprocess
import uuid
from base64 import b64decode
from pathlib import Path

CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")
EMPTY = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")

DATABASE = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
GLOBAL = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
FIRST = 0x64  # offset of the first variable, after the headers of the volume and of the store
START, ADDED = 0x55AA, 0x3F
ATTRIBUTES = 0x27  # persistent, visible at boot and at run time, written with authentication
HEADER = struct.Struct("<HBxI8x16x4xII16s")


def signers(image: bytes) -> list[bytes]:
    """Return the certificates in the signature of an EFI program, such as a kernel's image."""
    optional = struct.unpack_from("<I", image, 0x3C)[0] + 24
    place, size = struct.unpack_from("<II", image, optional + 144)  # the fifth of its directories
    argv = ["openssl", "pkcs7", "-inform", "DER", "-print_certs"]
    signature = image[place + 8 : place + size]
    found = subprocess.run(argv, input=signature, capture_output=True, check=True).stdout.decode()
    return [b64decode(text) for text in re.findall("CERTIFICATE-----\n(.*?)-----END", found, re.S)]


def signature_list(certificate: bytes) -> bytes:
    """Return an EFI signature list with one X.509 certificate."""
    size = 16 + len(certificate)
    head = X509.bytes_le + struct.pack("<III", 28 + size, 0, size)
    return head + DATABASE.bytes_le + certificate


def variable(name: str, vendor: uuid.UUID, *certificates: bytes) -> bytes:
    """Return a UEFI variable that holds certificates, padded to the start of the next variable."""
    words = f"{name}\0".encode("utf-16-le")
    data = b"".join(map(signature_list, certificates))
    header = HEADER.pack(START, ADDED, ATTRIBUTES, len(words), len(data), vendor.bytes_le)
    return header + words + data + b"\xff" * (-(len(header) + len(words) + len(data)) % 4)


def variables(certificate: bytes, image: bytes) -> bytes:
    """Return the firmware's variable store with `certificate` and the signers of `image` in db.

    The platform key (PK) in it turns Secure Boot on.
    """
    kept = variable("PK", GLOBAL, certificate) + variable("KEK", GLOBAL, certificate)
    kept += variable("db", DATABASE, certificate, *signers(image))
    store = bytearray(EMPTY.read_bytes())
    store[FIRST : FIRST + len(kept)] = kept
    return bytes(store)


def drives(kept: Path) -> list[str]:
    """Return QEMU's options to boot UEFI firmware with the variable store in a file."""
    return [
        *("-drive", f"if=pflash,format=raw,readonly=on,file={CODE}"),
        *("-drive", f"if=pflash,format=raw,file={kept}"),
    ]
