"""What nodes send to a head stands before everything else: nodes call it by whatever name or address they know, carry
no cookies, and every answer is the protocol's JSON.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve

from nodes import views

URLCONF = "nodes.mesh_urls"


class MeshPathsFirst:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith("/mesh/"):
            return self._get_response(request)
        try:
            match = resolve(request.path_info, urlconf=URLCONF)
        except Resolver404:
            return views.not_found(request)
        response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
        return response
