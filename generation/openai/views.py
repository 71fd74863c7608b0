"""The endpoints of /v1: check the key, read the request, start the answer, send it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connection, transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from generation.errors import Cancelled, ModelNotFound
from generation.openai import responses
from generation.openai.auth import BearerKey
from generation.openai.body import read_json
from generation.openai.client_socket import watch
from generation.openai.errors import CLIENT_GONE, Problem, report
from nodes.errors import NotReady

if TYPE_CHECKING:
    from generation.answer import Answer
    from generation.runtime import HeadRuntime


class AnyAccept(BaseContentNegotiation):
    """Ignores `Accept`: clients of event streams send what Django REST framework would answer with a 406."""

    def select_parser(self, request: Request, parsers: Any) -> None:
        return None

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


# A transaction would be open for as long as the answer takes, and over before a stream begins (case F06).
@method_decorator(transaction.non_atomic_requests, name="dispatch")
class OpenAIView(APIView):
    """What all endpoints share: the key, JSON errors for everything, no transaction around the request."""

    authentication_classes = [BearerKey]  # noqa: RUF012  # how REST framework spells it
    parser_classes = []  # noqa: RUF012
    renderer_classes = [JSONRenderer]  # noqa: RUF012
    content_negotiation_class = AnyAccept

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]  # no rendering needed
        report(exc, self.request._request)
        return Problem(exc).response()


class ChatCompletions(OpenAIView):
    http_method_names = ["post"]  # noqa: RUF012

    def post(self, request: Request) -> HttpResponseBase:
        # Here, since answers compute: urls and commands must not load torch.
        from generation import answer as answers
        from generation.openai.requests import read_chat

        key: Any = request.auth  # the APIKey that BearerKey found
        call = read_chat(read_json(request._request))
        client_gone = watch(request.META)
        answer = answers.start(head_runtime(), call.request, api_key=key, streamed=call.stream, client_gone=client_gone)
        if not connection.in_atomic_block:
            connection.close()  # what follows takes long and needs no database (case F06)
        if not call.stream:
            return send_whole(answer, client_gone, request._request)

        from generation.openai.sse import EventStream

        return StreamingHttpResponse(
            EventStream(answer, include_usage=call.include_usage, client_gone=client_gone, request=request._request),
            content_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )


class Models(OpenAIView):
    http_method_names = ["get", "head"]  # noqa: RUF012

    def get(self, request: Request) -> HttpResponse:
        return JsonResponse(responses.model_list(head_runtime().models(), int(time.time())))


class Model(OpenAIView):
    http_method_names = ["get", "head"]  # noqa: RUF012

    def get(self, request: Request, name: str) -> HttpResponse:
        name = name.removesuffix("/")
        if name not in head_runtime().models():
            raise ModelNotFound(f"The model {name!r:.200} is not served here.", param="model")
        return JsonResponse(responses.model(name, int(time.time())))


@csrf_exempt
def unknown_url(request: HttpRequest) -> HttpResponse:
    """Every other path under /v1, with and without a key."""
    return Problem(Http404()).response()


def send_whole(answer: Answer, client_gone: Callable[[], bool], request: HttpRequest) -> HttpResponse:
    """Waits for the whole answer; cancels it when the client has gone or when it fails."""
    from generation.answer import Finished, TextDelta

    pieces: list[str] = []
    try:
        for event in answer.events():
            if isinstance(event, Finished):
                return JsonResponse(responses.completion(answer, "".join(pieces), event))
            if client_gone():
                answer.cancel()
                return HttpResponse(status=CLIENT_GONE, content_type="application/json")
            if isinstance(event, TextDelta):
                pieces.append(event.text)
        raise Cancelled()
    except Exception as error:
        answer.cancel()
        report(error, request)
        return Problem(error, work_done=True).response()


def head_runtime() -> HeadRuntime:
    """The head of this process. Raises NotReady while it loads."""
    app: Any = apps.get_app_config("generation")
    runtime: HeadRuntime | None = app.runtime
    if runtime is None:
        raise NotReady()
    return runtime
