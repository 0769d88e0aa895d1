# SPDX-License-Identifier: GPL-2.0
"""Call the functions of libkmod that this command needs, through ctypes."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from typing import Any

from mmpolicy.errors import AS_ROOT, Error, Exit, Remedies, explain

LIBRARY = "libkmod.so.2"
FAIL_ON_LOADED = 0x20  # the flag KMOD_PROBE_FAIL_ON_LOADED of libkmod
# the flag KMOD_PROBE_APPLY_BLACKLIST, which is also the result for a blacklisted module
APPLY_BLACKLIST = 0x20000

LOOKUP_REMEDIES: Remedies = {errno.ENOENT: (Exit.LACKING, "mmpolicy doctor")}
DENIED = (
    Exit.DENIED,
    (
        "run the command as root; if that fails, Secure Boot wants a signed module, see "
        "mmpolicy doctor"
    ),
)
UNFIT = (
    Exit.LACKING,
    "boot a kernel that the module supports; mmpolicy doctor says what is missing",
)
UNSIGNED = (Exit.LACKING, "sign the module and enrol the key, see mmpolicy doctor")
INSERT_REMEDIES: Remedies = {
    errno.EINVAL: (Exit.REFUSED, "dmesg | grep mmpolicy | tail -n1 says why"),
    errno.EPERM: DENIED,
    errno.EACCES: DENIED,
    errno.ENOENT: UNFIT,  # unknown symbol: the module is for another kernel
    errno.ENODEV: UNFIT,
    errno.EOPNOTSUPP: UNFIT,
    errno.ENOSYS: (Exit.LACKING, "boot a kernel with CONFIG_MODULES=y"),
    errno.ENOEXEC: (Exit.LACKING, "build the module for this kernel, see mmpolicy doctor"),
    errno.EKEYREJECTED: UNSIGNED,
    errno.ENOKEY: UNSIGNED,
    errno.EBADMSG: UNSIGNED,
    errno.EEXIST: (
        Exit.FAILED,
        "another process has loaded the module meanwhile; mmpolicy list shows what it offers",
    ),
}
REMOVE_REMEDIES: Remedies = {
    errno.EPERM: (Exit.DENIED, AS_ROOT),
    errno.EAGAIN: (
        Exit.FAILED,
        "end the processes that use the module, until refcnt in /sys/module is 0",
    ),
}

HANDLE = POINTER(c_void_p)
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "kmod_new": (c_void_p, [c_char_p, POINTER(c_char_p)]),
    "kmod_set_log_priority": (None, [c_void_p, c_int]),
    "kmod_module_new_from_name": (c_int, [c_void_p, c_char_p, HANDLE]),
    "kmod_module_unref": (c_void_p, [c_void_p]),
    "kmod_module_get_path": (c_char_p, [c_void_p]),
    "kmod_module_get_options": (c_char_p, [c_void_p]),
    "kmod_module_get_info": (c_int, [c_void_p, HANDLE]),
    "kmod_module_info_get_key": (c_char_p, [c_void_p]),
    "kmod_module_info_get_value": (c_char_p, [c_void_p]),
    "kmod_module_info_free_list": (None, [c_void_p]),
    "kmod_list_next": (c_void_p, [c_void_p, c_void_p]),
    "kmod_module_probe_insert_module": (c_int, [c_void_p, c_uint, c_char_p, *[c_void_p] * 3]),
    "kmod_module_remove_module": (c_int, [c_void_p, c_uint]),
}


def open_library() -> Any:
    """Return libkmod with its prototypes declared."""
    try:
        lib = ctypes.CDLL(LIBRARY)
    except OSError as err:
        raise Error(f"cannot open {LIBRARY}: {err}", Exit.LACKING, "install libkmod2") from err
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Kmod:
    """The modules of the running kernel, or those in a directory, which cannot be loaded."""

    def __init__(self, directory: str | None = None, lib: Any = None) -> None:
        self._directory = directory
        self._lib = lib or open_library()
        # the libkmod context is used until the process ends, so it is never freed
        self._context = self._lib.kmod_new(directory and directory.encode(), None)
        if not self._context:
            raise Error(
                "libkmod could not start: kmod_new() has failed",
                Exit.FAILED,
                "check that /lib/modules exists and is readable",
            )
        self._lib.kmod_set_log_priority(self._context, 0)  # this command prints the errors itself

    @contextmanager
    def _module(self, name: str) -> Iterator[c_void_p]:
        module = c_void_p()
        result = self._lib.kmod_module_new_from_name(self._context, name.encode(), byref(module))
        if result < 0:
            raise explain(-result, f"look up module {name}", LOOKUP_REMEDIES)
        try:
            yield module
        finally:
            self._lib.kmod_module_unref(module)

    def path(self, name: str) -> str | None:
        """Return the file of a module, None if there is none for this kernel."""
        with self._module(name) as module:
            return _text(self._lib.kmod_module_get_path(module)) or None

    def options(self, name: str) -> str:
        """Return the options that modprobe.d gives a module."""
        with self._module(name) as module:
            return _text(self._lib.kmod_module_get_options(module))

    def info(self, name: str) -> list[tuple[str, str]]:
        """Return the modinfo pairs of a module file; keys such as `parm` repeat."""
        with self._module(name) as module:
            head = c_void_p()
            result = self._lib.kmod_module_get_info(module, byref(head))
            if result < 0:
                raise explain(-result, f"read the file of module {name}", LOOKUP_REMEDIES)
            try:
                return [self._pair(entry) for entry in self._entries(head)]
            finally:
                self._lib.kmod_module_info_free_list(head)

    def _entries(self, head: c_void_p) -> Iterator[int | c_void_p]:
        # a null pointer is false, which ends the loop
        entry: int | c_void_p | None = head
        while entry:
            yield entry
            entry = self._lib.kmod_list_next(head, entry)

    def _pair(self, entry: int | c_void_p) -> tuple[str, str]:
        key = self._lib.kmod_module_info_get_key(entry)
        return _text(key), _text(self._lib.kmod_module_info_get_value(entry))

    def insert(self, name: str, options: str) -> None:
        """Load a module and its dependencies, with the options from modprobe.d."""
        self._refuse_foreign()
        flags = APPLY_BLACKLIST | FAIL_ON_LOADED
        with self._module(name) as module:
            result = self._lib.kmod_module_probe_insert_module(
                module, flags, options.encode(), None, None, None
            )
        if result == APPLY_BLACKLIST:
            hint = (
                f"remove its blacklist line from modprobe.d; to find it: modprobe -c | grep {name}"
            )
            raise Error(f"the module {name} is blacklisted in modprobe.d", Exit.FAILED, hint)
        if result < 0:
            raise explain(-result, f"load module {name} {options}".rstrip(), INSERT_REMEDIES)

    def remove(self, name: str) -> None:
        """Unload a module."""
        self._refuse_foreign()
        with self._module(name) as module:
            result = self._lib.kmod_module_remove_module(module, 0)
        if result < 0:
            raise explain(-result, f"unload module {name}", REMOVE_REMEDIES)

    def _refuse_foreign(self) -> None:
        if self._directory:
            text = f"{self._directory} is not /lib/modules of the running kernel"
            raise Error(text, Exit.USAGE, "load and unload without --root")


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
