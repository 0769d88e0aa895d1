# SPDX-License-Identifier: GPL-2.0
"""What is exported, as Debian's Prometheus sees it; ./dev puts that into the cache."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from .fakes import COUNTERS, FakeTree, Run

CACHE = os.environ.get("MMPOLICY_CACHE") or Path.home() / ".cache/mmpolicy"
PROGRAMS = Path(CACHE) / "prometheus/usr/bin"
EXAMPLES = Path(__file__).parents[2] / "debian/examples"
# Half of the faults take up to 1.024 us, the other half twice that.
TIMES = "decisions 100\nfault_ns_log2_9 50\nfault_ns_log2_10 50\nfault_ns_log2_11 0"
CONFIG = """\
scrape_configs:
  - job_name: mmpolicy
    scrape_interval: 1s
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def promtool(*words: str, given: str = "") -> str:
    """Run promtool, which has to succeed; it has nothing to complain about then."""
    done = subprocess.run(
        [PROGRAMS / "promtool", *words], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(*argv: object) -> Iterator[None]:
    """Run a program until the end of the block."""
    words = [str(word) for word in argv]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def query(port: int, expression: str) -> dict[str, float]:
    """Ask until there is an answer; return the value by state or profile."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        words = ["query", "instant", "-o", "json", f"http://127.0.0.1:{port}", expression]
        done = subprocess.run(
            [PROGRAMS / "promtool", *words], capture_output=True, text=True, check=False
        )
        found = json.loads(done.stdout) if done.returncode == 0 else []
        if found:
            return {
                each["metric"].get("state") or each["metric"].get("profile", ""): float(
                    each["value"][1]
                )
                for each in found
            }
        time.sleep(0.5)
    raise AssertionError(f"no answer to {expression}: {done.stderr}")


def scraped(port: int) -> str:
    """Ask whoever listens there until there is an answer."""
    end = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read().decode())
        except URLError:
            assert time.monotonic() < end
            time.sleep(0.1)


def test_conventions(run: Run, tree: FakeTree) -> None:
    tree.put(f"{COUNTERS}/anon_order/stats", f"{TIMES}\nstall_ns 9\nstall_ns_log2_9 1")
    run("lease", "90")
    promtool("check", "metrics", given=run("export").out)
    with pytest.raises(AssertionError):  # that it can fail
        promtool("check", "metrics", given="# TYPE a_ns gauge\na_ns 1\n")


def test_rules() -> None:
    promtool("check", "rules", str(EXAMPLES / "alerts.yml"))


def test_by_node_exporter(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    """It takes the file, with nothing to complain about."""
    tree.put(f"{COUNTERS}/anon_order/stats", TIMES)
    assert run("export", "-o", str(tmp_path / "mmpolicy.prom")).code == 0
    port = free_port()
    command = [PROGRAMS / "prometheus-node-exporter", "--collector.disable-defaults"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--collector.textfile"]
    with running(*command, f"--collector.textfile.directory={tmp_path}"):
        text = scraped(port)
    assert "\nnode_textfile_scrape_error 0\n" in text
    assert '\nmmpolicy_state{state="stock"} 1\n' in text
    assert '\nmmpolicy_fault_seconds_count{point="anon_order",profile="default"} 100\n' in text
    promtool("check", "metrics", given=text)


def test_scraped(tree: FakeTree, tmp_path: Path) -> None:
    """A quantile of the times of faults comes out of a query."""
    tree.put(f"{COUNTERS}/anon_order/stats", TIMES)
    port, web = free_port(), free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(port=port))
    command = [sys.executable, "-m", "mmpolicy", "--root", tree.root, "export", "--listen", port]
    server = [PROGRAMS / "prometheus", f"--config.file={config}"]
    server += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{web}"]
    with running(*command), running(*server):
        states = query(web, "mmpolicy_state")
        found = query(web, "histogram_quantile(0.75, mmpolicy_fault_seconds_bucket)")
    assert states == {"stock": 1, "active": 0, "expired": 0}
    assert found == {"default": pytest.approx(1.536e-6)}  # the middle of 1.024 to 2.048
