# SPDX-License-Identifier: GPL-2.0
"""Run the helper program that loads policies in BPF, and explain its errors."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mmpolicy.errors import AS_ROOT, Error, Exit
from mmpolicy.host.disk import in_memory

HELPER = "mmpolicy-bpf"
PLACES = "/usr/lib/mmpolicy"  # directory in which the helper is searched before PATH
# directory in the BPF file system for pinned policies, with a subdirectory for each point
PINS = "/sys/fs/bpf/mmpolicy"
BPFFS = "mount -t bpf bpf /sys/fs/bpf"
WRITING = "docs/writing-a-policy.md says what a policy may do"
REFUSED = re.compile(r"^refused (\w+) (\d+)$", re.MULTILINE)
# lines of the verifier's log that begin with one of these show code or registers, not the error
ABOUT_STATE = (*"0123456789;", "processed ", "cur state", "old state", "func#")
# the verifier of Linux 7.3 and newer repeats the error after this text, over many lines, which are
# left out
EXPLAINED = "\nVerification failed: "
LOG = re.compile(r"-- BEGIN PROG LOAD LOG --\n(.*?)-- END PROG LOAD LOG --", re.DOTALL)

# reasons why the module refuses to register a policy, by errno (see module/bpf/)
REGISTER = {
    errno.EINVAL: (
        "the name of the policy has characters other than a-z, 0-9 and _, or differs from the "
        "name of the policy that it should replace"
    ),
    errno.ENODATA: "the policy has no function that makes the decision",
    errno.EPROTO: "the policy was built with a mmpolicy.bpf.h of another version than the module",
    errno.ERANGE: "max_order of the policy is not 2 to 9",
    errno.EOPNOTSUPP: "the policy has flags that the module does not know",
    errno.EDOM: "a knob of the policy has no valid name, unit, meaning or range",
    errno.EXDEV: "the policy has other knobs than the loaded policy that it should replace",
    errno.ENOEXEC: "the JIT of the kernel for BPF is off",
    errno.EEXIST: "a policy of this name is loaded already",
    errno.ENOSPC: "the module has no free slot for another policy",
    errno.EBUSY: "the lease has expired, and until a reset the module takes no policy",
    errno.ESTALE: "another process has loaded a policy at the same moment",
}
# text before the errno if the module has refused a program before the verifier checked it
UNSUPPORTED = "attach to unsupported member "
REFUSED_MEMBER = {
    errno.EINVAL: "the BPF program is sleepable, which a policy must not be",
    errno.ELOOP: (
        "the BPF program has may_goto (the macro can_loop), which permits loops that are too long"
    ),
    errno.EACCES: (
        "the BPF program calls a function of the kernel that mmpolicy does not offer, such "
        "as an iterator"
    ),
    errno.EADDRNOTAVAIL: "the BPF program uses an arena, which a policy must not",
}
REGISTER_HINTS = {
    errno.ENOEXEC: "sysctl net.core.bpf_jit_enable=1",
    errno.EXDEV: "mmpolicy policy unload NAME, then mmpolicy policy load FILE",
    errno.EEXIST: (
        "mmpolicy policy replace FILE replaces the loaded one; or give the new policy another name"
    ),
    errno.ENOSPC: "mmpolicy policy unload NAME frees a slot",
    errno.EBUSY: "mmpolicy reset acknowledges the expired lease; then load the policy again",
    errno.ESTALE: "give the command again",
}
STEPS = {
    "open": "the file is not a BPF object file",
    "none": "the object file has no policy",
    "several": "the object file has several policies, and one is loaded at a time",
    "kind": "the struct_ops in the object file are not those of mmpolicy",
    "other": "the object file has BPF programs that do not belong to a policy",
    "name": "the policy in the object file has no valid name",
    "wanted": "the policy in the object file has another name than the one given",
}


class Done(NamedTuple):
    """Exit status and output of a run of the helper program, which loads policies in BPF."""

    status: int
    out: str
    err: str


Helper = Callable[[Sequence[str], bytes, float], Done]


def object_name(file: str | Path) -> str:
    """Return the prefix that libbpf gives the names of an object file's maps."""
    return Path(file).name.partition(".")[0]


def run_helper(words: Sequence[str], data: bytes, seconds: float) -> Done:
    """Run the helper program, which loads policies in BPF, on the content of an object file.

    After `seconds`, the helper is killed, and the result has the status -SIGKILL, as the verifier
    may take minutes for a program.
    """
    import os
    import shutil
    import subprocess

    path = shutil.which(HELPER, path=PLACES) or shutil.which(HELPER, path=os.environ.get("PATH"))
    if not path:
        hint = "install the package mmpolicy-bpf; ./dev package --bpf in the source builds it"
        raise Error(
            f"the program {HELPER}, which loads policies in BPF, is not installed",
            Exit.LACKING,
            hint,
        )
    try:
        with in_memory(data) as file:
            done = subprocess.run(
                [path, *words], stdin=file, capture_output=True, text=True,
                errors="replace", timeout=seconds, check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Done(-signal.SIGKILL, "", "")
    except OSError as err:
        raise Error(f"cannot run {path}: {err.strerror}", Exit.LACKING, "mmpolicy doctor") from err
    return Done(done.returncode, done.stdout, done.stderr)


def verifier_log(text: str) -> str:
    """Return the verifier's log in the output of the helper; "" if there is none."""
    found = LOG.search(text)
    return found[1] if found else ""


def _reason(text: str) -> str:
    """Return the line in the output of libbpf and the verifier that best explains the error."""
    lines = verifier_log(text).partition(EXPLAINED)[0].splitlines()
    told = [line for line in lines if line and not line.startswith(ABOUT_STATE)]
    others = [line.removeprefix("libbpf: ") for line in text.splitlines() if line[:6] == "libbpf"]
    return [*others[:1], *told[-1:]][-1] if told or others else ""


def why(done: Done, file: str, seconds: float) -> Error:
    """Return the error for a failed run of the helper: one line with the reason, and the
    next step.
    """
    what = f"{file} is refused"
    if done.status == -signal.SIGKILL:
        hint = "--timeout gives it more time; fewer branches and loops take less"
        text = f"{what}: the verifier was not done after {seconds:.15g} s"
        return Error(text, Exit.REFUSED, hint)
    found = REFUSED.search(done.err)
    step, number = (found[1], int(found[2])) if found else ("", 0)
    name = errno.errorcode.get(number, str(number))
    if step == "register":
        text = REGISTER.get(number, f"the module returned {name}")
        return Error(f"{what}: {text}", Exit.REFUSED, REGISTER_HINTS.get(number, WRITING), number)
    if step == "load" and number == errno.EPERM:
        return Error(
            f"cannot load {file}: no permission to load BPF programs",
            Exit.DENIED,
            AS_ROOT,
            number,
        )
    if step in ("folder", "pin"):
        return Error(
            f"cannot pin the policy of {file} in {PINS}: {name}", Exit.LACKING, BPFFS, number
        )
    if step == "find":
        hint = (
            "mmpolicy policy list shows the loaded policies; mmpolicy policy load loads a new one"
        )
        return Error(
            f"{what}: no policy with the name of this one is pinned in {PINS}, so there is "
            "none to replace",
            Exit.USAGE,
            hint,
            number,
        )
    text = STEPS.get(step) or _reason(done.err) or f"{HELPER} ended with status {done.status}"
    if text.startswith(UNSUPPORTED):
        return Error(f"{what}: {REFUSED_MEMBER.get(number, text)}", Exit.REFUSED, WRITING, number)
    hint = "--log prints all that the verifier says" if verifier_log(done.err) else WRITING
    return Error(f"{what}: {text}", Exit.REFUSED, hint, number)
