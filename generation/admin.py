"""Generations and head workers in the admin; API keys are in `key_admin`, which is loaded with this."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from generation.cancel_admin import CancelsGenerations
from generation.keeper import SILENT_AFTER
from generation.key_admin import KeyFilter
from generation.models import Generation, HeadWorker
from generation.read_only_admin import ReadOnlyAdmin
from generation.timeline import time_line
from generation.totals import totals_of
from nodes.amounts import MISSING


@admin.register(Generation)
class GenerationAdmin(CancelsGenerations, ReadOnlyAdmin):
    list_display = (
        "session", "started", "status_word", "finish", "prompt", "answer",
        "first_token", "speed", "prefills", "misses", "failovers", "model_word",
    )  # fmt: skip
    list_filter = ("status", "finish_reason", "model_name", KeyFilter, ("started_at", admin.DateFieldListFilter))
    list_select_related = ("api_key",)
    date_hierarchy = "started_at"
    search_fields = ("session_id", "model_name", "error")
    search_help_text = "Session id, model or error."
    # A tuple inside is one line of the page.
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("session_id", "live_session"),
                    ("status_word", "finish_reason", "cancel_requested", "streamed"),
                    "error",
                )
            },
        ),
        (
            "Times and tokens",
            {
                "fields": (
                    ("started_at", "finished_at", "took"),
                    ("first_token", "speed"),
                    ("prompt_tokens", "completion_tokens"),
                )
            },
        ),
        ("Cache", {"fields": (("cached", "prefills", "cache_misses", "failovers"),)}),
        ("Who and where", {"fields": ("model_name", "fingerprint", "route_table", "key", "owner")}),
    )
    readonly_fields = ("live_session", "status_word", "took", "first_token", "speed", "route_table", "key")

    class Media:
        css = {"all": ("nodes/live.css", "generation/generation.css")}  # noqa: RUF012  # Django's own shape

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None) or {}
        if "cl" in context:  # the list itself, not a redirect nor an action's page
            context["totals"] = totals_of(context["cl"].queryset)
        return response

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        row = kwargs.get("obj")
        if row is not None:
            context["line"] = time_line(row)
            context["may_cancel"] = self.may_be_cancelled(request, row)
        return super().render_change_form(request, context, *args, **kwargs)

    # -- columns and fields

    @admin.display(description="session", ordering="session_id")
    def session(self, row: Generation) -> str:
        return format_html('<code title="{}">{}…</code>', row.session_id, row.session_id[:10])

    @admin.display(description="status", ordering="status")
    def status_word(self, row: Generation) -> str:
        ending = " (told to end)" if row.cancel_requested and row.status == Generation.Status.RUNNING else ""
        return format_html('<span class="mesh-state mesh-{0}">{0}</span>{1}', row.status, ending)

    @admin.display(description="model", ordering="model_name")
    def model_word(self, row: Generation) -> str:
        return format_html('<span class="mesh-whole">{}</span>', row.model_name)

    @admin.display(description="finish", ordering="finish_reason")
    def finish(self, row: Generation) -> str:
        return row.finish_reason or MISSING

    @admin.display(description="prompt", ordering="prompt_tokens")
    def prompt(self, row: Generation) -> int:
        return row.prompt_tokens

    @admin.display(description="answer", ordering="completion_tokens")
    def answer(self, row: Generation) -> int:
        return row.completion_tokens

    @admin.display(description="misses", ordering="cache_misses")
    def misses(self, row: Generation) -> int:
        return row.cache_misses

    @admin.display(description="started", ordering="started_at")
    def started(self, row: Generation) -> str:
        moment = timezone.localtime(row.started_at)
        return format_html('<span class="mesh-whole">{}</span>', f"{moment:%Y-%m-%d %H:%M:%S}")

    @admin.display(description="first token", ordering="time_to_first_token")
    def first_token(self, row: Generation) -> str:
        return MISSING if row.time_to_first_token is None else f"{row.time_to_first_token:.2f} s"

    @admin.display(description="tokens/s", ordering="tokens_per_second")
    def speed(self, row: Generation) -> str:
        return MISSING if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}"

    @admin.display(description="API key")
    def key(self, row: Generation) -> str:
        return MISSING if row.api_key is None else f"{row.api_key.name} ({row.api_key.prefix})"

    @admin.display(description="took")
    def took(self, row: Generation) -> str:
        if row.finished_at is None:
            return MISSING
        return f"{(row.finished_at - row.started_at).total_seconds():.2f} s"

    @admin.display(description="live session")
    def live_session(self, row: Generation) -> str:
        if row.status != Generation.Status.RUNNING:
            return MISSING
        try:
            url = reverse("admin:nodes_kvsession_changelist")
        except NoReverseMatch:
            return MISSING
        return format_html('<a href="{}?session_id={}">see it on the nodes</a>', url, row.session_id)

    @admin.display(description="route")
    def route_table(self, row: Generation) -> str:
        hops = [hop for hop in row.route if isinstance(hop, dict)] if isinstance(row.route, list) else []
        if not hops:
            return MISSING
        lines = format_html_join(
            "",
            "<tr><td>{}:{}</td><td>{}</td></tr>",
            ((hop.get("start", "?"), hop.get("end", "?"), hop.get("node", "?")) for hop in hops),
        )
        head = mark_safe("<tr><th>Layers</th><th>Node</th></tr>")  # a constant
        return format_html("<table><thead>{}</thead><tbody>{}</tbody></table>", head, lines)


@admin.register(HeadWorker)
class HeadWorkerAdmin(ReadOnlyAdmin):
    list_display = ("hostname", "pid", "alive", "started_at", "beat_at", "boot_id")
    list_display_links = None
    ordering = ("-beat_at",)

    @admin.display(description="alive", boolean=True)
    def alive(self, row: HeadWorker) -> bool:
        return row.beat_at > timezone.now() - SILENT_AFTER
