"""Who may read `/metrics`: this machine, or whoever has the metrics token. Numbers only, but they tell of the mesh."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST

from nodes.errors import MeshnetError, MethodNotAllowed, Unauthorized
from nodes.views import error_response

#: Any of these says that a proxy passed the request on: its peer is then the proxy, not who asks.
FORWARDED_HEADERS = (
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-IP",
)


def answer(request: HttpRequest, exposition: Callable[[], bytes]) -> HttpResponse:
    """The exposition, made only for those who may read it; else the protocol's JSON error."""
    try:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{request.method} is not supported here; use GET.")
        authorize(request)
        return HttpResponse(exposition(), content_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})
    except MeshnetError as error:
        response = error_response(error)
        if isinstance(error, MethodNotAllowed):
            response["Allow"] = "GET, HEAD"
            response["Connection"] = "close"  # the body was not read; meshsite.wsgi acts on this
        return response


def authorize(request: HttpRequest) -> None:
    """Raises Unauthorized unless the request comes straight from this machine or carries the metrics token.

    Only the peer's own address counts: headers can say anything, and only take the right away.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    token = settings.MESHNET_METRICS_TOKEN.encode()
    if token and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token):
        return
    if _is_loopback(request.META.get("REMOTE_ADDR", "")) and not any(
        name in request.headers for name in FORWARDED_HEADERS
    ):
        return
    raise Unauthorized(
        "Metrics are open on the machine itself only; elsewhere send MESHNET_METRICS_TOKEN as a bearer token."
    )


def _is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:  # a Unix socket has no address; who is behind it cannot be told
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
