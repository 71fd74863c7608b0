"""The endpoints under /v1/, with and without a trailing slash: a redirect would drop a POST's body."""

from __future__ import annotations

from django.urls import re_path

from generation.openai import schema_views, views

urlpatterns = [
    re_path(r"^chat/completions/?$", views.ChatCompletions.as_view()),
    re_path(r"^completions/?$", views.Completions.as_view()),
    re_path(r"^models/?$", views.Models.as_view()),
    re_path(r"^models/(?P<name>.+)$", views.Model.as_view()),
    re_path(r"^openapi\.json$", schema_views.openapi_json),
    re_path(r"^docs/?$", schema_views.docs),
    re_path(r"", views.unknown_url),
]
