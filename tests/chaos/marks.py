"""What `make chaos` runs and the suite leaves out: a further case of what it tests already, at a price of seconds."""

from __future__ import annotations

import os
from typing import Any

import pytest

ALL_CASES = os.environ.get("MESHNET_CHAOS_TESTS") == "1"


def further(*values: Any) -> Any:
    """A set of parameters for `make chaos` only."""
    return pytest.param(*values, marks=pytest.mark.skipif(not ALL_CASES, reason="MESHNET_CHAOS_TESTS=1 runs it"))
