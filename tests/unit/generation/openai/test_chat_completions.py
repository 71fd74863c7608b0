"""POST /v1/chat/completions in one piece: shapes, statuses, and every body that could break it."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from generation.answer import Finished, Silence, TextDelta
from generation.errors import Cancelled, ContextLengthExceeded, GaveUp, NoRoute, RequestRefused, TookTooLong
from generation.openai.body import MAX_BODY_BYTES
from nodes.errors import (
    BadRequest,
    Busy,
    ComputeFailed,
    KVCacheMiss,
    MeshnetError,
    NodeProtocolError,
    NodeTimeout,
    NodeUnreachable,
    PayloadTooLarge,
    Released,
    Unauthorized,
    WrongLayers,
)

from .conftest import CHAT, MODEL, PARIS, FakeHead, assert_is_error

Post = Callable[..., Any]


def test_an_answer_has_the_exact_shape(post: Post, head: FakeHead) -> None:
    response = post()
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("chatcmpl-")
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "object": "chat.completion",
        "created": 1_700_000_001,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }
    assert head.asked[0]["streamed"] is False
    assert head.asked[0]["api_key"].name == "test"


def test_several_choices_stand_in_one_answer(post: Post, head: FakeHead) -> None:
    head.scripts = [PARIS, (TextDelta("Rome?"), Finished("length", 7, 3))]
    body = post({**CHAT, "n": 2}).json()
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "Paris."),
        (1, "Rome?"),
    ]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (7, 5)


@override_settings(MESHNET_MAX_CHOICES=2)
def test_the_server_says_how_many_choices_there_may_be(post: Post, head: FakeHead) -> None:
    assert post({**CHAT, "n": 2}).status_code == 200
    assert "2" in assert_is_error(post({**CHAT, "n": 3}), 400, "invalid_value", "n")["message"]


def test_a_later_choice_that_is_refused_is_not_to_be_asked_for_again(post: Post, head: FakeHead) -> None:
    head.refusals = {2: Busy()}
    response = post({**CHAT, "n": 3})
    assert_is_error(response, 503, "busy")
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers
    assert head.made[0].cancelled == 1


def test_silences_leave_no_trace_in_an_answer_in_one_piece(post: Post, head: FakeHead) -> None:
    head.script = (Silence(), TextDelta("a"), Silence(), Finished("length", 1, 1))
    (choice,) = post().json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", "length")


def test_an_empty_answer_is_an_empty_string(post: Post, head: FakeHead) -> None:
    head.script = (Finished("stop", 1, 0),)
    assert post().json()["choices"][0]["message"]["content"] == ""


def test_c09_a_trailing_slash_is_served_without_a_redirect(post: Post) -> None:
    assert post(path="/v1/chat/completions/").json()["choices"][0]["message"]["content"] == "Paris."


@pytest.mark.parametrize(
    "body, param",
    [
        (b"", None),
        (b"  \n", None),
        (b"[]", None),
        (b'"x"', None),
        (b"5", None),
        (b"null", None),
        (b"{", None),
        (b"{'model': 1}", None),
        (b'{"messages":NaN}', None),
        (b'{"temperature":Infinity}', None),
        (b"\xff\xfe", None),
        (b'{"model": "\xe6\x97"}', None),
        ('{"model": "toy"}'.encode("utf-16"), None),
        (b'{"messages":"x"}', "model"),
        (b'{"model":"toy/llama","messages":"x"}', "messages"),
        (b'{"model":"toy/llama"}', "messages"),
        (b'{"model":"toy/llama","messages":[]}', "messages"),
        (b'{"model":5,"messages":[]}', "model"),
        (b"[" * 10_000, None),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, None),
        (b'{"model":"toy/llama","seed":' + b"9" * 5000 + b"}", None),
        (b'{"model":"toy/llama","messages":[{"role":"user","content":"\\ud83d"}]}', None),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_c09_e08_any_broken_body_is_a_400_in_json(
    post: Post, head: FakeHead, body: bytes, param: str | None, debug: bool
) -> None:
    with override_settings(DEBUG=debug):
        response = post(body)
    assert_is_error(response, 400, response.json()["error"]["code"], param)
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert head.asked == []


def test_a_surrogate_pair_in_escapes_is_a_character(post: Post, head: FakeHead) -> None:
    body = b'{"model":"toy/llama","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert post(body).status_code == 200
    assert head.request.messages[0]["content"] == "\U0001f600"


def test_c09_an_unknown_model_is_a_404_with_the_code_that_clients_know(post: Post) -> None:
    assert_is_error(post({**CHAT, "model": "gpt-4o"}), 404, "model_not_found", "model")


@pytest.mark.parametrize("method", ["get", "put", "delete", "patch", "options"])
def test_c09_other_methods_are_a_405(head: FakeHead, key: str, method: str) -> None:
    response = getattr(Client(), method)("/v1/chat/completions", headers={"Authorization": f"Bearer {key}"})
    assert_is_error(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == "POST"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_c09_another_content_type_is_a_415(post: Post, head: FakeHead, content_type: str) -> None:
    assert_is_error(post(content_type=content_type), 415, "unsupported_media_type")
    assert head.asked == []


def test_a_charset_may_stand_behind_the_content_type(post: Post) -> None:
    assert post(content_type="application/json; charset=utf-8").status_code == 200


def test_a_compressed_body_is_a_415(post: Post) -> None:
    assert_is_error(post(headers={"Content-Encoding": "gzip"}), 415, "unsupported_media_type")


@pytest.mark.parametrize("accept", ["text/event-stream", "text/html", "image/png", "nonsense", "*/*", ""])
@pytest.mark.parametrize("query", ["", "?format=xml"])
def test_no_accept_header_is_ever_a_406(post: Post, accept: str, query: str) -> None:
    response = post(path=f"/v1/chat/completions{query}", headers={"Accept": accept})
    assert response.status_code == 200
    assert response.headers["Content-Type"] == "application/json"


# -- sizes


def test_e08_a_chat_of_20_mb_is_a_413(post: Post, head: FakeHead) -> None:
    assert_is_error(post(b" " * 20 * 1024 * 1024), 413, "request_too_large")
    assert head.asked == []


def test_e08_a_body_at_the_limit_is_read_and_one_byte_more_is_not(post: Post) -> None:
    body = json.dumps(CHAT).encode()
    body += b" " * (MAX_BODY_BYTES - len(body))
    assert post(body).status_code == 200
    assert_is_error(post(body + b" "), 413, "request_too_large")


class Body(io.BytesIO):
    """Counts what is read of it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def call_wsgi(body: Body, key: str, **environ: Any) -> tuple[int, dict[str, str], bytes]:
    """A request straight into the WSGI application: the test client always sends a true Content-Length."""
    request = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/v1/chat/completions",
        "SCRIPT_NAME": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json",
        "HTTP_AUTHORIZATION": f"Bearer {key}",
        "wsgi.input": body,
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
        "wsgi.version": (1, 0),
        **environ,
    }
    started: list[Any] = []
    response = WSGIHandler()(request, lambda status, headers, exc_info=None: started.extend((status, headers)))
    content = b"".join(response)
    response.close()
    return int(started[0].split()[0]), dict(started[1]), content


def test_e08_ten_gigabytes_are_refused_before_a_byte_is_read(head: FakeHead, key: str) -> None:
    body = Body(b"{}")
    status, headers, content = call_wsgi(body, key, CONTENT_LENGTH=str(10 * 1024**3))
    assert (status, body.taken) == (413, 0)
    assert json.loads(content)["error"]["code"] == "request_too_large"
    assert "Connection" not in headers


@pytest.mark.parametrize("length", ["-1", "1e3", "5, 5", "0x10", "\u0665"])
def test_a_content_length_that_is_no_number_is_a_400(head: FakeHead, key: str, length: str) -> None:
    status, _, content = call_wsgi(Body(json.dumps(CHAT).encode()), key, CONTENT_LENGTH=length)
    assert status == 400
    assert json.loads(content)["error"]["type"] == "invalid_request_error"


def test_a_chunked_body_is_read_to_its_end(head: FakeHead, key: str) -> None:
    status, _, content = call_wsgi(
        Body(json.dumps(CHAT).encode()),
        key,
        **{"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True},
    )
    assert status == 200, content


def test_e08_a_chunked_body_is_read_up_to_the_limit_only(head: FakeHead, key: str) -> None:
    body = Body(b" " * (MAX_BODY_BYTES + 1000))
    status, _, content = call_wsgi(body, key, **{"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True})
    assert (status, json.loads(content)["error"]["code"]) == (413, "request_too_large")
    assert body.taken == MAX_BODY_BYTES + 1


def test_a_body_without_an_end_is_a_411(head: FakeHead, key: str) -> None:
    status, _, content = call_wsgi(Body(b"{}"), key, HTTP_TRANSFER_ENCODING="chunked")
    assert (status, json.loads(content)["error"]["code"]) == (411, "length_required")


@pytest.mark.parametrize(
    "environ, closes",
    [
        ({"CONTENT_LENGTH": str(10 * 1024**3)}, True),
        ({"CONTENT_LENGTH": "2", "HTTP_AUTHORIZATION": "Bearer wrong"}, True),
        ({"CONTENT_LENGTH": "2", "PATH_INFO": "/v1/nothing"}, True),
        ({"CONTENT_LENGTH": "2"}, False),
        ({"CONTENT_LENGTH": "", "REQUEST_METHOD": "GET"}, False),
        ({"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}, False),
    ],
    ids=["too large", "wrong key", "unknown path", "was read", "no body", "chunks were read"],
)
def test_gunicorn_closes_connections_whose_body_was_not_read(
    head: FakeHead, key: str, environ: dict[str, Any], closes: bool
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _, headers, _ = call_wsgi(Body(b"{}"), key, **{"gunicorn.socket": ours, **environ})
    assert (headers.get("Connection") == "close") is closes


# -- what goes wrong before an answer


def test_503_while_the_head_loads(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", None)
    response = post()
    assert_is_error(response, 503, "not_ready")
    assert response.headers["Retry-After"] == "5"


@pytest.mark.parametrize(
    "error, status, code, param",
    [
        (ContextLengthExceeded("Too long.", param="messages"), 400, "context_length_exceeded", "messages"),
        (RequestRefused("The template refuses.", param="messages"), 400, "invalid_value", "messages"),
        (NoRoute("Layers 15:30 are missing."), 503, "no_route", None),
        (Busy(), 503, "busy", None),
        (NodeUnreachable(), 502, "node_unreachable", None),
        (NodeTimeout(), 504, "node_timeout", None),
        (NodeProtocolError(), 502, "node_protocol_error", None),
        (ComputeFailed(), 500, "compute_failed", None),
        (MeshnetError(), 500, "internal", None),
        (RuntimeError("a bug"), 500, "internal", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_start_refuses_has_its_status_and_code(
    post: Post, head: FakeHead, error: Exception, status: int, code: str, param: str | None
) -> None:
    head.refusal = error
    response = post()
    assert_is_error(response, status, code, param)
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize(
    "error",
    [KVCacheMiss(reason="unknown_session"), Released(), BadRequest(), Unauthorized(), WrongLayers()],
    ids=lambda error: type(error).__name__,
)
def test_what_a_node_refused_is_never_the_clients_fault(post: Post, head: FakeHead, error: MeshnetError) -> None:
    head.refusal = error
    response = post()
    assert response.status_code in (502, 503)
    assert_is_error(response, response.status_code, response.json()["error"]["code"])
    assert response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize(
    "error, status, code",
    [
        (Cancelled(), 503, "cancelled"),
        (GaveUp("8 routes."), 503, "gave_up"),
        (TookTooLong(), 504, "generation_timeout"),
        (PayloadTooLarge(), 503, "cache_too_small"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_would_be_as_much_work_again_is_not_to_be_asked_for_again(
    post: Post, head: FakeHead, error: Exception, status: int, code: str
) -> None:
    head.refusal = error
    response = post()
    assert_is_error(response, status, code)
    assert response.headers["x-should-retry"] == "false"


def test_retry_after_stands_where_nothing_was_done_yet(post: Post, head: FakeHead) -> None:
    head.refusal = Busy()
    assert post().headers["Retry-After"] == "1"


def test_clients_are_not_told_where_nodes_live_but_the_log_is(
    post: Post, head: FakeHead, caplog: pytest.LogCaptureFixture
) -> None:
    head.refusal = NodeUnreachable("http://10.0.0.5:8001 cannot be reached")
    response = post(headers={"x-request-id": "req-7"})
    assert b"10.0.0.5" not in response.content
    assert "10.0.0.5" in caplog.text
    assert "req-7" in caplog.text


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_e06_a_bug_is_a_500_in_json_and_neither_key_nor_text_reaches_the_log(
    post: Post, head: FakeHead, key: str, caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    head.refusal = RuntimeError("a bug")
    caplog.set_level(logging.DEBUG)
    with override_settings(DEBUG=debug):
        response = post({**CHAT, "messages": [{"role": "user", "content": "MARKER"}]})
    error = assert_is_error(response, 500, "internal")
    assert "a bug" not in error["message"]
    assert "a bug" in caplog.text
    assert "MARKER" not in caplog.text
    assert key not in caplog.text and key.split(".")[1][:12] not in caplog.text


# -- what goes wrong in the middle of an answer


def test_an_error_after_work_was_done_tells_clients_not_to_repeat_it(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), NodeTimeout())
    response = post()
    assert_is_error(response, 504, "node_timeout")
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers


def test_no_retry_after_once_work_was_done(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), Busy())
    response = post()
    assert_is_error(response, 503, "busy")
    assert "Retry-After" not in response.headers


def test_a_bug_in_the_middle_of_an_answer_is_a_500_and_cancels_it(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), RuntimeError("a bug"))
    assert_is_error(post(), 500, "internal")
    assert head.made[0].cancelled == 1


def test_an_answer_that_was_cancelled_is_not_taken_for_a_whole_one(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"),)
    assert_is_error(post(), 503, "cancelled")


def test_d01_a_client_that_has_gone_is_noticed_between_two_events(head: FakeHead, key: str) -> None:
    ours, theirs = socket.socketpair()
    head.script = (TextDelta("Par"), theirs.close, Silence(), TextDelta("is."), Finished("stop", 7, 2))
    with ours, theirs:
        body = json.dumps(CHAT).encode()
        status, _, _ = call_wsgi(Body(body), key, **{"CONTENT_LENGTH": str(len(body)), "gunicorn.socket": ours})
    assert status == 499
    assert (head.made[0].given, head.made[0].cancelled) == (2, 1)


def test_a_client_that_stays_is_not_cancelled(head: FakeHead, key: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        body = json.dumps(CHAT).encode()
        status, _, _ = call_wsgi(Body(body), key, **{"CONTENT_LENGTH": str(len(body)), "gunicorn.socket": ours})
    assert (status, head.made[0].cancelled) == (200, 0)


# -- what surrounds a request


def test_one_query_answers_a_chat_and_nothing_is_written(post: Post) -> None:
    with CaptureQueriesContext(connection) as queries:
        post()
    assert len(queries) == 1
    assert queries[0]["sql"].startswith("SELECT")


def test_e04_a_session_id_from_the_client_is_ignored(post: Post, head: FakeHead) -> None:
    assert post(headers={"X-Meshnet-Session": "a" * 32}).status_code == 200
    assert "a" * 32 not in repr(head.asked)


def test_cookies_do_not_open_a_session_in_the_database(post: Post) -> None:
    with CaptureQueriesContext(connection) as queries:
        post(headers={"Cookie": "sessionid=abc; csrftoken=def"})
    assert len(queries) == 1
