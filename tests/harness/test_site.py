# SPDX-License-Identifier: GPL-2.0
"""Links between pages are changed to the paths of the site."""

from __future__ import annotations

import importlib.util

import pytest

from lab.machine import TREE

spec = importlib.util.spec_from_file_location("site_of_docs", TREE / "tests/site/links.py")
assert spec and spec.loader
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("README.md", "[a](docs/host.md#boot)", "[a](host.md#boot)"),
        ("README.md", "[a](kernel-hooks/README.md)", "[a](kernel-hooks.md)"),
        ("docs/host.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/policies/bulk.md", "[a](../../CHANGELOG.md)", "[a](../changelog.md)"),
        ("docs/policies/bulk.md", "[a](compact.md)", "[a](compact.md)"),
        ("kernel-hooks/README.md", "[a](../docs/testing.md)", "[a](testing.md)"),
        ("README.md", "![a](docs/img/map.svg)", "![a](img/map.svg)"),
        ("docs/host.md", "[a](../module/core.c)", "a"),
        ("docs/host.md", "[a](https://kernel.org/x)", "[a](https://kernel.org/x)"),
        ("docs/host.md", "[a](#boot)", "[a](#boot)"),
    ],
)
def test_links(source: str, link: str, expected: str) -> None:
    """Links work from each folder of the tree."""
    assert site.for_the_site(f"b {link} c", source) == f"b {expected} c"
