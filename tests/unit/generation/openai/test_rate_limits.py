from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
import time_machine
from django.db import DatabaseError
from django.db.models.query import QuerySet
from django.test import Client
from django.utils import timezone

from generation.answer import TextDelta
from generation.errors import NoRoute
from generation.key_usage import add_usage, day_of
from generation.limits import Level
from generation.models import APIKey, KeyRequest
from generation.openai.rate_limits import duration
from nodes.errors import NodeTimeout

from .conftest import CHAT, MODEL, PARIS, FakeHead, assert_is_error

pytestmark = pytest.mark.django_db
Post = Callable[..., Any]

NOON = "2026-03-01T12:00:00Z"
STREAM = {**CHAT, "stream": True}


def limit(**fields: Any) -> None:
    APIKey.objects.update(**fields)


def get(path: str, key: str) -> Any:
    return Client(raise_request_exception=False).get(path, headers={"Authorization": f"Bearer {key}"})


def rate_headers(response: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items() if name.lower().startswith("x-ratelimit")}


def running() -> int:
    return sum(KeyRequest.objects.values_list("running", flat=True))


# -- headers


def test_answers_of_a_key_without_limits_carry_none(post: Post, key: str) -> None:
    assert rate_headers(post()) == rate_headers(get("/v1/models", key)) == {}


@time_machine.travel(NOON, tick=False)
def test_every_answer_of_a_key_with_limits_says_how_it_stands(post: Post, key: str) -> None:
    limit(requests_per_minute=60, tokens_per_day=1000)
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "12h0m0s",
    }
    assert rate_headers(post()) == headers
    assert rate_headers(get("/v1/models", key)) == headers
    assert rate_headers(get(f"/v1/models/{MODEL}", key)) == headers
    assert rate_headers(get("/v1/models/none", key)) == headers
    assert rate_headers(post(b"{")) == headers  # an error before it was let in
    with time_machine.travel("2026-03-01T12:00:30Z", tick=False):
        assert rate_headers(post(STREAM)) == headers | {
            "x-ratelimit-remaining-requests": "58",
            "x-ratelimit-reset-tokens": "11h59m30s",
        }


def test_only_limits_that_a_key_has_are_told(post: Post) -> None:
    limit(tokens_per_day=7)
    assert set(rate_headers(post())) == {f"x-ratelimit-{word}-tokens" for word in ("limit", "remaining", "reset")}
    limit(tokens_per_day=None, concurrent_generations=3)
    assert rate_headers(post()) == {}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.2, "1s"), (59, "59s"), (59.01, "1m0s"), (360, "6m0s"), (3599, "59m59s"), (43212, "12h0m12s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(Level(1, 1, seconds)) == text


# -- refusals


@time_machine.travel(NOON, tick=False)
def test_too_many_requests_are_a_429_that_says_when_to_come_again(post: Post, head: FakeHead) -> None:
    limit(requests_per_minute=2)
    assert [post().status_code for _ in range(2)] == [200, 200]
    with time_machine.travel("2026-03-01T12:00:18Z", tick=False):
        response = post()
    error = assert_is_error(response, 429, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert response.headers["Retry-After"] == "42"
    assert "x-should-retry" not in response.headers
    assert rate_headers(response)["x-ratelimit-remaining-requests"] == "0"
    assert rate_headers(response)["x-ratelimit-reset-requests"] == "42s"
    assert len(head.made) == 2


def test_a_day_that_is_used_up_is_a_429_that_clients_do_not_repeat(post: Post) -> None:
    limit(tokens_per_day=10)
    add_usage(
        APIKey.objects.get().pk, day_of(timezone.now()), requests=1, prompt_tokens=9, completion_tokens=1
    )  # fmt: skip
    response = post()
    assert_is_error(response, 429, "insufficient_quota")
    assert response.headers["x-should-retry"] == "false"
    assert 0 < int(response.headers["Retry-After"]) <= 24 * 3600


def test_a_request_that_cannot_be_counted_is_a_503(post: Post, head: FakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(requests_per_minute=2)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("locked, says /var/lib/secret")

    with monkeypatch.context() as patch:
        patch.setattr(QuerySet, "create", fail)
        response = post()
    error = assert_is_error(response, 503, "limits_unavailable")
    assert "secret" not in error["message"]
    assert (response.headers["Retry-After"], head.made) == ("1", [])


# -- what is held, and for how long


def asked_meanwhile(post: Post, head: FakeHead, body: Any = CHAT) -> list[int]:
    """Statuses of a second request that comes while the first is answered, and of a third after it."""
    statuses: list[int] = []

    def meanwhile() -> None:
        head.script = PARIS
        statuses.append(post().status_code)

    head.script = (TextDelta("Par"), meanwhile, *PARIS[1:])
    response = post(body)
    if response.streaming:
        assert b"".join(response.streaming_content).endswith(b"data: [DONE]\n\n")
    return [*statuses, post().status_code]


def exhaust(pieces: Any) -> None:
    """Ends a stream with its test. One that is left is closed whenever garbage is collected, and gives back what its
    number stands for then: a row of another test.
    """
    for _ in pieces:
        pass


@pytest.mark.parametrize("body", [CHAT, STREAM])
def test_a_slot_is_held_while_the_answer_is_made_and_no_longer(post: Post, head: FakeHead, body: Any) -> None:
    limit(concurrent_generations=1)
    assert asked_meanwhile(post, head, body) == [429, 200]
    assert running() == 0


def test_who_has_read_the_last_event_may_send_the_next_request(post: Post) -> None:
    limit(concurrent_generations=1)
    pieces = post(STREAM).streaming_content
    *_, finish = (next(pieces) for _ in range(4))
    assert (b"finish_reason" in finish, running()) == (True, 1)
    assert next(pieces) == b"data: [DONE]\n\n"
    assert running() == 0  # although nobody has closed the stream yet
    exhaust(pieces)


def test_text_that_looks_like_the_last_event_frees_nothing(post: Post, head: FakeHead) -> None:
    limit(concurrent_generations=1)
    head.script = (TextDelta("data: [DONE]\n\n"), TextDelta('data: {"error"'), *PARIS)
    pieces = post(STREAM).streaming_content
    for _ in range(3):
        next(pieces)
    assert running() == 1
    exhaust(pieces)


def test_an_error_in_the_stream_frees_the_slot_before_it_is_sent(post: Post, head: FakeHead) -> None:
    limit(concurrent_generations=1)
    head.script = (TextDelta("Par"), NodeTimeout())
    pieces = post(STREAM).streaming_content
    *_, error = (next(pieces) for _ in range(3))
    assert (b'"error"' in error, running()) == (True, 0)
    exhaust(pieces)


@pytest.mark.django_db(transaction=True)  # closing an answer closes the connection
def test_a_stream_that_is_closed_unread_frees_its_slot(post: Post) -> None:
    limit(concurrent_generations=1)
    response = post(STREAM)
    assert running() == 1
    response.close()
    assert running() == 0


@pytest.mark.parametrize("failing", [{"script": (NodeTimeout(),)}, {"refusal": NoRoute()}])
def test_an_answer_that_fails_frees_its_slot(post: Post, head: FakeHead, failing: dict[str, Any]) -> None:
    limit(concurrent_generations=1)
    for name, value in failing.items():
        setattr(head, name, value)
    assert post().status_code >= 500
    assert running() == 0


def test_f05_an_answer_whose_slot_cannot_be_given_back_is_sent_whole(
    post: Post, head: FakeHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(concurrent_generations=1)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise DatabaseError("locked")

    for body in (CHAT, STREAM):
        response = post(body)
        with monkeypatch.context() as patch:
            patch.setattr(QuerySet, "update", fail)
            content = b"".join(response) if response.streaming else response.content
        assert response.status_code == 200 and b"Par" in content


# -- models


def test_a_model_that_the_key_may_not_use_is_not_there_for_it(post: Post, key: str, head: FakeHead) -> None:
    limit(allowed_models="another/model\n")
    assert_is_error(post(), 404, "model_not_found", "model")
    assert_is_error(get(f"/v1/models/{MODEL}", key), 404, "model_not_found", "model")
    assert get("/v1/models", key).json()["data"] == []
    assert head.made == []
    limit(allowed_models=f"another/model\n {MODEL} \n")
    assert post().status_code == 200
    assert get(f"/v1/models/{MODEL}", key).status_code == 200
    assert [model["id"] for model in get("/v1/models", key).json()["data"]] == [MODEL]


def test_a_refused_model_counts_for_no_limit(post: Post) -> None:
    limit(allowed_models="another/model", requests_per_minute=1)
    assert {post().status_code for _ in range(3)} == {404}
    assert not KeyRequest.objects.exists()


# -- the real client


@pytest.fixture
def served_key(transactional_db: None) -> str:
    _, key = APIKey.objects.create_key(name="client", last_used_at=timezone.now())
    return str(key)


def test_the_openai_client_reads_the_headers_and_raises_rate_limit_errors(
    live_server: Any, head: FakeHead, served_key: str
) -> None:
    limit(requests_per_minute=1)
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key=served_key, max_retries=0) as client:
        chats = client.chat.completions.with_raw_response
        answer = chats.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(openai.RateLimitError) as caught:
            chats.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 60


def test_the_openai_client_does_not_repeat_what_has_no_quota_left(
    live_server: Any, head: FakeHead, served_key: str
) -> None:
    limit(tokens_per_day=1)
    today = day_of(timezone.now())
    add_usage(APIKey.objects.get().pk, today, requests=1, prompt_tokens=1, completion_tokens=0)
    sent: list[str] = []
    with (
        openai.OpenAI(
            base_url=f"{live_server.url}/v1",
            api_key=served_key,
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [lambda request: sent.append(request.method)]}
            ),
        ) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])
    assert (caught.value.code, sent) == ("insufficient_quota", ["POST"])
