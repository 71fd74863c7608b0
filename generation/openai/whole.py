"""An answer in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse, JsonResponse

from generation.answer import Silence
from generation.openai.errors import CLIENT_GONE, Problem, report

if TYPE_CHECKING:
    from generation.openai.choices import Choices
    from generation.openai.responses import Shape


def send_whole(
    choices: Choices, shape: Shape, client_gone: Callable[[], bool], request: HttpRequest | None = None
) -> HttpResponse:
    """Waits for the whole answer; cancels it when the client has gone or when it fails."""
    try:
        for index, event in choices.events():
            if client_gone():
                choices.cancel()
                return HttpResponse(status=CLIENT_GONE, content_type="application/json")
            if not isinstance(event, Silence):
                shape.take(index, event)
        return JsonResponse(shape.whole())
    except Exception as error:
        choices.cancel()
        report(error, request)
        return Problem(error, work_done=True).response()
