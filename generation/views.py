"""Whether the head is alive, and whether it can answer."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe


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


def _unready(status: str) -> HttpResponse:
    response = JsonResponse({"status": status}, status=503)
    response._has_been_logged = True  # type: ignore[attr-defined]  # Django would log every probe as an error
    return response
