"""The recorded exchanges of docs/recordings, sent again to real node processes: the protocol is what is written."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.recorded_scenarios import scenarios
from tests.recordings import Answer, compare, recordings, send
from tests.toy_mesh import get_json

KINDS = {
    200: {"POST", "GET", "DELETE", "PATCH"},
    400: {"POST"},
    401: {"POST"},
    404: {"GET", "DELETE"},
    405: {"GET"},
    409: {"POST"},
    410: {"POST"},
    415: {"POST"},
    421: {"POST"},
    503: {"POST"},
}


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_a_node_answers_as_recorded(path: Path, toy_folder: Callable[[str], Path], tmp_path: Path) -> None:
    recording = json.loads(path.read_text())
    described = recording["node"]
    node = processes.node(tmp_path, toy_folder("llama"), described["layers"], **described["settings"])
    with processes.serving(node):
        fingerprint = get_json(f"{node.url}/status")["fingerprint"]
        for exchange in recording["exchanges"]:
            answer = send(node.port, exchange["request"], fingerprint)
            assert compare(exchange["answer"], answer) == [], exchange["about"]


def test_what_is_recorded_is_what_would_be_recorded() -> None:
    """The requests on disk are those of tests/recorded_scenarios.py: a new one there needs `python -m tests.record`."""
    found = {path.stem: json.loads(path.read_text()) for path in recordings()}
    assert set(found) == {case.name for case in scenarios()}
    for case in scenarios():
        assert [exchange["request"] for exchange in found[case.name]["exchanges"]] == [
            exchange["request"] for exchange in case.requests
        ], case.name


def test_every_kind_of_answer_is_recorded() -> None:
    exchanges = [e for path in recordings() for e in json.loads(path.read_text())["exchanges"]]
    seen: dict[int, set[str]] = {}
    for exchange in exchanges:
        seen.setdefault(exchange["answer"]["status"], set()).add(exchange["request"]["method"])
    for status, methods in KINDS.items():
        assert methods <= seen.get(status, set()), status
    reasons = {exchange["answer"].get("json", {}).get("reason") for exchange in exchanges} - {None}
    assert reasons == {
        "unknown_session",
        "past_len_mismatch",
        "start_layer_mismatch",
        "layer_range_mismatch",
        "caching_disabled",
    }


def test_every_field_that_a_node_answers_is_described() -> None:
    text = (processes.ROOT / "docs" / "protocol.md").read_text()
    missing: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            missing.update(name for name in value if not re.search(rf"[`.\"]{re.escape(name)}[`.\"]", text))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    for path in recordings():
        for exchange in json.loads(path.read_text())["exchanges"]:
            look(exchange["answer"].get("json"))
    assert missing == set()


def spoil_status(answer: dict[str, Any]) -> None:
    answer["status"] = 500


def spoil_header(answer: dict[str, Any]) -> None:
    answer["headers"]["X-Meshnet-Past-Len"] = "4"


def spoil_tensor(answer: dict[str, Any]) -> None:
    answer["body_hex"] = answer["body_hex"][:-8] + "0000803f"  # the last value: 1.0


@pytest.mark.parametrize("spoil", [spoil_status, spoil_header, spoil_tensor])
def test_an_answer_that_is_not_as_recorded_is_noticed(spoil: Callable[[dict[str, Any]], None]) -> None:
    (path,) = (path for path in recordings() if path.stem == "session-inner")
    recorded = json.loads(path.read_text())["exchanges"][0]["answer"]
    answer = Answer(recorded["status"], dict(recorded["headers"]), bytes.fromhex(recorded["body_hex"]))
    assert compare(recorded, answer) == []
    spoiled = copy.deepcopy(recorded)
    spoil(spoiled)
    assert compare(spoiled, answer) != []


def test_a_field_that_is_new_gone_or_other_is_noticed_and_a_time_is_not() -> None:
    (path,) = (path for path in recordings() if path.stem == "session-inner")
    recorded = json.loads(path.read_text())["exchanges"][3]["answer"]

    def answered(change: Callable[[dict[str, Any]], Any]) -> list[str]:
        value = copy.deepcopy(recorded["json"])
        change(value)
        return compare(recorded, Answer(200, dict(recorded["headers"]), json.dumps(value).encode()))

    assert answered(lambda value: value["sessions"][0].update(age_seconds=99.5, created_at=1)) == []
    assert answered(lambda value: value["sessions"][0].update(past_len=9))
    assert answered(lambda value: value["sessions"][0].pop("hits"))
    assert answered(lambda value: value.update(new=1))
    assert answered(lambda value: value["stats"].pop("hits"))
    assert answered(lambda value: value["sessions"][0].update(age_seconds="1 s"))
