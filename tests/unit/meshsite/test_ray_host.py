from __future__ import annotations

import sys

import pytest

from meshsite.ray_host import RayHost


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_it_knows_the_address_and_ends_with_its_standard_input() -> None:
    host = RayHost(python("import sys; print('10.0.0.1:6379', flush=True); sys.stdin.read()"))
    assert host.address == "10.0.0.1:6379"
    host.end()
    assert host._process.returncode == 0


@pytest.mark.parametrize(
    ("code", "said"),
    [("import sys; sys.exit('one\\nno room')", "^no room$"), ("pass", "^it said nothing$")],
)
def test_what_ends_at_once_gives_its_reason(code: str, said: str) -> None:
    with pytest.raises(OSError, match=said):
        RayHost(python(code))


def test_one_that_says_nothing_is_not_waited_for_without_end() -> None:
    with pytest.raises(OSError, match="did not say its address within 0 s"):
        RayHost(python("import sys; sys.stdin.read()"), start_seconds=0)
