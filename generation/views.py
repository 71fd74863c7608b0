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
    """200 when a generation could start now, else 503; what is missing stands in `detail`."""
    app: Any = apps.get_app_config("generation")
    if app.runtime is None:
        return JsonResponse({"ready": False, "detail": "The head is still loading."}, status=503)
    state: dict[str, Any] = app.runtime.ready()
    return JsonResponse(state, status=200 if state["ready"] else 503)
