"""The head's endpoints for nodes."""

from __future__ import annotations

from django.urls import path

from nodes import mesh_views

urlpatterns = [
    path("mesh/announce", mesh_views.announce),
    path("mesh/join", mesh_views.join),
]
