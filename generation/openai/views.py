"""The endpoints of /v1: check the key, read the request, start the answers, send them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.request import Request

from generation.errors import ContextLengthExceeded, ModelNotFound
from generation.openai import responses, schema
from generation.openai.base_view import OpenAIView, head_runtime
from generation.openai.body import read_json
from generation.openai.client_socket import watch
from generation.openai.errors import Problem
from generation.openai.rate_limits import admit, usable_models

if TYPE_CHECKING:
    from generation.answer import ChatRequest, CompletionRequest
    from generation.openai.choices import Choices
    from generation.openai.completions import CompletionCall
    from generation.openai.requests import ChatCall
    from generation.openai.responses import Shape
    from generation.runtime import HeadRuntime


class ChatCompletions(OpenAIView):
    http_method_names = ["post"]  # noqa: RUF012

    @schema.CHAT
    def post(self, request: Request) -> HttpResponseBase:
        # Here, since answers compute: urls and commands must not load torch.
        from generation.openai.chat_shape import ChatShape
        from generation.openai.requests import read_chat
        from generation.openai.shared_fields import served_by

        body = read_json(request._request)
        runtime = head_runtime()
        call = read_chat(body, served_by(runtime))
        choices = start(request, runtime, [call.request], call, prefix="chatcmpl")
        shape = ChatShape(
            choices,
            runtime.prompter,
            logprobs=call.request.logprobs is not None,
            tools=bool(call.request.tools),
            include_usage=call.include_usage,
        )
        return send(request, choices, shape, stream=call.stream)


class Completions(OpenAIView):
    http_method_names = ["post"]  # noqa: RUF012

    @schema.COMPLETION
    def post(self, request: Request) -> HttpResponseBase:
        from generation.openai.completion_shape import CompletionShape
        from generation.openai.completions import echoed, read_completion, tokenized
        from generation.openai.shared_fields import served_by

        body = read_json(request._request)
        runtime = head_runtime()
        call = read_completion(body, served_by(runtime))
        requests = [tokenized(one, runtime.prompter) for one in call.requests]
        texts = echoed(call, runtime.prompter)
        choices = start(request, runtime, requests, call, prefix="cmpl")
        shape = CompletionShape(
            choices,
            runtime.prompter,
            logprobs=requests[0].logprobs is not None,
            echoed=texts,
            include_usage=call.include_usage,
        )
        return send(request, choices, shape, stream=call.stream)


class Models(OpenAIView):
    http_method_names = ["get", "head"]  # noqa: RUF012

    @schema.MODELS
    def get(self, request: Request) -> HttpResponse:
        return JsonResponse(responses.model_list(usable_models(request, head_runtime()), int(time.time())))


class Model(OpenAIView):
    http_method_names = ["get", "head"]  # noqa: RUF012

    @schema.MODEL
    def get(self, request: Request, name: str) -> HttpResponse:
        name = name.removesuffix("/")
        if name not in usable_models(request, head_runtime()):
            raise ModelNotFound(f"The model {name!r:.200} is not served here.", param="model")
        return JsonResponse(responses.model(name, int(time.time())))


@csrf_exempt
def unknown_url(request: HttpRequest) -> HttpResponse:
    """Every other path under /v1, with and without a key."""
    return Problem(Http404()).response()


def start(
    request: Request,
    runtime: HeadRuntime,
    requests: Sequence[ChatRequest] | Sequence[CompletionRequest],
    call: ChatCall | CompletionCall,
    *,
    prefix: str,
) -> Choices:
    """Lets the request in and starts its answers."""
    from generation.openai import choices

    key: Any = request.auth  # the APIKey that BearerKey found; None without authentication
    admit(request, runtime, model=requests[0].model, choices=len(requests) * call.n)
    try:
        started = choices.start(
            runtime,
            requests,
            n=call.n,
            prefix=prefix,
            api_key=key,
            streamed=call.stream,
            client_gone=watch(request.META),
        )
    except ContextLengthExceeded as error:
        if error.param == "max_tokens":
            error.param = call.limit_field
        raise
    if not connection.in_atomic_block:
        connection.close()  # what follows takes long and needs no database (case F06)
    return started


def send(request: Request, choices: Choices, shape: Shape, *, stream: bool) -> HttpResponseBase:
    from generation.openai.sse import EventStream
    from generation.openai.whole import send_whole

    client_gone = watch(request.META)
    if not stream:
        return send_whole(choices, shape, client_gone, request._request)
    return StreamingHttpResponse(
        EventStream(choices, shape, client_gone=client_gone, request=request._request),
        content_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )
