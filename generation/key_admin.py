"""API keys, their limits and what they used, in the admin."""

from __future__ import annotations

import contextlib
from typing import Any

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.db import models
from django.db.models import QuerySet
from django.forms import Textarea
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from rest_framework_api_key.admin import APIKeyModelAdmin
from rest_framework_api_key.models import APIKey as StockAPIKey

from generation.key_usage import totals_of_use
from generation.models import APIKey, KeyUsage
from generation.read_only_admin import ReadOnlyAdmin
from nodes.amounts import MISSING

# Two lists of keys, of which one opens nothing, would mislead. Importing the library's admin registers it.
with contextlib.suppress(NotRegistered):
    admin.site.unregister(StockAPIKey)


class KeyFilter(admin.SimpleListFilter):
    """By API key. Django's own filter would put primary keys into links, and those hold the keys' hashes."""

    title = "API key"
    parameter_name = "key"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return list(APIKey.objects.order_by("name").values_list("prefix", "name"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(api_key__prefix=self.value()) if self.value() else queryset


@admin.register(APIKey)
class APIKeyAdmin(APIKeyModelAdmin):
    """Keys of the clients. A new key is shown once, in the message after saving; then only its prefix."""

    list_display = ("name", "prefix", "created", "expiry_date", "_has_expired", "revoked", "last_used_at", "limits")
    list_filter = ("revoked", "created")
    fieldsets = (
        (None, {"fields": ("name", "prefix", "expiry_date", "revoked", "last_used_at", "used")}),
        (
            "Limits",
            {"fields": ("allowed_models", "requests_per_minute", "tokens_per_day", "concurrent_generations")},
        ),
    )
    formfield_overrides = {models.TextField: {"widget": Textarea(attrs={"rows": 3})}}  # noqa: RUF012  # Django's shape

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*super().get_readonly_fields(request, obj), "last_used_at", "used")

    @admin.display(description="limits")
    def limits(self, row: APIKey) -> str:
        """The limits of one key, as short as a column is."""
        words = [
            f"{number:,} {what}"
            for number, what in (
                (row.requests_per_minute, "requests/min"),
                (row.tokens_per_day, "tokens/day"),
                (row.concurrent_generations, "at once"),
            )
            if number is not None
        ]
        if row.model_ids:
            words.append(f"{len(row.model_ids)} model" + "s" * (len(row.model_ids) > 1))
        return ", ".join(words) or MISSING

    @admin.display(description="usage")
    def used(self, row: APIKey) -> str:
        if not row.prefix:
            return MISSING
        url = reverse("admin:generation_keyusage_changelist")
        return format_html('<a href="{}?key={}">what it used, day by day</a>', url, row.prefix)


@admin.register(KeyUsage)
class KeyUsageAdmin(ReadOnlyAdmin):
    """What keys used on each day, with the totals of what is filtered."""

    list_display = ("day", "key", "prefix", "requests", "prompt_tokens", "completion_tokens")
    list_display_links = None
    list_filter = (KeyFilter, ("day", admin.DateFieldListFilter))
    list_select_related = ("api_key",)
    date_hierarchy = "day"
    ordering = ("-day", "api_key__name")

    class Media:
        css = {"all": ("generation/generation.css",)}  # noqa: RUF012  # Django's own shape

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None) or {}
        if "cl" in context:  # the list itself, not a redirect
            context["totals"] = totals_of_use(context["cl"].queryset)
        return response

    @admin.display(description="key", ordering="api_key__name")
    def key(self, row: KeyUsage) -> str:
        return row.api_key.name

    @admin.display(description="prefix", ordering="api_key__prefix")
    def prefix(self, row: KeyUsage) -> str:
        return row.api_key.prefix
