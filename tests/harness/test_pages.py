# SPDX-License-Identifier: GPL-2.0
"""The pages of the site in a browser: nothing sticks out, all text is readable."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from lab.machine import TREE

pytestmark = pytest.mark.full
WIDTHS = (1280, 400)
BROWSER = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
BROWSER += ["--allow-file-access-from-files", "--host-resolver-rules=MAP * ~NOTFOUND"]
MKDOCS = ["env", "-i", "PATH=/usr/bin:/bin", "LANG=C.UTF-8", "mkdocs", "build", "--strict", "-q"]

LOOK = Path(__file__).with_name("look.js")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, as ./dev docs does."""
    folder = tmp_path_factory.mktemp("site")
    words = [*MKDOCS, "--config-file", str(TREE / "mkdocs.yml"), "--site-dir", str(folder)]
    subprocess.run(words, check=True, timeout=300)
    return folder


def seen(folder: Path) -> list[dict[str, Any]]:
    """Return the browser's findings on each page, in each width and scheme."""
    pages = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html"))
    frames = [
        f'<iframe name="{page}" src="{page}" width="{width}" height="900"></iframe>'
        for page in pages
        for width in WIDTHS
    ]
    harness = folder.parent / f"{folder.name}-look.html"
    text = f"<base href='{folder.as_uri()}/'><pre id=said></pre><script>{LOOK.read_text()}</script>"
    harness.write_text(text + "".join(frames))
    argv = [*BROWSER, f"--user-data-dir={folder.parent}/browser", harness.as_uri()]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300)
    (text,) = re.findall(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    found: list[dict[str, Any]] = json.loads(unescape(text))
    assert len(found) == len(pages) * len(WIDTHS) * 2
    return found


def test_every_page(site: Path) -> None:
    """No page is wider than its window, and text has the contrast that WCAG demands (4.5)."""
    looked = seen(site)
    assert all(each["seen"] > 20 for each in looked if not each["page"].startswith("404"))
    assert [each for each in looked if each["found"]] == []
    assert {"index.html", "oncall.html", "workloads/vm.html"} <= {each["page"] for each in looked}


def test_a_bad_page_is_found(site: Path, tmp_path: Path) -> None:
    """The test above can fail."""
    (tmp_path / "bad.html").write_text(
        '<body><article><p style="color: #999">pale</p><p style="width: 2000px">wide</p></article>'
    )
    found = " ".join(text for each in seen(tmp_path) for text in each["found"])
    assert "2.85: P.: pale" in found and "sticks out" in found and "wider" in found
