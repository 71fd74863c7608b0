"""The versions of clients in docs/openai.md are those that the tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pinned(file: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / file).read_text(), re.MULTILINE))


def test_the_table_has_what_is_installed() -> None:
    page = (ROOT / "docs" / "openai.md").read_text().partition("## Programs that were tried")[2]
    assert dict(re.findall(r"^\| `([\w-]+)` \| (\S+) \|", page, re.MULTILINE)) == pinned("requirements-clients.txt")


def test_both_environments_have_one_openai_client() -> None:
    assert pinned("requirements-clients.txt")["openai"] == pinned("requirements-dev.txt")["openai"]
