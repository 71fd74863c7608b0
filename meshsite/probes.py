"""The probes of a head stand before everything else: they are asked by address or by whatever name a machine has, and
no host check, session or CSRF check concerns them.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from generation import views

PROBES = {"/livez": views.livez, "/readyz": views.readyz}


class ProbesFirst:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        probe = PROBES.get(request.path_info)
        return self._get_response(request) if probe is None else probe(request)
