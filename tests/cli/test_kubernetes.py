# SPDX-License-Identifier: GPL-2.0
"""The parts of deploy/kubernetes without the plugin, whose tests are in Go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from controller import CACHE, TREE

from .fakes import CONTROL, FakeTree, Run
from .fleet import NEW, OLD

HERE = TREE / "deploy/kubernetes"
IMAGE = "registry.example.org/mmpolicy:0.1.0"
# Objects of other projects, whose schemas are not here.
FOREIGN = {"Module", "NodeFeatureRule", "AnalysisTemplate"}
# Reads YAML, and compares it with the fields of Kubernetes, in a place with both libraries.
READ = """\
import json, sys, yaml
from kubernetes_validate import ValidationError, validate
found = [each for each in yaml.safe_load_all(sys.stdin) if each]
for each in found:
    if each["kind"] not in sys.argv[1:]:
        try:
            validate(each, "1.33", strict=True)
        except ValidationError as err:
            sys.exit(f"{each['kind']}: {err.message}")
print(json.dumps(found))
"""


def read(text: str) -> dict[str, Any]:
    """Return objects by kind and name, after a check of their fields."""
    argv = [str(CACHE / "ansible/bin/python"), "-c", READ, *FOREIGN]
    done = subprocess.run(argv, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in json.loads(done.stdout)}


def build(folder: str) -> dict[str, Any]:
    argv = [str(CACHE / "go/usr/bin/kustomize"), "build", str(HERE / folder)]
    return read(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return build("base")


def helm(*words: str | Path) -> str:
    argv = [CACHE / "helm/helm", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def chart(namespace: str, *values: str) -> dict[str, Any]:
    return read(helm("template", "mmpolicy", HERE, "--namespace", namespace, *values))


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = objects["DaemonSet/mmpolicy"]["spec"]["template"]["spec"]
    return pod


def test_a_wrong_field_is_seen(base: dict[str, Any]) -> None:
    """A wrong field is detected; otherwise the checks below would prove little."""
    bad = json.dumps(base["DaemonSet/mmpolicy"]).replace("mountPath", "mountPaht")
    with pytest.raises(AssertionError, match="'mountPath' is a required"):
        read(bad)


def test_the_daemonset(base: dict[str, Any]) -> None:
    """The DaemonSet mounts the host's files, and shares no other part of the host."""
    pod = pod_of(base)
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in pod["volumes"]}
    assert volumes.pop("manifest") is None
    assert set(volumes.values()) == {"/sys", "/run/mmpolicy", "/var/lib/mmpolicy", "/var/run/nri"}
    for each in pod["containers"]:
        assert each["image"] == IMAGE
        mounts = {mount["name"]: mount["mountPath"] for mount in each["volumeMounts"]}
        assert {"sys", "run"} <= mounts.keys()
        assert all(volumes.get(name, path) == path for name, path in mounts.items())
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostPID", "hostNetwork"} & pod.keys()
    binding = base["ClusterRoleBinding/mmpolicy"]
    assert binding["subjects"][0]["namespace"] == "mmpolicy"
    assert base["ClusterRole/mmpolicy"]["rules"][0]["verbs"] == ["create"]
    manifest = base["ConfigMap/mmpolicy"]["data"]["node.toml"]
    assert manifest == (HERE / "base/node.toml").read_text()


def test_its_programs_are_in_the_image(base: dict[str, Any]) -> None:
    text = (HERE / "Dockerfile").read_text()
    for each in pod_of(base)["containers"]:
        assert f"/usr/bin/{each['command'][0]}" in text
    port = re.search(r'"listen", ":(\d+)"', (HERE / "nri/main.go").read_text())
    annotations = base["DaemonSet/mmpolicy"]["spec"]["template"]["metadata"]["annotations"]
    assert port and annotations["prometheus.io/port"] == port[1]


def test_the_image_has_what_the_command_needs() -> None:
    text = (HERE / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (TREE / name).exists(), name
    project = (TREE / "userspace/pyproject.toml").read_text()
    for line in re.findall(r"^(?:dependencies|ab) = (\[.*\])$", project, re.MULTILINE):
        for name in json.loads(line):
            assert f"python3-{name.partition('>')[0]}" in text, name


def test_the_module_and_its_label() -> None:
    """Nodes get mmpolicy if the module is loaded; the module is built and signed in the
    registry.
    """
    found = build("overlays/kmm")
    label = found["NodeFeatureRule/mmpolicy"]["spec"]["rules"][0]
    assert pod_of(found)["nodeSelector"] == label["labels"]
    (mapping,) = found["Module/mmpolicy"]["spec"]["moduleLoader"]["container"]["kernelMappings"]
    assert re.match(mapping["regexp"], "6.12.117+deb13-cloud-amd64")
    config = found[f"ConfigMap/{mapping['build']['dockerfileConfigMap']['name']}"]
    kept = "/opt/lib/modules/${KERNEL_FULL_VERSION}/updates/mmpolicy.ko"
    assert mapping["sign"]["filesToSign"] == [kept]
    folder = kept.rpartition("/")[0].replace("{", "").replace("}", "")
    assert (
        folder in config["data"]["dockerfile"] and f"FROM {IMAGE} " in config["data"]["dockerfile"]
    )


@pytest.mark.full
def test_the_chart(base: dict[str, Any], tmp_path: Path) -> None:
    """The chart has the objects of kustomize, in the namespace of the release."""
    assert "0 chart(s) failed" in helm("lint", "--strict", HERE)
    assert chart("mmpolicy") == {name: base[name] for name in base if name != "Namespace/mmpolicy"}
    mine = tmp_path / "mine.toml"
    mine.write_text("version = 1\n\n[profiles.mine]\n")
    words = ["image=example.org/x:1", "nodeSelector.kept=here"]
    values = [word for each in words for word in ("--set", each)]
    found = chart("other", *values, "--set-file", f"manifest={mine}")
    assert {each["image"] for each in pod_of(found)["containers"]} == {"example.org/x:1"}
    assert pod_of(found)["nodeSelector"] == {"kept": "here"}
    assert found["ConfigMap/mmpolicy"]["data"]["node.toml"] == mine.read_text()
    cluster = {"ClusterRole/mmpolicy", "ClusterRoleBinding/mmpolicy"}
    assert all(found[name]["metadata"]["namespace"] == "other" for name in found.keys() - cluster)
    assert found["ClusterRoleBinding/mmpolicy"]["subjects"][0]["namespace"] == "other"


def test_the_manifest_fits(run: Run) -> None:
    done = run("apply", str(HERE / "base/node.toml"))
    assert done.code == 0, done.err


@contextmanager
def following(tree: FakeTree, folder: Path) -> Iterator[None]:
    """Run the loop of the DaemonSet on a host."""
    command = folder / "bin/mmpolicy"
    command.parent.mkdir()
    host = TREE / "tests/cli/fake_host.py"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {host} {tree.root} "$@"\n')
    command.chmod(0o755)
    place = {"PATH": f"{command.parent}:{os.environ['PATH']}", "MMPOLICY_RUN": str(folder)}
    process = subprocess.Popen(
        [HERE / "follow", folder / "manifests"], start_new_session=True,
        env=os.environ | place | {"MMPOLICY_WAIT": "0.05"},
    )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_manifest_is_followed(
    tree: FakeTree, run: Run, tmp_path: Path, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    """The DaemonSet applies each change of the manifest; a setting made by hand stays until the
    next change.
    """

    def wait_for(text: str) -> None:
        manifest.write_text(text)
        stamp = f"{sha256(text.encode()).hexdigest()}  -\n"
        wait_until(lambda: followed.exists() and followed.read_text() == stamp)

    manifest, followed = tmp_path / "manifests/node.toml", tmp_path / "followed"
    manifest.parent.mkdir()
    policy, bound = (
        f"{CONTROL}/profiles/{name}" for name in ("default/anon_order/policy", "web/cgroups")
    )
    with following(tree, tmp_path):
        wait_for(OLD)
        assert "[never]" in tree.read(policy)
        wait_for(f'{NEW}[profiles.web]\n[bindings]\n"/app.slice" = "web"\n')
        assert "[fixed]" in tree.read(policy)
        assert run("set", "anon_order", "stock").code == 0
        number = tree.make_cgroup("/app.slice")  # a later cgroup is bound
        wait_until(lambda: number in tree.read(bound).split())
        assert "[stock]" in tree.read(policy)


def test_the_analysis(tmp_path: Path) -> None:
    """The job of the analysis runs `ab pool` on the files of an experiment, and ends with its exit
    code.
    """
    found = read((HERE / "argo/analysis-template.yaml").read_text())
    (metric,) = found["AnalysisTemplate/mmpolicy-pool"]["spec"]["metrics"]
    job = metric["provider"]["job"]
    read(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job}))
    (pool,) = job["spec"]["template"]["spec"]["containers"]
    assert pool["args"] == ["/runs/{{args.experiment}}"] and job["spec"]["backoffLimit"] == 0
    command = tmp_path / "mmpolicy"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 8\n')
    command.chmod(0o755)
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        file.touch()
    argv = [*pool["command"], str(tmp_path)]
    place = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(argv, env=place, capture_output=True, text=True)
    assert done.returncode == 8 and done.stdout.split() == ["ab", "pool", *map(str, files)]
