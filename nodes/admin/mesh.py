"""The mesh overview: which nodes hold which layers, and how they do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from nodes import samples
from nodes.admin.looking import LiveAdmin, look
from nodes.curves import curves
from nodes.models import Mesh, Node
from nodes.overview import overview
from nodes.session_page import session_page


@admin.register(Mesh)
class MeshAdmin(LiveAdmin):
    """The model has no table: nothing here may ask the database for rows of it."""

    def get_urls(self) -> list[URLPattern]:
        # Only these: the stock pages would look for a table.
        protect = self.admin_site.admin_view
        return [
            path("", protect(self.changelist_view), name="nodes_mesh_changelist"),
            path("data.json", protect(self.data_view), name="nodes_mesh_data"),
        ]

    @method_decorator((require_safe, never_cache))
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        seen = look()
        rows = list(Node.objects.all())
        page = overview(seen.nodes, rows)
        interval, now = settings.MESHNET_SAMPLE_SECONDS, timezone.now()
        names = {row.pk: row.url for row in rows}
        points = {
            names[key]: one for key, one in samples.last_hour(now, interval, nodes=len(rows)).items() if key in names
        }
        sessions = session_page(seen.nodes)
        context = {
            "page": page,
            "problem": seen.problem,
            "sessions": sessions,
            "curves": curves(points, now=now, seconds=interval, colours=page.colours),
            "sample_every": timedelta(seconds=interval),
            "may_see_sessions": request.user.has_perm("nodes.view_kvsession"),
            "may_see_nodes": request.user.has_perm("nodes.view_node"),
        }
        return self.live_page(request, "mesh", "Mesh overview", context)

    @method_decorator((require_safe, never_cache))
    def data_view(self, request: HttpRequest) -> HttpResponse:
        """The same as JSON."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        seen = look()
        return JsonResponse({"problem": seen.problem, **overview(seen.nodes, list(Node.objects.all())).as_json()})
