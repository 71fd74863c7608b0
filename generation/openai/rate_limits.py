"""The limits of API keys over HTTP: letting a request in, the `x-ratelimit-*` headers, giving back what it held.

`admit` is called once per request, before anything is generated; everything else happens on the way out, in
`LimitedByKey.finalize_response`, whatever the answer is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.http import HttpResponseBase, StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.views import APIView

from generation import limits
from generation.errors import ModelNotFound, QuotaExceeded, RateLimitExceeded
from generation.limits import Admission, Level, Standing
from generation.models import APIKey

if TYPE_CHECKING:
    from generation.runtime import HeadRuntime

#: How the last event of a stream ends and how one of an error begins: who has read it may send the next request at
#: once. No event with text in it looks like that.
_DONE, _ERROR = b"data: [DONE]\n\n", b'data: {"error"'


def usable_models(request: Request, runtime: HeadRuntime) -> Sequence[str]:
    """The served models that the request's key may use."""
    key = _key_of(request)
    served = runtime.models()
    return served if key is None else key.usable_models(served)


def admit(request: Request, runtime: HeadRuntime, *, model: str, choices: int = 1) -> None:
    """Lets the request in, as one request and as many running generations as it has choices.

    Raises ModelNotFound for a model that the key may not use, as if it were not there; RateLimitExceeded,
    QuotaExceeded, RequestRefused or LimitsUnavailable.
    """
    key = _key_of(request)
    if key is None:
        return
    if model in runtime.models() and not key.usable_models([model]):
        raise ModelNotFound(f"The model {model!r:.200} does not exist or this API key may not use it.", param="model")
    if not key.has_limits:
        return
    try:
        _of(request).admission = _limits().admit(key, owner=runtime.boot_id, generations=choices)
    except RateLimitExceeded as error:
        _of(request).admission = Admission(error.standing)
        _of(request).is_hopeless = isinstance(error, QuotaExceeded)
        raise


class LimitedByKey(APIView):
    """For views: every answer of a key with limits says how it stands, and nothing is held once it went out."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        answer: HttpResponseBase = super().finalize_response(request, response, *args, **kwargs)
        kept = _of(request)
        key = getattr(request, "_auth", None)  # `request.auth` would check the key, and after a failure once more
        if kept.admission is not None:
            _write(answer, kept.admission.standing)
            _give_back_after(answer, kept.admission)
        elif isinstance(key, APIKey) and key.has_limits:
            _write(answer, _limits().standing(key))
        if kept.is_hopeless:
            answer.headers["x-should-retry"] = "false"
        return answer


def _key_of(request: Request) -> APIKey | None:
    key: Any = request.auth  # the stubs know REST framework's own tokens only
    found: APIKey | None = key
    return found


class _Kept:
    """What a request carries from `admit` to its answer."""

    admission: Admission | None = None
    is_hopeless = False


def _of(request: Request) -> _Kept:
    kept: _Kept | None = getattr(request._request, "meshnet_limits", None)
    if kept is None:
        kept = request._request.meshnet_limits = _Kept()  # type: ignore[attr-defined]
    return kept


def _limits() -> limits.KeyLimits:
    app: Any = apps.get_app_config("generation")
    found: limits.KeyLimits = app.limits
    return found


def _give_back_after(response: HttpResponseBase, admission: Admission) -> None:
    """At once for an answer that is whole, since its client may go on when it has it; at the end of a stream."""
    if admission.held is None:
        return
    if isinstance(response, StreamingHttpResponse):
        response.streaming_content = _Held(
            response.streaming_content,  # type: ignore[arg-type]  # no asynchronous view here
            lambda: _limits().give_back(admission),
        )
    else:
        _limits().give_back(admission)


class _Held:
    """The bytes of a stream, which gives back before its last event is sent, and at the latest when it is closed."""

    def __init__(self, pieces: Iterator[bytes], give_back: Callable[[], None]) -> None:
        self._pieces = pieces
        self._give_back = give_back

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._pieces)
        except BaseException:  # StopIteration is the end too
            self._give_back()
            raise
        if piece.endswith(_DONE) or piece.startswith(_ERROR):
            self._give_back()
        return piece

    def close(self) -> None:
        self._give_back()


def _write(response: HttpResponseBase, standing: Standing) -> None:
    for what, level in (("requests", standing.requests), ("tokens", standing.tokens)):
        if level is not None:
            response.headers[f"x-ratelimit-limit-{what}"] = str(level.limit)
            response.headers[f"x-ratelimit-remaining-{what}"] = str(level.remaining)
            response.headers[f"x-ratelimit-reset-{what}"] = duration(level)


def duration(level: Level) -> str:
    """When a limit is whole again, as OpenAI writes it: `0s`, `59s`, `6m0s`, `7h0m12s`; whole seconds, rounded up."""
    seconds = math.ceil(level.reset_seconds)
    if seconds < 60:
        return f"{seconds}s"
    hours, minutes, rest = seconds // 3600, seconds % 3600 // 60, seconds % 60
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
