"""What all endpoints of /v1 share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import transaction
from django.http import HttpResponse
from django.utils.decorators import method_decorator
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from generation.openai.auth import BearerKey
from generation.openai.errors import Problem, report
from generation.openai.rate_limits import LimitedByKey
from nodes.errors import NotReady

if TYPE_CHECKING:
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
class OpenAIView(LimitedByKey):
    """The key and its limits, JSON errors for everything, no transaction around the request."""

    authentication_classes = [BearerKey]  # noqa: RUF012  # how REST framework spells it
    parser_classes = []  # noqa: RUF012
    renderer_classes = [JSONRenderer]  # noqa: RUF012
    content_negotiation_class = AnyAccept

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]  # no rendering needed
        report(exc, self.request._request)
        return Problem(exc).response()


def head_runtime() -> HeadRuntime:
    """The head of this process. Raises NotReady while it loads."""
    app: Any = apps.get_app_config("generation")
    runtime: HeadRuntime | None = app.runtime
    if runtime is None:
        raise NotReady()
    return runtime
