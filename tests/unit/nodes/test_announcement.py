from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshsite.options import OPTIONS
from nodes import framing
from nodes.announcement import DTYPES, Announcement
from nodes.errors import BadRequest
from nodes.layers import LayerRange
from tests.unit.nodes.announced import URL, announcement, body


def test_an_announcement_comes_through_json_whole() -> None:
    for made in (announcement(), announcement(url=None, port=8001), announcement(url=None, scheme="https", port=1)):
        assert Announcement.from_json(json.loads(json.dumps(made.as_json()))) == made


def test_its_fields_are_read() -> None:
    made = announcement()
    assert (made.url, made.layers, made.n_layers) == (URL, LayerRange(0, 15), 30)
    assert (made.max_sessions, made.max_bytes, made.sessions, made.bytes) == (8, 2 * 1024**3, 1, 1024)


def test_a_url_is_taken_in_its_one_way_to_be_written() -> None:
    assert announcement(url="HTTPS://Node:443/").url == "https://node"


def test_without_a_url_it_is_where_it_was_heard_from() -> None:
    assert announcement().url_from("10.0.0.7") == URL
    assert announcement(url=None, port=8001).url_from("10.0.0.7") == "http://10.0.0.7:8001"
    assert announcement(url=None, scheme="https", port=443).url_from("::1") == "https://[::1]"


@pytest.mark.parametrize("name", sorted(set(body()) - {"url"}))
def test_every_field_is_needed(name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        announcement(**{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", 7),
        ("url", "http://127.0.0.1/forward"),
        ("port", 8001),
        ("scheme", "http"),
        ("boot_id", "short"),
        ("boot_id", "x" * 65),
        ("boot_id", "<script>alert(1)</script>"),
        ("boot_id", ["a"]),
        ("model", ""),
        ("model", "line\nend"),
        ("model", "\ud800"),
        ("model", "x" * 256),
        ("fingerprint", "nul\x00"),
        ("fingerprint", None),
        ("layers", "15:0"),
        ("layers", "0:31"),
        ("layers", [0, 15]),
        ("layers", "a:b"),
        ("n_layers", True),
        ("n_layers", 0),
        ("n_layers", 10_001),
        ("n_layers", 30.0),
        ("dtype", "int8"),
        ("dtype", ["float32"]),
        ("dtype", {}),
        ("context_length", "512"),
        ("context_length", 0),
        ("state", "gone"),
        ("capacity", [8]),
        ("capacity", {"max_sessions": -1, "max_bytes": 1}),
        ("capacity", {"max_sessions": 1}),
        ("load", {"sessions": 10**7, "bytes": 0}),
        ("load", {"sessions": 1, "bytes": 10**19}),
        ("version", "1.0 beta"),
        ("version", "v" * 33),
        ("password", "x"),
    ],
)
def test_what_a_field_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadRequest):
        announcement(**{name: value})


@pytest.mark.parametrize("port", [None, 0, 65536, "8001", True])
def test_without_a_url_a_port_is_needed(port: Any) -> None:
    with pytest.raises(BadRequest, match="port"):
        announcement(url=None, port=port)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(body())), JSON)
def test_no_value_of_any_field_is_an_error_of_ours(name: str, value: Any) -> None:
    changed = {**body(), name: value}
    try:
        made = Announcement.from_json(changed)
    except BadRequest:
        return
    assert Announcement.from_json(made.as_json()) == made


def test_its_dtypes_are_those_of_the_wire_and_of_the_settings() -> None:
    assert tuple(framing.DTYPES) == DTYPES
    assert next(option for option in OPTIONS if option.name == "MESHNET_DTYPE").choices == DTYPES
