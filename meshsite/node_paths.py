"""Role `all`: a node's endpoints behave in a head's process as they do in a node's own."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import Resolver404, resolve

from nodes import views

#: First parts of the paths that a node serves and a head does not.
NODE_PATHS = frozenset({"forward", "sessions", "status", "limits", "drain"})


class NodePathsFirst:
    """Stands outermost: other heads call a node by any name and carry no cookies, so neither the head's host check
    nor its sessions concern these paths, and every error is the protocol's JSON.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info.lstrip("/").partition("/")[0] not in NODE_PATHS:
            return self._get_response(request)
        try:
            match = resolve(request.path_info, urlconf="meshsite.urls_node")
        except Resolver404:
            return views.not_found(request)
        response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
        return response
