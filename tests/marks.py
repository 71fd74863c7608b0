"""What `make test-long` runs and the suite leaves out: long forms of what it tests in a short one."""

from __future__ import annotations

import os
from typing import Any

import pytest

LONG = os.environ.get("MESHNET_LONG_TESTS") == "1"

_MARKS = (pytest.mark.long, pytest.mark.skipif(not LONG, reason="MESHNET_LONG_TESTS=1 runs it (make test-long does)"))


def long(test: Any) -> Any:
    """A test for `make test-long` only."""
    for mark in _MARKS:
        test = mark(test)
    return test


def longer(*values: Any) -> Any:
    """A set of parameters for `make test-long` only."""
    return pytest.param(*values, marks=_MARKS)
