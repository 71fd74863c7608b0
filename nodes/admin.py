"""Nodes and their live sessions in the admin. The numbers on these pages were just read from the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from nodes import live, registry
from nodes.amounts import MISSING, human_bytes, human_seconds
from nodes.errors import MeshnetError
from nodes.live import NodeEviction, NodeSnapshot
from nodes.models import KVSession, Node
from nodes.session_page import SessionPage, session_page


def _look(request: HttpRequest) -> list[NodeSnapshot]:
    """One snapshot of every node; when no mesh is known the page says so and shows none."""
    try:
        return live.fetch(registry.node_clients())
    except MeshnetError as error:
        messages.warning(request, error.detail)
        return []


class LiveChangeList(ChangeList):
    """Gives each node of the page its snapshot as `live`: one fetch for all of them, never one per row."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        snapshots = {snapshot.url: snapshot for snapshot in _look(request)}
        for node in self.result_list:
            node.live = snapshots.get(node.url)


@admin.register(Node)
class NodeAdmin(admin.ModelAdmin):
    list_display = (
        "url",
        "state",
        "live_layers",
        "model_name",
        "sessions",
        "ttl",
        "cache_bytes",
        "evictions",
        "last_error",
    )
    list_display_links = ("url",)
    search_fields = ("url", "model_name")
    fieldsets = (
        (None, {"fields": ("url", "state", "last_error", "seen_at")}),
        (
            "Live",
            {"fields": ("live_layers", "sessions", "ttl", "cache_bytes", "hits", "misses", "evictions")},
        ),
        (
            "Shard",
            {"fields": ("model_name", "fingerprint", "dtype", "device", "version", "boot_id", "added_at")},
        ),
    )
    readonly_fields = (
        "state",
        "live_layers",
        "sessions",
        "ttl",
        "cache_bytes",
        "hits",
        "misses",
        "evictions",
        "last_error",
    )

    class Media:
        css = {"all": ("nodes/live.css",)}  # noqa: RUF012  # Django's own shape

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        # Django's own title asks to select a node, which is not what people come for.
        return super().changelist_view(request, {"title": "Nodes", **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LiveChangeList

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        node = kwargs.get("obj")
        if node is not None:
            node.live = next((snapshot for snapshot in _look(request) if snapshot.url == node.url), None)
        return super().render_change_form(request, context, *args, **kwargs)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    @admin.display(description="state")
    def state(self, node: Node) -> str:
        snapshot = _live(node)
        if snapshot is None:
            return format_html('<span class="mesh-state mesh-{0}">{0}</span>', "absent")
        return format_html('<span class="mesh-state mesh-{0}">{0}</span>', snapshot.state)

    @admin.display(description="layers", ordering="start_layer")
    def live_layers(self, node: Node) -> str:
        snapshot = _live(node)
        return (snapshot.layers if snapshot else "") or node.layers or MISSING

    @admin.display(description="sessions")
    def sessions(self, node: Node) -> str:
        snapshot = _heard(node)
        if snapshot is None:
            return MISSING
        query = urlencode({"node": node.url})
        url = reverse("admin:nodes_kvsession_changelist")
        return format_html('<a href="{}?{}">{} / {}</a>', url, query, *snapshot.slots)

    @admin.display(description="TTL")
    def ttl(self, node: Node) -> str:
        snapshot = _heard(node)
        return human_seconds(snapshot.limits.get("ttl_seconds")) if snapshot else MISSING

    @admin.display(description="cache bytes")
    def cache_bytes(self, node: Node) -> str:
        snapshot = _heard(node)
        if snapshot is None:
            return MISSING
        return f"{human_bytes(snapshot.stats.get('bytes'))} / {human_bytes(snapshot.limits.get('max_bytes'))}"

    @admin.display(description="hits")
    def hits(self, node: Node) -> str:
        snapshot = _heard(node)
        return str(snapshot.stats.get("hits", MISSING)) if snapshot else MISSING

    @admin.display(description="misses")
    def misses(self, node: Node) -> str:
        return _by_reason(_heard(node), "misses")

    @admin.display(description="evictions")
    def evictions(self, node: Node) -> str:
        return _by_reason(_heard(node), "evictions")

    @admin.display(description="last error")
    def last_error(self, node: Node) -> str:
        snapshot = _live(node)
        return (snapshot.cause if snapshot else "") or MISSING


@admin.register(KVSession)
class KVSessionAdmin(admin.ModelAdmin):
    """The live session page. The model has no table: nothing here may ask the database for rows of it."""

    def get_urls(self) -> list[URLPattern]:
        # Only these two: the stock pages would look for a table.
        protect = self.admin_site.admin_view
        return [
            path("", protect(self.changelist_view), name="nodes_kvsession_changelist"),
            path("evict/", protect(self.evict_view), name="nodes_kvsession_evict"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_evict_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("nodes.evict_kvsession")

    @method_decorator((require_safe, never_cache))
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        page: SessionPage = session_page(
            _look(request), node=request.GET.get("node", ""), session=request.GET.get("session_id", "")
        )
        context = {
            **self.admin_site.each_context(request),
            "title": "Live sessions",
            "opts": self.opts,
            "page": page,
            "asked_at": timezone.now(),
            "may_evict": self.has_evict_permission(request),
            "generations": _generations_url(request),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/nodes/kvsession/change_list.html", context)

    @method_decorator(require_POST)
    def evict_view(self, request: HttpRequest) -> HttpResponse:
        """Evicts the sessions named in `session` on every node, says what each node did, and logs it."""
        if not self.has_evict_permission(request):
            raise PermissionDenied
        ids = list(dict.fromkeys(request.POST.getlist("session")))
        back = "admin:nodes_kvsession_changelist" if self.has_view_permission(request) else "admin:index"
        if not ids:
            messages.warning(request, "No session was selected; nothing was evicted.")
            return HttpResponseRedirect(reverse(back))
        try:
            results = live.evict(registry.node_clients(), ids=ids)
        except MeshnetError as error:
            messages.error(request, error.detail)
            return HttpResponseRedirect(reverse(back))
        _log(request, ids, results)
        _tell(request, ids, results)
        return HttpResponseRedirect(reverse(back))


def _live(node: Node) -> NodeSnapshot | None:
    """The snapshot that the page gave this row; None when the node is not one of the mesh's."""
    return getattr(node, "live", None)


def _heard(node: Node) -> NodeSnapshot | None:
    snapshot = _live(node)
    return snapshot if snapshot is not None and snapshot.sessions is not None else None


def _by_reason(snapshot: NodeSnapshot | None, kind: str) -> str:
    counts = snapshot.stats.get(kind) if snapshot is not None else None
    if not isinstance(counts, dict):
        return MISSING
    return ", ".join(f"{reason} {count}" for reason, count in counts.items() if count) or "0"


def _generations_url(request: HttpRequest) -> str:
    """The list of generations, if this admin has one (another app's page) that the user may see; else ''."""
    if not request.user.has_perm("generation.view_generation"):
        return ""
    try:
        return reverse("admin:generation_generation_changelist")
    except NoReverseMatch:
        return ""


def _log(request: HttpRequest, ids: Sequence[str], results: Sequence[NodeEviction]) -> None:
    """One log entry per session that was evicted somewhere, or that a failing node may have evicted."""
    failed = any(result.error for result in results)
    touched = [session for session in ids if failed or any(session in result.evicted for result in results)]
    if not touched:
        return
    said = "; ".join(
        f"{result.url}: {live.cause(result.url, result.error) or f'{len(result.evicted)} evicted'}"
        for result in results
        if result.error or result.evicted
    )
    LogEntry.objects.log_actions(
        user_id=cast(int, request.user.pk),
        queryset=[KVSession(pk=session) for session in touched],
        action_flag=DELETION,
        change_message=f"Evicted on request ({said}).",
    )


def _tell(request: HttpRequest, ids: Sequence[str], results: Sequence[NodeEviction]) -> None:
    for result in results:
        if result.error:
            messages.error(request, f"{result.url}: not confirmed: {live.cause(result.url, result.error)}")
        elif result.evicted:
            messages.success(request, f"{result.url}: evicted {len(result.evicted)} of {len(ids)} selected.")
        else:
            messages.warning(request, f"{result.url}: held none of the selected sessions any more.")
