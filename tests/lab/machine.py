# SPDX-License-Identifier: GPL-2.0
"""The parts of the guest's machine: kernel, initramfs, CPUs and memory."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
QEMU = "qemu-system-x86_64"
BUSYBOX = Path("/bin/busybox")
INIT = HERE / "init"
DRIVERS = ("virtio_pci", "virtio_console", "virtiofs", "overlay")


class VmError(Exception):
    """The guest cannot start, or it cannot be used any longer."""


def cache_dir() -> Path:
    """Return the folder for files that are built or kept outside the source tree."""
    if named := os.environ.get("MMPOLICY_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmpolicy"


# For the fast string instructions, QEMU copies one byte at a time and counts one instruction for
# all of them, so they are disabled.
CPU = "-cpu max,-erms,-fsrm"


@dataclass(frozen=True)
class Arch:
    """The options of QEMU, and the programs, for guests of one architecture."""

    qemu: str = QEMU
    board: str = "q35"
    console: str = "ttyS0,115200"
    cpu: str = CPU
    counting_cpu: str = CPU
    compiler: str = "gcc"
    # root file system with programs of the architecture, if this machine cannot run them
    root: Path | None = None

    @classmethod
    def of_flavor(cls, flavor: str) -> Arch:
        """Return the architecture of a flavor: x86-64, or arm64 if its name ends in "-arm64"."""
        if not flavor.endswith("-arm64"):
            return cls()
        # Pointer authentication in software would make a guest three times as slow.
        return cls(
            qemu="qemu-system-aarch64",
            board="virt",
            console="ttyAMA0",
            cpu="-cpu max,pauth-impdef=on",
            counting_cpu="-cpu neoverse-n1",
            compiler="aarch64-linux-gnu-gcc",
            root=cache_dir() / "root/arm64",
        )

    @property
    def busybox(self) -> Path:
        """Return the path of the static busybox that goes into the initramfs."""
        return self.root / "bin/busybox" if self.root else BUSYBOX


def debian_flavors() -> list[str]:
    """Return the flavors that are Debian's own kernels, from the table of flavors."""
    rows = [line.split("|") for line in (HERE / "kernels/flavors").read_text().splitlines()]
    return [row[0].strip() for row in rows if row[3:] and row[3].strip() == "debian"]


def parse_size(text: str) -> int:
    """Return the bytes of a size such as 512M or 2G."""
    match = re.fullmatch(r"(\d+)([KMGkmg]?)", text)
    if not match:
        raise VmError(f"bad size {text!r}: give a number with K, M or G, such as 512M")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2].lower()]


def cpio(members: dict[str, tuple[int, bytes]]) -> bytes:
    """Return an initramfs archive (cpio) of members, given as name -> (mode, content)."""
    archive = bytearray()
    for inode, (name, (mode, content)) in enumerate(
        [*members.items(), ("TRAILER!!!", (0, b""))], start=1
    ):
        fields = [inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        archive += b"070701" + b"".join(b"%08X" % field for field in fields)
        archive += name.encode() + b"\0"
        archive += b"\0" * (-len(archive) % 4)
        archive += content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def initramfs(init: Path = INIT, busybox: Path = BUSYBOX, /, **extra: str | bytes) -> bytes:
    """Return the initramfs (cpio): busybox, init, and a file for each keyword, named after it."""
    members = {
        "bin": (0o040755, b""),
        "bin/busybox": (0o100755, busybox.read_bytes()),
        "init": (0o100755, init.read_bytes()),
    }
    for name, content in extra.items():
        members[name] = (0o100644, content.encode() if isinstance(content, str) else content)
    return cpio(members)


@dataclass(frozen=True)
class Kernel:
    """A built kernel: its image, and its modules if it has any."""

    image: Path
    modules: Path | None = None

    @classmethod
    def of_flavor(cls, series: str, flavor: str) -> Kernel:
        """Return the kernel that `./dev kernel` has built; raise VmError if there is none."""
        if os.environ.get("KSRC"):
            flavor = "ksrc"  # the user's own kernel replaces every flavor
        folder = cache_dir() / "kernel" / f"{series}-{flavor}" / "current"
        image = folder / "bzImage"
        if not image.exists():
            option = "" if flavor == "patched" else f" --{flavor}"
            raise VmError(f"no {flavor} kernel: {image} is missing; run ./dev kernel{option}")
        found = sorted((folder.resolve() / "root/lib/modules").glob("*"))
        return cls(image.resolve(), found[0] if found else None)

    def drivers(self) -> dict[str, bytes]:
        """Return the kernel modules that the guest needs to boot, each after its dependencies."""
        listed = self.modules and self.modules / "modules.dep"
        if not listed or not listed.exists():
            return {}
        rows = [line.replace(":", " ").split() for line in listed.read_text().splitlines()]
        needs = {Path(path).name.partition(".")[0]: (path, *others) for path, *others in rows}
        paths = [path for name in DRIVERS for path in reversed(needs.get(name, ()))]
        found = {}
        for number, path in enumerate(dict.fromkeys(paths)):
            packed = (listed.parent / path).read_bytes()
            found[f"driver{number:02}"] = lzma.decompress(packed) if path[-3:] == ".xz" else packed
        return found


def works_with_kvm(image: Path) -> bool:
    """Return whether a guest boots under KVM; tried once per boot of the host."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    version = subprocess.run([QEMU, "--version"], capture_output=True, check=True).stdout.split()[3]
    outcome = cache_dir() / "vm" / f"kvm-{boot}-{version.decode()}"
    if not outcome.exists():
        outcome.parent.mkdir(parents=True, exist_ok=True)
        for stale in outcome.parent.glob("kvm-*"):
            stale.unlink(missing_ok=True)
        outcome.write_text("yes" if try_kvm(image) else "no")
    return outcome.read_text() == "yes"


def try_kvm(image: Path) -> bool:
    """Return whether a guest under KVM reaches init within ten seconds."""
    with tempfile.NamedTemporaryFile() as root:
        root.write(initramfs(trial=""))
        root.flush()
        command = f"{QEMU} -accel kvm -cpu host -M q35 -m 256M -nodefaults -display none -no-reboot"
        command += " -serial stdio -append console=ttyS0,115200"
        argv = [*command.split(), "-kernel", str(image), "-initrd", root.name]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
            )
        except subprocess.TimeoutExpired:
            return False
    return b"vm-trial-works" in done.stdout


def accelerator(
    wanted: str, icount: bool, cpus: int, image: Path, fixed_code: bool, arch: Arch = Arch()
) -> str:
    """Return QEMU's options for the guest's CPUs: under KVM, or emulated (TCG)."""
    if icount and cpus != 1:
        raise VmError("icount counts the instructions of one CPU: use cpus=1")
    if icount or wanted == "jumps":
        return f"-accel tcg,thread=single -icount shift=0,sleep=off {arch.counting_cpu}"
    if arch.root:
        return f"-accel tcg,thread=single {arch.cpu}"
    if wanted == "kvm" or (wanted == "auto" and works_with_kvm(image)):
        return "-accel kvm -cpu host"
    # With one thread per CPU, QEMU before 8.1 may run stale code that another CPU has just
    # patched: stale breakpoints of static keys end in an Oops.
    return f"-accel tcg,thread={'multi' if fixed_code else 'single'} {arch.cpu}"


def memory(total: str, nodes: int, cpus: int, bare: int = 0) -> str:
    """Return QEMU options for the guest's memory, split evenly among the nodes.

    The memory is shared, as virtiofs needs it. The last `bare` nodes get none.
    """
    size = parse_size(total) // (nodes - bare) >> 20
    words = [f"-m {size * (nodes - bare)}M"]
    for node in range(nodes):
        rest = "".join(f",cpus={cpu}" for cpu in range(node, cpus, nodes))
        if node < nodes - bare:
            words.append(f"-object memory-backend-memfd,id=m{node},size={size}M,share=on")
            rest = f",memdev=m{node}{rest}"
        words.append(f"-numa node,nodeid={node}{rest}")
    return " ".join(words)
