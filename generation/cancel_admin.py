"""Cancelling from the admin: an action of the list, a button of the page, and the page that asks first."""

from __future__ import annotations

from typing import cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from generation.cancel import request_cancel
from generation.models import Generation


class CancelsGenerations(admin.ModelAdmin):
    """What the admin of generations can do to running ones; needs `generation.cancel_generation`."""

    actions = ("cancel_selected",)

    def get_urls(self) -> list[URLPattern]:
        cancel = path("cancel/", self.admin_site.admin_view(self.cancel_view), name="generation_generation_cancel")
        return [cancel, *super().get_urls()]

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("generation.cancel_generation")

    def may_be_cancelled(self, request: HttpRequest, row: Generation) -> bool:
        running = row.status == Generation.Status.RUNNING and not row.cancel_requested
        return running and self.has_cancel_permission(request)

    @admin.action(description="Cancel selected generations", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, rows: QuerySet[Generation]) -> HttpResponse | None:
        return self._ask_to_cancel(request, rows)

    @method_decorator(require_POST)
    def cancel_view(self, request: HttpRequest) -> HttpResponse:
        """Cancels the rows numbered in `generation` once `confirmed` is sent too; before that it asks."""
        if not self.has_cancel_permission(request):
            raise PermissionDenied
        numbers = [number for number in request.POST.getlist("generation") if _is_number(number)]
        rows = Generation.objects.filter(pk__in=numbers)
        if not request.POST.get("confirmed"):
            return self._ask_to_cancel(request, rows) or HttpResponseRedirect(self._back(request, numbers))
        asked = request_cancel(rows)
        if asked:
            LogEntry.objects.log_actions(
                user_id=cast(int, request.user.pk),
                queryset=asked,
                action_flag=CHANGE,
                change_message="Cancelled on request.",
            )
            them = "1 generation was" if len(asked) == 1 else f"{len(asked)} generations were"
            messages.success(request, f"{them} told to end; a head worker acts on that within about a second.")
        if len(asked) < len(set(numbers)):
            messages.warning(request, "What was not running any more, or was told to end before, stays as it is.")
        return HttpResponseRedirect(self._back(request, numbers))

    def _ask_to_cancel(self, request: HttpRequest, rows: QuerySet[Generation]) -> HttpResponse | None:
        """The page that says what will happen; None, with a message, when nothing of it runs."""
        chosen = rows.count()
        running = list(
            rows.filter(status=Generation.Status.RUNNING, cancel_requested=False).select_related("api_key")
        )  # fmt: skip
        if not running:
            messages.warning(request, "Nothing of what was selected is running; nothing was cancelled.")
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": "Cancel running generations",
            "opts": self.opts,
            "running": running,
            "others": chosen - len(running),
            "back": self._back(request, [str(row.pk) for row in running]),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/generation/generation/cancel_confirmation.html", context)

    def _back(self, request: HttpRequest, numbers: list[str]) -> str:
        """Where to go afterwards: the one generation that it was about, else the list, as far as one may see them."""
        if not self.has_view_permission(request):
            return reverse("admin:index")
        if len(set(numbers)) == 1 and Generation.objects.filter(pk=numbers[0]).exists():
            return reverse("admin:generation_generation_change", args=(numbers[0],))
        return reverse("admin:generation_generation_changelist")


def _is_number(text: str) -> bool:
    """Of a row: no other text, and none too long for a database, comes as far as a query."""
    return text.isascii() and text.isdecimal() and len(text) <= 18
