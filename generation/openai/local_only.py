"""MESHNET_API_AUTH=off: /v1 without keys, for programs on this machine and nobody else.

The socket is bound to loopback then, which is not enough: a proxy or tunnel on this machine brings requests of others,
and so does a browser, for any page that it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from generation.openai.errors import Problem
from meshsite.loopback import is_loopback_address, is_loopback_host

#: What proxies say of whom they speak for; besides everything that begins with X-Forwarded.
FORWARDING = frozenset(
    f"HTTP_{name}"
    for name in (
        *("FORWARDED", "FORWARDED_FOR", "VIA", "X_REAL_IP", "X_CLIENT_IP", "X_CLUSTER_CLIENT_IP", "TRUE_CLIENT_IP"),
        *("CF_CONNECTING_IP", "FASTLY_CLIENT_IP", "X_ENVOY_EXTERNAL_ADDRESS", "X_ORIGINAL_FORWARDED_FOR"),
    )
)


class LocalOnly:
    """Answers 403 to whatever did not come straight from a program on this machine. Does nothing while keys are asked
    for, and leaves every path but /v1 alone.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        is_api = request.path_info == "/v1" or request.path_info.startswith("/v1/")
        if settings.MESHNET_API_AUTH == "off" and is_api and not _is_local(request):
            return Problem(PermissionDenied()).response()
        return self._get_response(request)


def _is_local(request: HttpRequest) -> bool:
    meta = request.META
    if not is_loopback_address(meta.get("REMOTE_ADDR", "")):
        return False
    if any(name.startswith("HTTP_X_FORWARDED") or name in FORWARDING for name in meta):
        return False
    # Of a name that somebody's DNS points here, the browser sends the name.
    if not _is_loopback_netloc(meta.get("HTTP_HOST", "")):
        return False
    origin = meta.get("HTTP_ORIGIN")
    if origin is None:
        return meta.get("HTTP_SEC_FETCH_SITE") != "cross-site"
    return origin in settings.MESHNET_CORS_ORIGINS or _is_loopback_netloc(urlsplit(origin).netloc)


def _is_loopback_netloc(text: str) -> bool:
    """Whether `host[:port]` names this machine; nothing, or a user before it, does not."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "0"
    return port.isascii() and port.isdigit() and is_loopback_host(host)
