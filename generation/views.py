"""Whether the head is alive, whether it can answer, and its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from nodes.errors import NotReady

if TYPE_CHECKING:
    from generation.runtime import HeadRuntime


@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers at all."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when a generation could start now, else 503. Open, so it says nothing about the mesh; the log does."""
    app: Any = apps.get_app_config("generation")
    if app.runtime is None:
        return _unready("loading")
    return JsonResponse({"status": "ok"}) if app.runtime.is_ready() else _unready("no_route")


@csrf_exempt
def metrics(request: HttpRequest) -> HttpResponse:
    """The head's numbers for Prometheus, and those of its nodes. Open on this machine, elsewhere with a token."""
    from generation import metrics as head_metrics  # here: commands that load the URLs need none of it
    from nodes import metrics_access

    return metrics_access.answer(request, lambda: head_metrics.exposition(_running_head()))


def _running_head() -> HeadRuntime:
    app: Any = apps.get_app_config("generation")
    runtime: HeadRuntime | None = app.runtime
    if runtime is None:
        raise NotReady()
    return runtime


def _unready(status: str) -> HttpResponse:
    response = JsonResponse({"status": status}, status=503)
    response._has_been_logged = True  # type: ignore[attr-defined]  # Django would log every probe as an error
    return response
