"""The table of fields in docs/openai.md is what the running code does with each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from generation.openai.completions import read_completion
from generation.openai.requests import read_chat
from generation.openai.shared_fields import Served

from .conftest import CHAT, COMPLETION, VOCAB, FakeHead, assert_is_error

PAGE = Path(__file__).resolve().parents[4] / "docs" / "openai.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\{.*\})` \| (\S+) \| (\S+) \|", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())

SERVED = Served(vocab_size=VOCAB, most_choices=8, takes_tools=True)
#: Fields of other servers that are documented as not OpenAI's.
OWN = {"top_k", "min_p", "repetition_penalty"}
ENDPOINTS: dict[str, tuple[str, dict[str, Any], Callable[..., Any]]] = {
    "chat": ("/v1/chat/completions", CHAT, read_chat),
    "completions": ("/v1/completions", COMPLETION, read_completion),
}


def rows(endpoint: str) -> list[tuple[str, dict[str, Any], str]]:
    """Field, what is sent, and what comes of it; of a field that the endpoint does not have, the field alone."""
    found = []
    for field, text, chat, completions in ROWS:
        sent, status = json.loads(text), chat if endpoint == "chat" else completions
        found.append((field, {field: sent[field]} if status == "—" else sent, status))
    return found


CASES = [
    pytest.param(endpoint, *row, id=f"{endpoint} {row[0]}={row[1][row[0]]!r:.30}")
    for endpoint in ENDPOINTS
    for row in rows(endpoint)
]


def of_the_client(base: Any, streaming: Any) -> set[str]:
    return set(base.__annotations__) | set(streaming.__annotations__)


def test_the_table_was_read_whole() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and "| `{" in line]
    assert len(ROWS) == len(lines) > 40
    assert all(field in json.loads(sent) for field, sent, _, _ in ROWS)


def test_it_has_every_field_that_the_openai_client_can_send_in_a_chat() -> None:
    documented = {field for field, _, status in rows("chat") if status != "—"}
    client = of_the_client(chat_params.CompletionCreateParamsBase, chat_params.CompletionCreateParamsStreaming)
    assert documented == client | OWN


def test_it_has_every_field_that_the_openai_client_can_send_for_a_completion() -> None:
    documented = {field for field, _, status in rows("completions") if status != "—"}
    client = of_the_client(
        completion_params.CompletionCreateParamsBase, completion_params.CompletionCreateParamsStreaming
    )
    assert documented >= client | OWN
    assert {status for field, _, status in rows("completions") if field in documented - client - OWN} == {"ignored"}


@pytest.mark.parametrize("endpoint, field, sent, status", CASES)
def test_a_row_says_what_is_answered(
    post: Callable[..., Any], head: FakeHead, endpoint: str, field: str, sent: dict[str, Any], status: str
) -> None:
    head.prompter.supports_tools = True
    path, base, _ = ENDPOINTS[endpoint]
    response = post({**base, **sent, "model": base["model"]}, path=path)
    if status in ("supported", "ignored", "required", "—"):
        assert response.status_code == 200
        response.close()
    else:
        assert_is_error(response, 400, status, field)
        assert head.asked == []


@pytest.mark.parametrize("endpoint, field, sent, status", CASES)
def test_a_row_says_whether_the_field_has_an_effect(
    endpoint: str, field: str, sent: dict[str, Any], status: str
) -> None:
    _, base, read = ENDPOINTS[endpoint]
    without = {**base, **{name: value for name, value in sent.items() if name != field}}
    with_it = {**without, field: sent[field]}
    if status == "supported":
        assert read(with_it, SERVED) != read(without, SERVED)
    elif status in ("ignored", "—"):
        assert read(with_it, SERVED) == read(without, SERVED)


@pytest.mark.parametrize("endpoint, field, sent, status", [case for case in CASES if case.values[3] == "required"])
def test_a_required_field_that_is_missing_is_named(
    post: Callable[..., Any], endpoint: str, field: str, sent: dict[str, Any], status: str
) -> None:
    path, base, _ = ENDPOINTS[endpoint]
    for body in ({**base, field: None}, {name: value for name, value in base.items() if name != field}):
        assert_is_error(post(body, path=path), 400, "missing_required_parameter", field)
