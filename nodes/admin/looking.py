"""What the live pages share: one look at the nodes, and an answer that is a whole page or only its live part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from nodes import registry
from nodes.apps import NodesConfig
from nodes.errors import MeshnetError
from nodes.snapshots import SeenNode, SnapshotCache

#: A page with this parameter answers with its live part alone; live.js asks for it.
FRAGMENT = "fragment"
#: Tells live.js that it got a live part and not, say, the login page.
LIVE_HEADER = "X-Meshnet-Live"


@dataclass(frozen=True)
class Look:
    """All nodes as they are seen now. Without a mesh `problem` says what to do and there are none."""

    nodes: list[SeenNode]
    problem: str = ""


def shared_snapshots() -> SnapshotCache:
    return cast(NodesConfig, apps.get_app_config("nodes")).snapshots


def look() -> Look:
    """At most two seconds old, and never later than the nodes' deadline."""
    try:
        return Look(shared_snapshots().look(registry.node_clients()))
    except MeshnetError as error:
        return Look([], error.detail)


class LiveAdmin(admin.ModelAdmin):
    """Pages about what runs: nothing is added, changed or deleted as a row."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def live_page(
        self, request: HttpRequest, name: str, title: str, context: dict[str, Any], *, status: int = 200
    ) -> HttpResponse:
        """`admin/nodes/<name>.html`, or with ?fragment `admin/nodes/<name>_live.html`, which the former includes."""
        context = {"opts": self.opts, "asked_at": timezone.localtime(), "live_url": _live_url(request), **context}
        if request.GET.get(FRAGMENT):
            response = TemplateResponse(request, f"admin/nodes/{name}_live.html", context)
            response[LIVE_HEADER] = "1"
            return response
        request.current_app = self.admin_site.name
        page = {**self.admin_site.each_context(request), "title": title, **context}
        return TemplateResponse(request, f"admin/nodes/{name}.html", page, status=status)

    def confirmation(
        self, request: HttpRequest, title: str, *, fields: Sequence[tuple[str, str]], back: str, **context: Any
    ) -> HttpResponse:
        """A page that says what a POST to this URL will do, and whose form sends `fields` again, confirmed."""
        request.current_app = self.admin_site.name
        page = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "fields": fields,
            "back": back,
            **context,
        }
        return TemplateResponse(request, "admin/nodes/confirm.html", page)


def is_confirmed(request: HttpRequest) -> bool:
    return request.POST.get("confirmed") == "yes"


def log(request: HttpRequest, objects: Sequence[Model], flag: int, message: str) -> None:
    """One entry per object in the admin's history."""
    LogEntry.objects.log_actions(
        user_id=cast(int, request.user.pk),
        queryset=cast(Any, objects),
        action_flag=flag,
        change_message=message,
    )


def _live_url(request: HttpRequest) -> str:
    query = request.GET.copy()
    query[FRAGMENT] = "1"
    return f"{request.path}?{query.urlencode()}"
