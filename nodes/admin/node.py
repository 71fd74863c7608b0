"""Nodes: the list of their rows, and a page for each, from which a running node is limited, drained and removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from nodes import live, registry, samples
from nodes.admin.looking import LiveAdmin, is_confirmed, log, look, shared_snapshots
from nodes.admin.session import generations_url
from nodes.amounts import MISSING
from nodes.client import NodeClient
from nodes.coverage import cover
from nodes.curves import curves
from nodes.errors import MeshnetError, NotFound
from nodes.models import Node
from nodes.node_page import last_errors, limit_changes, limit_fields, started_at
from nodes.overview import NodeLine, node_line
from nodes.presence import presence
from nodes.session_page import session_page
from nodes.snapshots import SeenNode


class LiveChangeList(ChangeList):
    """Gives each row of the page what was seen of its node: one look for all of them, never one per row."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        seen = look()
        if seen.problem:
            messages.warning(request, seen.problem)
        by_url = {node.url: node for node in seen.nodes}
        for row in self.result_list:
            row.line = node_line(by_url.get(row.url), row)


@dataclass(frozen=True)
class Act:
    """Something that is done to a node after a confirmation. `draining` or `removed` is what becomes of it."""

    do: str
    says: str
    done: str
    draining: bool | None = None
    removed: bool | None = None
    takes_away: bool = False


ACTS = {
    "drain": Act(
        "Drain",
        "The node takes no new sessions from now on; answers that are being written go on until they end. It lasts "
        "until it is undone here or the node restarts.",
        "drains: no new sessions, running ones finish.",
        draining=True,
        takes_away=True,
    ),
    "undrain": Act("Undrain", "The node takes new sessions again.", "takes new sessions again.", draining=False),
    "remove": Act(
        "Remove",
        "No new generation goes through this node once the heads' keepers have seen it, within about 5 seconds. "
        "Answers that run through it now go on. The node itself keeps running; it stays removed, over restarts too, "
        "until it is brought back here.",
        "is removed: new generations leave it out.",
        removed=True,
        takes_away=True,
    ),
    "restore": Act(
        "Bring back",
        "New generations may go through this node again, within about 5 seconds.",
        "is back: new generations may use it.",
        removed=False,
    ),
}


@admin.register(Node)
class NodeAdmin(LiveAdmin):
    list_display = (
        "url",
        "live_state",
        "known",
        "live_layers",
        "model_name",
        "live_sessions",
        "ttl",
        "cache_bytes",
        "evictions",
        "last_error",
    )
    search_fields = ("url", "model_name")

    class Media:
        css = {"all": ("nodes/live.css",)}  # noqa: RUF012  # Django's own shape

    def get_urls(self) -> list[URLPattern]:
        protect = self.admin_site.admin_view
        acts = [
            path(f"<int:pk>/{name}/", protect(self.act_view), {"name": name}, name=f"nodes_node_{name}")
            for name in ACTS
        ]
        limits = path("<int:pk>/limits/", protect(self.limits_view), name="nodes_node_limits")
        return [limits, *acts, *super().get_urls()]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # Of nodes that are not of the mesh any more somebody has to clear away the row.
        return request.user.has_perm("nodes.delete_node")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        # Django's own title asks to select a node, which is not what people come for.
        return super().changelist_view(request, {"title": "Nodes", **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return LiveChangeList

    # -- the list

    @admin.display(description="state")
    def live_state(self, row: Node) -> str:
        return format_html('<span class="mesh-state mesh-{0}">{0}</span>', _line(row).state)

    @admin.display(description="known", ordering="announced_at")
    def known(self, row: Node) -> str:
        return presence(row, timezone.now()) or MISSING

    @admin.display(description="layers", ordering="start_layer")
    def live_layers(self, row: Node) -> str:
        return _line(row).layers

    @admin.display(description="sessions")
    def live_sessions(self, row: Node) -> str:
        line = _line(row)
        if line.sessions.used == MISSING:
            return MISSING
        return _cell(line, f"{line.sessions.used} / {line.sessions.limit}")

    @admin.display(description="TTL")
    def ttl(self, row: Node) -> str:
        return _cell(_line(row), _line(row).ttl)

    @admin.display(description="cache bytes")
    def cache_bytes(self, row: Node) -> str:
        size = _line(row).bytes
        return _cell(_line(row), MISSING if size.used == MISSING else f"{size.used} / {size.limit}")

    @admin.display(description="evictions")
    def evictions(self, row: Node) -> str:
        return _cell(_line(row), _line(row).evictions)

    @admin.display(description="last error")
    def last_error(self, row: Node) -> str:
        return _line(row).problem or MISSING

    # -- a node's page

    @method_decorator((require_safe, never_cache))
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        seen = look()
        node = next((one for one in seen.nodes if one.url == row.url), None)
        line, now, interval = node_line(node, row), timezone.now(), settings.MESHNET_SAMPLE_SECONDS
        points = samples.last_hour(now, interval, node_id=row.pk).get(row.pk, [])
        context = {
            "row": row,
            "node": line,
            "presence": presence(row, now),
            "problem": seen.problem,
            "is_member": node is not None,
            "draining": node is not None and node.now.state == "draining",
            "page": session_page([node] if node is not None else []),
            "limits": limit_fields(node) if node is not None else [],
            "errors": last_errors(node) if node is not None else [],
            "started_at": started_at(node) if node is not None else None,
            "curves": curves({row.url: points} if points else {}, now=now, seconds=interval, colours={row.url: 0}),
            "may_limit": request.user.has_perm("nodes.limit_node"),
            "may_drain": request.user.has_perm("nodes.drain_node"),
            "may_delete": self.has_delete_permission(request),
            "may_see_sessions": request.user.has_perm("nodes.view_kvsession"),
            "generations": generations_url(request),
        }
        return self.live_page(request, "node", row.url, context)

    @method_decorator(require_POST)
    def limits_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Changes limits of the running node until its restart."""
        if not request.user.has_perm("nodes.limit_node"):
            raise PermissionDenied
        row = _row(pk)
        back = self._back(request, row)
        try:
            client = _client(row)
            node = next((one for one in look().nodes if one.url == row.url), None)
            changes = limit_changes(request.POST, node)
        except MeshnetError as error:
            messages.error(request, error.detail)
            return HttpResponseRedirect(back)
        if not changes:
            messages.warning(request, "Nothing was changed: these are the node's limits already.")
            return HttpResponseRedirect(back)
        said = ", ".join(f"{name} {value:.15g}" for name, value in changes.items())
        timeout = live.EVICT_DEADLINE_SECONDS
        problem = live.change(client, lambda one: one.set_limits(changes, timeout=timeout))
        shared_snapshots().forget()
        if problem:
            messages.error(request, f"Not changed: {live.cause(row.url, problem)}")
        else:
            log(request, [row], CHANGE, f"Limits changed until the node's restart: {said}.")
            messages.success(request, f"Changed until the node's restart: {said}.")
        return HttpResponseRedirect(back)

    @method_decorator(require_POST)
    def act_view(self, request: HttpRequest, pk: int, name: str) -> HttpResponse:
        """Drains, undrains, removes or brings back a node, once that is confirmed."""
        if not request.user.has_perm("nodes.drain_node"):
            raise PermissionDenied
        row, act = _row(pk), ACTS[name]
        back = self._back(request, row)
        if not is_confirmed(request):
            return self._ask(request, row, act, back)
        problem = None
        if act.draining is not None:
            problem = _set_draining(row, act.draining)
        if act.removed is not None:
            Node.objects.filter(pk=row.pk).update(is_removed=act.removed)
        shared_snapshots().forget()
        if problem:
            messages.error(request, f"{row.url}: not confirmed: {live.cause(row.url, problem)}")
        else:
            log(request, [row], CHANGE, f"{act.do}: {act.done}")
            messages.success(request, f"{row.url} {act.done}")
        return HttpResponseRedirect(back)

    def _ask(self, request: HttpRequest, row: Node, act: Act, back: str) -> HttpResponse:
        seen = look().nodes
        node = next((one for one in seen if one.url == row.url), None)
        line = node_line(node, row)
        state = f"is {line.state}, holds layers {line.layers} and {line.sessions.used} sessions"
        return self.confirmation(
            request,
            f"{act.do} {row.url}?",
            fields=[],
            back=back,
            lines=[(row.url, state, False)],
            warning=_gap_left(row, seen) if act.takes_away else "",
            says=[act.says],
            do=act.do,
        )

    def _back(self, request: HttpRequest, row: Node) -> str:
        if self.has_view_permission(request):
            return reverse("admin:nodes_node_change", args=[row.pk])
        return reverse("admin:index")


def _gap_left(row: Node, seen: list[SeenNode]) -> str:
    """Which layers nobody could serve to new generations without this node; '' when there are none."""
    gone = {row.url, *Node.objects.filter(is_removed=True).values_list("url", flat=True)}
    before = cover([node.now for node in seen if node.url not in gone or node.url == row.url])
    if before is None:
        return ""
    after = cover([node.now for node in seen if node.url not in gone], serves=before.serves)
    if after is None or not after.gaps or after.gaps == before.gaps:
        return ""
    gaps = ", ".join(str(gap) for gap in after.gaps)
    return f"No other ready node holds layers {gaps}: new chats will be refused until one does."


def _set_draining(row: Node, draining: bool) -> str | None:
    """Why the node did not confirm, or None."""
    timeout = live.EVICT_DEADLINE_SECONDS
    try:
        return live.change(_client(row), lambda one: one.set_draining(draining, timeout=timeout))
    except MeshnetError as error:
        return error.detail


def _client(row: Node) -> NodeClient:
    """Raises NotFound for a row whose node is not of the mesh, and NoMesh."""
    client = next((one for one in registry.node_clients() if one.url == row.url), None)
    if client is None:
        raise NotFound(f"{row.url} is not among this head's nodes any more.")
    return client


def _row(pk: int) -> Node:
    row = Node.objects.filter(pk=pk).first()
    if row is None:
        raise Http404
    return row


def _line(row: Any) -> NodeLine:
    """What the page gave this row."""
    line: NodeLine = row.line
    return line


def _cell(line: NodeLine, text: str) -> str:
    return format_html('<span class="mesh-old">{}</span>', text) if line.is_stale and text != MISSING else text
