# SPDX-License-Identifier: GPL-2.0
"""For mkdocs: files beside docs/ become pages too, README the first one.

Links to files that are no part of the site become their text.
"""

from __future__ import annotations

import atexit
import posixpath
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
PAGES = {
    "README.md": "index.md",
    "kernel-hooks/README.md": "kernel-hooks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def page_of(path: str) -> str | None:
    """Where the site has a file of the tree; docs/ is its root."""
    if path in PAGES:
        return PAGES[path]
    known = path.startswith("docs/") and (TREE / path).is_file()
    return path.removeprefix("docs/") if known else None


def for_the_site(markdown: str, source: str) -> str:
    """The text of a file of the tree, with links from where the site has it."""
    folder, here = posixpath.dirname(source), posixpath.dirname(page_of(source) or "")

    def follow(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        if not target or "://" in target:
            return link[0]
        page = page_of(posixpath.normpath(posixpath.join(folder, target)))
        return f"[{text}]({posixpath.relpath(page, here or '.')}{anchor})" if page else text

    return LINK.sub(follow, markdown)


def on_files(files: Any, config: Any, **_others: object) -> Any:
    """Add the pages that are not below docs/; mkdocs calls this."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found,unused-ignore]

    made = Path(tempfile.mkdtemp(prefix="mmpolicy-site."))
    atexit.register(shutil.rmtree, made)
    for source, page in PAGES.items():
        (made / page).write_text((TREE / source).read_text())
        files.append(File(page, str(made), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown: str, page: Any, **_others: object) -> str:
    """Return a page for the site; mkdocs calls this."""
    path = page.file.src_path
    sources = {name: source for source, name in PAGES.items()}
    return for_the_site(markdown, sources.get(path, f"docs/{path}"))
