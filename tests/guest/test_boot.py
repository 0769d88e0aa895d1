# SPDX-License-Identifier: GPL-2.0
"""Boots of a Debian with its own kernel and many bound services; the steps of README.md, and the
state after a boot.
"""

from __future__ import annotations

import json
import os
import pty
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lab.guest import Guest, new_guest
from lab.programs import must, workload

from . import detached, host_sizes
from .sessions import for_one_service, keep_it, let_redis_have_them, replay
from .shell import with_packages
from .system import AMD64, HOST, System, folder_of_root, new_system
from .test_packages import YES, as_printed
from .test_try_ends import WORKS
from .tools import KHUGEPAGED, ROOT, THP, histograms, readme

SECONDS = 100.0  # rough duration of each test, for the schedule
SERVICES, CGROUPS, PAGES = 40, 1500, 64
ODD = r"postgresql@16\x2dmain"  # an instance whose name has a character that systemd escapes
NAMES = [*(f"many{number:02}" for number in range(SERVICES - 1)), ODD]
# The unit file of each service. Its first program maps memory and prints its folios, which show the
# policy that decided about it.
SERVICE = f"""\
[Unit]
After=crowd.service

[Service]
ExecStart={HOST}{workload("ops")} map {PAGES} touch 0 {PAGES} folios 0 {PAGES} sh "sleep infinity"
StandardOutput=truncate:/run/many/%N
ProtectSystem=strict
ProtectKernelTunables=yes
ProtectControlGroups=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""
# The unit file of a template. The path of its instances' cgroups has a name that systemd escapes.
INSTANCE = SERVICE.replace("/run/many/%N", "/run/workers/%n")
CROWD = f"""\
[Unit]
DefaultDependencies=no
Before=mmpolicy.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh -c 'mkdir -p /run/many /run/workers /sys/fs/cgroup/crowd; cd /sys/fs/cgroup/crowd && \\
    mkdir $(seq {CGROUPS - SERVICES})'

[Install]
WantedBy=sysinit.target
"""
PROFILE = """\
version = 1
[profiles.web.anon_order]
policy = "fixed"
[profiles.web.anon_order.fixed]
max_order = 4
[profiles.small]
"""
DAMAGED = "many07"
# A line for /etc/fstab that puts mmpolicy's state on a small file system of its own. Another unit
# fills that file system.
FULL = "tmpfs /var/lib/mmpolicy tmpfs size=16k 0 0\n"
FILL = """\
[Unit]
DefaultDependencies=no
After=local-fs.target
Before=mmpolicy.service
[Service]
Type=oneshot
ExecStart=-dd if=/dev/zero of=/var/lib/mmpolicy/fill
[Install]
WantedBy=sysinit.target
"""
SMALL, LARGE = {"0": PAGES}, {"4": PAGES}
KEPT = "/etc/mmpolicy /var/lib/mmpolicy"

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.full, AMD64]


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """Yield a Debian system with mmpolicy's packages. Each guest boots from it with a writable
    layer of its own, so the tests do not change it.
    """
    with folder_of_root("boot") as path:
        system = new_system(path, "cloud")
        system.put("etc/apt/apt.conf.d/90yes", YES)
        with_packages(system)
        yield system


@contextmanager
def booted(system: System, enabled: str = "madvise") -> Iterator[Guest]:
    """Boot a guest from this system, yield it, and check at the end that its kernel has logged no
    bug. enabled: the kernel's mode of huge pages.

    Debian's own `always` gives 2 MB folios to all processes. Tests that compare processes begin
    with `madvise`, so that policies make the difference.
    """
    words = f"transparent_hugepage={enabled}"
    with new_guest("cloud", mem="3G", cpus=2, root=system.folder, append=words) as guest:
        must(guest, "systemctl is-system-running --wait || true", timeout=900)
        yield guest
        guest.check()


@pytest.fixture(scope="module")
def many(system: System) -> System:
    """Return the system with 40 services in it, each bound to a profile by a manifest of
    its own.
    """
    system.put("etc/systemd/system/crowd.service", CROWD)
    system.put("etc/mmpolicy/host.toml", PROFILE)
    for name in NAMES:
        system.put(f"etc/systemd/system/{name}.service", SERVICE)
        unit = f"{name}.service".replace("\\", "\\\\")
        text = f'version = 1\n\n[bindings]\n"{unit}" = "web"\n'
        system.put(f"etc/mmpolicy/90-{name}.service.toml", text)
    for name in ("worker@", "memory"):
        system.put(f"etc/systemd/system/{name}.service", INSTANCE)
    units = " ".join(f"'{name}'" for name in NAMES)
    system.run(
        f"systemctl enable crowd {units}; systemctl disable redis-server; "
        "ln -s worker@.service /etc/systemd/system/helper@.service"
    )
    return system


def folios(guest: Guest) -> dict[str, dict[str, int]]:
    """Return the folios that the first program of each service got, by the name of the service."""
    must(guest, f"for i in $(seq 300); do [ $(find /run/many -size +0 | wc -l) -ge {SERVICES} ] &&"
         " break; sleep 1; done", timeout=400)  # fmt: skip
    lines = must(guest, 'cd /run/many; for each in *; do echo "$each $(head -n 1 $each)"; done')
    found = (line.split(" ", 1) for line in lines.splitlines() if " {" in line)
    return {
        name: {order: count for order, count in json.loads(text).items() if order != "none"}
        for name, text in found
    }


def bound(guest: Guest) -> int:
    """Return the number of cgroups that are bound to the profile web."""
    return len(must(guest, f"cat {ROOT}/profiles/web/cgroups").split())


def test_all_of_many_services(many: System) -> None:
    """When a host with many services boots, each service is bound to its profile before its first
    instruction, and no unit fails.
    """
    with booted(many) as guest:
        assert folios(guest) == dict.fromkeys(NAMES, LARGE)
        assert (bound(guest), must(guest, "systemctl is-active mmpolicy")) == (SERVICES, "active\n")
        assert must(guest, "systemctl --failed --plain --no-legend") == ""
        assert must(guest, "journalctl -q -b -t mmpolicy -p err") == ""
        cgroups = "find /sys/fs/cgroup -type d | wc -l"
        assert int(must(guest, cgroups)) >= CGROUPS
        # mmpolicy-verify binds a cgroup that has lost its binding again, and reports this.
        group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/many03.service").strip()
        must(guest, f"echo -{group} >{ROOT}/profiles/web/cgroups")
        must(guest, "systemctl start mmpolicy-verify", timeout=300)
        assert group in must(guest, f"cat {ROOT}/profiles/web/cgroups").split()
        assert f"verify by uid 0: cgroup {group}: - -> web" in must(guest, "journalctl -t mmpolicy")
        check_names_of_systemd(guest)
        assert bound(guest) == SERVICES


def check_names_of_systemd(guest: Guest) -> None:
    """Check that the binding of a template applies to its instances, and the binding of an alias to
    its unit, also after a rename or a restart of the unit.
    """

    def start(unit: str, running: str = "") -> None:
        must(guest, f"systemctl start '{unit}'", timeout=120)
        group = must(guest, f"systemctl show -P ControlGroup '{unit}'").strip()
        assert group.rpartition("/")[2].removeprefix("_") == f"{running or unit}.service"
        groups[running or unit] = must(guest, f"stat -c %i '/sys/fs/cgroup{group}'").strip()

    def made_of(unit: str) -> dict[str, int]:
        file = f"'/run/workers/{unit}.service'"
        must(guest, f"until [ -s {file} ]; do sleep 0.2; done", timeout=60)
        found = json.loads(must(guest, f"head -n 1 {file}"))
        return {order: count for order, count in found.items() if order != "none"}

    def check() -> None:
        of_web = set(must(guest, f"cat {ROOT}/profiles/web/cgroups").split())
        of_small = set(must(guest, f"cat {ROOT}/profiles/small/cgroups").split())
        own = {groups[unit] for unit in groups if unit == "worker@own"}
        assert (set(groups.values()) - of_web, of_small) == (own, own)

    groups: dict[str, str] = {}
    refused = guest.run("mmpolicy bind --unit wroker@.service web")
    assert (refused.rc, "did you mean worker@.service?" in refused.out) == (2, True)
    start("worker@before")
    assert made_of("worker@before") == SMALL
    for unit, profile in (("worker@.service", "web"), ("worker@own", "small"), ("memory", "web")):
        must(guest, f"mmpolicy bind --unit {unit} {profile}", timeout=120)
    for unit, running in (
        (r"worker@a\x2db", ""), ("worker@own", ""), ("helper@x", "worker@x"), ("memory", ""),
    ):  # fmt: skip
        start(unit, running)
        if not running:  # for an alias, the path has the name under which the unit was started
            assert made_of(unit) == (SMALL if unit == "worker@own" else LARGE)
    check()
    must(guest, "systemctl reload mmpolicy", timeout=300)
    must(guest, "systemctl stop 'worker@before'; systemctl reload mmpolicy", timeout=300)
    del groups["worker@before"]
    check()
    assert must(guest, "mmpolicy verify --skip-missing /etc/mmpolicy", timeout=120)
    metrics = must(guest, "mmpolicy export", timeout=120)
    assert "mmpolicy_drift 0.0" in metrics and 'bindings_lost{owner="host"} 0.0' in metrics
    must(guest, "mmpolicy unbind --unit worker@own", timeout=120)
    assert groups.pop("worker@own") in must(guest, f"cat {ROOT}/profiles/web/cgroups").split()
    names = " ".join(f"'{unit}'" for unit in groups)
    for unit in ("worker@", "memory"):
        must(guest, f"mmpolicy unbind --unit {unit}", timeout=120)
    must(guest, f"systemctl stop worker@own {names}", timeout=120)
    must(guest, "systemctl reload mmpolicy", timeout=300)


def test_one_file_is_damaged(many: System) -> None:
    """If one manifest is damaged, only the service that it binds loses its profile, and the verbs
    that compare the state with the manifests report the damage.
    """
    path = f"etc/mmpolicy/90-{DAMAGED}.service.toml"
    whole = (many.folder / path).read_text()
    many.put(path, whole[:-9])
    try:
        with booted(many) as guest:
            expected = {name: SMALL if name == DAMAGED else LARGE for name in NAMES}
            assert folios(guest) == expected
            assert must(guest, "systemctl is-active mmpolicy") == "active\n"
            assert f"{DAMAGED}.service.toml" in must(guest, "journalctl -b -u mmpolicy")
            assert guest.run("systemctl start mmpolicy-verify", 300).rc
            assert f"{DAMAGED}.service.toml" in must(guest, "journalctl -b -u mmpolicy-verify")
            assert guest.run("systemctl reload mmpolicy", 300).rc
            assert bound(guest) == SERVICES - 1
    finally:
        many.put(path, whole)


def test_the_disk_is_full(many: System) -> None:
    """If the disk is full at a boot, all services are still bound to their profiles, and mmpolicy
    reports what it could not store.
    """
    before = (many.folder / "etc/fstab").read_text() if (many.folder / "etc/fstab").exists() else ""
    many.put("etc/fstab", before + FULL)
    many.put("etc/systemd/system/fill.service", FILL)
    many.run("systemctl enable fill")
    try:
        with booted(many) as guest:
            assert must(guest, "stat -f -c %a /var/lib/mmpolicy") == "0\n"
            assert folios(guest) == dict.fromkeys(NAMES, LARGE)
            assert must(guest, "systemctl is-active mmpolicy") == "active\n"
            told = must(guest, "journalctl -b -u mmpolicy")
            assert "ENOSPC" in told and "mmpolicy revert will not know it" in told
    finally:
        many.run("systemctl disable fill; rm /etc/systemd/system/fill.service")
        many.put("etc/fstab", before)


@pytest.fixture(scope="module")
def plain(system: System) -> System:
    """Return the Debian system without the many services that other tests need."""
    units = " ".join(f"'{name}'" for name in NAMES)
    system.run(f"systemctl disable -q crowd {units} 2>/dev/null; rm -rf /etc/mmpolicy/90-*; true")
    system.run("systemctl enable redis-server; rm -f /etc/mmpolicy/host.toml")
    return system


# Prints the settings that a verb which only reads must not change: those of huge pages and of
# policies.
SETTINGS = f"grep -rs . {THP} --exclude=full_scans --exclude=pages_collapsed --exclude-dir=stats"
SETTINGS += f"; cat {ROOT}/state {ROOT}/profiles/default/*/policy"


def wasted(guest: Guest) -> int:
    """Return the resident memory of the service `wasteful` in KiB."""
    pid = "$(systemctl show -P MainPID wasteful)"
    return int(must(guest, f"sed -n 's/^Rss: *\\([0-9]*\\) kB/\\1/p' /proc/{pid}/smaps_rollup"))


def at_a_terminal(guest: Guest, text: str) -> str:
    """Type a text into the shell of a guest; return all that the terminal has shown."""
    child, terminal = pty.fork()
    if not child:
        sys.stdin = open(0)  # noqa: SIM115 (pytest has replaced standard input)
        os._exit(guest.shell())
    seen = b""
    with suppress(OSError):  # a terminal reports that its other end is closed
        while data := os.read(terminal, 4096):
            seen += data
            if text and b"# " in seen:  # wait for the prompt: the shell would lose earlier input
                os.write(terminal, text.encode())
                text = ""
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, seen
    return seen.decode(errors="replace")


def check_two_lines(guest: Guest) -> None:
    """Check the effect of the two lines in README.md that need no module, and that the two lines
    which undo them work.
    """
    touch = f"{HOST}{workload('ops')} map {PAGES} touch 0 {PAGES} folios 0 {PAGES}"
    lines = readme("Less CPU time: two lines, no module")[0]
    for typed, made in (
        ([], SMALL),
        (lines, LARGE),
        ([lines[0], lines[1].replace("always", "never")], SMALL),
    ):
        must(guest, "\n".join(["set -e", *typed]))
        (found,) = histograms(must(guest, touch))
        assert {str(order): count for order, count in found.items()} == made


def test_readme_look_first(plain: System) -> None:
    """The commands of README.md's first look show the waste of a program, and the command that
    frees it.
    """
    with booted(plain, "always") as guest:
        must(guest, f"systemd-run --unit=wasteful {HOST}{workload('stops')} 128 16")
        must(guest, "until [ -e /tmp/ready ]; do sleep 1; done", timeout=300)
        must(guest, f"echo 0 >{KHUGEPAGED}/max_ptes_none")  # or khugepaged would fill them again
        before, settings = wasted(guest), must(guest, SETTINGS)
        pid = must(guest, "systemctl show -P MainPID wasteful").strip()
        commands = readme("Look first, change nothing")[0]
        # The guest is emulated: with 1 % of a CPU, the default, top would see no process in time.
        ends = "top --cpu 100 -n 2 "
        once = [each.replace("top ", ends).replace("PID", pid) for each in commands]
        _, top, _, picture, found = (as_printed(guest, [command]) for command in once)
        assert "wasteful.service" in top and "2048 kB" in picture
        (command,) = re.findall(r"mmpolicy trim --\S+ \S*wasteful\S*", found)
        assert (wasted(guest) >= before > 128 << 10, must(guest, SETTINGS)) == (True, settings)
        must(guest, command, timeout=300)
        assert wasted(guest) < before / 8 and must(guest, SETTINGS) == settings
        must(guest, "touch /tmp/over; while systemctl -q is-active wasteful; do sleep 1; done", 300)
        assert '"mismatches": 0' in must(guest, "journalctl -u wasteful -o cat")
        check_two_lines(guest)
        # `./dev shell --systemd` gives a shell that has the command mmpolicy, and in which Ctrl-C
        # interrupts programs.
        asks = "mmpolicy --version; python3 -c 'import signal; print(signal.getsignal(2))'"
        seen = at_a_terminal(guest, f"{asks}\nexit\n")
        assert "mmpolicy, version" in seen and "default_int_handler" in seen


def filled(guest: Guest) -> int:
    """Fill redis with keys; return how many folios of 64 kB the policy of its profile has
    requested.
    """
    must(guest, "redis-benchmark -q -t set -r 10000 -n 20000 -d 1000 -P 16", timeout=300)
    counted = must(guest, "cat /sys/kernel/debug/mmpolicy/try/anon_order/stats").split()
    return int(counted[counted.index("requested_order_4") + 1])


def test_readme_and_a_boot(plain: System, tmp_path: Path) -> None:
    """The steps in README.md take effect on Debian's own kernel, which boots with `always`.

    After a second boot, with `madvise`, the policies are in force again.
    """
    with booted(plain, "always") as guest:
        let_redis_have_them(guest)
        commands = readme("Install and remove")[0][1:]  # the packages are installed
        slow = [each.replace("lease 600", "lease 2h") for each in commands]
        text = as_printed(guest, slow)
        assert "Policies can be switched (exit 0)" in text and "requested_order_4" in text
        for_one_service(guest, tmp_path)
        keep_it(guest)
        assert filled(guest) > 100
        kept = must(guest, f"tar -cf - {KEPT} 2>/dev/null | base64 -w 0", timeout=120)
    plain.put("root/kept", kept)
    plain.run("base64 -d /root/kept | tar -C / -xf -")
    with booted(plain) as guest:
        must(guest, "sleep 610", timeout=730)  # longer than a lease of 600 s
        assert must(guest, f"cat {ROOT}/state {ROOT}/lease_ms").split() == ["active", "0"]
        group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/redis-server.service").strip()
        assert must(guest, f"cat {ROOT}/profiles/try/cgroups").split() == [group]
        assert filled(guest) > 100
        assert must(guest, "mmpolicy verify /etc/mmpolicy", timeout=120)
    plain.run(f"rm -rf {KEPT}; mkdir -p {KEPT}")


def test_tutorial(plain: System, tmp_path: Path) -> None:
    """Each command of the tutorial prints the output that the tutorial shows, on Debian's kernel
    with its own mode `always`.

    The first commands of the tutorial let redis have large folios, and redis gets some.
    """
    forbids = "grep -c 'THP_enabled:.*0' /proc/$(pidof redis-server)/status || true"
    allocated = f"for kb in 16 32 64; do cat {THP}/hugepages-${{kb}}kB/stats/anon_fault_alloc; done"
    with booted(plain, "always") as guest:
        assert (must(guest, forbids), sum(map(int, must(guest, allocated).split()))) == ("1\n", 0)
        replay(guest, "tutorial", tmp_path, hooks=False)
        assert must(guest, forbids) == "0\n"
        assert sum(map(int, must(guest, allocated).split())) > 100


def test_sizes_of_the_whole_host(plain: System) -> None:
    """`try --host` works without the module: in trials that are killed, and in one that runs to its
    end. If it keeps a setting, this holds after a boot, too.
    """
    with booted(plain) as guest:
        must(guest, "mmpolicy unload")
        host_sizes.give_libraries(guest)
        host_sizes.check_killed(guest)
        host_sizes.check_end(guest)


# A program that uses one page in each 64 kB of 64 MiB, again and again.
SPARSE = """
import mmap, time
while True:
    area = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, 64 << 20, 65536):
        area[at] = 1
    time.sleep(0.5)
    area.close()
"""
TRIED = """\
[Service]
ExecStart=python3 /root/%N.py

[Install]
WantedBy=multi-user.target
"""
GOES_ON = re.compile(r"mmpolicy try --watch 10% --trial try-[-\d]+")


@pytest.fixture
def tried(plain: System) -> Iterator[System]:
    """Yield the Debian system with two services: for one of them, 64 kB folios are worse than
    single pages, and for the other one, `adaptive` pays.
    """
    programs = {"sparse": SPARSE, "tried": WORKS}
    for name, text in programs.items():
        plain.put(f"root/{name}.py", text)
        plain.put(f"etc/systemd/system/{name}.service", TRIED)
    plain.run(f"systemctl enable {' '.join(programs)}")
    yield plain
    plain.run(f"systemctl disable {' '.join(programs)}; rm -rf {KEPT}; mkdir -p {KEPT}")


def test_try_a_service_over_a_boot(tried: System) -> None:
    """`try` restores the former setting of a service that is worse off with 64 kB folios, and keeps
    the new setting of a service for which it pays.

    After a boot the setting is still in force. Four commands then name the command that continues
    the test of the setting; `try --stop` ends the test, and the setting stays.
    """
    with booted(tried) as guest:
        host_sizes.give_libraries(guest)
        must(guest, "sleep 30")  # try changes no service that has just started
        host_sizes.check_worse(guest, "sparse")
        words = "--unit tried --candidate adaptive --yes --foreground --block 4 --pairs 20"
        must(guest, f"mmpolicy try {words} --lease 1h --watch 10%", timeout=900)
        assert host_sizes.status(guest, 0)["standing"] == "kept"
        must(guest, "systemctl is-active mmpolicy-watch-tried")
        kept = must(guest, f"tar -cf - {KEPT} 2>/dev/null | base64 -w 0", timeout=120)
    tried.put("root/kept", kept)
    tried.run("base64 -d /root/kept | tar -C / -xf -")
    with booted(tried) as guest:
        group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/tried.service").strip()
        assert must(guest, f"cat {ROOT}/profiles/tried/cgroups").split() == [group]
        verbs = ("status", "doctor", "try --status", "")
        found = {verb: GOES_ON.findall(guest.run(f"mmpolicy {verb}", 300).out) for verb in verbs}
        assert all(found.values()), found
        (goes_on,) = {each for some in found.values() for each in some}
        must(guest, f"{goes_on} --yes", timeout=300)
        must(guest, "until mmpolicy try --status | grep 'goes on: '; do sleep 1; done", 300)
        must(guest, "systemctl is-active mmpolicy-watch-tried")
        must(guest, "mmpolicy try --stop", timeout=300)
        ended = host_sizes.status(guest, 0)
        assert (ended["standing"], ended["watch"]["reason"]) == ("kept", "by try --stop"), ended
        assert guest.run("systemctl is-active mmpolicy-watch-tried").rc
        assert must(guest, f"cat {ROOT}/profiles/tried/cgroups").split() == [group]


def test_an_experiment_outlives_its_session(plain: System, tmp_path: Path) -> None:
    """A detached experiment goes on after the user has logged out. Its status agrees with the
    kernel's settings in each phase, and nothing of it is left at its end.
    """
    with booted(plain) as guest:
        before = must(guest, detached.STATE)
        assert must(guest, "mmpolicy ab status") == "no experiment runs\n"
        file = detached.begin(guest)
        looks = detached.look_until(guest, ("aa", "control"))
        must(guest, detached.LOGOUT)
        detached.check_looks([*looks, *detached.look_until(guest, ("ab", "treatment"), 5)])
        assert detached.status_in_list(guest) == "running"
        detached.stop(guest)
        assert must(guest, detached.STATE) == before
        assert detached.status_in_list(guest) == "interrupted"
        recording = detached.file_of(guest, file, tmp_path)
        detached.check_file(recording)
        detached.check_scrapes(detached.scraped(guest), recording)
