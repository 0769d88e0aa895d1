# SPDX-License-Identifier: GPL-2.0
"""The images of deploy/kubernetes, built from the tree by their Dockerfile.

The base image is made of Debian's packages here, and no registry is contacted.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from controller import CACHE, TREE

from .test_ab_pool import lines_of

pytestmark = pytest.mark.full

SOURCES = CACHE / "apt/trixie/sources.list"
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"  # certificates for Go's modules
BASES = {"debian:13-slim": "apt", "golang:1.24": "apt,golang-1.24-go,ca-certificates"}
GO = "/usr/lib/go-1.24/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NOBODY = "65534:65534"
ENV = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

Buildah = Callable[..., str]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """Return a function that runs buildah, which has the base images of the Dockerfile."""
    place = tmp_path_factory.mktemp("images")

    def buildah(*words: str | Path) -> str:
        argv = ["buildah", "--root", place / "store", "--runroot", place / "run", *words]
        done = subprocess.run(argv, cwd=TREE, env=ENV, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    for name, packages in BASES.items():
        root = place / "root.tar"
        options = ["--quiet", "--variant=essential", f"--include={packages}"]
        subprocess.run(["mmdebstrap", *options, "trixie", root, SOURCES], check=True)
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, root)
        buildah("config", "--env", f"PATH={GO}", container)
        buildah("commit", "--quiet", container, f"docker.io/library/{name}")
        root.unlink()
    return buildah


def container(buildah: Buildah, *target: str) -> str:
    """Build an image; return the name of a container from it."""
    trusted = f"--volume={TRUSTED}:{TRUSTED}:ro"
    file = "deploy/kubernetes/Dockerfile"  # both images share its layers
    buildah("bud", "--layers", "--pull-never", trusted, *target, "-f", file, "-t", "mmpolicy", ".")
    return buildah("from", "--pull-never", "localhost/mmpolicy")


def test_the_job_of_an_analysis(buildah: Buildah, tmp_path: Path) -> None:
    """The command of the analysis template runs `ab pool` on files of hosts, not as root."""
    text = (TREE / "deploy/kubernetes/argo/analysis-template.yaml").read_text()
    assert f"runAsUser: {NOBODY.partition(':')[0]}" in text
    command = text.partition("command: [sh, -c, '")[2].partition("']")[0]
    runs = tmp_path / "runs"
    (runs / "e").mkdir(parents=True)
    for number in range(4):
        lines = lines_of(number, -0.1)
        lines.end(status="done")
        (runs / f"e/{number}.jsonl").write_text("".join(lines))
    name = container(buildah, "--target", "report")
    run = ["run", "--user", NOBODY, "--volume", f"{runs}:/runs:ro", name, "--"]
    out = buildah(*run, "sh", "-c", f"{command} --json", "/runs/e")
    assert json.loads(out)["verdict"].startswith("better on these hosts")


def test_the_node(buildah: Buildah) -> None:
    """The command and the plugin start, and the source of the module is there."""
    name = container(buildah)
    run = ["run", "--user", NOBODY, name, "--"]
    assert "mmpolicy" in buildah(*run, "mmpolicy", "--version")
    assert "listen" in buildah(*run, "sh", "-c", "mmpolicy-nri -h 2>&1; command -v mmpolicy-follow")
    files = buildah(*run, "find", "/usr/src/mmpolicy", "-type", "f").splitlines()
    tracked = subprocess.run(
        ["git", "ls-files", "module", "Kbuild"],
        cwd=TREE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert {f"/usr/src/mmpolicy/{each}" for each in tracked} <= set(files)
