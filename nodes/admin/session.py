"""The live sessions of all nodes, and evicting them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import DELETION
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from nodes import live, registry
from nodes.admin.looking import LiveAdmin, is_confirmed, log, look, shared_snapshots
from nodes.amounts import human_seconds, parse_seconds
from nodes.errors import BadRequest, MeshnetError
from nodes.live import NodeEviction
from nodes.models import KVSession
from nodes.session_page import SessionPage, session_page

#: Of more nodes than this a message each would drown the page: the rest are counted.
MOST_MESSAGES = 20


@admin.register(KVSession)
class KVSessionAdmin(LiveAdmin):
    """The model has no table: nothing here may ask the database for rows of it."""

    def get_urls(self) -> list[URLPattern]:
        # Only these: the stock pages would look for a table.
        protect = self.admin_site.admin_view
        return [
            path("", protect(self.changelist_view), name="nodes_kvsession_changelist"),
            path("data.json", protect(self.data_view), name="nodes_kvsession_data"),
            path("evict/", protect(self.evict_view), name="nodes_kvsession_evict"),
        ]

    def has_evict_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("nodes.evict_kvsession")

    @method_decorator((require_safe, never_cache))
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        seen = look()
        query = request.GET.copy()
        for name in ("p", "fragment"):
            query.pop(name, None)
        context = {
            "page": _page(request, seen.nodes),
            "problem": seen.problem,
            "urls": [node.url for node in seen.nodes],
            "query": query.urlencode(),
            "may_evict": self.has_evict_permission(request),
            "generations": generations_url(request),
        }
        return self.live_page(request, "sessions", "Live sessions", context)

    @method_decorator((require_safe, never_cache))
    def data_view(self, request: HttpRequest) -> HttpResponse:
        """The same as JSON, with the same filters."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        seen = look()
        return JsonResponse({"problem": seen.problem, **_page(request, seen.nodes).as_json()})

    @method_decorator(require_POST)
    def evict_view(self, request: HttpRequest) -> HttpResponse:
        """Says what an eviction will do; once that is confirmed does it, says what each node did, and logs it."""
        if not self.has_evict_permission(request):
            raise PermissionDenied
        back = reverse(
            "admin:nodes_kvsession_changelist" if self.has_view_permission(request) else "admin:index",
        )
        try:
            selection = Selection.read(request.POST)
            clients = live.choose(registry.node_clients(), [selection.node] if selection.node else [])
        except MeshnetError as error:
            messages.warning(request, error.detail)
            return HttpResponseRedirect(back)
        if not is_confirmed(request):
            return self._rehearse(request, selection, back)
        results = live.evict(clients, **selection.which)
        shared_snapshots().forget()
        _log(request, selection, results)
        _tell(request, selection, results)
        return HttpResponseRedirect(back)

    def _rehearse(self, request: HttpRequest, selection: Selection, back: str) -> HttpResponse:
        shared_snapshots().forget()
        seen = [node for node in look().nodes if not selection.node or node.url == selection.node]
        results = live.would_evict([node.now for node in seen], **selection.which)
        busy = {entry["id"] for node in seen for entry in node.now.entries if entry.get("busy")}
        chosen = {session for result in results for session in result.evicted}
        lines = [
            (result.url, _expected(result, selection), bool(result.error))
            for result in results
            if result.error or result.evicted or len(results) <= MOST_MESSAGES
        ]
        return self.confirmation(
            request,
            f"Evict {selection.words}?",
            fields=selection.fields,
            back=back,
            lines=lines,
            warning="",
            says=[
                _count(len(chosen), "session")
                + (f" on {selection.node}" if selection.node else "")
                + f" would go now, {len(chosen & busy)} of them with a step under way.",
                "Evicting frees the session's cache on its nodes; it ends no answer. An answer that is being written "
                "goes on: its next step sends the whole text so far once more, and the session comes back with a new "
                "age.",
            ],
            do="Evict",
        )


@dataclass(frozen=True)
class Selection:
    """Which sessions a form asks to evict: `which` as `live.evict` takes it, `fields` as the form sends it."""

    which: dict[str, Any]
    node: str
    words: str
    fields: list[tuple[str, str]]

    @classmethod
    def read(cls, form: QueryDict) -> Selection:
        """Raises BadRequest when nothing is selected, or an idle time that cannot be read."""
        node = form.get("node", "").strip()
        kept = [("node", node)] if node else []
        on_node = f" on {node}" if node else ""
        if form.get("all"):
            return cls({"everything": True}, node, f"all sessions{on_node}", [("all", "1"), *kept])
        if "idle_longer_than" in form:
            text = form.get("idle_longer_than", "").strip()[:50]
            try:
                seconds = parse_seconds(text)
            except ValueError as error:
                raise BadRequest(f"{error} Nothing was evicted.") from None
            words = f"all sessions idle for longer than {human_seconds(seconds)}{on_node}"
            return cls({"idle_longer_than": seconds}, node, words, [("idle_longer_than", text), *kept])
        ids = list(dict.fromkeys(form.getlist("session")))
        if not ids:
            raise BadRequest("No session was selected; nothing was evicted.")
        words = f"{_count(len(ids), 'selected session')}{on_node}"
        return cls({"ids": ids}, node, words, [*(("session", one) for one in ids), *kept])

    @property
    def ids(self) -> list[str]:
        """The sessions that were named one by one."""
        return self.which.get("ids", [])


def generations_url(request: HttpRequest) -> str:
    """The list of generations, if this admin has one (another app's page) that the user may see; else ''."""
    if not request.user.has_perm("generation.view_generation"):
        return ""
    try:
        return reverse("admin:generation_generation_changelist")
    except NoReverseMatch:
        return ""


def _page(request: HttpRequest, nodes: Sequence[Any]) -> SessionPage:
    number = request.GET.get("p", "1")
    return session_page(
        nodes,
        node=request.GET.get("node", "").strip(),
        session=request.GET.get("session_id", "").strip(),
        number=int(number) if number.isascii() and number.isdecimal() and len(number) < 7 else 1,
    )


def _expected(result: NodeEviction, selection: Selection) -> str:
    if result.error:
        return f"cannot be asked now: {live.cause(result.url, result.error)}"
    if selection.ids:
        return f"holds {len(result.evicted)} of the {len(selection.ids)} selected"
    return f"holds {_count(len(result.evicted), 'such session')}"


def _log(request: HttpRequest, selection: Selection, results: Sequence[NodeEviction]) -> None:
    """One log entry per session that was evicted somewhere, or that a failing node may have evicted."""
    evicted = dict.fromkeys(session for result in results for session in result.evicted)
    failed = any(result.error for result in results)
    touched = list(dict.fromkeys([*selection.ids, *evicted])) if failed else list(evicted)
    if failed and not touched:
        touched = [selection.words]
    if not touched:
        return
    said = "; ".join(
        f"{result.url}: {live.cause(result.url, result.error) or f'{len(result.evicted)} evicted'}"
        for result in results
        if result.error or result.evicted
    )
    message = f"Evicted on request, {selection.words} ({said[:2000]})."
    log(request, [KVSession(pk=session) for session in touched], DELETION, message)


def _tell(request: HttpRequest, selection: Selection, results: Sequence[NodeEviction]) -> None:
    """A message per node; of many nodes those that failed or did something, and how many more there are."""
    many = len(results) > MOST_MESSAGES
    told = [result for result in results if not many or result.error or result.evicted]
    for result in told[:MOST_MESSAGES]:
        if result.error:
            messages.error(request, f"{result.url}: not confirmed: {live.cause(result.url, result.error)}")
        elif result.evicted and selection.ids:
            messages.success(request, f"{result.url}: evicted {len(result.evicted)} of {len(selection.ids)} selected.")
        elif result.evicted:
            messages.success(request, f"{result.url}: evicted {_count(len(result.evicted), 'session')}.")
        elif selection.ids:
            messages.warning(request, f"{result.url}: held none of the selected sessions any more.")
        else:
            messages.warning(request, f"{result.url}: held no such session.")
    rest = told[MOST_MESSAGES:]
    if rest:
        evicted, failed = sum(len(result.evicted) for result in rest), sum(bool(result.error) for result in rest)
        messages.warning(
            request, f"{_count(len(rest), 'more node')}: evicted {_count(evicted, 'session')}, {failed} not confirmed."
        )
    elif not told:
        messages.warning(request, "No node held such a session.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
