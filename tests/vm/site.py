# SPDX-License-Identifier: GPL-2.0
"""For mkdocs: links to files that are no part of the site become their text."""

import posixpath
import re

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page: object, **_others: object) -> str:
    """Return a page for the site; mkdocs calls this."""
    folder = posixpath.dirname(str(getattr(page, "file").src_path))  # noqa: B009 (mypy has no mkdocs)

    def stay_inside(link: re.Match[str]) -> str:
        outside = posixpath.normpath(posixpath.join(folder, link[2])).startswith("..")
        return link[1] if outside else link[0]

    return LINK.sub(stay_inside, markdown)
