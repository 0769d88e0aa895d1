# SPDX-License-Identifier: GPL-2.0
"""containers.py FOLDER RUNTIME PROGRAM CLIENT PLUGIN: in a guest, run pods as Kubernetes does.

FOLDER has containerd, runc and crun; RUNTIME is runc or crun; PROGRAM is the only file in the
image; CLIENT is tests/guest/cri, built. Standard input is a JSON object: "words" for the program,
"seed", and "pods", each with "annotations" and "containers", the profile of each by its name.
Standard output is a JSON object too: "starts" with the output of each start, and whether the plugin
was "there", "gone" or "killed"; "lost" with the bindings that were missing or wrong; "kills" of the
plugin; and the cgroups and bindings "left" at the end.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# a tmpfs, because overlayfs cannot keep the layers of images on the guest's root
PLACE = Path("/run/containers")
CGROUPS = Path("/sys/fs/cgroup")
PROFILES = Path("/sys/kernel/mmpolicy/profiles")
IMAGE = "localhost/program:1"
METRICS = "http://127.0.0.1:9464"
PATIENCE_S = 300
# values of the CRI for a container's namespaces: the network of the host, and a PID namespace of
# its own
NAMESPACES = {"network": 2, "pid": 1}
CONFIG = """
version = 2
root = "{place}/root"
state = "{place}/state"
[grpc]
address = "{place}/socket"
[plugins."io.containerd.nri.v1.nri"]
{enabled}
plugin_registration_timeout = "5m"
plugin_request_timeout = "5m"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = {{ BinaryName = "{binary}" }}
"""
# Two manifests of the host; the second one extends the first. Neither names the containers, whose
# pods request their profiles.
MANIFEST = """
version = 1
[profiles.small.anon_order]
policy = "fixed"
[profiles.small.anon_order.fixed]
max_order = 2
[profiles.large.anon_order]
policy = "fixed"
[profiles.large.anon_order.fixed]
max_order = 4
"""
OTHER = '[profiles.other]\n[bindings]\n"/other" = "other"\n'


def until(true: Callable[[], object], what: str) -> None:
    """Wait until true() returns true. If that takes longer than PATIENCE_S, end the program with a
    message; what: names in it what was awaited.
    """
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            sys.exit(f"waited {PATIENCE_S} s for {what}")
        time.sleep(0.2)


def archive(files: dict[str, bytes]) -> bytes:
    """Return a tar archive with these executable files, by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def image(program: bytes) -> bytes:
    """Return an OCI image as a tar archive. It has one program, which sleeps if it is started
    without arguments.
    """
    blobs = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(kind: str, data: Any) -> dict[str, Any]:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        digest = hashlib.sha256(raw).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = raw
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(raw)}

    layer = blob("layer.v1.tar", archive({"program": program}))
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/program", "wait"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {"schemaVersion": 2, "layers": [layer], "config": blob("config.v1+json", config)}
    entry = blob("manifest.v1+json", manifest)
    entry["annotations"] = {"io.containerd.image.name": IMAGE}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    return archive({"index.json": index, **blobs})


def crun(folder: Path) -> Path:
    """Write a script that runs crun (from another Debian release than the guest's) with the
    libraries of its own release; return the path of the script.
    """
    script, usr = PLACE / "crun", folder / "usr"
    loader = f"{usr}/lib64/ld-linux-x86-64.so.2 --library-path {usr}/lib/x86_64-linux-gnu"
    script.write_text(f'#!/bin/sh\nexec {loader} {usr}/bin/crun "$@"\n')
    script.chmod(0o755)
    return script


class Node:
    """A container runtime, a client that calls its CRI, and mmpolicy's NRI plugin, which binds
    containers to profiles.
    """

    def __init__(self, folder: Path, runtime: str, program: Path, client: str, plugin: str) -> None:
        PLACE.mkdir()
        config = PLACE / "config.toml"
        enabled = "disable = false" if folder.name == "containerd-1" else ""
        binary = folder / "usr/sbin/runc" if runtime == "runc" else crun(folder)
        words = {"place": PLACE, "image": IMAGE, "binary": binary, "enabled": enabled}
        config.write_text(CONFIG.format(**words))
        os.environ["PATH"] += f":{folder}/usr/bin"
        self.socket = PLACE / "socket"
        self.log = (PLACE / "log").open("wb")
        self.start_daemon("containerd", "--config", str(config))
        until(self.socket.exists, "containerd")
        packed = PLACE / "image"
        packed.write_bytes(image(program.read_bytes()))
        ctr = f"ctr -a {self.socket} -n k8s.io images import {packed}".split()
        subprocess.run(ctr, check=True, stdout=self.log)
        self.client = subprocess.Popen([client, str(self.socket)], stdin=-1, stdout=-1, text=True)
        self.command, self.kills = plugin, 0
        self.plug()

    def start_daemon(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start a daemon whose output goes to the log; return its process."""
        return subprocess.Popen(argv, stdout=self.log, stderr=self.log)

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Make one call of the runtime's CRI, and return its answer. If the call fails, the program
        ends.
        """
        assert self.client.stdin and self.client.stdout
        self.client.stdin.write(f"{method} {json.dumps(request)}\n")
        self.client.stdin.flush()
        answer: dict[str, Any] = json.loads(self.client.stdout.readline())
        if "error" in answer:
            sys.exit(f"{method}: {answer['error']}")
        return answer

    def plug(self) -> None:
        """Start the plugin."""
        self.plugin = self.start_daemon(self.command)

    def connected(self) -> bool:
        """Return whether the runtime has connected to mmpolicy's NRI plugin, as the metrics of the
        plugin say.
        """
        try:
            with urllib.request.urlopen(METRICS) as answer:
                return "mmpolicy_nri_connected 1" in answer.read().decode().splitlines()
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the plugin."""
        self.plugin.kill()
        self.plugin.wait()
        self.kills += 1


class Pod:
    """A pod and its running containers. `profiles` has for each container the profile that the pod
    requests for it.
    """

    def __init__(self, node: Node, name: str, wanted: dict[str, Any]) -> None:
        self.node, self.name, self.profiles = node, name, wanted["containers"]
        self.config = {
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "annotations": wanted["annotations"],
            "log_directory": str(PLACE / name),
            "linux": {
                "cgroup_parent": f"/{name}",
                "security_context": {"namespace_options": NAMESPACES},
            },
        }
        answer = node.call("RunPodSandbox", config=self.config)
        self.id = answer["pod_sandbox_id"]
        self.running: dict[str, str] = {}
        self.attempts: dict[str, int] = dict.fromkeys(self.profiles, 0)

    def start(self, name: str, words: list[str]) -> Path:
        """Start a container of the pod for the first time or again; return the file that its output
        goes to.
        """
        self.attempts[name] += 1
        log = f"{name}-{self.attempts[name]}"
        security = {
            "namespace_options": NAMESPACES,
            "capabilities": {"add_capabilities": ["SYS_ADMIN"]},  # to read its folios
        }
        config = {
            "metadata": {"name": name, "attempt": self.attempts[name]},
            "image": {"image": IMAGE},
            "command": ["/program", *words],
            "log_path": log,
            "linux": {"security_context": security},
        }
        answer = self.node.call(
            "CreateContainer", pod_sandbox_id=self.id, config=config, sandbox_config=self.config
        )
        self.running[name] = answer["container_id"]
        self.node.call("StartContainer", container_id=self.running[name])
        return PLACE / self.name / log

    def cgroup(self, name: str) -> Path:
        """Return the folder of the cgroup of a running container."""
        return CGROUPS / self.name / self.running[name]

    def end(self, name: str, kill: bool) -> None:
        """End a container: ask the runtime to stop it, or, if kill is True, kill its processes
        without the runtime's knowledge.
        """
        if kill:
            for pid in (self.cgroup(name) / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            until(lambda: self.state(name) == 2, "the end of a container")
        else:
            self.node.call("StopContainer", container_id=self.running[name])
        self.node.call("RemoveContainer", container_id=self.running.pop(name))

    def state(self, name: str) -> int:
        """Return the state of a container in the CRI; 2 means that it has exited."""
        answer = self.node.call("ContainerStatus", container_id=self.running[name])
        return int(answer["status"].get("state", 0))


def is_printed(log: Path) -> bool:
    """Return whether a container's program, whose output goes to this file, has printed
    its line.
    """
    return log.exists() and log.read_text().endswith("\n")


def bindings() -> dict[int, str]:
    """Return the profile of each cgroup that is bound, by the id of the cgroup, as the module lists
    them.
    """
    files = PROFILES.glob("*/cgroups")
    return {int(word): file.parent.name for file in files for word in file.read_text().split()}


class Run:
    """The whole test of the NRI plugin: pods start one after the other, and all of them run until
    the end.
    """

    def __init__(self, node: Node, words: list[str], seed: int) -> None:
        self.node, self.words, self.random = node, words, random.Random(seed)
        self.pods: list[Pod] = []
        self.starts: list[dict[str, Any]] = []
        self.lost: list[str] = []
        self.seconds = 0.0  # duration of the last start

    def start(self, pod: Pod, names: list[str], plugin: str = "there") -> None:
        """Start containers of a pod, and record what their programs print. plugin: whether
        mmpolicy's NRI plugin was "there", "gone" or "killed" at that time; it is recorded, too.
        """
        for name in names:
            begin = time.monotonic()
            log = pod.start(name, self.words)
            until(partial(is_printed, log), "a program")
            self.seconds = time.monotonic() - begin
            found = json.loads(log.read_text().split(" ", 3)[3])
            self.starts.append({"pod": pod.name, "name": name, "folios": found, "plugin": plugin})

    def finish(self) -> None:
        """Remove all pods, and record which of their cgroups and bindings are left after that;
        there should be none.
        """
        for pod in self.pods:
            self.node.call("StopPodSandbox", pod_sandbox_id=pod.id)
            self.node.call("RemovePodSandbox", pod_sandbox_id=pod.id)
        self.left = [profile for profile in bindings().values() if profile != "other"]
        self.left += Path("/run/mmpolicy/owners/nri").read_text().splitlines()

    def look(self, when: str) -> None:
        """Check that each running container is bound to the profile that its pod requests, and that
        no other cgroup is bound. when: the moment of the check, for error messages.
        """
        Path("/dev/kmsg").write_text(f"containers: {when}\n")
        wanted = {
            pod.cgroup(name).stat().st_ino: pod.profiles[name]
            for pod in self.pods for name in pod.running if pod.profiles[name]
        }  # fmt: skip
        found = {number: profile for number, profile in bindings().items() if profile != "other"}
        if found != wanted:
            self.lost.append(f"{when}: {sorted(found.items())}, not {sorted(wanted.items())}")

    def apply(self, manifest: str) -> None:
        """Apply a manifest of the host."""
        (PLACE / "host.toml").write_text(manifest)
        subprocess.run(["mmpolicy", "apply", str(PLACE / "host.toml")], check=True, stdout=-1)

    def pod(self, name: str, wanted: dict[str, Any]) -> None:
        """Add a pod. The NRI plugin is killed once while no container starts, and once while
        containers of the pod start.
        """
        pod = Pod(self.node, name, wanted)
        self.pods.append(pod)
        names = list(pod.profiles)
        self.start(pod, names)
        self.node.kill()
        self.apply(MANIFEST + OTHER)
        self.look(f"{name}, no plugin")
        for number, each in enumerate(names[::2]):
            pod.end(each, kill=bool(number % 2))
        self.start(pod, names[:1], "gone")
        self.node.plug()
        until(self.node.connected, "the plugin")
        self.look(f"{name}, the plugin is back")
        for number, each in enumerate(names[1::2]):
            pod.end(each, kill=bool(number % 2))
        self.apply(MANIFEST)
        self.look(f"{name}, applied")
        self.start(pod, names[1:])
        self.look(f"{name}, all are back")

    def storm(self) -> None:
        """Stop a container and start it again, and kill the NRI plugin at a random moment of the
        start.
        """
        pod = self.random.choice(self.pods)
        name = self.random.choice(list(pod.running))
        pod.end(name, kill=False)
        kill = threading.Timer(self.random.uniform(0, self.seconds), self.node.kill)
        kill.start()
        self.start(pod, [name], "killed")
        kill.join()
        self.node.plug()
        until(self.node.connected, "the plugin")
        self.look(f"{pod.name}, {name}, killed in a start")


def main() -> None:
    """Run the pods of a test in the guest. The docstring of this file describes its input and
    output.
    """
    folder, runtime, program, client, plugin = sys.argv[1:]
    task = json.load(sys.stdin)
    (CGROUPS / "other").mkdir()
    node = Node(Path(folder), runtime, Path(program), client, plugin)
    until(node.connected, "the plugin")
    run = Run(node, task["words"], task["seed"])
    run.apply(MANIFEST)
    for name, wanted in task["pods"].items():
        run.pod(name, wanted)
    for _ in task["pods"]:
        run.storm()
    run.finish()
    done = {"starts": run.starts, "lost": run.lost, "kills": node.kills, "left": run.left}
    json.dump(done, sys.stdout)


if __name__ == "__main__":
    main()
